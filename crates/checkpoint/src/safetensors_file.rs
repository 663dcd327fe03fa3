//! One open safetensors file: the header in memory, the data read by position when asked for.
//!
//! Errors: `Truncated` if the file is shorter or longer than its header says, `Malformed` if it
//! has no valid header.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use safetensors::tensor::{Metadata, TensorInfo};

use crate::{
    error::{Error, Result},
    sys,
};

/// The limit of the reference implementation; a larger length means a file of another kind.
const MAX_HEADER_BYTES: u64 = 100_000_000;

#[derive(Debug)]
pub(crate) struct SafetensorsFile {
    pub path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
}

impl SafetensorsFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let io = |e| Error::io("read", path, e);
        let malformed = |reason: String| Error::Malformed {
            path: path.to_owned(),
            what: "safetensors",
            reason,
        };
        let truncated = |expected_bytes, actual_bytes| Error::Truncated {
            path: path.to_owned(),
            expected_bytes,
            actual_bytes,
        };
        let file = File::open(path).map_err(io)?;
        let actual_bytes = file.metadata().map_err(io)?.len();
        if actual_bytes < 8 {
            return Err(truncated(8, actual_bytes));
        }
        let mut length = [0; 8];
        sys::read_exact_at(&file, &mut length, 0).map_err(io)?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > MAX_HEADER_BYTES {
            return Err(malformed(other_kind(&length).unwrap_or_else(|| {
                format!("its first 8 bytes give a header of {header_bytes} bytes")
            })));
        }
        let data_start = 8 + header_bytes;
        if actual_bytes < data_start {
            return Err(truncated(data_start, actual_bytes));
        }
        let mut header = vec![0; header_bytes as usize];
        sys::read_exact_at(&file, &mut header, 8).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|e| malformed(format!("in its header, {e}")))?;
        let expected_bytes = data_start + metadata.data_len() as u64;
        if actual_bytes != expected_bytes {
            return Err(truncated(expected_bytes, actual_bytes));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            metadata,
            data_start,
        })
    }

    /// Names in the order of the data.
    pub(crate) fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    pub(crate) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.metadata.info(name)
    }

    /// Fills `buffer` from byte `offset` of the tensor's data.
    pub(crate) fn read(&self, info: &TensorInfo, offset: usize, buffer: &mut [u8]) -> Result<()> {
        let at = self.data_start + (info.data_offsets.0 + offset) as u64;
        sys::read_exact_at(&self.file, buffer, at).map_err(|e| Error::io("read", &self.path, e))
    }
}

/// What people have in place of a safetensors file.
fn other_kind(start: &[u8; 8]) -> Option<String> {
    let kind = match start {
        b"version " => "it is a Git LFS pointer, get the file itself with `git lfs pull`",
        [b'P', b'K', 3, 4, ..] => "it is a PyTorch archive, save it as safetensors first",
        [b'G', b'G', b'U', b'F', ..] => "it is a GGUF file",
        [b'<', ..] => "it is a web page, left by a failed download",
        _ => return None,
    };
    Some(kind.to_owned())
}
