//! JSON: an object a line (JSONL), or one array of objects.
//!
//! A file is gone through once, for where its rows are; a row is parsed when its turn comes. Blank lines are no rows, and a
//! byte order mark is passed over. Memory: 24 bytes a row, and the row in hand.
//! Errors name the line.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::compressed::Plain;
use super::projection::Columns;
use crate::error::DataError;
use crate::location::Location;
use crate::row::Row;
use crate::source::Source;
use crate::value::Fields;

/// The rows of one file.
pub(super) struct JsonFile {
    path: Arc<Path>,
    file: Plain,
    rows: Vec<Span>,
    columns: Columns,
}

/// Where a row is.
#[derive(Clone, Copy)]
struct Span {
    start: u64,
    bytes: u64,
    /// The line where it begins, from 1.
    line: u64,
}

impl JsonFile {
    pub(super) fn open(path: &Path, columns: &Columns) -> Result<Self, DataError> {
        let file = Plain::open(path)?;
        let mut rows = Vec::new();
        let mut scan = Scan::new(&mut rows);
        let mut reader = BufReader::with_capacity(1 << 16, file.reader());
        loop {
            let bytes = reader.fill_buf().map_err(DataError::io(path))?;
            if bytes.is_empty() {
                break;
            }
            scan.bytes(bytes);
            let read = bytes.len();
            reader.consume(read);
        }
        drop(reader);
        scan.finish()
            .map_err(|problem| DataError::file(path, problem))?;
        Ok(Self {
            path: Arc::from(path),
            file,
            rows,
            columns: columns.clone(),
        })
    }
}

impl Source for JsonFile {
    fn num_rows(&self) -> Option<u64> {
        Some(self.rows.len() as u64)
    }

    fn row_bytes(&self) -> Option<Vec<u64>> {
        Some(self.rows.iter().map(|span| span.bytes).collect())
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.to_path_buf()]
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        let span = self.rows[index as usize];
        row.at = Location::Line {
            file: Arc::clone(&self.path),
            line: span.line,
        };
        let mut bytes = vec![0; span.bytes as usize];
        self.file
            .read_at(span.start, &mut bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => DataError::FileChanged {
                    path: self.path.to_path_buf(),
                },
                _ => DataError::io(&self.path)(error),
            })?;
        let bad = |message: String| DataError::BadRow {
            at: row.at.clone(),
            message,
        };
        let text = str::from_utf8(&bytes).map_err(|error| {
            bad(format!(
                "not UTF-8 from its byte {} on",
                error.valid_up_to()
            ))
        })?;
        let fields: Fields = serde_json::from_str(text).map_err(|error| {
            // The line in the message would be that in the row.
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            bad(format!(
                "not a JSON object: {message} (byte {} of the row)",
                error.column()
            ))
        })?;
        row.fields = self.columns.of_row(fields);
        Ok(())
    }
}

/// Finds rows in bytes as they come.
struct Scan<'a> {
    rows: &'a mut Vec<Span>,
    /// Of the next byte.
    at: u64,
    line: u64,
    kind: Kind,
    /// Where the row in hand begins, in which line, and the end of what is not blank in it.
    begun: Option<(u64, u64, u64)>,
}

enum Kind {
    /// Nothing but blanks so far.
    Unknown,
    Lines,
    /// Within an array: how deep in the brackets of an element, and in a string.
    Array {
        depth: u32,
        string: Text,
    },
    /// After its end.
    Over,
    /// Something after the end of an array, in this line.
    Beyond(u64),
}

#[derive(PartialEq)]
enum Text {
    Outside,
    Inside,
    AfterBackslash,
}

impl<'a> Scan<'a> {
    fn new(rows: &'a mut Vec<Span>) -> Self {
        Self {
            rows,
            at: 0,
            line: 1,
            kind: Kind::Unknown,
            begun: None,
        }
    }

    fn bytes(&mut self, mut bytes: &[u8]) {
        const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
        if self.at == 0 && bytes.starts_with(BYTE_ORDER_MARK) {
            bytes = &bytes[BYTE_ORDER_MARK.len()..];
            self.at = 3;
        }
        while let Some(&byte) = bytes.first() {
            if let Kind::Lines = self.kind {
                let (end, is_whole) = match memchr::memchr(b'\n', bytes) {
                    Some(end) => (end, true),
                    None => (bytes.len(), false),
                };
                self.part_of_line(&bytes[..end]);
                self.at += end as u64;
                if is_whole {
                    self.end_row();
                    self.at += 1;
                    self.line += 1;
                }
                bytes = &bytes[end + usize::from(is_whole)..];
                continue;
            }
            if matches!(self.kind, Kind::Unknown) && !byte.is_ascii_whitespace() && byte != b'[' {
                self.kind = Kind::Lines;
                continue;
            }
            self.byte(byte);
            self.at += 1;
            self.line += u64::from(byte == b'\n');
            bytes = &bytes[1..];
        }
    }

    fn part_of_line(&mut self, bytes: &[u8]) {
        let is_ink = |byte: &u8| !byte.is_ascii_whitespace();
        let Some(last) = bytes.iter().rposition(is_ink) else {
            return;
        };
        let end = self.at + last as u64 + 1;
        if let Some(begun) = &mut self.begun {
            begun.2 = end;
        } else if let Some(first) = bytes.iter().position(is_ink) {
            self.begun = Some((self.at + first as u64, self.line, end));
        }
    }

    fn byte(&mut self, byte: u8) {
        match &mut self.kind {
            Kind::Unknown if byte == b'[' => {
                self.kind = Kind::Array {
                    depth: 0,
                    string: Text::Outside,
                };
            }
            Kind::Over if !byte.is_ascii_whitespace() => self.kind = Kind::Beyond(self.line),
            Kind::Array { depth, string } => {
                let is_inside = *string != Text::Outside;
                *string = match (&string, byte) {
                    (Text::AfterBackslash, _) => Text::Inside,
                    (Text::Inside, b'\\') => Text::AfterBackslash,
                    (Text::Inside, b'"') => Text::Outside,
                    (Text::Outside, b'"') => Text::Inside,
                    (Text::Inside, _) => Text::Inside,
                    (Text::Outside, _) => Text::Outside,
                };
                let is_end = !is_inside && *depth == 0 && matches!(byte, b',' | b']');
                if !is_inside && !is_end {
                    match byte {
                        b'{' | b'[' => *depth += 1,
                        b'}' | b']' => *depth = depth.saturating_sub(1),
                        _ => {}
                    }
                }
                if is_end {
                    if byte == b']' {
                        self.kind = Kind::Over;
                    }
                    self.end_row();
                } else if is_inside || !byte.is_ascii_whitespace() {
                    let end = self.at + 1;
                    let (start, line) = (self.at, self.line);
                    self.begun.get_or_insert((start, line, end)).2 = end;
                }
            }
            _ => {}
        }
    }

    fn end_row(&mut self) {
        if let Some((start, line, end)) = self.begun.take() {
            self.rows.push(Span {
                start,
                bytes: end - start,
                line,
            });
        }
    }

    fn finish(mut self) -> Result<(), String> {
        match self.kind {
            Kind::Array { .. } => Err(format!(
                "the array that it is does not end: it is cut off in line {}",
                self.line
            )),
            Kind::Beyond(line) => Err(format!("line {line}: something after the end of the array")),
            Kind::Unknown | Kind::Lines | Kind::Over => {
                self.end_row();
                Ok(())
            }
        }
    }
}
