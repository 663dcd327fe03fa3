//! The framing of a `.wandb` log: LevelDB's, in blocks of 32,768 bytes, with another checksum.
//!
//! The file begins with `:W&B`, 0xBEE1 (little endian) and the version 0; these seven bytes belong to the first block.
//! A record is one chunk or more, each with a header of seven bytes: CRC-32 (IEEE, the one of zlib and not LevelDB's
//! CRC-32C, not masked) of type and payload, length (16 bits), type (1 full, 2 first, 3 middle, 4 last). No chunk crosses
//! a block; fewer than seven bytes at a block's end are zeros. There is no footer: a log may end after any record.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

const MAGIC: [u8; 7] = *b":W&B\xe1\xbe\x00";
const BLOCK: u64 = 32_768;
const HEADER: usize = 7;

const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// What is wrong with bytes that were to be a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged: {0}")]
pub(super) struct Malformed(pub(super) &'static str);

impl From<Malformed> for io::Error {
    fn from(error: Malformed) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

/// Writes a log. Each record is one write, so that a kill loses at most the one that is being written.
pub(super) struct Writer<W> {
    out: W,
    position: u64,
}

impl Writer<File> {
    /// A log is never appended to by another process: the file must not be there.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Self::new(file)
    }
}

impl<W: Write> Writer<W> {
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&MAGIC)?;
        Ok(Self {
            out,
            position: MAGIC.len() as u64,
        })
    }

    pub(super) fn write(&mut self, record: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(record.len() + 2 * HEADER);
        let (mut rest, mut is_first) = (record, true);
        loop {
            let room = (BLOCK - (self.position + bytes.len() as u64) % BLOCK) as usize;
            if room < HEADER {
                bytes.resize(bytes.len() + room, 0);
                continue;
            }
            let (part, tail) = rest.split_at(rest.len().min(room - HEADER));
            rest = tail;
            let kind = match (is_first, rest.is_empty()) {
                (true, true) => FULL,
                (true, false) => FIRST,
                (false, true) => LAST,
                (false, false) => MIDDLE,
            };
            bytes.extend_from_slice(&checksum(kind, part).to_le_bytes());
            bytes.extend_from_slice(&(part.len() as u16).to_le_bytes());
            bytes.push(kind);
            bytes.extend_from_slice(part);
            if rest.is_empty() {
                break;
            }
            is_first = false;
        }
        self.out.write_all(&bytes)?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}

fn checksum(kind: u8, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind]);
    hasher.update(payload);
    hasher.finalize()
}

/// Reads a log, also one that is still written.
pub(super) struct Reader<R> {
    from: R,
    /// Behind the last whole record.
    position: u64,
}

impl Reader<File> {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::new(File::open(path)?))
    }
}

impl<R: Read + Seek> Reader<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, position: 0 }
    }

    /// The next record; `None` where the log ends, for now or for good, be it in the middle of a record.
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.from.seek(SeekFrom::Start(self.position))?;
        let mut at = self.position;
        if at == 0 {
            let mut magic = [0; MAGIC.len()];
            if !fill(&mut self.from, &mut magic)? {
                return Ok(None);
            }
            if magic != MAGIC {
                return Err(Malformed("it does not begin as a .wandb log").into());
            }
            at = MAGIC.len() as u64;
        }
        let mut record: Option<Vec<u8>> = None;
        loop {
            let room = (BLOCK - at % BLOCK) as usize;
            if room < HEADER {
                let mut padding = [0; HEADER];
                if !fill(&mut self.from, &mut padding[..room])? {
                    return Ok(None);
                }
                at += room as u64;
                continue;
            }
            let mut header = [0; HEADER];
            if !fill(&mut self.from, &mut header)? {
                return Ok(None);
            }
            let [a, b, c, d, low, high, kind] = header;
            let length = usize::from(u16::from_le_bytes([low, high]));
            if length > room - HEADER {
                return Err(Malformed("a chunk crosses its block").into());
            }
            let mut part = vec![0; length];
            if !fill(&mut self.from, &mut part)? {
                return Ok(None);
            }
            if checksum(kind, &part) != u32::from_le_bytes([a, b, c, d]) {
                return Err(Malformed("a checksum is wrong").into());
            }
            at += (HEADER + length) as u64;
            match (kind, &mut record) {
                (FULL | FIRST, None) => record = Some(part),
                (MIDDLE | LAST, Some(record)) => record.extend_from_slice(&part),
                _ => return Err(Malformed("chunks out of order").into()),
            }
            if matches!(kind, FULL | LAST) {
                self.position = at;
                return Ok(record);
            }
        }
    }
}

/// Whether there were enough bytes.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn written(records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        for record in records {
            writer.write(record).unwrap();
        }
        bytes
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut reader = Reader::new(Cursor::new(bytes));
        let mut records = Vec::new();
        while let Some(record) = reader.next()? {
            records.push(record);
        }
        Ok(records)
    }

    /// Lengths around which the first block, which also holds the file's header, ends.
    #[test]
    fn records_read_back_wherever_a_block_ends() {
        for first in 32_740..=32_762 {
            let records = vec![vec![1; first], vec![2; 3], vec![3; 70_000], vec![]];
            assert_eq!(read(&written(&records)).unwrap(), records, "{first}");
        }
    }

    #[test]
    fn seven_bytes_at_the_end_of_a_block_hold_an_empty_first_chunk() {
        let bytes = written(&[vec![1; 32_768 - 7 - 7 - 7], vec![2; 3]]);
        assert_eq!(bytes[32_768 - 7 + 4..32_768], [0, 0, FIRST]);
    }

    #[test]
    fn a_log_that_was_cut_has_all_records_but_the_last() {
        let records = vec![vec![1; 10], vec![2; 40_000]];
        let bytes = written(&records);
        for length in [25, 7 + 17 + 5, 33_000, bytes.len() - 1] {
            assert_eq!(read(&bytes[..length]).unwrap(), records[..1], "{length}");
        }
        assert!(read(&bytes[..3]).unwrap().is_empty());
    }

    #[test]
    fn a_changed_byte_is_found() {
        let mut bytes = written(&[vec![1; 10]]);
        bytes[16] ^= 1;
        let error = read(&bytes).unwrap_err();
        assert_eq!(error.to_string(), "damaged: a checksum is wrong");
        bytes[0] = b'x';
        assert!(read(&bytes).is_err());
    }
}
