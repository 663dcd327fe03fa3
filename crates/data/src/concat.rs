//! Sources one after another.

use std::path::PathBuf;
use std::sync::Arc;

use crate::blocks::Blocks;
use crate::error::DataError;
use crate::row::Row;
use crate::source::Source;

/// The rows of several sources that end, in order.
pub(crate) fn concat(mut sources: Vec<Arc<dyn Source>>) -> Arc<dyn Source> {
    match sources.len() {
        1 => sources.remove(0),
        _ => Arc::new(Concat::new(sources)),
    }
}

/// Sources as one.
pub(crate) struct Concat {
    parts: Vec<Arc<dyn Source>>,
    /// The first row of each, and the number of all.
    starts: Vec<u64>,
    blocks: Option<Arc<Blocks>>,
}

impl Concat {
    fn new(parts: Vec<Arc<dyn Source>>) -> Self {
        Self::of(parts, |blocks| {
            Blocks::concat(blocks.iter().map(|it| &**it))
        })
    }

    /// The same, to be used in step with one another.
    pub(crate) fn mixed(parts: Vec<Arc<dyn Source>>) -> Self {
        Self::of(parts, |blocks| Blocks::mixed(blocks.iter().map(|it| &**it)))
    }

    /// Which of them row `index` is of, and its row there.
    pub(crate) fn place(&self, index: u64) -> (usize, u64) {
        let part = self.starts.partition_point(|&start| start <= index) - 1;
        (part, index - self.starts[part])
    }

    fn of(parts: Vec<Arc<dyn Source>>, join: impl Fn(&[Arc<Blocks>]) -> Blocks) -> Self {
        let mut starts = vec![0];
        for part in &parts {
            let rows = part.num_rows().unwrap_or_default();
            starts.push(starts[starts.len() - 1] + rows);
        }
        // If one has blocks, all have, a source of single rows being one of small blocks.
        let blocks = parts.iter().any(|part| part.blocks().is_some()).then(|| {
            let of_each = parts.iter().map(|part| {
                part.blocks()
                    .unwrap_or_else(|| Arc::new(single_rows(&**part)))
            });
            let of_each: Vec<Arc<Blocks>> = of_each.collect();
            Arc::new(join(&of_each))
        });
        Self {
            parts,
            starts,
            blocks,
        }
    }
}

/// Blocks of a source whose rows can be read alone: as many rows as there is no harm in, each block a run.
fn single_rows(source: &dyn Source) -> Blocks {
    const ROWS: usize = 256;
    let mut blocks = Blocks::default();
    match source.row_bytes() {
        Some(bytes) => {
            for rows in bytes.chunks(ROWS) {
                blocks.add_run([(rows.len() as u64, rows.iter().sum())]);
            }
        }
        None => {
            const BYTES_OF_A_ROW: u64 = 1 << 10;
            let rows = source.num_rows().unwrap_or_default();
            for start in (0..rows).step_by(ROWS) {
                let count = (ROWS as u64).min(rows - start);
                blocks.add_run([(count, count * BYTES_OF_A_ROW)]);
            }
        }
    }
    blocks
}

impl Source for Concat {
    fn num_rows(&self) -> Option<u64> {
        self.starts.last().copied()
    }

    fn row_bytes(&self) -> Option<Vec<u64>> {
        let mut all = Vec::new();
        for part in &self.parts {
            all.extend(part.row_bytes()?);
        }
        Some(all)
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.blocks.clone()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.parts.iter().flat_map(|part| part.files()).collect()
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        let (part, within) = self.place(index);
        self.parts[part].read(within, row)
    }
}
