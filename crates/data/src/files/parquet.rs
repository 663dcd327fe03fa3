//! Parquet files.
//!
//! The footer says how many rows a row group has and what they take. A row group is read in blocks of about
//! [`BLOCK_BYTES`], one after another, page by page: so a file with a single row group of any size takes no more memory
//! than another. A reader that has come to the end of a block waits there for the next, so that a row group is gone through
//! once; to begin in its middle, the pages before are skipped by the file's page index if it has one, else decompressed.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::reader::{ChunkReader, Length};

use super::columns;
use crate::block_cache::BlockCache;
use crate::blocks::Blocks;
use crate::error::DataError;
use crate::location::Location;
use crate::order::WINDOW_BYTES;
use crate::row::Row;
use crate::source::Source;

/// What the rows of a block take, about.
const BLOCK_BYTES: u64 = 8 << 20;
/// Readers that wait: row groups that are read in turns.
const MAX_READERS: usize = 4;

/// The rows of one file.
pub(super) struct ParquetFile {
    path: Arc<Path>,
    file: Shared,
    metadata: ArrowReaderMetadata,
    projection: ProjectionMask,
    blocks: Arc<Blocks>,
    /// Of each run of blocks, the row group.
    groups: Vec<usize>,
    /// Of each block, its run.
    runs: Vec<usize>,
    readers: Mutex<Vec<WaitingReader>>,
    cache: BlockCache<RecordBatch>,
}

struct WaitingReader {
    /// What it gives next.
    block: usize,
    reader: ParquetRecordBatchReader,
}

impl ParquetFile {
    pub(super) fn open(path: &Path, columns: Option<&[String]>) -> Result<Self, DataError> {
        let file = Shared::open(path).map_err(DataError::io(path))?;
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
        let metadata = ArrowReaderMetadata::load(&file, options).map_err(|error| {
            DataError::file(path, format!("not to be read as Parquet: {error}"))
        })?;
        let projection = super::project(metadata.schema().fields(), columns, path)?;
        let projection = match projection {
            Some(roots) => ProjectionMask::roots(metadata.parquet_schema(), roots),
            None => ProjectionMask::all(),
        };
        let (mut blocks, mut groups, mut runs) = (Blocks::default(), Vec::new(), Vec::new());
        for (index, group) in metadata.metadata().row_groups().iter().enumerate() {
            let rows = u64::try_from(group.num_rows())
                .map_err(|_| DataError::file(path, "a row group of negative length"))?;
            let columns = group.columns().iter().enumerate();
            let bytes: u64 = columns
                .filter(|(leaf, _)| projection.leaf_included(*leaf))
                .map(|(_, column)| column.uncompressed_size().max(0) as u64)
                .sum();
            if rows == 0 {
                continue;
            }
            let per_block = (rows * BLOCK_BYTES / bytes.max(1)).clamp(1, rows);
            let first = blocks.len();
            blocks.add_run((0..rows).step_by(per_block as usize).map(|start| {
                let count = per_block.min(rows - start);
                (count, bytes * count / rows)
            }));
            runs.extend(std::iter::repeat_n(groups.len(), blocks.len() - first));
            groups.push(index);
        }
        Ok(Self {
            path: Arc::from(path),
            file,
            metadata,
            projection,
            blocks: Arc::new(blocks),
            groups,
            runs,
            readers: Mutex::default(),
            cache: BlockCache::default(),
        })
    }

    fn batch(&self, block: usize) -> Result<Arc<RecordBatch>, DataError> {
        if let Some(batch) = self.cache.find(block) {
            return Ok(batch);
        }
        // One worker decodes, and others that want the same wait for it.
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(batch) = self.cache.find(block) {
            return Ok(batch);
        }
        let first = self.stretch_start(block);
        let waiting = readers
            .iter()
            .position(|it| (first..=block).contains(&it.block));
        let mut waiting = match waiting {
            Some(at) => readers.remove(at),
            None => WaitingReader {
                block: first,
                reader: self.reader_at(first).map_err(|error| {
                    super::unreadable(&self.path, self.blocks.rows(first), &error)
                })?,
            },
        };
        // Those before it are of the same window, or nearly all: they will be wanted, and have to be gone through anyway.
        let batch = loop {
            let at = waiting.block;
            let batch = self.next_block(&mut waiting)?;
            if at == block {
                break batch;
            }
        };
        if self.runs.get(waiting.block) == self.runs.get(block) {
            if readers.len() == MAX_READERS {
                readers.remove(0);
            }
            readers.push(waiting);
        }
        Ok(batch)
    }

    /// Where reading begins for `block` if no reader waits before it: at a stretch of blocks that makes a window.
    fn stretch_start(&self, block: usize) -> usize {
        const STRETCH: usize = (WINDOW_BYTES / BLOCK_BYTES) as usize;
        let first = self.blocks.run(self.runs[block]).start;
        first + (block - first) / STRETCH * STRETCH
    }

    fn next_block(&self, waiting: &mut WaitingReader) -> Result<Arc<RecordBatch>, DataError> {
        let block = waiting.block;
        let rows = self.blocks.rows(block);
        let bad = |error: &dyn ToString| super::unreadable(&self.path, rows.clone(), error);
        let batch = match waiting.reader.next() {
            Some(Ok(batch)) => batch,
            Some(Err(error)) => return Err(bad(&error)),
            None => return Err(bad(&"there are fewer rows than its footer says")),
        };
        let (found, wanted) = (batch.num_rows() as u64, rows.end - rows.start);
        if found != wanted {
            return Err(bad(&format!(
                "{found} rows, where its footer says {wanted}"
            )));
        }
        waiting.block += 1;
        Ok(self.cache.put(block, self.blocks.bytes(block), batch))
    }

    fn reader_at(
        &self,
        block: usize,
    ) -> Result<ParquetRecordBatchReader, Box<dyn std::error::Error + Send + Sync>> {
        let run = self.runs[block];
        let first = self.blocks.rows(self.blocks.run(run).start);
        let offset = self.blocks.rows(block).start - first.start;
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(
            self.file.clone(),
            self.metadata.clone(),
        );
        let builder = builder
            .with_row_groups(vec![self.groups[run]])
            .with_projection(self.projection.clone())
            // All blocks of a run but the last are as long as the first.
            .with_batch_size((first.end - first.start) as usize)
            .with_offset(offset as usize);
        Ok(builder.build()?)
    }
}

impl Source for ParquetFile {
    fn num_rows(&self) -> Option<u64> {
        Some(self.blocks.num_rows())
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        Some(Arc::clone(&self.blocks))
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        let block = self.blocks.of_row(index);
        let batch = self.batch(block)?;
        let within = (index - self.blocks.rows(block).start) as usize;
        columns::read_row(&batch, within, row);
        row.at = Location::Row {
            file: Arc::clone(&self.path),
            row: index,
        };
        Ok(())
    }
}

/// A file read at places, by several threads: handles made of one another share one place to read at.
#[derive(Clone)]
struct Shared {
    file: Arc<File>,
    len: u64,
}

impl Shared {
    fn open(path: &Path) -> io::Result<Self> {
        let file = Arc::new(File::open(path)?);
        let len = file.metadata()?.len();
        Ok(Self { file, len })
    }
}

impl Length for Shared {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Shared {
    type T = io::BufReader<ReadFrom>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let file = Arc::clone(&self.file);
        Ok(io::BufReader::new(ReadFrom { file, at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

struct ReadFrom {
    file: Arc<File>,
    at: u64,
}

impl Read for ReadFrom {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
