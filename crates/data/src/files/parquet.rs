//! Parquet files.
//!
//! The footer says how many rows a row group has and what they take. A row group is read in blocks of about
//! [`BLOCK_BYTES`], one after another, page by page: so a file with a single row group of any size takes no more memory
//! than another. A reader that has come to the end of a block waits there for the next, so that a row group is gone through
//! once; to begin in its middle, the pages before are skipped by the file's page index if it has one, else decompressed.

use std::io;
use std::path::Path;
use std::sync::Arc;

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

use super::block_file::{BlockFile, Decoder, Undecoded};
use super::decoded_sizes::DecodedSizes;
use super::projection::{Columns, Projection};
use super::remote::{PlacedFile, ReadOn, RemoteFiles};
use crate::blocks::Blocks;
use crate::error::DataError;
use crate::order::WINDOW_BYTES;

/// What the rows of a block take, about.
const BLOCK_BYTES: u64 = 8 << 20;
/// Readers that wait: row groups that are read in turns.
const MAX_READERS: usize = 4;

/// The rows of the file at `path`, which may be among `remotes`; of `columns`.
pub(super) fn open(
    path: &Path,
    columns: &Columns,
    remotes: &RemoteFiles,
) -> Result<BlockFile<RowGroups>, DataError> {
    let file = PlacedFile::open(path, remotes).map_err(DataError::io(path))?;
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
    let metadata = ArrowReaderMetadata::load(&file, options)
        .map_err(|error| DataError::file(path, format!("not to be read as Parquet: {error}")))?;
    let Projection { places, unread } = columns.of_file(metadata.schema().fields(), path)?;
    let projection = match places {
        Some(roots) => ProjectionMask::roots(metadata.parquet_schema(), roots),
        None => ProjectionMask::all(),
    };
    let mut sizes = DecodedSizes::new(&file, &metadata);
    let (mut blocks, mut groups) = (Blocks::default(), Vec::new());
    for (index, group) in metadata.metadata().row_groups().iter().enumerate() {
        let rows = u64::try_from(group.num_rows())
            .map_err(|_| DataError::file(path, "a row group of negative length"))?;
        if rows == 0 {
            continue;
        }
        let columns = group.columns().iter().enumerate();
        let bytes: u64 = columns
            .filter(|(leaf, _)| projection.leaf_included(*leaf))
            .map(|(leaf, column)| sizes.bytes(leaf, column))
            .sum();
        let per_block = (rows * BLOCK_BYTES / bytes.max(1)).clamp(1, rows);
        blocks.add_run((0..rows).step_by(per_block as usize).map(|start| {
            let count = per_block.min(rows - start);
            (count, bytes * count / rows)
        }));
        groups.push(index);
    }
    let decoder = RowGroups {
        file,
        metadata,
        projection,
        groups,
        readers: Vec::new(),
    };
    Ok(BlockFile::new(path, blocks, decoder, unread))
}

/// Row groups, each a run of blocks.
pub(super) struct RowGroups {
    file: PlacedFile,
    metadata: ArrowReaderMetadata,
    projection: ProjectionMask,
    /// Of each run of blocks, the row group.
    groups: Vec<usize>,
    readers: Vec<WaitingReader>,
}

struct WaitingReader {
    /// What it gives next.
    block: usize,
    reader: ParquetRecordBatchReader,
}

impl Decoder for RowGroups {
    fn decode(
        &mut self,
        block: usize,
        blocks: &Blocks,
        keep: &mut dyn FnMut(usize, RecordBatch) -> Arc<RecordBatch>,
    ) -> Result<Arc<RecordBatch>, Undecoded> {
        let run = blocks.run(blocks.run_of(block));
        let first = stretch_start(run.start, block);
        let is_before = |it: &WaitingReader| (first..=block).contains(&it.block);
        let mut waiting = match self.readers.iter().position(is_before) {
            Some(at) => self.readers.remove(at),
            None => WaitingReader {
                block: first,
                reader: self
                    .reader_at(first, blocks)
                    .map_err(|error| Undecoded::new(first, error))?,
            },
        };
        // Those before it are of the same window, or nearly all: they will be wanted, and have to be gone through anyway.
        let batch = loop {
            let at = waiting.block;
            let batch = keep(at, waiting.next_block(blocks)?);
            if at == block {
                break batch;
            }
        };
        if run.contains(&waiting.block) {
            if self.readers.len() == MAX_READERS {
                self.readers.remove(0);
            }
            self.readers.push(waiting);
        }
        Ok(batch)
    }
}

/// Where reading begins for `block` of a run if no reader waits before it: at a stretch of blocks that makes a window.
fn stretch_start(run_start: usize, block: usize) -> usize {
    const STRETCH: usize = (WINDOW_BYTES / BLOCK_BYTES) as usize;
    run_start + (block - run_start) / STRETCH * STRETCH
}

impl WaitingReader {
    fn next_block(&mut self, blocks: &Blocks) -> Result<RecordBatch, Undecoded> {
        let bad = |why: String| Undecoded::new(self.block, why);
        let batch = match self.reader.next() {
            Some(batch) => batch.map_err(|error| bad(error.to_string()))?,
            None => return Err(bad("there are fewer rows than its footer says".to_owned())),
        };
        let rows = blocks.rows(self.block);
        let (found, wanted) = (batch.num_rows() as u64, rows.end - rows.start);
        if found != wanted {
            return Err(bad(format!("{found} rows, where its footer says {wanted}")));
        }
        self.block += 1;
        Ok(batch)
    }
}

impl RowGroups {
    fn reader_at(&self, block: usize, blocks: &Blocks) -> ParquetResult<ParquetRecordBatchReader> {
        let run = blocks.run_of(block);
        let first = blocks.rows(blocks.run(run).start);
        let offset = blocks.rows(block).start - first.start;
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(
            self.file.clone(),
            self.metadata.clone(),
        );
        builder
            .with_row_groups(vec![self.groups[run]])
            .with_projection(self.projection.clone())
            // All blocks of a run but the last are as long as the first.
            .with_batch_size((first.end - first.start) as usize)
            .with_offset(offset as usize)
            .build()
    }
}

impl Length for PlacedFile {
    fn len(&self) -> u64 {
        self.num_bytes()
    }
}

impl ChunkReader for PlacedFile {
    type T = io::BufReader<ReadOn>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let file = self.clone();
        Ok(io::BufReader::new(ReadOn { file, at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}
