//! What the columns of a Parquet file take once they are decoded, which no reading of them should have to find out.
//!
//! A file says how long its pages are when they are decompressed. Where values repeat, these hold each once, in a dictionary,
//! and numbers for the rest: a text of 10 KB in each of a million rows is a page of 10 KB. How long strings are together is in
//! the footer where its writer keeps size statistics; else the mean of the first dictionary of the column is taken for all.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::DataType;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::Type;
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use super::remote::PlacedFile;

/// What stands before a string in a page, and about what its place takes in an array.
const LENGTH_BYTES: u64 = 4;

/// Reckons for one file.
pub(super) struct DecodedSizes<'a> {
    file: &'a PlacedFile,
    metadata: &'a ArrowReaderMetadata,
    /// Mean bytes of a string in the first dictionary of each column.
    mean_bytes: HashMap<usize, Option<f64>>,
}

impl<'a> DecodedSizes<'a> {
    pub(super) fn new(file: &'a PlacedFile, metadata: &'a ArrowReaderMetadata) -> Self {
        Self {
            file,
            metadata,
            mean_bytes: HashMap::new(),
        }
    }

    /// About what `column` of a row group, which is number `leaf` of the file, takes.
    pub(super) fn bytes(&mut self, leaf: usize, column: &ColumnChunkMetaData) -> u64 {
        let in_pages = column.uncompressed_size().max(0) as u64;
        if column.dictionary_page_offset().is_none() || self.stays_dictionary(leaf) {
            return in_pages;
        }
        let num_values = column.num_values().max(0) as u64;
        let each = |bytes: u64| num_values * bytes;
        let decoded = match column.column_type() {
            Type::BOOLEAN => 0,
            Type::INT32 | Type::FLOAT => each(4),
            Type::INT64 | Type::DOUBLE => each(8),
            Type::INT96 => each(12),
            Type::FIXED_LEN_BYTE_ARRAY => each(column.column_descr().type_length().max(0) as u64),
            Type::BYTE_ARRAY => match column.unencoded_byte_array_data_bytes() {
                Some(bytes) => bytes.max(0) as u64 + each(LENGTH_BYTES),
                None => {
                    let mean = self.mean_bytes(leaf, column).unwrap_or_default();
                    (num_values as f64 * mean) as u64 + each(LENGTH_BYTES)
                }
            },
        };
        decoded.max(in_pages)
    }

    /// Whether an array of the column is a dictionary too, as an Arrow schema in the file may say.
    fn stays_dictionary(&self, leaf: usize) -> bool {
        let root = (self.metadata.parquet_schema()).get_column_root_idx(leaf);
        let field = self.metadata.schema().fields().get(root);
        field.is_some_and(|field| matches!(field.data_type(), DataType::Dictionary(..)))
    }

    fn mean_bytes(&mut self, leaf: usize, column: &ColumnChunkMetaData) -> Option<f64> {
        let read = || dictionary_mean(self.file, column);
        *self.mean_bytes.entry(leaf).or_insert_with(read)
    }
}

/// `None` if there is no dictionary to be read: what is wrong with the page is said when its rows are read.
fn dictionary_mean(file: &PlacedFile, column: &ColumnChunkMetaData) -> Option<f64> {
    let reader = SerializedPageReader::new(Arc::new(file.clone()), column, 0, None);
    let page = reader.ok()?.get_next_page().ok()??;
    match page {
        Page::DictionaryPage {
            buf, num_values, ..
        } if num_values > 0 => {
            let mean = buf.len() as f64 / f64::from(num_values);
            Some((mean - LENGTH_BYTES as f64).max(0.0))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::{EnabledStatistics, WriterProperties};

    use super::super::parquet as parquet_file;
    use super::super::projection::Columns;
    use super::*;
    use crate::files::RemoteFiles;
    use crate::row::Row;
    use crate::source::Source;

    const ROWS: usize = 10_000;
    const TEXT_BYTES: usize = 5_000;

    /// Twenty texts of 5 KB, each many times.
    fn write(path: &Path, statistics: EnabledStatistics) {
        let texts = (0..ROWS).map(|row| format!("{:04} ", row % 20).repeat(TEXT_BYTES / 5));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
        let numbers = (0..ROWS as i64).map(|row| row % 3);
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        let batch = RecordBatch::try_from_iter([("text", texts), ("number", numbers)]).unwrap();
        let properties = WriterProperties::builder().set_statistics_enabled(statistics);
        let file = File::create(path).unwrap();
        let mut writer =
            ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn a_block_of_texts_from_a_dictionary_is_as_small_as_any() {
        let folder = tempfile::tempdir().unwrap();
        for statistics in [EnabledStatistics::None, EnabledStatistics::Chunk] {
            let path = folder.path().join(format!("{statistics:?}.parquet"));
            write(&path, statistics);
            assert!(path.metadata().unwrap().len() < 1 << 20);
            let file = parquet_file::open(&path, &Columns::All, &RemoteFiles::default()).unwrap();
            let blocks = file.blocks().unwrap();
            let all: u64 = (0..blocks.len()).map(|block| blocks.bytes(block)).sum();
            // As they are in memory: texts, their places, numbers.
            let decoded = (ROWS * (TEXT_BYTES + 4 + 8)) as u64;
            assert!(all.abs_diff(decoded) < decoded / 50, "{all} {decoded}");
            let largest = (0..blocks.len()).map(|block| blocks.rows(block));
            let largest = largest.map(|rows| rows.end - rows.start).max().unwrap();
            assert!(largest * TEXT_BYTES as u64 <= 8 << 20, "{largest} rows");
            let mut row = Row::default();
            file.read(ROWS as u64 - 1, &mut row).unwrap();
            assert_eq!(row.text("text").unwrap().len(), TEXT_BYTES);
        }
    }
}
