//! Text that may be compressed with gzip or zstd: told by the first bytes, whatever the name is.
//!
//! What is compressed cannot be read at a place. So it is decompressed once at the start, into a file without a name in the
//! folder for temporary files, which is gone when the run is. All members of a gzip file and all frames of a zstd file
//! count; a file that is cut off is an error.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::read_at::ReadAt;
use crate::error::DataError;

/// A file of plain bytes.
pub(super) struct Plain(File);

impl Plain {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::io(path))?;
        let mut start = [0; 4];
        let known = read_some(&file, &mut start).map_err(DataError::io(path))?;
        let reader = io::BufReader::with_capacity(1 << 16, ReadAt { file: &file, at: 0 });
        let bad =
            |error: io::Error| DataError::file(path, format!("it is cut off or damaged: {error}"));
        let plain = match &start[..known] {
            [0x1f, 0x8b, ..] => unpack(path, MultiGzDecoder::new(reader), bad)?,
            [0x28, 0xb5, 0x2f, 0xfd] => {
                let decoder = zstd::Decoder::with_buffer(reader).map_err(bad)?;
                unpack(path, decoder, bad)?
            }
            _ => return Ok(Self(file)),
        };
        Ok(Self(plain))
    }

    pub(super) fn reader(&self) -> impl Read {
        ReadAt {
            file: &self.0,
            at: 0,
        }
    }

    /// Errors: `UnexpectedEof` if there are fewer.
    pub(super) fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, at)
    }
}

fn read_some(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut known = 0;
    while known < bytes.len() {
        match file.read_at(&mut bytes[known..], known as u64)? {
            0 => break,
            read => known += read,
        }
    }
    Ok(known)
}

fn unpack(
    path: &Path,
    mut packed: impl Read,
    bad: impl Fn(io::Error) -> DataError,
) -> Result<File, DataError> {
    use std::io::Write;

    let folder = std::env::temp_dir();
    let no_room = |source: io::Error| DataError::Unpack {
        path: path.to_owned(),
        folder: folder.clone(),
        source,
    };
    let mut plain = tempfile::tempfile_in(&folder).map_err(no_room)?;
    let mut bytes = vec![0; 1 << 18];
    loop {
        match packed.read(&mut bytes) {
            Ok(0) => return Ok(plain),
            Ok(read) => plain.write_all(&bytes[..read]).map_err(no_room)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(bad(error)),
        }
    }
}
