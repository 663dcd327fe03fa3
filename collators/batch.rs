//! A batch on the host: what one micro-step trains on.

use tt_data::Cursor;

/// The label of a position that the loss leaves out.
pub const IGNORE: i64 = -100;

/// Tokens of one micro-batch, `[rows, seq_len]` row by row, and the data position after it.
///
/// Labels are not shifted: the label of a token is the token itself, and the loss compares the
/// prediction at `t` with `labels[t + 1]`, as in Hugging Face.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    pub rows: usize,
    pub seq_len: usize,
    pub input_ids: Vec<u32>,
    /// [`IGNORE`] at the first token of each segment, so that no document predicts the next, and
    /// at padding.
    pub labels: Vec<i64>,
    /// Documents of a row counted from 1; 0 is padding. A token attends within its segment, so
    /// this is the attention mask too.
    pub segment_ids: Vec<u32>,
    /// Positions within the segment.
    pub position_ids: Vec<u32>,
    /// Labels that the loss counts.
    pub num_targets: usize,
    /// Where in the data each row begins; rows of padding alone are left out.
    pub starts: Vec<Cursor>,
    /// Where the data goes on after this batch.
    pub cursor: Cursor,
}

impl Batch {
    /// Makes every position padding, in the buffers that are there.
    pub(crate) fn clear(&mut self, rows: usize, seq_len: usize, pad_id: u32) {
        fn fill<T: Copy>(values: &mut Vec<T>, len: usize, value: T) {
            values.clear();
            values.resize(len, value);
        }
        let len = rows * seq_len;
        self.rows = rows;
        self.seq_len = seq_len;
        fill(&mut self.input_ids, len, pad_id);
        fill(&mut self.labels, len, IGNORE);
        fill(&mut self.segment_ids, len, 0);
        fill(&mut self.position_ids, len, 0);
        self.num_targets = 0;
        self.starts.clear();
    }

    /// Puts a segment at `start..start + ids.len()`, which is within a row.
    pub(crate) fn put(&mut self, start: usize, segment: u32, ids: &[u32], labels: &[i64]) {
        let range = start..start + ids.len();
        self.input_ids[range.clone()].copy_from_slice(ids);
        self.labels[range.clone()].copy_from_slice(labels);
        self.labels[start] = IGNORE;
        self.num_targets += labels[1..].iter().filter(|&&label| label != IGNORE).count();
        self.segment_ids[range.clone()].fill(segment);
        for (id, position) in self.position_ids[range].iter_mut().zip(0..) {
            *id = position;
        }
    }

    /// What the loss counts: each target with the token before it.
    pub fn targets(&self) -> impl Iterator<Item = (u32, u32)> {
        let rows = self
            .input_ids
            .chunks(self.seq_len)
            .zip(self.labels.chunks(self.seq_len));
        rows.flat_map(|(ids, labels)| ids.iter().zip(&labels[1..]))
            .filter(|&(_, &label)| label != IGNORE)
            .map(|(&id, &label)| (id, label as u32))
    }
}
