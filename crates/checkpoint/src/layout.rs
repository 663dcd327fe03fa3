//! The files of a checkpoint: a Hugging Face model folder, and beside it the trainer's state.
//!
//! ```text
//! step-00000100/
//!   config.json  generation_config.json  tokenizer.json ...
//!   model.safetensors                       or, above `max_shard_bytes`:
//!   model-00001-of-00003.safetensors ...    with model.safetensors.index.json
//!                                           or, of an adapter, as peft lays it, without config.json:
//!   adapter_config.json  adapter_model.safetensors  trainer_state/config.json
//!   trainer_state/optimizer.safetensors  trainer_state/state.json
//!   manifest.json
//! ```
//!
//! Source: the file names of `save_pretrained` in Hugging Face transformers and peft.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    data_file::{Data, DataFile},
    disk,
    error::{Error, Result},
    manifest::{self, FileEntry},
    source::TensorSource,
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
/// The model's config beside an adapter: with a `config.json` in its folder, transformers looks there for a whole model.
pub(crate) const CONFIG_OF_BASE: &str = "trainer_state/config.json";
pub(crate) const STATE: &str = "trainer_state/state.json";

/// Everything that a checkpoint holds. Its tensors are read while they are written.
#[derive(Debug, Clone)]
pub struct Snapshot<T = HostTensor> {
    /// Steps done when it was written.
    pub step: u64,
    /// Parameters by Hugging Face name; tied weights once.
    pub model: TensorMap<T>,
    /// Becomes `adapter_config.json`: `model` then holds an adapter's weights. Null for a whole model.
    pub adapter_config: Value,
    /// Becomes `config.json`, beside an adapter that of the trainer's state.
    pub config: Value,
    /// Becomes `generation_config.json`; left out if null.
    pub generation_config: Value,
    /// Files copied in under their own names: the tokenizer's.
    pub assets: Vec<PathBuf>,
    /// Optimizer state, keyed as the optimizer likes.
    pub optimizer: TensorMap<T>,
    /// The rest of the trainer's state.
    pub state: Value,
}

// By hand: a derived one would ask for a default tensor.
impl<T> Default for Snapshot<T> {
    fn default() -> Self {
        Self {
            step: 0,
            model: TensorMap::new(),
            adapter_config: Value::Null,
            config: Value::Null,
            generation_config: Value::Null,
            assets: Vec::new(),
            optimizer: TensorMap::new(),
            state: Value::Null,
        }
    }
}

impl<T: TensorSource> Snapshot<T> {
    /// Bytes of tensor data: what a checkpoint takes on disk, but for a few kilobytes.
    pub fn num_bytes(&self) -> u64 {
        let tensors = self.model.values().chain(self.optimizer.values());
        tensors.map(|tensor| tensor.num_bytes() as u64).sum()
    }

    /// What is written, and apart from it the tensors, in the order in which their data is.
    pub(crate) fn split(self, max_shard_bytes: u64) -> (Outline, Vec<(String, T)>) {
        let (model, mut tensors) = if self.adapter_config.is_null() {
            model_files(self.model, max_shard_bytes)
        } else {
            let mut tensors: Vec<_> = self.model.into_iter().collect();
            (vec![DataFile::new(ADAPTER, &mut tensors)], tensors)
        };
        let mut slots: Vec<_> = self.optimizer.into_iter().collect();
        let optimizer = DataFile::new(OPTIMIZER, &mut slots);
        tensors.extend(slots);
        let outline = Outline {
            step: self.step,
            model,
            adapter_config: self.adapter_config,
            config: self.config,
            generation_config: self.generation_config,
            assets: self.assets,
            optimizer,
            state: self.state,
        };
        (outline, tensors)
    }
}

/// A [`Snapshot`] without its tensors' data.
#[derive(Debug)]
pub(crate) struct Outline {
    /// Steps done when it was written.
    pub step: u64,
    model: Vec<DataFile>,
    adapter_config: Value,
    config: Value,
    generation_config: Value,
    assets: Vec<PathBuf>,
    optimizer: DataFile,
    state: Value,
}

impl Outline {
    /// Of tensor data.
    pub(crate) fn num_bytes(&self) -> u64 {
        let files = self.model.iter().chain([&self.optimizer]);
        files.map(DataFile::num_bytes).sum()
    }

    /// Writes all files but the manifest into the empty folder `dir` and syncs them.
    pub(crate) fn write(&self, dir: &Path, data: &mut dyn Data) -> Result<Vec<FileEntry>> {
        let mut files = self.write_model(dir, data)?;
        disk::create_dir(&dir.join(STATE_DIR))?;
        if !self.adapter_config.is_null() {
            let text = manifest::to_json(&self.config);
            files.push(disk::write_file(dir, CONFIG_OF_BASE, &text)?);
        }
        files.push(self.optimizer.write(dir, data)?);
        files.push(disk::write_file(
            dir,
            STATE,
            &manifest::to_json(&self.state),
        )?);
        disk::sync_files(dir, &files)?;
        disk::sync_dir(&dir.join(STATE_DIR))?;
        Ok(files)
    }

    /// Writes what other programs read into the empty folder `dir`, for the caller to sync: configs, weights, assets.
    pub(crate) fn write_model(&self, dir: &Path, data: &mut dyn Data) -> Result<Vec<FileEntry>> {
        let mut files = Vec::new();
        if self.adapter_config.is_null() {
            let text = manifest::to_json(&self.config);
            files.push(disk::write_file(dir, CONFIG, &text)?);
        }
        if !self.generation_config.is_null() {
            let text = manifest::to_json(&self.generation_config);
            files.push(disk::write_file(dir, GENERATION_CONFIG, &text)?);
        }
        if !self.adapter_config.is_null() {
            let text = manifest::to_json(&self.adapter_config);
            files.push(disk::write_file(dir, ADAPTER_CONFIG, &text)?);
        }
        for file in &self.model {
            files.push(file.write(dir, data)?);
        }
        if self.model.len() > 1 {
            let text = manifest::to_json(&self.index());
            files.push(disk::write_file(dir, INDEX, &text)?);
        }
        for asset in &self.assets {
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

    /// Which shard each tensor is in.
    fn index(&self) -> Value {
        let mut weight_map = serde_json::Map::new();
        for file in &self.model {
            for name in file.tensor_names() {
                weight_map.insert(name.to_owned(), file.name().into());
            }
        }
        weight_map.sort_keys();
        let num_elements: usize = self.model.iter().map(DataFile::num_elements).sum();
        let num_bytes: u64 = self.model.iter().map(DataFile::num_bytes).sum();
        json!({
            "metadata": { "total_parameters": num_elements, "total_size": num_bytes },
            "weight_map": weight_map,
        })
    }
}

/// One `model.safetensors`, or shards; and the tensors in the order of their data.
fn model_files<T: TensorSource>(
    model: TensorMap<T>,
    max_shard_bytes: u64,
) -> (Vec<DataFile>, Vec<(String, T)>) {
    let mut shards = shards(model, max_shard_bytes);
    let count = shards.len();
    if count <= 1 {
        let mut tensors = shards.pop().unwrap_or_default();
        return (vec![DataFile::new(MODEL, &mut tensors)], tensors);
    }
    let mut files = Vec::with_capacity(count);
    for (i, shard) in shards.iter_mut().enumerate() {
        let name = format!("model-{:05}-of-{count:05}.safetensors", i + 1);
        files.push(DataFile::new(name, shard));
    }
    (files, shards.into_iter().flatten().collect())
}

/// Cuts the model, in its own order, into shards of at most `max_shard_bytes`; a tensor larger
/// than that has a shard to itself.
fn shards<T: TensorSource>(model: TensorMap<T>, max_shard_bytes: u64) -> Vec<Vec<(String, T)>> {
    let mut shards: Vec<Vec<_>> = Vec::new();
    let mut room = 0;
    for (name, tensor) in model {
        let size = tensor.num_bytes() as u64;
        if shards.is_empty() || size > room {
            shards.push(Vec::new());
            room = max_shard_bytes;
        }
        room = room.saturating_sub(size);
        if let Some(shard) = shards.last_mut() {
            shard.push((name, tensor));
        }
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard_names(sizes: &[usize], max: u64) -> Vec<Vec<String>> {
        let tensor = |n: usize| HostTensor {
            dtype: safetensors::Dtype::U8,
            shape: vec![n],
            bytes: vec![7; n],
        };
        let named = |(i, &n)| (format!("t{i}"), tensor(n));
        let model = sizes.iter().enumerate().map(named).collect();
        shards(model, max)
            .into_iter()
            .map(|shard| shard.into_iter().map(|(name, _)| name).collect())
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
}
