//! Parts of a source: a slice, and the rows held out for validation.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::blocks::Blocks;
use crate::error::DataError;
use crate::mix::mix_all;
use crate::row::Row;
use crate::source::Source;

/// Decides which rows are held out, whatever the run's seed.
const HOLD_OUT_KEY: u64 = 0x686f_6c64;

/// Adjacent rows of a source.
pub(crate) struct Slice {
    source: Arc<dyn Source>,
    rows: Range<u64>,
    blocks: Option<Arc<Blocks>>,
}

impl Slice {
    pub(crate) fn new(source: Arc<dyn Source>, rows: Range<u64>) -> Self {
        let within = |row: u64| row.clamp(rows.start, rows.end) - rows.start;
        let blocks = source.blocks().map(|blocks| Arc::new(blocks.map(within)));
        Self {
            source,
            rows,
            blocks,
        }
    }
}

impl Source for Slice {
    fn num_rows(&self) -> Option<u64> {
        Some(self.rows.end - self.rows.start)
    }

    fn row_bytes(&self) -> Option<Vec<u64>> {
        let rows = self.rows.start as usize..self.rows.end as usize;
        Some(self.source.row_bytes()?[rows].to_vec())
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.blocks.clone()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.source.files()
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        self.source.read(self.rows.start + index, row)
    }
}

/// One row of each `period` held out, drawn by its place alone: so nothing has to be read to know which, and each part of the
/// data gives its share. The last period may be shorter; one of a single row is kept.
#[derive(Debug, Clone, Copy)]
struct Periods {
    period: u64,
    num_rows: u64,
}

impl Periods {
    /// The row of period `index` that is held out, if one is.
    fn held_out(self, index: u64) -> Option<u64> {
        let start = index * self.period;
        let len = self.period.min(self.num_rows - start);
        (len > 1).then(|| start + mix_all(&[HOLD_OUT_KEY, index]) % len)
    }

    /// How many rows before `row` are held out.
    fn held_out_before(self, row: u64) -> u64 {
        let index = row / self.period;
        let is_before = index * self.period < self.num_rows
            && self.held_out(index).is_some_and(|held_out| held_out < row);
        index + u64::from(is_before)
    }
}

/// One side of the rows of a source.
pub(crate) struct HeldOut {
    source: Arc<dyn Source>,
    periods: Periods,
    is_validation: bool,
    num_rows: u64,
    blocks: Option<Arc<Blocks>>,
}

impl HeldOut {
    /// The rows for training, and about `fraction` of all, for validation. `None` if there are fewer than two.
    pub(crate) fn split(source: &Arc<dyn Source>, fraction: f64) -> Option<(Self, Self)> {
        let num_rows = source.num_rows().filter(|&rows| rows > 1)?;
        let periods = Periods {
            period: ((1.0 / fraction).round() as u64).max(2),
            num_rows,
        };
        let side = |is_validation| {
            let before = |row: u64| {
                let held_out = periods.held_out_before(row);
                if is_validation {
                    held_out
                } else {
                    row - held_out
                }
            };
            let blocks = source.blocks();
            Self {
                source: Arc::clone(source),
                periods,
                is_validation,
                num_rows: before(num_rows),
                blocks: blocks.map(|blocks| Arc::new(blocks.map(before))),
            }
        };
        Some((side(false), side(true)))
    }

    /// The source's row at `index`.
    fn place(&self, index: u64) -> u64 {
        let Periods { period, .. } = self.periods;
        if self.is_validation {
            // Only the last period may have none, which is after all rows.
            return self.periods.held_out(index).unwrap_or(index * period);
        }
        let (number, within) = (index / (period - 1), index % (period - 1));
        let row = number * period + within;
        let is_after = self
            .periods
            .held_out(number)
            .is_some_and(|held_out| row >= held_out);
        row + u64::from(is_after)
    }
}

impl Source for HeldOut {
    fn num_rows(&self) -> Option<u64> {
        Some(self.num_rows)
    }

    fn row_bytes(&self) -> Option<Vec<u64>> {
        let all = self.source.row_bytes()?;
        let rows = 0..self.num_rows;
        Some(rows.map(|index| all[self.place(index) as usize]).collect())
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.blocks.clone()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.source.files()
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        self.source.read(self.place(index), row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Numbers(u64);

    impl Source for Numbers {
        fn num_rows(&self) -> Option<u64> {
            Some(self.0)
        }
        fn row_bytes(&self) -> Option<Vec<u64>> {
            Some((0..self.0).collect())
        }
        fn blocks(&self) -> Option<Arc<Blocks>> {
            let mut blocks = Blocks::default();
            (0..self.0)
                .step_by(3)
                .for_each(|start| blocks.add_run([(3.min(self.0 - start), 30)]));
            Some(Arc::new(blocks))
        }
        fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
            *row.fields.entry("n") = crate::Value::Int(index as i64);
            Ok(())
        }
    }

    fn all(source: &dyn Source) -> Vec<u64> {
        let mut row = Row::default();
        let rows = 0..source.num_rows().unwrap();
        let read = rows.map(|index| {
            source.read(index, &mut row).unwrap();
            match row.get("n").unwrap() {
                crate::Value::Int(n) => *n as u64,
                _ => unreachable!(),
            }
        });
        read.collect()
    }

    proptest! {
        #[test]
        fn each_row_is_on_one_side(rows in 2_u64..200, fraction in 0.01_f64..0.9) {
            let source: Arc<dyn Source> = Arc::new(Numbers(rows));
            let (train, validation) = HeldOut::split(&source, fraction).unwrap();
            for side in [&train, &validation] {
                let numbers = all(side);
                prop_assert!(!numbers.is_empty());
                prop_assert_eq!(&side.row_bytes().unwrap(), &numbers);
                // The blocks of a side hold its rows of the source's blocks.
                let blocks = side.blocks().unwrap();
                prop_assert_eq!(blocks.num_rows(), numbers.len() as u64);
                for pair in (0..numbers.len()).collect::<Vec<_>>().windows(2) {
                    let [a, b] = [pair[0], pair[1]].map(|i| blocks.of_row(i as u64));
                    let [from, to] = [numbers[pair[0]] / 3, numbers[pair[1]] / 3];
                    prop_assert_eq!(a == b, from == to);
                }
            }
            let mut both = all(&train);
            both.extend(all(&validation));
            both.sort_unstable();
            prop_assert_eq!(both, (0..rows).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_slice_has_its_rows_and_blocks() {
        let slice = Slice::new(Arc::new(Numbers(10)), 2..7);
        assert_eq!(all(&slice), [2, 3, 4, 5, 6]);
        let blocks = slice.blocks().unwrap();
        let of_rows: Vec<usize> = (0..5).map(|row| blocks.of_row(row)).collect();
        assert_eq!(of_rows, [0, 1, 1, 1, 2]);
    }
}
