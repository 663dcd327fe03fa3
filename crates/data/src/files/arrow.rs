//! Arrow IPC files and streams, told apart by the magic `ARROW1`; both end in `.arrow`. `datasets` keeps streams.
//!
//! A file's footer says where its record batches are; a stream is gone through once, from message to message, without
//! what is between. Either way a batch is then read when its turn comes. Memory: 40 bytes a batch, and the batches in use.
//! Source: the Apache Arrow columnar format, "Serialization and Interprocess Communication".

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, Message, MessageHeader, MetadataVersion, root_as_footer, root_as_message};
use arrow_schema::{ArrowError, SchemaRef};

use super::block_file::{BlockFile, Decoder, Undecoded};
use super::projection::Columns;
use crate::blocks::Blocks;
use crate::error::DataError;

const MAGIC: &[u8; 6] = b"ARROW1";
const CONTINUATION: [u8; 4] = [0xff; 4];
/// What a compressed body may grow to, for the reckoning of memory.
const COMPRESSION: u64 = 3;

/// The rows of the file or stream at `path`, of `columns`.
pub(super) fn open(path: &Path, columns: &Columns) -> Result<BlockFile<Batches>, DataError> {
    let file = File::open(path).map_err(DataError::io(path))?;
    let index = Index::read(&file, path)?;
    let schema = index
        .schema
        .ok_or_else(|| DataError::file(path, "no Arrow stream: it has no schema"))?;
    let projection = columns.of_file(schema.fields(), path)?;
    let mut blocks = Blocks::default();
    blocks.add_run(index.batches.iter().map(|(_, rows, bytes)| (*rows, *bytes)));
    let batches = index.batches.into_iter();
    let decoder = Batches {
        file,
        schema,
        version: index.version,
        projection: projection.places,
        dictionaries: index.dictionaries,
        batches: batches
            .filter_map(|(batch, rows, _)| (rows > 0).then_some(batch))
            .collect(),
        last: None,
    };
    Ok(BlockFile::new(path, blocks, decoder, projection.unread))
}

/// Record batches, each a block.
pub(super) struct Batches {
    file: File,
    schema: SchemaRef,
    version: MetadataVersion,
    projection: Option<Vec<usize>>,
    dictionaries: Vec<Block>,
    batches: Vec<Batch>,
    /// The last decoder, and of how many dictionaries it knows.
    last: Option<(usize, FileDecoder)>,
}

/// A record batch that has rows.
#[derive(Clone, Copy)]
struct Batch {
    block: Block,
    /// The dictionaries that stand before it: in a stream one may take the place of another.
    num_dictionaries: usize,
}

impl Decoder for Batches {
    fn decode(
        &mut self,
        block: usize,
        _: &Blocks,
        keep: &mut dyn FnMut(usize, RecordBatch) -> Arc<RecordBatch>,
    ) -> Result<Arc<RecordBatch>, Undecoded> {
        let batch = self.batch(block);
        let batch = batch.map_err(|error| Undecoded::new(block, error))?;
        Ok(keep(block, batch))
    }
}

impl Batches {
    fn batch(&mut self, index: usize) -> Result<RecordBatch, ArrowError> {
        let Batch {
            block,
            num_dictionaries,
        } = self.batches[index];
        let decoder = match self.last.take() {
            Some((known, decoder)) if known == num_dictionaries => decoder,
            _ => self.decoder(num_dictionaries)?,
        };
        let (_, decoder) = self.last.insert((num_dictionaries, decoder));
        let batch = decoder.read_record_batch(&block, &bytes(&self.file, &block)?)?;
        batch.ok_or_else(|| ArrowError::IpcError("an empty message".to_owned()))
    }

    fn decoder(&self, num_dictionaries: usize) -> Result<FileDecoder, ArrowError> {
        let mut decoder = FileDecoder::new(Arc::clone(&self.schema), self.version);
        if let Some(projection) = &self.projection {
            decoder = decoder.with_projection(projection.clone());
        }
        for block in &self.dictionaries[..num_dictionaries] {
            decoder.read_dictionary(block, &bytes(&self.file, block)?)?;
        }
        Ok(decoder)
    }
}

fn bytes(file: &File, block: &Block) -> std::io::Result<Buffer> {
    let mut bytes = vec![0; block.metaDataLength() as usize + block.bodyLength() as usize];
    file.read_exact_at(&mut bytes, block.offset() as u64)?;
    Ok(Buffer::from(bytes))
}

/// Where messages are.
struct Index {
    schema: Option<SchemaRef>,
    version: MetadataVersion,
    dictionaries: Vec<Block>,
    /// Each with its rows, and about how many bytes they take.
    batches: Vec<(Batch, u64, u64)>,
}

impl Index {
    fn read(file: &File, path: &Path) -> Result<Self, DataError> {
        let mut magic = [0; 6];
        let len = file.metadata().map_err(DataError::io(path))?.len();
        let reader = Reader { file, path, len };
        match len {
            0..6 => Err(DataError::file(
                path,
                format!("no Arrow file: it has {len} bytes"),
            )),
            _ => {
                reader.read(0, &mut magic)?;
                if &magic == MAGIC {
                    Self::of_file(&reader)
                } else {
                    Self::of_stream(&reader)
                }
            }
        }
    }

    fn of_file(reader: &Reader<'_>) -> Result<Self, DataError> {
        let mut end = [0; 10];
        let end_at = reader
            .len
            .checked_sub(10)
            .ok_or_else(|| reader.cut_off("it has no footer"))?;
        reader.read(end_at, &mut end)?;
        let footer_len = read_footer_length(end).map_err(|_| {
            reader.cut_off("an Arrow file ends with `ARROW1`, and this one does not")
        })?;
        let at = end_at
            .checked_sub(footer_len as u64)
            .ok_or_else(|| reader.bad("its footer is longer than the file"))?;
        let mut bytes = vec![0; footer_len];
        reader.read(at, &mut bytes)?;
        let footer = root_as_footer(&bytes).map_err(|error| reader.bad(error))?;
        let mut index = Self {
            schema: None,
            version: footer.version(),
            dictionaries: footer
                .dictionaries()
                .map(|blocks| blocks.iter().copied().collect())
                .unwrap_or_default(),
            batches: Vec::new(),
        };
        if let Some(schema) = footer.schema() {
            let schema = try_fb_to_schema(schema).map_err(|error| reader.bad(error))?;
            index.schema = Some(Arc::new(schema));
        }
        for block in &index.dictionaries {
            reader.check(block)?;
        }
        for block in footer.recordBatches().into_iter().flatten() {
            reader.check(block)?;
            let mut bytes = vec![0; block.metaDataLength() as usize];
            reader.read(block.offset() as u64, &mut bytes)?;
            let prefix = if bytes.starts_with(&CONTINUATION) {
                8
            } else {
                4
            };
            let message = bytes.get(prefix..).unwrap_or_default();
            let message = root_as_message(message).map_err(|error| reader.bad(error))?;
            index.add_batch(*block, &message, reader)?;
        }
        Ok(index)
    }

    fn of_stream(reader: &Reader<'_>) -> Result<Self, DataError> {
        let mut index = Self {
            schema: None,
            version: MetadataVersion::V5,
            dictionaries: Vec::new(),
            batches: Vec::new(),
        };
        let mut at = 0;
        while at < reader.len {
            let mut word = [0; 4];
            reader.read(at, &mut word)?;
            let mut prefix = 4;
            if word == CONTINUATION {
                reader.read(at + 4, &mut word)?;
                prefix = 8;
            }
            let message_len = u32::from_le_bytes(word);
            if message_len == 0 {
                break;
            }
            if at + prefix + u64::from(message_len) > reader.len {
                let what = if at == 0 {
                    "no Arrow stream, or a cut off one"
                } else {
                    "it is cut off"
                };
                return Err(reader.bad(what));
            }
            let mut bytes = vec![0; message_len as usize];
            reader.read(at + prefix, &mut bytes)?;
            let message = root_as_message(&bytes).map_err(|error| match at {
                0 => reader.bad("no Arrow file, and no stream"),
                _ => reader.bad(error),
            })?;
            let metadata_len = i32::try_from(prefix + u64::from(message_len));
            let metadata_len = metadata_len.map_err(|_| reader.bad("a message of over 2 GB"))?;
            let block = Block::new(at as i64, metadata_len, message.bodyLength());
            reader.check(&block)?;
            at += metadata_len as u64 + message.bodyLength() as u64;
            match message.header_type() {
                MessageHeader::Schema => {
                    index.version = message.version();
                    let schema = message.header_as_schema().map(try_fb_to_schema);
                    let schema = schema.transpose().map_err(|error| reader.bad(error))?;
                    index.schema = schema.map(Arc::new);
                }
                MessageHeader::DictionaryBatch => index.dictionaries.push(block),
                MessageHeader::RecordBatch => index.add_batch(block, &message, reader)?,
                _ => {}
            }
        }
        Ok(index)
    }

    fn add_batch(
        &mut self,
        block: Block,
        message: &Message<'_>,
        reader: &Reader<'_>,
    ) -> Result<(), DataError> {
        let batch = message
            .header_as_record_batch()
            .ok_or_else(|| reader.bad("a record batch is none"))?;
        let rows = u64::try_from(batch.length())
            .map_err(|_| reader.bad("a record batch of negative length"))?;
        let factor = if batch.compression().is_some() {
            COMPRESSION
        } else {
            1
        };
        let bytes = block.bodyLength() as u64 * factor;
        let num_dictionaries = self.dictionaries.len();
        self.batches.push((
            Batch {
                block,
                num_dictionaries,
            },
            rows,
            bytes,
        ));
        Ok(())
    }
}

struct Reader<'a> {
    file: &'a File,
    path: &'a Path,
    len: u64,
}

impl Reader<'_> {
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), DataError> {
        if at + bytes.len() as u64 > self.len {
            return Err(self.bad("it is cut off"));
        }
        let read = self.file.read_exact_at(bytes, at);
        read.map_err(DataError::io(self.path))
    }

    /// Errors: a block that is not in the file.
    fn check(&self, block: &Block) -> Result<(), DataError> {
        let parts = [
            block.offset(),
            i64::from(block.metaDataLength()),
            block.bodyLength(),
        ];
        let end = parts.iter().try_fold(0_i64, |sum, &part| {
            (part >= 0).then(|| sum.checked_add(part)).flatten()
        });
        match end {
            Some(end) if end as u64 <= self.len => Ok(()),
            _ => Err(self.bad("it is cut off within a record batch")),
        }
    }

    fn bad(&self, what: impl ToString) -> DataError {
        DataError::file(
            self.path,
            format!("not to be read as Arrow: {}", what.to_string()),
        )
    }

    fn cut_off(&self, why: &str) -> DataError {
        DataError::file(self.path, format!("it is cut off: {why}"))
    }
}
