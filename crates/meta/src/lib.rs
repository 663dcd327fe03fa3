//! A device without memory: operations on it move no data, and it counts what they would have taken.
//!
//! What runs here is the code that runs on the CPU, down to the operations of a storage, so that a plan made with it
//! cannot drift from what training does. A [`MetaStorage`] is a dtype and a length; its [`MetaDevice`] keeps the
//! account ([`Usage`]), with buffers in the size classes of the CPU's [pool](tt_cpu::pool) and the scratch of the
//! CPU's [kernels](tt_cpu::scratch). Every element read from it is 0.
//!
//! ```
//! use candle_core::{DType, Layout};
//! use tt_cpu::{FusedOps, Write};
//! use tt_meta::{MetaDevice, MetaStorage};
//!
//! // y [512, 4096] = x [512, 4096] . w [4096, 4096]: 84 MB that nobody allocates.
//! let device = MetaDevice::new();
//! let [x, w, mut y] = [512, 4096, 512].map(|rows| device.take(DType::F32, rows * 4096));
//! let [x_layout, w_layout] = [512, 4096].map(|rows| Layout::contiguous((rows, 4096)));
//! MetaStorage::matmul_into((&x, &x_layout), (&w, &w_layout), &mut y, Write::Assign)?;
//! assert_eq!(device.usage().flops, 2 * 512 * 4096 * 4096);
//! assert_eq!(device.usage().live_bytes, 4 * (512 + 4096 + 512) * 4096);
//! # Ok::<(), candle_core::Error>(())
//! ```

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod account;
mod candle;
mod fused;

pub use account::{MetaDevice, MetaStorage, Usage};
