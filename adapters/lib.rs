//! Adapters: small trainable additions to a frozen model, put on by module path. The model does not know of them.
//!
//! ```
//! use std::sync::Arc;
//! use tt_adapters::{Lora, LoraConfig};
//! use tt_nn::{Forward, Linear, ModulePath, ParamTree};
//! use tt_tensor::{Device, Seed, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let layer = Linear::new(ModulePath::root().join("q_proj"), 8, 4);
//! let base = ParamTree::init(&layer.params(), Seed::new(0), Device::Cpu)?;
//! let config = r#"{"target_modules": "q_proj", "r": 2}"#;
//! let lora = Lora::new(serde_json::from_str(config)?, &layer.params())?;
//! lora.freeze(&base);
//! let weights = ParamTree::init(&lora.params(), Seed::new(1), Device::Cpu)?;
//! let params = base.with_adapter(Arc::new(lora), &weights)?;
//! let y = layer.forward(&Forward::inference(&params), &Tensor::ones((1, 8), Device::Cpu)?)?;
//! assert_eq!(y.dims(), [1, 4]);
//! # Ok(())
//! # }
//! ```

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod error;
mod lora;
mod peft;
mod targets;

pub use error::{Error, Result};
pub use lora::{BaseDType, Bias, Lora, LoraConfig};
pub use peft::Saved;
pub use targets::{Layer, Targets};
