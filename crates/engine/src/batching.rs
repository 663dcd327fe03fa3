//! Token sequences of any lengths as batches: the longest first, each batch as wide as its longest, the rest padding.
//!
//! Padding is a segment of its own, which no token sees; what a row gives differs from what it gives alone by rounding.

use tt_models::Input;
use tt_nn::Positions;
use tt_tensor::{Device, Tensor};

use crate::Result;

/// The sequences of these lengths in batches of at most `rows`, and of at most `tokens` with their padding if that is more than
/// one row: lists of their indices.
pub(crate) fn batches(lengths: &[usize], rows: usize, tokens: usize) -> Vec<Vec<usize>> {
    let mut longest_first: Vec<usize> = (0..lengths.len()).collect();
    longest_first.sort_by_key(|&i| std::cmp::Reverse(lengths[i])); // stable, so the same on every machine
    let mut batches = Vec::new();
    let mut rest = &longest_first[..];
    while let Some(&first) = rest.first() {
        let most = (tokens / lengths[first].max(1)).clamp(1, rows.max(1));
        let (batch, after) = rest.split_at(most.min(rest.len()));
        batches.push(batch.to_vec());
        rest = after;
    }
    batches
}

/// `[B, T]`, `T` the longest of the rows.
pub(crate) fn input(rows: &[&[u32]], device: Device) -> Result<Input> {
    let width = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let shape = (rows.len(), width);
    let padded = |value: &dyn Fn(&[u32], usize) -> u32| {
        let values = rows.iter().flat_map(|row| {
            let of_row = (0..width).map(|at| if at < row.len() { value(row, at) } else { 0 });
            of_row.collect::<Vec<u32>>()
        });
        Tensor::from_slice(&values.collect::<Vec<u32>>(), shape, device)
    };
    Ok(Input {
        input_ids: padded(&|row, at| row[at])?,
        positions: Positions {
            position_ids: padded(&|_, at| at as u32)?,
            bound: width,
            segment_ids: Some(padded(&|_, _| 1)?),
        },
        fields: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_come_first_within_rows_and_tokens() {
        let lengths = [3, 9, 1, 9, 4];
        assert_eq!(batches(&lengths, 2, 100), [vec![1, 3], vec![4, 0], vec![2]]);
        // Nine tokens and four with their padding are eighteen.
        assert_eq!(batches(&lengths, 9, 12), [vec![1], vec![3], vec![4, 0, 2]]);
        assert_eq!(batches(&[], 2, 10), Vec::<Vec<usize>>::new());
        assert_eq!(batches(&[0, 0], 8, 10), [vec![0, 1]]);
    }
}
