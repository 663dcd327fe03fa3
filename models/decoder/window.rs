//! Sliding windows as Qwen2 and Qwen3 have them: from some layer on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::hf_config::HfConfig;

/// Which layers look back how far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlidingWindowConfig {
    /// Whether layers from `max_window_layers` on look back `sliding_window` positions only.
    #[serde(default)]
    pub use_sliding_window: bool,
    /// Positions a query looks back, itself included, in windowed layers.
    #[serde(default)]
    pub sliding_window: Option<usize>,
    /// First layer that is windowed, if windows are used.
    #[serde(default)]
    pub max_window_layers: usize,
}

impl SlidingWindowConfig {
    pub(crate) fn from_hf(hf: &HfConfig<'_>, num_layers: usize) -> Result<Self> {
        let use_sliding_window = hf.get("use_sliding_window")?.unwrap_or(false);
        let mut max_window_layers = hf.get("max_window_layers")?.unwrap_or(28);
        if let Some(types) = hf.get::<Vec<String>>("layer_types")? {
            let first = first_windowed(&types, num_layers, use_sliding_window)?;
            if use_sliding_window {
                max_window_layers = first;
            }
        }
        Ok(Self {
            use_sliding_window,
            sliding_window: hf.get("sliding_window")?,
            max_window_layers,
        })
    }

    /// Positions that a query of `layer` looks back; `None`: all.
    pub fn of_layer(&self, layer: usize) -> Option<usize> {
        let windowed = self.use_sliding_window && layer >= self.max_window_layers;
        self.sliding_window.filter(|_| windowed)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.use_sliding_window && self.sliding_window.is_none_or(|window| window == 0) {
            let why = "use_sliding_window needs a window of at least 1".to_owned();
            let key = "sliding_window";
            return Err(Error::Config { key, why });
        }
        Ok(())
    }
}

/// The `max_window_layers` that `layer_types` of transformers 5 says: windows from some layer on. Errors: any
/// other pattern, which the models' own rule cannot make.
fn first_windowed(types: &[String], layers: usize, windows: bool) -> Result<usize> {
    let fail = |why: String| Err(Error::HfConfig(format!("`layer_types`: {why}")));
    if types.len() != layers {
        return fail(format!("{} entries for {layers} layers", types.len()));
    }
    let full = types.iter().take_while(|t| *t == "full_attention").count();
    match types[full..].iter().find(|t| *t != "sliding_attention") {
        Some(other) => fail(format!("`{other}` after a windowed layer is not supported")),
        None if full < layers && !windows => {
            fail("windowed layers, but `use_sliding_window` is false".to_owned())
        }
        None => Ok(full),
    }
}
