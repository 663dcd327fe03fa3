//! Which targets of a batch stand for text, and for how many bytes of it: what bits per byte are counted over.
//!
//! A target counts with its bytes and its loss, or with neither: the first token of a document, or of what a row begins with
//! in the midst of one, is predicted by nothing and is no target; the end of a document, and other special tokens, are targets
//! but no text.

use tt_data::{DataError, TokenBytes};

use crate::batch::Batch;
use crate::field::IGNORE;
use crate::layout::Prediction;

/// The targets of a batch that stand for text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextTargets {
    /// The batch's labels, [`IGNORE`] at all others.
    pub labels: Vec<i64>,
    /// How many there are.
    pub tokens: u64,
    /// Bytes of UTF-8 that they stand for.
    pub bytes: u64,
}

impl TextTargets {
    /// Those of `batch`; `None` if what is predicted is not the text that follows: tokens in their place, or some more than
    /// others.
    pub fn of(batch: &Batch, bytes: &TokenBytes<'_>) -> Result<Option<Self>, DataError> {
        if batch.prediction != Prediction::NextToken || batch.field(crate::WEIGHTS).is_some() {
            return Ok(None);
        }
        let mut found = Self {
            labels: vec![IGNORE; batch.labels.len()],
            tokens: 0,
            bytes: 0,
        };
        let is_text =
            |&at: &usize| u32::try_from(batch.labels[at]).is_ok_and(|label| bytes.is_text(label));
        for row in 0..batch.rows {
            let mut start = row * batch.seq_len;
            let segments = &batch.segment_ids[start..start + batch.seq_len];
            for segment in segments.chunk_by(|a, b| a == b) {
                let end = start + segment.len();
                let mut at = start;
                while segment[0] != 0 && at < end {
                    let run = (at..end).take_while(is_text).count();
                    let ids = &batch.input_ids;
                    if run > 0 {
                        let here = at..at + run;
                        found.labels[here.clone()].copy_from_slice(&batch.labels[here.clone()]);
                        found.tokens += run as u64;
                        found.bytes += bytes.count(&ids[start..at], &ids[here])? as u64;
                    }
                    at += run.max(1);
                }
                start = end;
            }
        }
        Ok(Some(found))
    }
}

#[cfg(test)]
mod tests {
    use tt_data::Tokenizer;

    use super::*;

    #[test]
    fn firsts_ends_and_padding_have_neither_loss_nor_bytes() {
        let tokenizer = Tokenizer::bytes().unwrap();
        let end = i64::from(tokenizer.eos_id());
        let id = |byte: char| i64::from(tokenizer.encode(&byte.to_string()).unwrap()[0]);
        // "ab" and its end, then "c" of a document that goes on in the second row with "de".
        let row = [
            [id('a'), id('b'), end, id('c')],
            [id('d'), id('e'), end, end],
        ];
        let segments = [[1, 1, 1, 2], [1, 1, 1, 0]];
        let mut labels = row;
        labels[0][0] = IGNORE;
        labels[0][3] = IGNORE;
        labels[1][0] = IGNORE;
        labels[1][3] = IGNORE;
        let mut batch = Batch {
            rows: 2,
            seq_len: 4,
            input_ids: row.concat().iter().map(|&id| id as u32).collect(),
            labels: labels.concat(),
            segment_ids: segments.concat(),
            ..Batch::default()
        };
        let bytes = TokenBytes::of(&tokenizer);
        let found = TextTargets::of(&batch, &bytes).unwrap().unwrap();
        assert_eq!((found.tokens, found.bytes), (2, 2), "b and e");
        let i = IGNORE;
        assert_eq!(found.labels, [i, id('b'), i, i, i, id('e'), i, i]);
        batch.prediction = Prediction::SameToken;
        assert_eq!(TextTargets::of(&batch, &bytes).unwrap(), None);
    }
}
