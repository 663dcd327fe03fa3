//! One open safetensors file: the header in memory, the data read by position when asked for.
//!
//! Errors: `Truncated` if the file is shorter than its header says, `Malformed` if it is longer or
//! has no valid header, `NotAFloat` for a type that does not convert to f32.

use std::{
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
};

use half::{bf16, f16};
use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};
use serde_json::{Map, Value};

use crate::{
    error::{Error, Result},
    sys,
    tensor::HostTensor,
    tensor_file::TensorFile,
};

/// Bytes converted at a time by [`TensorFile::read_f32`].
const CHUNK_BYTES: usize = 1 << 20;

/// The limit of the reference implementation; a larger length means a file of another kind.
const MAX_HEADER_BYTES: u64 = 100_000_000;

#[derive(Debug)]
pub(crate) struct SafetensorsFile {
    path: PathBuf,
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
            .map_err(|e| malformed(misfit(&header).unwrap_or(format!("in its header, {e}"))))?;
        let expected_bytes = data_start + metadata.data_len() as u64;
        if actual_bytes < expected_bytes {
            return Err(truncated(expected_bytes, actual_bytes));
        }
        if actual_bytes > expected_bytes {
            return Err(malformed(format!(
                "its header declares {expected_bytes} bytes, and {} more follow",
                actual_bytes - expected_bytes
            )));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            metadata,
            data_start,
        })
    }

    fn require(&self, name: &str) -> Result<&TensorInfo> {
        self.metadata.info(name).ok_or_else(|| Error::NoTensor {
            path: self.path.clone(),
            name: name.to_owned(),
            nearest: None,
        })
    }

    /// Fills `buffer` from byte `offset` of the tensor's data.
    fn read_at(&self, info: &TensorInfo, offset: usize, buffer: &mut [u8]) -> Result<()> {
        let at = self.data_start + (info.data_offsets.0 + offset) as u64;
        sys::read_exact_at(&self.file, buffer, at).map_err(|e| Error::io("read", &self.path, e))
    }
}

impl TensorFile for SafetensorsFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    fn info(&self, name: &str) -> Option<(Dtype, &[usize])> {
        let info = self.metadata.info(name)?;
        Some((info.dtype, &info.shape))
    }

    fn read(&self, name: &str) -> Result<HostTensor> {
        let info = self.require(name)?;
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0; end - start];
        self.read_at(info, 0, &mut bytes)?;
        Ok(HostTensor {
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes,
        })
    }

    fn read_f32(&self, name: &str, values: &mut Vec<f32>) -> Result<()> {
        let info = self.require(name)?;
        let (start, end) = info.data_offsets;
        let all = 0..(end - start) * 8 / info.dtype.bitsize();
        self.read_f32_runs(name, &mut std::iter::once(all), values)
    }

    fn read_f32_runs(
        &self,
        name: &str,
        runs: &mut dyn Iterator<Item = Range<usize>>,
        values: &mut Vec<f32>,
    ) -> Result<()> {
        let info = self.require(name)?;
        let decode: fn(&[u8], &mut Vec<f32>) = match info.dtype {
            Dtype::F32 => {
                // Straight into place.
                let mut done = 0;
                for run in runs {
                    values.resize(done + run.len(), 0.0);
                    let place = bytemuck::cast_slice_mut(&mut values[done..]);
                    self.read_at(info, run.start * 4, place)?;
                    done += run.len();
                }
                values.truncate(done);
                return Ok(());
            }
            Dtype::F16 => |b, v| decode(b, v, |x| f16::from_le_bytes(x).to_f32()),
            Dtype::BF16 => |b, v| decode(b, v, |x| bf16::from_le_bytes(x).to_f32()),
            Dtype::F64 => |b, v| decode(b, v, |x| f64::from_le_bytes(x) as f32),
            dtype => {
                return Err(Error::NotAFloat {
                    path: self.path.clone(),
                    name: name.to_owned(),
                    dtype,
                });
            }
        };
        values.clear();
        let width = info.dtype.bitsize() / 8;
        let mut chunk = Vec::new();
        for run in runs {
            values.reserve(run.len());
            let end = run.end * width;
            for start in (run.start * width..end).step_by(CHUNK_BYTES) {
                chunk.resize((end - start).min(CHUNK_BYTES), 0);
                self.read_at(info, start, &mut chunk)?;
                decode(&chunk, values);
            }
        }
        Ok(())
    }
}

fn decode<const N: usize>(bytes: &[u8], values: &mut Vec<f32>, one: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    values.extend(elements.iter().map(|&element| one(element)));
}

/// The tensor that makes a header invalid: the format's own error names none.
fn misfit(header: &[u8]) -> Option<String> {
    let header: Map<String, Value> = serde_json::from_slice(header).ok()?;
    header.iter().find_map(|(name, info)| {
        let dtype: Dtype = serde_json::from_value(info["dtype"].clone()).ok()?;
        let shape: Vec<u64> = serde_json::from_value(info["shape"].clone()).ok()?;
        let [start, end]: [u64; 2] = serde_json::from_value(info["data_offsets"].clone()).ok()?;
        let elements = shape
            .iter()
            .try_fold(1_u64, |all, &dim| all.checked_mul(dim))?;
        let needed = elements.checked_mul(dtype.bitsize() as u64)? / 8;
        let found = end.checked_sub(start)?;
        (needed != found).then(|| {
            format!("tensor `{name}`: {shape:?} of {dtype} takes {needed} bytes, and has {found}")
        })
    })
}

/// What people have in place of a safetensors file.
fn other_kind(start: &[u8; 8]) -> Option<String> {
    let kind = match start {
        b"version " => "it is a Git LFS pointer, get the file itself with `git lfs pull`",
        [b'P', b'K', 3, 4, ..] => "it is a PyTorch archive, save it as safetensors first",
        [b'G', b'G', b'U', b'F', ..] => "it is a GGUF file: give it a name that ends in .gguf",
        [b'<', ..] => "it is a web page, left by a failed download",
        _ => return None,
    };
    Some(kind.to_owned())
}
