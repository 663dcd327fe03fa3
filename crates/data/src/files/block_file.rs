//! Files whose rows are decoded in blocks: what is the same for all kinds of them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;

use super::columns;
use crate::block_cache::BlockCache;
use crate::blocks::Blocks;
use crate::error::DataError;
use crate::location::Location;
use crate::row::Row;
use crate::source::Source;
use crate::value::Unread;

/// Decodes the blocks of one file.
pub(super) trait Decoder: Send {
    /// Block `block`. It goes through `keep`, and before it whatever is decoded on the way.
    fn decode(
        &mut self,
        block: usize,
        blocks: &Blocks,
        keep: &mut dyn FnMut(usize, RecordBatch) -> Arc<RecordBatch>,
    ) -> Result<Arc<RecordBatch>, Undecoded>;
}

/// A block that cannot be decoded.
pub(super) struct Undecoded {
    pub(super) block: usize,
    pub(super) why: String,
}

impl Undecoded {
    pub(super) fn new(block: usize, why: impl ToString) -> Self {
        let why = why.to_string();
        Self { block, why }
    }
}

/// The rows of one file.
pub(super) struct BlockFile<D> {
    path: Arc<Path>,
    blocks: Arc<Blocks>,
    decoder: Mutex<D>,
    cache: BlockCache<RecordBatch>,
    /// Columns that are not decoded, for messages.
    unread: Vec<Unread>,
}

impl<D: Decoder> BlockFile<D> {
    pub(super) fn new(path: &Path, blocks: Blocks, decoder: D, unread: Vec<Unread>) -> Self {
        Self {
            path: Arc::from(path),
            blocks: Arc::new(blocks),
            decoder: Mutex::new(decoder),
            cache: BlockCache::default(),
            unread,
        }
    }

    fn batch(&self, block: usize) -> Result<Arc<RecordBatch>, DataError> {
        if let Some(batch) = self.cache.find(block) {
            return Ok(batch);
        }
        // One worker decodes, and others that want the same wait for it.
        let mut decoder = self.decoder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(batch) = self.cache.find(block) {
            return Ok(batch);
        }
        let mut keep = |block, batch| self.cache.put(block, self.blocks.bytes(block), batch);
        let decoded = decoder.decode(block, &self.blocks, &mut keep);
        decoded.map_err(|Undecoded { block, why }| {
            let rows = self.blocks.rows(block);
            let (first, last) = (rows.start, rows.end - 1);
            let message = format!("rows {first} to {last} cannot be read: {why}");
            DataError::file(&self.path, message)
        })
    }
}

impl<D: Decoder> Source for BlockFile<D> {
    fn num_rows(&self) -> Option<u64> {
        Some(self.blocks.num_rows())
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        Some(Arc::clone(&self.blocks))
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.to_path_buf()]
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        let block = self.blocks.of_row(index);
        let batch = self.batch(block)?;
        let within = (index - self.blocks.rows(block).start) as usize;
        columns::read_row(&batch, within, row);
        row.fields.set_unread(&self.unread);
        row.at = Location::Row {
            file: Arc::clone(&self.path),
            row: index,
        };
        Ok(())
    }
}
