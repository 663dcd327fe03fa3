//! A batch on the host: what one micro-step trains on.

use std::ops::Range;

use tt_data::Cursor;

use crate::example::{Example, LeftOut};
use crate::field::{Field, IGNORE, STANDARD, Slice, Values, WEIGHTS};
use crate::layout::Prediction;
use crate::spec::BatchSpec;

/// Fields of one micro-batch, `[rows, seq_len]` row by row, and the data position after it.
///
/// The label of a token stands at the token; [`Prediction`] tells which output of the model is compared with it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Rows: `B` of the shapes.
    pub rows: usize,
    /// Tokens of a row, padding included: `T` of the shapes.
    pub seq_len: usize,
    /// `[B, T]`, row by row.
    pub input_ids: Vec<u32>,
    /// [`IGNORE`] at padding, and for [`Prediction::NextToken`] at the first token of each segment, so that no document
    /// predicts the next.
    pub labels: Vec<i64>,
    /// Documents of a row counted from 1; 0 is padding. A token attends within its segment, so
    /// this is the attention mask too.
    pub segment_ids: Vec<u32>,
    /// Positions within the segment.
    pub position_ids: Vec<u32>,
    /// What the collator adds.
    pub fields: Vec<(Field, Values)>,
    /// What the labels are compared with.
    pub prediction: Prediction,
    /// Labels that the loss counts.
    pub num_targets: usize,
    /// What was left out of the rows of data before this batch's end, and after that of the one before.
    pub left_out: LeftOut,
    /// Where in the data each row begins; rows of padding alone are left out.
    pub starts: Vec<Cursor>,
    /// Of a validation batch of a mixture: which of [`Pipeline::validation_parts`](crate::Pipeline::validation_parts) it is of.
    pub part: Option<usize>,
    /// Where the data goes on after this batch.
    pub cursor: Cursor,
}

impl Batch {
    /// For `rows` rows of data, every position counting: what the largest batch takes.
    pub fn full(rows: usize, seq_len: usize, spec: &BatchSpec) -> Self {
        let mut batch = Self::default();
        let rows = rows * spec.rows_of_each();
        batch.clear((rows, seq_len), 0, spec);
        batch.labels.fill(0);
        batch.segment_ids.fill(1);
        let positions = (0..seq_len as u32).cycle();
        batch.position_ids = positions.take(rows * seq_len).collect();
        batch.num_targets = rows * (seq_len - spec.prediction.shift());
        batch
    }

    /// Makes every position padding, in the buffers that are there.
    pub(crate) fn clear(&mut self, (rows, seq_len): (usize, usize), pad_id: u32, spec: &BatchSpec) {
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
        if !self.fields.iter().map(|(field, _)| field).eq(&spec.fields) {
            let values = |field: &Field| (*field, Values::empty(field.padding, 0));
            self.fields = spec.fields.iter().map(values).collect();
        }
        for (field, values) in &mut self.fields {
            let len = if field.is_per_row() { rows } else { len };
            values.fill(len, field.padding);
        }
        self.prediction = spec.prediction;
        self.num_targets = 0;
        self.left_out = LeftOut::default();
        self.starts.clear();
        self.part = None;
    }

    /// Puts the tokens `range` of an example at `start`, which leaves room for them in its row, as a segment, of which
    /// `begun` tokens stand before them already.
    pub(crate) fn put(
        &mut self,
        start: usize,
        (segment, begun): (u32, usize),
        example: &Example,
        range: Range<usize>,
    ) {
        let here = start..start + range.len();
        self.input_ids[here.clone()].copy_from_slice(&example.input_ids[range.clone()]);
        self.labels[here.clone()].copy_from_slice(&example.labels[range.clone()]);
        if self.prediction == Prediction::NextToken && begun == 0 {
            self.labels[start] = IGNORE;
        }
        self.segment_ids[here.clone()].fill(segment);
        for (id, position) in self.position_ids[here.clone()]
            .iter_mut()
            .zip(begun as u32..)
        {
            *id = position;
        }
        for ((field, to), (_, from)) in self.fields.iter_mut().zip(&example.fields) {
            if field.is_per_row() {
                to.put(start / self.seq_len, from, 0..1);
            } else {
                to.put(start, from, range.clone());
            }
        }
        self.num_targets += self.count_targets(here);
    }

    /// Labels that the loss counts; one with a weight of nothing is none.
    fn count_targets(&self, range: Range<usize>) -> usize {
        let weights = match self.field(WEIGHTS) {
            Some(Slice::F32(weights)) => Some(&weights[range.clone()]),
            _ => None,
        };
        let labels = self.labels[range].iter().enumerate();
        labels
            .filter(|&(i, &label)| label != IGNORE && weights.is_none_or(|it| it[i] != 0.0))
            .count()
    }

    /// The field of a name.
    pub fn field(&self, name: &str) -> Option<Slice<'_>> {
        let mut fields = self.iter();
        fields.find_map(|(field, values)| (field.name == name).then_some(values))
    }

    /// All fields: those that every batch has, and what the collator adds.
    pub fn iter(&self) -> impl Iterator<Item = (Field, Slice<'_>)> {
        let standard = [
            Slice::U32(&self.input_ids),
            Slice::I64(&self.labels),
            Slice::U32(&self.segment_ids),
            Slice::U32(&self.position_ids),
        ];
        let added = self.fields.iter();
        let added = added.map(|(field, values)| (*field, values.as_slice()));
        STANDARD.into_iter().zip(standard).chain(added)
    }

    /// What the loss counts: each target with the token before it, or itself if it is the first of its row.
    pub fn targets(&self) -> impl Iterator<Item = (u32, u32)> {
        let rows = self
            .input_ids
            .chunks(self.seq_len)
            .zip(self.labels.chunks(self.seq_len));
        rows.flat_map(move |(ids, labels)| {
            let first = self.prediction.shift();
            let before = (first..).map(|at: usize| at.saturating_sub(1));
            before
                .map(|at| ids[at])
                .zip(labels[first..].iter().copied())
        })
        .filter(|&(_, label)| label != IGNORE)
        .map(|(id, label)| (id, label as u32))
    }

    /// Where in the data each row begins and ends; rows of padding alone are left out. Rows made of one row of data have
    /// it all.
    pub fn extents(&self) -> impl Iterator<Item = (Cursor, Cursor)> {
        let starts = self.starts.iter().enumerate();
        starts.map(|(row, &start)| {
            let mut later = self.starts[row..].iter().copied();
            let end = later.find(|&other| other != start);
            (start, end.unwrap_or(self.cursor))
        })
    }

    /// Leaves out of the loss what is not in `row`: it has no labels, and its fields are padding.
    pub fn keep_row(&mut self, row: usize) {
        let (rows, seq_len) = (self.rows, self.seq_len);
        for other in (0..rows).filter(|other| *other != row) {
            let range = other * seq_len..(other + 1) * seq_len;
            self.labels[range.clone()].fill(IGNORE);
            for (field, values) in &mut self.fields {
                let range = if field.is_per_row() {
                    other..other + 1
                } else {
                    range.clone()
                };
                values.pad(range, field.padding);
            }
        }
    }
}
