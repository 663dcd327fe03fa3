//! What tests share: golden cases, gradient checks, the list of devices, small disks. A dev-dependency only, so it panics
//! where a test should fail.

mod devices;
mod gguf;
mod golden;
mod gradient;
mod mounts;

pub use devices::{chip, has_tpu, on_tpu, tpu};
pub use gguf::{gguf_metadata, gguf_tokenizer, write_gguf};
pub use golden::{Case, CurvePoint, Golden, Tensors, Tolerances, relative_l2};
pub use gradient::check_gradients;
pub use mounts::{SmallDisk, in_own_mounts, make_read_only};
pub use tt_tensor::Device;
pub use tt_tpu::Chip;
