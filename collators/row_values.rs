//! A number for each row of a batch that is known beforehand by the row's tokens: what a trainer has computed of them once.

use std::collections::HashMap;
use std::sync::Arc;

use tt_data::{DataError, Row};

use crate::batch::Batch;
use crate::field::{Field, IGNORE};
use crate::{Collator, Examples, Kept, Layout, Prediction};

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

/// A collator whose rows have such a number besides.
pub(crate) struct WithRowValues {
    pub(crate) collator: Arc<dyn Collator>,
    pub(crate) field: Field,
    pub(crate) values: Arc<RowValues>,
}

impl WithRowValues {
    fn add(&self, examples: &mut Examples) -> Result<(), DataError> {
        let most = examples.sequence_length();
        for example in examples.as_mut_slice() {
            let len = example.input_ids.len().min(most);
            let key = RowKey::of(&example.input_ids[..len], &example.labels[..len]);
            let value = self.values.get(&key).ok_or_else(|| {
                let why = "nothing was computed ahead for this row: the data has changed since";
                DataError::field(self.field.name, why.to_owned())
            })?;
            example.field(self.field.name)?.push(*value);
        }
        Ok(())
    }
}

#[deny(clippy::missing_trait_methods)] // one that is not handed on would be the trait's
impl Collator for WithRowValues {
    fn layout(&self) -> Layout {
        self.collator.layout()
    }

    fn fields(&self) -> Vec<Field> {
        let mut fields = self.collator.fields();
        fields.push(self.field);
        fields
    }

    fn prediction(&self) -> Prediction {
        self.collator.prediction()
    }

    fn columns(&self) -> Option<Vec<String>> {
        self.collator.columns()
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        self.collator.encode(row, examples)?;
        self.add(examples)
    }

    fn encode_part(
        &self,
        row: &Row,
        from: usize,
        examples: &mut Examples,
    ) -> Result<Option<usize>, DataError> {
        let next = self.collator.encode_part(row, from, examples)?;
        if next.is_none() {
            self.add(examples)?;
        }
        Ok(next)
    }

    fn finish(&self, examples: &mut Examples) -> Result<(), DataError> {
        self.collator.finish(examples)
    }

    fn hides_tokens(&self) -> bool {
        self.collator.hides_tokens()
    }

    fn may_leave_out(&self) -> bool {
        self.collator.may_leave_out()
    }

    fn keeps(&self) -> Option<Kept> {
        self.collator.keeps()
    }

    fn chat_template(&self) -> Option<String> {
        self.collator.chat_template()
    }

    fn answer_end(&self) -> Option<u32> {
        self.collator.answer_end()
    }

    fn name(&self) -> &'static str {
        self.collator.name()
    }
}
