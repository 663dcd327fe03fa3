//! Data order, computed: which row stands at a position of an epoch, for one rank of many.
//!
//! The order of an epoch is a keyed permutation of `0..num_rows`, a Feistel network over the next
//! power of four with cycle walking, so any position costs the same and nothing is stored.
//! Rank `r` of `w` reads positions `r, r + w, r + 2w, ...` of it.
//! An endless source is one epoch, permuted over its first 2^48 rows.
//! Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", section 5.

use crate::error::DataError;
use crate::mix::{mix, mix_all};

const ENDLESS_ROWS: u64 = 1 << 48;
const ROUNDS: u64 = 6;

/// This process's share of the data: rank `rank` of `world`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Which of the ranks this is, from 0.
    pub rank: u64,
    /// How many ranks share the data.
    pub world: u64,
}

impl Default for Shard {
    /// All of it.
    fn default() -> Self {
        Self { rank: 0, world: 1 }
    }
}

/// The rows of one rank, in order, for every epoch.
#[derive(Debug, Clone)]
pub struct Order {
    seed: u64,
    shard: Shard,
    num_rows: u64,
}

impl Order {
    /// `num_rows` of the source, `None` if it is endless. Errors: fewer rows than ranks.
    pub fn new(seed: u64, shard: Shard, num_rows: Option<u64>) -> Result<Self, DataError> {
        let num_rows = num_rows.unwrap_or(ENDLESS_ROWS);
        if num_rows < shard.world {
            return Err(DataError::FewerRowsThanRanks {
                rows: num_rows,
                world: shard.world,
            });
        }
        Ok(Self {
            seed,
            shard,
            num_rows,
        })
    }

    /// Rows that this rank reads in an epoch; ranks differ by one at most.
    pub fn rows_per_epoch(&self) -> u64 {
        (self.num_rows - self.shard.rank).div_ceil(self.shard.world)
    }

    /// A number for what is drawn at random of the source's row `index` in `epoch`, on whichever rank.
    pub fn row_seed(&self, epoch: u64, index: u64) -> u64 {
        mix_all(&[self.seed, epoch, index])
    }

    /// The source's row at `position < rows_per_epoch()` of `epoch`.
    pub fn row(&self, epoch: u64, position: u64) -> u64 {
        debug_assert!(position < self.rows_per_epoch());
        let key = mix_all(&[self.seed, epoch]);
        permute(
            key,
            self.num_rows,
            position * self.shard.world + self.shard.rank,
        )
    }
}

/// A permutation of `0..len`, chosen by `key`.
pub(crate) fn permute(key: u64, len: u64, index: u64) -> u64 {
    debug_assert!(index < len);
    let half_bits = (64 - (len - 1).leading_zeros()).div_ceil(2).max(1);
    let half_mask = (1_u64 << half_bits) - 1;
    let mut value = index;
    // The network permutes 0..4^half_bits; walking its cycle until it is back under `len` permutes
    // 0..len. The domain is under four times `len`, so the walk is short.
    loop {
        let (mut left, mut right) = (value >> half_bits, value & half_mask);
        for round in 0..ROUNDS {
            let mixed = mix(key ^ mix(right << 8 | round)) & half_mask;
            (left, right) = (right, left ^ mixed);
        }
        value = left << half_bits | right;
        if value < len {
            return value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_row_comes_once_an_epoch(seed: u64, epoch: u64, num_rows in 1_u64..500, world in 1_u64..5) {
            let world = world.min(num_rows);
            let mut rows: Vec<u64> = (0..world)
                .flat_map(|rank| {
                    let order = Order::new(seed, Shard { rank, world }, Some(num_rows)).unwrap();
                    (0..order.rows_per_epoch()).map(move |position| order.row(epoch, position))
                })
                .collect();
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..num_rows).collect::<Vec<_>>());
        }
    }

    #[test]
    fn epochs_and_seeds_differ_in_order() {
        let order_of = |seed, epoch| {
            let order = Order::new(seed, Shard::default(), Some(100)).unwrap();
            (0..100).map(|p| order.row(epoch, p)).collect::<Vec<_>>()
        };
        assert_eq!(order_of(1, 0), order_of(1, 0));
        assert_ne!(order_of(1, 0), order_of(1, 1));
        assert_ne!(order_of(1, 0), order_of(2, 0));
        assert_ne!(order_of(1, 0), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn first_rows_of_an_epoch_are_spread_over_the_data() {
        let order = Order::new(7, Shard::default(), Some(1_000_000)).unwrap();
        let mean = (0..1000).map(|p| order.row(0, p) as f64).sum::<f64>() / 1000.0;
        // The mean of 1000 uniform draws has a standard deviation of 9,129.
        assert!((mean - 500_000.0).abs() < 40_000.0, "{mean}");
    }

    #[test]
    fn endless_sources_do_not_repeat_rows() {
        let order = Order::new(7, Shard::default(), None).unwrap();
        let rows: std::collections::HashSet<u64> = (0..10_000).map(|p| order.row(0, p)).collect();
        assert_eq!(rows.len(), 10_000);
    }

    #[test]
    fn fewer_rows_than_ranks_is_an_error() {
        let error = Order::new(0, Shard { rank: 0, world: 4 }, Some(3)).unwrap_err();
        assert_eq!(error.to_string(), "3 rows cannot be shared among 4 ranks");
    }
}
