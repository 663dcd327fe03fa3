//! The files of a checkpoint: a Hugging Face model folder, and beside it the trainer's state.
//!
//! ```text
//! step-00000100/
//!   config.json  generation_config.json  tokenizer.json ...
//!   model.safetensors                       or, above `max_shard_bytes`:
//!   model-00001-of-00003.safetensors ...    with model.safetensors.index.json
//!                                           or, of an adapter, as peft lays it:
//!   adapter_config.json  adapter_model.safetensors
//!   trainer_state/optimizer.safetensors  trainer_state/state.json
//!   manifest.json
//! ```
//!
//! Source: the safetensors format (8 bytes of header length, JSON header, data) and the file
//! names of `save_pretrained` in Hugging Face transformers and peft.

use std::{
    collections::HashMap,
    ffi::OsStr,
    path::{Path, PathBuf},
};

use indexmap::IndexMap;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Value, json};

use crate::{
    disk::{self, HashedFile},
    error::{Error, Result},
    manifest::{self, FileEntry},
    tensor::{HostTensor, TensorMap},
};

pub(crate) const MODEL: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const ADAPTER: &str = "adapter_model.safetensors";
pub(crate) const ADAPTER_CONFIG: &str = "adapter_config.json";
pub(crate) const CONFIG: &str = "config.json";
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
pub(crate) const STATE_DIR: &str = "trainer_state";
pub(crate) const OPTIMIZER: &str = "trainer_state/optimizer.safetensors";
pub(crate) const STATE: &str = "trainer_state/state.json";

/// Everything that a checkpoint holds, on the host and owned: the trainer goes on while it is
/// written.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub step: u64,
    /// Parameters by Hugging Face name; tied weights once.
    pub model: TensorMap,
    /// Becomes `adapter_config.json`: `model` then holds an adapter's weights. Null for a whole model.
    pub adapter_config: Value,
    /// Becomes `config.json`.
    pub config: Value,
    /// Becomes `generation_config.json`; left out if null.
    pub generation_config: Value,
    /// Files copied in under their own names: the tokenizer's.
    pub assets: Vec<PathBuf>,
    /// Optimizer state, keyed as the optimizer likes.
    pub optimizer: TensorMap,
    /// The rest of the trainer's state.
    pub state: Value,
}

impl Snapshot {
    /// Bytes of tensor data: what a checkpoint takes on disk, but for a few kilobytes.
    pub fn num_bytes(&self) -> u64 {
        tensor_bytes(self.model.values().chain(self.optimizer.values()))
    }
}

/// Writes all files but the manifest into the empty folder `dir` and syncs them.
pub(crate) fn write_files(
    dir: &Path,
    snapshot: &Snapshot,
    max_shard_bytes: u64,
) -> Result<Vec<FileEntry>> {
    let mut files = write_model_files(dir, snapshot, max_shard_bytes)?;
    disk::create_dir(&dir.join(STATE_DIR))?;
    files.push(write_safetensors(dir, OPTIMIZER, &snapshot.optimizer)?);
    files.push(disk::write_file(
        dir,
        STATE,
        &manifest::to_json(&snapshot.state),
    )?);
    disk::sync_dir(&dir.join(STATE_DIR))?;
    Ok(files)
}

/// Writes what other programs read into the empty folder `dir`: configs, weights, assets.
pub(crate) fn write_model_files(
    dir: &Path,
    snapshot: &Snapshot,
    max_shard_bytes: u64,
) -> Result<Vec<FileEntry>> {
    let mut files = vec![disk::write_file(
        dir,
        CONFIG,
        &manifest::to_json(&snapshot.config),
    )?];
    if !snapshot.generation_config.is_null() {
        let text = manifest::to_json(&snapshot.generation_config);
        files.push(disk::write_file(dir, GENERATION_CONFIG, &text)?);
    }
    if snapshot.adapter_config.is_null() {
        files.extend(write_model(dir, &snapshot.model, max_shard_bytes)?);
    } else {
        let text = manifest::to_json(&snapshot.adapter_config);
        files.push(disk::write_file(dir, ADAPTER_CONFIG, &text)?);
        files.push(write_safetensors(dir, ADAPTER, &snapshot.model)?);
    }

    for asset in &snapshot.assets {
        let name = asset.file_name().and_then(OsStr::to_str).unwrap_or("");
        if name.is_empty() || name == manifest::FILE_NAME || dir.join(name).exists() {
            return Err(Error::AssetName {
                path: asset.clone(),
            });
        }
        files.push(disk::copy_file(asset, dir, name)?);
    }
    Ok(files)
}

/// One `model.safetensors`, or shards and their index.
fn write_model(dir: &Path, model: &TensorMap, max_shard_bytes: u64) -> Result<Vec<FileEntry>> {
    let shards = split(model, max_shard_bytes);
    if shards.len() <= 1 {
        return Ok(vec![write_safetensors(dir, MODEL, model)?]);
    }
    let mut files = Vec::with_capacity(shards.len() + 1);
    let mut weight_map = serde_json::Map::new();
    for (i, shard) in shards.iter().enumerate() {
        let file = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        for (&name, _) in shard {
            weight_map.insert(name.to_owned(), file.clone().into());
        }
        files.push(write_safetensors(
            dir,
            &file,
            shard.iter().map(|(&n, &t)| (n, t)),
        )?);
    }
    weight_map.sort_keys();
    let num_elements: usize = model.values().filter_map(HostTensor::num_elements).sum();
    let index = json!({
        "metadata": {
            "total_parameters": num_elements,
            "total_size": tensor_bytes(model.values()),
        },
        "weight_map": weight_map,
    });
    files.push(disk::write_file(dir, INDEX, &manifest::to_json(&index))?);
    Ok(files)
}

/// Cuts the model, in its own order, into shards of at most `max_shard_bytes`; a tensor larger
/// than that has a shard to itself.
fn split(model: &TensorMap, max_shard_bytes: u64) -> Vec<IndexMap<&str, &HostTensor>> {
    let mut shards: Vec<IndexMap<&str, &HostTensor>> = Vec::new();
    let mut room = 0;
    for (name, tensor) in model {
        let size = tensor.bytes.len() as u64;
        if shards.is_empty() || size > room {
            shards.push(IndexMap::new());
            room = max_shard_bytes;
        }
        room = room.saturating_sub(size);
        if let Some(shard) = shards.last_mut() {
            shard.insert(name, tensor);
        }
    }
    shards
}

/// Writes tensors to a safetensors file of their own.
pub fn write_tensors(path: &Path, tensors: &TensorMap) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new(""));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    write_safetensors(dir, &name, tensors).map(drop)
}

/// Writes tensors to `dir/name`. Wider types come first, so that every tensor is aligned to its
/// own width; within a width the given order is kept.
pub(crate) fn write_safetensors<'a, N: AsRef<str> + 'a>(
    dir: &Path,
    name: &str,
    tensors: impl IntoIterator<Item = (N, &'a HostTensor)>,
) -> Result<FileEntry> {
    let mut tensors: Vec<_> = tensors.into_iter().collect();
    tensors.sort_by_key(|(_, t)| std::cmp::Reverse(t.dtype.bitsize()));

    let mut infos = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for (name, tensor) in &tensors {
        tensor.check(name.as_ref())?;
        let start = end;
        end += tensor.bytes.len();
        let info = TensorInfo {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            data_offsets: (start, end),
        };
        infos.push((name.as_ref().to_owned(), info));
    }
    let path = dir.join(name);
    let malformed = |reason: String| Error::Malformed {
        path: path.clone(),
        what: "safetensors",
        reason,
    };
    // transformers refuses files that do not say which framework their layout is of.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), infos).map_err(|e| malformed(e.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| malformed(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');

    let mut file = HashedFile::create(&path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for (_, tensor) in &tensors {
        file.write_all(&tensor.bytes)?;
    }
    file.finish(name)
}

fn tensor_bytes<'a>(tensors: impl Iterator<Item = &'a HostTensor>) -> u64 {
    tensors.map(|t| t.bytes.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(sizes: &[usize]) -> TensorMap {
        let tensor = |n: usize| HostTensor {
            dtype: safetensors::Dtype::U8,
            shape: vec![n],
            bytes: vec![7; n],
        };
        let named = |(i, &n)| (format!("t{i}"), tensor(n));
        sizes.iter().enumerate().map(named).collect()
    }

    fn shard_names(sizes: &[usize], max: u64) -> Vec<Vec<String>> {
        split(&model(sizes), max)
            .iter()
            .map(|s| s.keys().map(|n| (*n).to_owned()).collect())
            .collect()
    }

    #[test]
    fn shards_keep_the_order_and_stay_under_the_limit() {
        assert_eq!(
            shard_names(&[4, 4, 4, 2, 9, 1], 8),
            [vec!["t0", "t1"], vec!["t2", "t3"], vec!["t4"], vec!["t5"]]
        );
        assert_eq!(shard_names(&[4, 4], 8), [vec!["t0", "t1"]]);
        assert!(shard_names(&[], 8).is_empty());
    }

    #[test]
    fn full_disk_is_recognised_when_writing() {
        // A device whose every write fails as on a full disk.
        if !Path::new("/dev/full").exists() {
            return;
        }
        let tensors = model(&[1 << 21]);
        let error = write_safetensors(Path::new("/dev"), "full", &tensors).unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        assert!(error.to_string().contains("/dev/full"), "{error}");
    }

    #[test]
    fn tensor_whose_bytes_do_not_fit_its_shape_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut tensors = model(&[4]);
        tensors["t0"].shape = vec![5];
        let error = write_safetensors(dir.path(), "x.safetensors", &tensors).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tensor `t0`: [5] of U8 does not fit 4 bytes"
        );
    }
}
