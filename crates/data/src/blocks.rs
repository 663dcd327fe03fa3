//! Rows that are read together: what a source says of itself when a single row costs as much as its neighbours.
//!
//! Lines of a text file can be read one by one, so their order may be any. A row of a Parquet file cannot: its page, or
//! all pages before it, are decompressed for it. Such a source names its blocks, and [`Order`](crate::Order) reads a few
//! blocks at a time and shuffles within those.

use std::ops::Range;

/// How the rows of a source lie together.
///
/// A *block* is what is decoded at once and kept while it is in use. A *run* is blocks that are best read one after
/// another: those of a row group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    /// The first row of each block, and the number of all rows.
    starts: Vec<u64>,
    /// Bytes of each block when it is decoded, about.
    bytes: Vec<u64>,
    /// The first block of each run, and the number of all blocks.
    runs: Vec<usize>,
    /// The first run of each part but the first: parts are used in step with one another.
    parts: Vec<usize>,
}

impl Default for Blocks {
    fn default() -> Self {
        Self {
            starts: vec![0],
            bytes: Vec::new(),
            runs: vec![0],
            parts: Vec::new(),
        }
    }
}

impl Blocks {
    /// Adds a run of blocks, each its rows and about how many bytes those take. Blocks without rows are left out.
    pub fn add_run(&mut self, blocks: impl IntoIterator<Item = (u64, u64)>) {
        for (rows, bytes) in blocks {
            if rows > 0 {
                self.starts.push(self.num_rows() + rows);
                self.bytes.push(bytes);
            }
        }
        if self.runs.last() != Some(&self.len()) {
            self.runs.push(self.len());
        }
    }

    /// Hashes what the order of rows depends on.
    pub(crate) fn hash(&self, hasher: &mut blake3::Hasher) {
        for numbers in [&self.starts, &self.bytes] {
            hasher.update(&(numbers.len() as u64).to_le_bytes());
            numbers.iter().for_each(|number| {
                hasher.update(&number.to_le_bytes());
            });
        }
        let runs = self.runs.iter();
        runs.for_each(|&run| {
            hasher.update(&(run as u64).to_le_bytes());
        });
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Number of rows in all blocks.
    pub fn num_rows(&self) -> u64 {
        self.starts[self.len()]
    }

    /// The rows of block `index`.
    pub fn rows(&self, index: usize) -> Range<u64> {
        self.starts[index]..self.starts[index + 1]
    }

    /// About what block `index` takes when it is decoded.
    pub fn bytes(&self, index: usize) -> u64 {
        self.bytes[index]
    }

    /// The block that `row` is in.
    pub fn of_row(&self, row: u64) -> usize {
        self.starts.partition_point(|&start| start <= row) - 1
    }

    /// Number of runs.
    pub fn num_runs(&self) -> usize {
        self.runs.len() - 1
    }

    /// The run that block `index` is in.
    pub fn run_of(&self, index: usize) -> usize {
        self.runs.partition_point(|&start| start <= index) - 1
    }

    /// The blocks of run `index`.
    pub fn run(&self, index: usize) -> Range<usize> {
        self.runs[index]..self.runs[index + 1]
    }

    /// The runs of each part. There is one, or as many as a mixture has sources.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.parts.iter().copied());
        let ends = self.parts.iter().copied().chain([self.num_runs()]);
        starts.zip(ends).map(|(start, end)| start..end)
    }

    /// The same blocks of fewer rows, which are at other places: `place` gives how many of those kept stand before a row.
    pub(crate) fn map(&self, place: impl Fn(u64) -> u64) -> Self {
        let mut kept = Self::default();
        for run in 0..self.num_runs() {
            kept.add_run(self.run(run).map(|block| {
                let rows = self.rows(block);
                let (all, count) = (rows.end - rows.start, place(rows.end) - place(rows.start));
                (count, self.bytes(block) * count / all)
            }));
        }
        kept
    }

    /// The blocks of several sources, one after another.
    pub(crate) fn concat<'a>(sources: impl IntoIterator<Item = &'a Self>) -> Self {
        Self {
            parts: Vec::new(),
            ..Self::mixed(sources)
        }
    }

    /// The blocks of several sources, each a part.
    pub(crate) fn mixed<'a>(sources: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = Self::default();
        for part in sources {
            if all.num_runs() > 0 {
                all.parts.push(all.num_runs());
            }
            for run in 0..part.num_runs() {
                all.add_run(part.run(run).map(|block| {
                    let rows = part.rows(block);
                    (rows.end - rows.start, part.bytes(block))
                }));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_know_their_rows() {
        let mut blocks = Blocks::default();
        blocks.add_run([(3, 30), (0, 0), (2, 20)]);
        blocks.add_run([]);
        blocks.add_run([(4, 40)]);
        assert_eq!(
            (blocks.len(), blocks.num_runs(), blocks.num_rows()),
            (3, 2, 9)
        );
        let of_rows: Vec<usize> = (0..9).map(|row| blocks.of_row(row)).collect();
        assert_eq!(of_rows, [0, 0, 0, 1, 1, 2, 2, 2, 2]);
        assert_eq!((blocks.rows(1), blocks.run(0)), (3..5, 0..2));
        assert_eq!(Blocks::concat([&blocks, &blocks]).rows(4), 12..14);
        // Every second row: 1, 3, 5, 7.
        let half = blocks.map(|row| row / 2);
        assert_eq!(
            (half.rows(0), half.rows(1), half.rows(2)),
            (0..1, 1..2, 2..4)
        );
        assert_eq!(half.bytes(2), 20);
    }
}
