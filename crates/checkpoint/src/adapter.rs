//! An adapter on disk, in peft's layout: `adapter_config.json` and `adapter_model.safetensors`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{error::Result, layout, reader::read_json, weights::Weights};

/// An adapter's configuration and its weights, opened but not yet read.
#[derive(Debug)]
pub struct SavedAdapter {
    /// `adapter_config.json`.
    pub config: Value,
    /// Where it lies.
    pub dir: PathBuf,
    /// Its weights, by the names that peft gives them.
    pub weights: Weights,
}

impl SavedAdapter {
    /// The adapter in the folder `dir`; `None` if there is none, as in the folder of a whole model.
    pub fn open(dir: &Path) -> Result<Option<Self>> {
        let config = dir.join(layout::ADAPTER_CONFIG);
        if !config.exists() {
            return Ok(None);
        }
        Ok(Some(Self {
            config: read_json(&config)?,
            dir: dir.to_owned(),
            weights: Weights::open(&dir.join(layout::ADAPTER))?,
        }))
    }
}
