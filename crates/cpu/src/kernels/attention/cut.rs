//! How the backward pass is cut into tasks, by the shape alone, since tasks share sums.
//!
//! A task takes a key/value head of a batch with all query heads that read it. Where such tasks are too few, each query head
//! has its own, whose gradients of keys and values are partial sums; and where these are too few, each range of keys,
//! whose gradients of queries are partial sums.

use std::ops::Range;

use super::{KEYS, QUERIES, QueryBlock, work};
use crate::AttentionParams;
use crate::par::{self, PIECES};

/// Keys of a range, at least: for fewer, packing its queries would cost too much.
const MIN_KEYS: usize = 160;

pub(super) struct Cut {
    /// Query heads of a task.
    pub heads: usize,
    pub ranges: Vec<KeyRange>,
}

/// Keys, and what there is of the partial gradients of the queries that may see some of them.
pub(super) struct KeyRange {
    pub keys: Range<usize>,
    /// Blocks of queries.
    pub blocks: Range<usize>,
    /// Rows of partial gradients, of each head, before those of this range.
    pub first_row: usize,
}

impl KeyRange {
    fn all(p: &AttentionParams) -> Self {
        Self {
            keys: 0..p.keys,
            blocks: 0..QueryBlock::count(p),
            first_row: 0,
        }
    }

    /// Where the rows of a block are among all rows of partial gradients of a head.
    pub(super) fn row(&self, block: usize) -> usize {
        self.first_row + (block - self.blocks.start) * QUERIES
    }

    /// The end of its rows.
    fn end_row(&self) -> usize {
        self.row(self.blocks.end)
    }
}

impl Cut {
    pub(super) fn new(p: &AttentionParams) -> Self {
        if p.batch * p.kv_heads >= PIECES || par::is_small(work(p)) {
            return Self {
                heads: p.heads / p.kv_heads,
                ranges: vec![KeyRange::all(p)],
            };
        }
        let ranges = PIECES.div_ceil(p.batch * p.heads).min(p.keys / MIN_KEYS);
        Self {
            heads: 1,
            ranges: if ranges > 1 {
                equal_ranges(p, ranges)
            } else {
                vec![KeyRange::all(p)]
            },
        }
    }

    pub(super) fn tasks(&self, p: &AttentionParams) -> usize {
        p.batch * (p.heads / self.heads) * self.ranges.len()
    }

    /// Whether tasks share the gradients of keys and values.
    pub(super) fn shares_keys(&self, p: &AttentionParams) -> bool {
        self.heads < p.heads / p.kv_heads
    }

    /// Whether tasks share the gradients of queries.
    pub(super) fn shares_queries(&self) -> bool {
        self.ranges.len() > 1
    }

    /// Rows of partial gradients of queries, of each head.
    pub(super) fn query_rows(&self) -> usize {
        self.ranges.last().map_or(0, KeyRange::end_row)
    }

    /// The most keys of a range.
    pub(super) fn most_keys(&self) -> usize {
        let lens = self.ranges.iter().map(|range| range.keys.len());
        lens.max().unwrap_or(0)
    }
}

/// At most `count` ranges of whole blocks of keys with about as many blocks of scores each.
fn equal_ranges(p: &AttentionParams, count: usize) -> Vec<KeyRange> {
    let blocks: Vec<_> = (0..QueryBlock::count(p))
        .map(|index| QueryBlock::new(p, 0, index).key_range(p))
        .collect();
    let key_blocks = p.keys.div_ceil(KEYS);
    // How many blocks of queries see each block of keys, as differences along these.
    let mut changes = vec![0isize; key_blocks + 1];
    for keys in blocks.iter().filter(|keys| !keys.is_empty()) {
        changes[keys.start / KEYS] += 1;
        changes[keys.end.div_ceil(KEYS)] -= 1;
    }
    let mut seen_by = 0;
    let scores: Vec<_> = changes[..key_blocks]
        .iter()
        .map(|change| {
            seen_by += change;
            seen_by as usize
        })
        .collect();
    let all: usize = scores.iter().sum();
    let (mut ranges, mut start, mut so_far) = (Vec::new(), 0, 0);
    for (block, scores) in scores.iter().enumerate() {
        so_far += scores;
        let end = p.keys.min((block + 1) * KEYS);
        let is_full = so_far * count >= all * (ranges.len() + 1) && ranges.len() + 1 < count;
        if !is_full && end < p.keys {
            continue;
        }
        let keys = start..end;
        let sees = |of_block: &Range<usize>| of_block.start < keys.end && keys.start < of_block.end;
        let first = blocks.iter().position(sees).unwrap_or(0);
        let last = blocks.iter().rposition(sees).map_or(first, |last| last + 1);
        let first_row = ranges.last().map_or(0, KeyRange::end_row);
        ranges.push(KeyRange {
            keys,
            blocks: first..last,
            first_row,
        });
        start = end;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(tokens: usize, keys: usize, causal: bool, window: Option<usize>) -> AttentionParams {
        AttentionParams {
            batch: 1,
            queries: tokens,
            keys,
            heads: 14,
            kv_heads: 2,
            head_dim: 64,
            scale: 0.125,
            causal,
            window,
        }
    }

    #[test]
    fn ranges_hold_every_key_once_and_every_query_that_sees_it() {
        for (tokens, keys) in [(1024, 1024), (1000, 1010), (500, 1300), (1300, 700)] {
            for causal in [true, false] {
                for window in [None, Some(1), Some(200)] {
                    let p = params(tokens, keys, causal, window);
                    let cut = Cut::new(&p);
                    let mut next = 0;
                    for range in &cut.ranges {
                        assert_eq!(range.keys.start, next);
                        assert!(range.keys.start.is_multiple_of(KEYS) && !range.keys.is_empty());
                        next = range.keys.end;
                        for index in 0..QueryBlock::count(&p) {
                            let sees = QueryBlock::new(&p, 0, index)
                                .key_blocks(&p)
                                .any(|(first, _)| range.keys.contains(&first));
                            assert!(!sees || range.blocks.contains(&index), "{p:?}, {index}");
                        }
                    }
                    assert_eq!(next, keys);
                    assert!(cut.ranges.len() > 1);
                }
            }
        }
    }

    #[test]
    fn ranges_of_a_causal_mask_have_like_work() {
        let p = params(1024, 1024, true, None);
        let cut = Cut::new(&p);
        let work = cut.ranges.iter().map(|range| {
            let blocks = (0..QueryBlock::count(&p)).map(|index| {
                let block = QueryBlock::new(&p, 0, index);
                let keys = block.key_blocks(&p);
                keys.filter(|(first, _)| range.keys.contains(first)).count()
            });
            blocks.sum::<usize>()
        });
        let work: Vec<_> = work.collect();
        let all: usize = work.iter().sum();
        let most = work.iter().max().copied().unwrap_or(0);
        assert!(most * work.len() < all * 5 / 4, "{work:?}");
    }
}
