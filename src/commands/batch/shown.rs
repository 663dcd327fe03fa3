//! What is shown of a batch.

use std::ops::Range;

use serde::Serialize;
use tt_collators::{Batch, IGNORE, Pipeline};
use tt_data::{DataError, Tokenizer};

/// A batch as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    pub(super) rows: Vec<ShownRow>,
    pub(super) sequence_length: usize,
    /// Positions that hold a token.
    pub(super) tokens: usize,
    /// Positions that the loss counts.
    pub(super) targets: usize,
    /// The part of all positions that is padding.
    pub(super) padding: f64,
}

/// A row of a batch.
#[derive(Debug, Serialize)]
pub(super) struct ShownRow {
    /// Where the rows of data that it is made of stand.
    pub(super) from: Vec<String>,
    /// Where in the data it begins.
    pub(super) cursor: String,
    pub(super) pieces: Vec<Piece>,
    pub(super) input_ids: Vec<u32>,
    pub(super) labels: Vec<i64>,
    pub(super) segment_ids: Vec<u32>,
    pub(super) position_ids: Vec<u32>,
}

/// Adjacent tokens of one segment that are all trained on, or none.
#[derive(Debug, Serialize)]
pub(super) struct Piece {
    pub(super) segment: u32,
    /// Of its first token within its segment.
    pub(super) position: u32,
    pub(super) tokens: usize,
    pub(super) is_target: bool,
    pub(super) text: String,
}

impl Shown {
    pub(super) fn of(batch: &Batch, data: &Pipeline) -> Result<Self, DataError> {
        let seq_len = batch.seq_len;
        let mut rows = Vec::new();
        for (row, (from, to)) in batch.extents().enumerate() {
            let documents = data.documents(from, to)?;
            let range = row * seq_len..(row + 1) * seq_len;
            rows.push(ShownRow {
                from: documents.iter().map(ToString::to_string).collect(),
                cursor: from.to_string(),
                pieces: pieces(batch, range.clone(), data.tokenizer())?,
                input_ids: batch.input_ids[range.clone()].to_vec(),
                labels: batch.labels[range.clone()].to_vec(),
                segment_ids: batch.segment_ids[range.clone()].to_vec(),
                position_ids: batch.position_ids[range].to_vec(),
            });
        }
        let tokens = batch.segment_ids.iter().filter(|&&segment| segment != 0);
        let tokens = tokens.count();
        Ok(Self {
            rows,
            sequence_length: seq_len,
            tokens,
            targets: batch.num_targets,
            padding: 1.0 - tokens as f64 / batch.input_ids.len() as f64,
        })
    }
}

fn pieces(
    batch: &Batch,
    range: Range<usize>,
    tokenizer: &Tokenizer,
) -> Result<Vec<Piece>, DataError> {
    let kind = |at: usize| (batch.segment_ids[at], batch.labels[at] != IGNORE);
    let mut pieces = Vec::new();
    let mut start = range.start;
    for at in range.clone() {
        let is_last = at + 1 == range.end || kind(at + 1) != kind(at);
        if !is_last {
            continue;
        }
        let (segment, is_target) = kind(at);
        if segment != 0 {
            pieces.push(Piece {
                segment,
                position: batch.position_ids[start],
                tokens: at + 1 - start,
                is_target,
                text: tokenizer.decode_all(&batch.input_ids[start..=at])?,
            });
        }
        start = at + 1;
    }
    Ok(pieces)
}
