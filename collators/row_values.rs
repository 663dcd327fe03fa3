//! A number for each row of a batch that is known beforehand by the row's tokens: what a trainer has computed of them once.

use std::collections::HashMap;
use std::sync::Arc;

use tt_data::DataError;

use crate::batch::Batch;
use crate::field::{Field, IGNORE, Values};

/// What stands for a row: a hash of its tokens and of which of them are to predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey(pub [u8; 16]);

/// Numbers by row.
pub type RowValues = HashMap<RowKey, f32>;

impl RowKey {
    /// Of one document at the beginning of a row. The first token's label is none, as nothing predicts it.
    pub fn of(input_ids: &[u32], labels: &[i64]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for (i, (id, &label)) in input_ids.iter().zip(labels).enumerate() {
            hasher.update(&id.to_le_bytes());
            let label = if i == 0 { IGNORE } else { label };
            hasher.update(&label.to_le_bytes());
        }
        let mut key = [0; 16];
        hasher.finalize_xof().fill(&mut key);
        Self(key)
    }

    /// Of each row of a batch of whole examples; `None` of a row of padding.
    pub fn of_batch(batch: &Batch) -> Vec<Option<Self>> {
        let rows = (0..batch.rows).map(|row| row * batch.seq_len..(row + 1) * batch.seq_len);
        rows.map(|row| {
            let segments = &batch.segment_ids[row.clone()];
            let tokens = segments.iter().filter(|&&segment| segment != 0).count();
            let row = row.start..row.start + tokens;
            (tokens > 0).then(|| Self::of(&batch.input_ids[row.clone()], &batch.labels[row]))
        })
        .collect()
    }
}

/// Such numbers, in a field of the batches.
#[derive(Clone)]
pub(crate) struct RowField {
    pub(crate) field: Field,
    pub(crate) values: Arc<RowValues>,
}

impl RowField {
    /// Fills the field, the last one of `batch`. Error: a row of which nothing is known.
    pub(crate) fn fill(&self, batch: &mut Batch) -> Result<(), DataError> {
        let keys = RowKey::of_batch(batch);
        let Some((_, Values::F32(numbers))) = batch.fields.last_mut() else {
            return Ok(());
        };
        for (number, key) in numbers.iter_mut().zip(keys) {
            let Some(key) = key else {
                continue;
            };
            *number = *self.values.get(&key).ok_or_else(|| {
                let why = "nothing was computed ahead for this row: the data has changed since";
                DataError::field(self.field.name, why)
            })?;
        }
        Ok(())
    }
}
