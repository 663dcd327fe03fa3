//! Weights on disk, of any origin: a folder, a `.safetensors` file, or a shard index.
//! Tensors are read one at a time, when asked for.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use half::{bf16, f16};
use indexmap::IndexMap;
use safetensors::{Dtype, tensor::TensorInfo};
use serde::Deserialize;

use crate::{
    error::{Error, Result},
    layout, reader,
    retention::entry_names,
    safetensors_file::SafetensorsFile,
    strict::{self, Allow, StrictError},
    tensor::{HostTensor, TensorMap},
};

/// Bytes converted at a time by [`Weights::read_f32`].
const CHUNK_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    /// To the index in `files`; in the order of the data, so that reading by it is sequential.
    tensors: IndexMap<String, usize>,
}

impl Weights {
    /// Reads the headers of the files at `path` and checks their sizes. `path` is a folder with
    /// `model.safetensors` or `model.safetensors.index.json`, or one such file under any name.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return match path.extension() {
                Some(ext) if ext == "json" => Self::open_index(path),
                _ => Self::open_files(path, vec![SafetensorsFile::open(path)?]),
            };
        }
        let (model, index) = (path.join(layout::MODEL), path.join(layout::INDEX));
        if model.exists() {
            Self::open_files(path, vec![SafetensorsFile::open(&model)?])
        } else if index.exists() {
            Self::open_index(&index)
        } else {
            Err(Error::NoWeights {
                path: path.to_owned(),
                hint: no_weights_hint(path)?,
            })
        }
    }

    fn open_index(path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let index: Index = reader::read_json(path)?;
        let malformed = |reason| Error::Malformed {
            path: path.to_owned(),
            what: "safetensors index",
            reason,
        };
        let dir = path.parent().unwrap_or(Path::new("."));
        let mut names: Vec<_> = index.weight_map.values().collect();
        names.sort();
        names.dedup();
        let absent: Vec<_> = names.iter().filter(|n| !dir.join(n).exists()).collect();
        if !absent.is_empty() {
            return Err(malformed(format!(
                "{} of the {} files it lists are missing, among them {}",
                absent.len(),
                names.len(),
                absent[0]
            )));
        }
        let files = names
            .iter()
            .map(|name| SafetensorsFile::open(&dir.join(name)))
            .collect::<Result<_>>()?;
        let weights = Self::open_files(path, files)?;
        for (name, file) in &index.weight_map {
            if !weights.tensors.contains_key(name) {
                return Err(malformed(format!("tensor `{name}` is not in {file}")));
            }
        }
        Ok(weights)
    }

    fn open_files(path: &Path, files: Vec<SafetensorsFile>) -> Result<Self> {
        let mut tensors = IndexMap::new();
        for (i, file) in files.iter().enumerate() {
            for name in file.names() {
                if let Some(first) = tensors.insert(name.clone(), i) {
                    let first: &SafetensorsFile = &files[first];
                    return Err(Error::Malformed {
                        path: path.to_owned(),
                        what: "safetensors index",
                        reason: format!(
                            "tensor `{name}` is in both {} and {}",
                            first.path.display(),
                            file.path.display()
                        ),
                    });
                }
            }
        }
        Ok(Self {
            path: path.to_owned(),
            files,
            tensors,
        })
    }

    /// The path given to [`Weights::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.find(name)?.1.shape)
    }

    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        Some(self.find(name)?.1.dtype)
    }

    /// One tensor as it is stored.
    pub fn read(&self, name: &str) -> Result<HostTensor> {
        let (file, info) = self.require(name)?;
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0; end - start];
        file.read(info, 0, &mut bytes)?;
        Ok(HostTensor {
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes,
        })
    }

    /// All tensors as they are stored.
    pub fn read_all(&self) -> Result<TensorMap> {
        self.names()
            .map(|name| Ok((name.to_owned(), self.read(name)?)))
            .collect()
    }

    /// Replaces the content of `values` by the tensor's, converted from F32, F16, BF16 or F64
    /// (rounded to nearest). Needs no memory for a second copy of the tensor.
    pub fn read_f32(&self, name: &str, values: &mut Vec<f32>) -> Result<()> {
        let (file, info) = self.require(name)?;
        let decode: fn(&[u8], &mut Vec<f32>) = match info.dtype {
            Dtype::F32 => {
                values.resize((info.data_offsets.1 - info.data_offsets.0) / 4, 0.0);
                return file.read(info, 0, bytemuck::cast_slice_mut(values));
            }
            Dtype::F16 => |b, v| decode(b, v, |x| f16::from_le_bytes(x).to_f32()),
            Dtype::BF16 => |b, v| decode(b, v, |x| bf16::from_le_bytes(x).to_f32()),
            Dtype::F64 => |b, v| decode(b, v, |x| f64::from_le_bytes(x) as f32),
            dtype => {
                return Err(Error::NotAFloat {
                    path: file.path.clone(),
                    name: name.to_owned(),
                    dtype,
                });
            }
        };
        let (start, end) = info.data_offsets;
        let num_bytes = end - start;
        values.clear();
        values.reserve(num_bytes * 8 / info.dtype.bitsize());
        let mut chunk = vec![0; num_bytes.min(CHUNK_BYTES)];
        for offset in (0..num_bytes).step_by(CHUNK_BYTES) {
            let chunk = &mut chunk[..(num_bytes - offset).min(CHUNK_BYTES)];
            file.read(info, offset, chunk)?;
            decode(chunk, values);
        }
        Ok(())
    }

    /// That the tensors are just those of `expected`, in name and shape, but for what `allow`
    /// lets pass.
    pub fn check<'a>(
        &self,
        expected: impl IntoIterator<Item = (&'a str, &'a [usize])>,
        allow: &Allow<'_>,
    ) -> Result<(), StrictError> {
        let actual = self
            .tensors
            .iter()
            .filter_map(|(name, &file)| Some((name.as_str(), self.files[file].info(name)?)))
            .map(|(name, info)| (name, info.shape.as_slice()));
        strict::check(&self.path, expected, actual, allow)
    }

    fn find(&self, name: &str) -> Option<(&SafetensorsFile, &TensorInfo)> {
        let file = &self.files[*self.tensors.get(name)?];
        Some((file, file.info(name)?))
    }

    fn require(&self, name: &str) -> Result<(&SafetensorsFile, &TensorInfo)> {
        self.find(name).ok_or_else(|| Error::NoTensor {
            path: self.path.clone(),
            name: name.to_owned(),
            nearest: strict::nearest(name, self.names()).map(str::to_owned),
        })
    }
}

fn decode<const N: usize>(bytes: &[u8], values: &mut Vec<f32>, one: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    values.extend(elements.iter().map(|&element| one(element)));
}

/// What a folder without weights has instead.
fn no_weights_hint(dir: &Path) -> Result<String> {
    let mut names = entry_names(dir)?;
    names.sort();
    let named = |ends: &[&str]| {
        let hit = |n: &&String| ends.iter().any(|end| n.ends_with(end));
        names.iter().find(hit).cloned()
    };
    Ok(if names.iter().any(|name| name == layout::ADAPTER) {
        let file = layout::ADAPTER;
        format!("; it has {file}, an adapter, which needs the model it was trained on")
    } else if let Some(file) = named(&[".safetensors", ".safetensors.index.json"]) {
        format!(
            " under the names {} or {}; it has {file}: name that file itself",
            layout::MODEL,
            layout::INDEX
        )
    } else if let Some(file) = named(&[".bin", ".pt", ".pth", ".ckpt"]) {
        format!("; {file} is in PyTorch's pickle format, save it as safetensors first")
    } else {
        format!("; looked for {} and {}", layout::MODEL, layout::INDEX)
    })
}
