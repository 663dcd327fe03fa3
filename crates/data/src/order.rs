//! Data order, computed: which row stands at a position of an epoch, for one rank of many.
//!
//! The order of an epoch is a keyed permutation of `0..num_rows`, a Feistel network over the next
//! power of four with cycle walking, so any position costs the same and nothing is stored.
//! Rank `r` of `w` reads positions `r, r + w, r + 2w, ...` of it.
//! An endless source is one epoch, permuted over its first 2^48 rows.
//!
//! A source whose rows are read in [`Blocks`] has the order of an epoch from a keyed permutation of the runs of blocks, and
//! one of the rows within each window of [`WINDOW_BYTES`]: so what is decoded at a time is bounded, and a position is
//! still computed. All ranks see one global order, whatever their number.
//! Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", section 5.

use std::sync::{Arc, Mutex, PoisonError};

use crate::blocks::Blocks;
use crate::error::DataError;
use crate::mix::{mix, mix_all};
use crate::source::Source;

const ENDLESS_ROWS: u64 = 1 << 48;
const ROUNDS: u64 = 6;
/// Decoded rows among which the rows of a source with blocks are shuffled.
pub const WINDOW_BYTES: u64 = 64 << 20;

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
    windows: Option<Arc<Windows>>,
}

impl Order {
    /// The order of `source`: any order of its rows if each can be read alone, else one that keeps its blocks together.
    /// Errors: fewer rows than ranks.
    pub fn of(seed: u64, shard: Shard, source: &dyn Source) -> Result<Self, DataError> {
        let mut order = Self::new(seed, shard, source.num_rows())?;
        order.windows = source.blocks().map(|blocks| {
            Arc::new(Windows {
                blocks,
                epochs: Mutex::default(),
            })
        });
        Ok(order)
    }

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
            windows: None,
        })
    }

    /// Whether rows are shuffled within windows only.
    pub fn is_windowed(&self) -> bool {
        let Some(windows) = &self.windows else {
            return false;
        };
        let blocks = &windows.blocks;
        let bytes: u64 = (0..blocks.len()).map(|block| blocks.bytes(block)).sum();
        bytes > WINDOW_BYTES
    }

    /// Whether this rank reads all rows.
    pub fn is_whole(&self) -> bool {
        self.shard.world == 1
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
        let position = position * self.shard.world + self.shard.rank;
        match &self.windows {
            None => permute(key, self.num_rows, position),
            Some(windows) => windows.of_epoch(epoch, key).row(position, &windows.blocks),
        }
    }
}

/// The orders of a source with blocks.
#[derive(Debug)]
struct Windows {
    blocks: Arc<Blocks>,
    /// Those of the last two epochs that were asked for: workers are ahead of the loop at an epoch's end.
    epochs: Mutex<Vec<(u64, Arc<EpochWindows>)>>,
}

impl Windows {
    fn of_epoch(&self, epoch: u64, key: u64) -> Arc<EpochWindows> {
        let mut epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, windows)) = epochs.iter().find(|(own, _)| *own == epoch) {
            return Arc::clone(windows);
        }
        let windows = Arc::new(EpochWindows::new(key, &self.blocks));
        epochs.truncate(1);
        epochs.insert(0, (epoch, Arc::clone(&windows)));
        windows
    }
}

/// The order of one epoch: blocks, and the windows that they fill.
#[derive(Debug)]
struct EpochWindows {
    key: u64,
    blocks: Vec<usize>,
    /// The position at which each of these blocks begins, were there no shuffling within windows, and the number of rows.
    block_starts: Vec<u64>,
    /// The position at which each window begins, and the number of rows.
    window_starts: Vec<u64>,
}

impl EpochWindows {
    fn new(key: u64, blocks: &Blocks) -> Self {
        // The runs of each part in an order of their own, and the blocks of all parts in step: each where as much of its part
        // has been before it as of the others.
        let mut in_step: Vec<(f64, usize)> = Vec::with_capacity(blocks.len());
        for part in blocks.parts() {
            let (first, len) = (part.start, part.len() as u64);
            let runs = part.map(|run| first + permute(key, len, (run - first) as u64) as usize);
            let of_part: Vec<usize> = runs.flat_map(|run| blocks.run(run)).collect();
            let count = of_part.len() as f64;
            let places = (0..).map(|index| (f64::from(index) + 0.5) / count);
            in_step.extend(places.zip(of_part));
        }
        // Stable: equal places are in the order of the parts.
        in_step.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let mut windows = Self {
            key,
            blocks: in_step.into_iter().map(|(_, block)| block).collect(),
            block_starts: vec![0],
            window_starts: vec![0],
        };
        let (mut rows, mut bytes) = (0, 0);
        for &block in &windows.blocks {
            if bytes > 0 && bytes + blocks.bytes(block) > WINDOW_BYTES {
                windows.window_starts.push(rows);
                bytes = 0;
            }
            let range = blocks.rows(block);
            rows += range.end - range.start;
            bytes += blocks.bytes(block);
            windows.block_starts.push(rows);
        }
        windows.window_starts.push(rows);
        windows
    }

    fn row(&self, position: u64, blocks: &Blocks) -> u64 {
        let part = |starts: &[u64], at: u64| starts.partition_point(|&start| start <= at) - 1;
        let window = part(&self.window_starts, position);
        let (start, end) = (self.window_starts[window], self.window_starts[window + 1]);
        let key = mix_all(&[self.key, window as u64]);
        let shuffled = start + permute(key, end - start, position - start);
        let block = part(&self.block_starts, shuffled);
        blocks.rows(self.blocks[block]).start + shuffled - self.block_starts[block]
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

    struct Blocked(Arc<Blocks>);

    impl Source for Blocked {
        fn num_rows(&self) -> Option<u64> {
            Some(self.0.num_rows())
        }
        fn blocks(&self) -> Option<Arc<Blocks>> {
            Some(Arc::clone(&self.0))
        }
        fn read(&self, _: u64, _: &mut crate::Row) -> Result<(), DataError> {
            unreachable!("only the order is asked for")
        }
    }

    proptest! {
        #[test]
        fn every_row_of_blocks_comes_once_an_epoch_and_in_one_order_for_any_world(
            seed: u64,
            epoch in 0_u64..3,
            runs in prop::collection::vec(prop::collection::vec((1_u64..9, 1_u64..WINDOW_BYTES), 1..5), 1..6),
            world in 1_u64..5,
        ) {
            let mut blocks = Blocks::default();
            runs.iter().for_each(|run| blocks.add_run(run.iter().copied()));
            let source = Blocked(Arc::new(blocks));
            let num_rows = source.0.num_rows();
            let world = world.min(num_rows);
            let whole = Order::of(seed, Shard::default(), &source).unwrap();
            let whole: Vec<u64> = (0..num_rows).map(|position| whole.row(epoch, position)).collect();
            for rank in 0..world {
                let order = Order::of(seed, Shard { rank, world }, &source).unwrap();
                for position in 0..order.rows_per_epoch() {
                    prop_assert_eq!(order.row(epoch, position), whole[(position * world + rank) as usize]);
                }
            }
            let mut rows = whole.clone();
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..num_rows).collect::<Vec<_>>());
        }
    }

    /// What a cache of two windows decodes: every block once an epoch.
    #[test]
    fn blocks_are_not_come_back_to() {
        let mut blocks = Blocks::default();
        (0..10).for_each(|_| blocks.add_run([(50, WINDOW_BYTES / 4); 3]));
        let source = Blocked(Arc::new(blocks));
        let order = Order::of(3, Shard::default(), &source).unwrap();
        assert!(order.is_windowed());
        let (mut in_use, mut decoded) = (std::collections::VecDeque::new(), 0);
        for position in 0..1500 {
            let block = source.0.of_row(order.row(1, position));
            if !in_use.contains(&block) {
                decoded += 1;
                in_use.push_back(block);
            }
            if in_use.len() > 8 {
                in_use.pop_front();
            }
        }
        assert_eq!(decoded, 30);
    }

    #[test]
    fn an_order_of_blocks_that_is_asked_for_several_epochs_keeps_them_apart() {
        let mut blocks = Blocks::default();
        (0..4).for_each(|_| blocks.add_run([(10, WINDOW_BYTES / 2); 3]));
        let source = Blocked(Arc::new(blocks));
        let order = || Order::of(3, Shard::default(), &source).unwrap();
        let rows = |order: &Order, epoch| (0..120).map(|p| order.row(epoch, p)).collect::<Vec<_>>();
        let used = order();
        for epoch in [0, 1, 0, 2, 1] {
            assert_eq!(rows(&used, epoch), rows(&order(), epoch), "{epoch}");
        }
    }

    #[test]
    fn blocks_that_fit_one_window_are_not_windowed() {
        let is_windowed = |bytes| {
            let mut blocks = Blocks::default();
            blocks.add_run([(1, WINDOW_BYTES / 2), (1, bytes)]);
            let source = Blocked(Arc::new(blocks));
            let order = Order::of(3, Shard::default(), &source).unwrap();
            order.is_windowed()
        };
        assert!(!is_windowed(WINDOW_BYTES / 2));
        assert!(is_windowed(WINDOW_BYTES / 2 + 1));
    }

    /// A run that goes on must find the rows where an earlier version left them. Lengths on either side of a power of four.
    #[test]
    fn the_order_is_that_of_earlier_versions() {
        let of = |len: u64| (0..len.min(8)).map(move |index| permute(7, len, index));
        let orders = [1, 4, 5, 16, 17, 1 << 30].map(|len| of(len).collect::<Vec<_>>());
        let expected: [&[u64]; 6] = [
            &[0],
            &[0, 1, 2, 3],
            &[1, 0, 4, 3, 2],
            &[13, 8, 15, 3, 5, 11, 12, 7],
            &[14, 15, 6, 4, 11, 7, 16, 2],
            &[
                324260211, 492581434, 688647371, 263748861, 969006892, 910217397, 786190641,
                185769597,
            ],
        ];
        assert_eq!(orders, expected);
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
