//! CPU kernels for training, the buffer pool, and the trait [`FusedOps`] that devices share.
//!
//! [`FusedOps`] is implemented for candle's [`CpuStorage`](candle_core::CpuStorage): operands are checked
//! once (a wrong dtype, shape or id is an error that names the operand), then kernels run on slices, on all threads
//! of the current rayon pool, with the vector instructions of this machine ([`isa()`]). Results are the same bits
//! for any number of threads, and a call whose buffers are in the [`pool`] allocates nothing large.
//!
//! Each operation has a plain definition in [`mod@reference`], which the tests compare every kernel with.
//!
//! ```
//! use candle_core::{CpuStorage, DType, Layout};
//! use tt_cpu::{FusedOps, Write, pool};
//!
//! // y [2, 2] = x [2, 3] . w^T, the weight stored [2, 3] and read in place.
//! let x = CpuStorage::F32(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
//! let w = CpuStorage::F32(vec![1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
//! let (x_layout, w_layout) = (Layout::contiguous((2, 3)), Layout::contiguous((2, 3)).transpose(0, 1)?);
//! let mut y = pool::take(DType::F32, 4);
//! CpuStorage::matmul_into((&x, &x_layout), (&w, &w_layout), &mut y, Write::Assign)?;
//! assert_eq!(y.as_slice::<f32>()?, [1.0, 3.0, 4.0, 6.0]);
//! pool::give(y);
//! # Ok::<(), candle_core::Error>(())
//! ```

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
// Lane loops index several arrays side by side; zips of them hide the arithmetic.
#![allow(clippy::needless_range_loop)]

mod check;
mod coefficients;
mod element;
mod fused;
mod image_ops;
pub mod isa;
mod kernels;
mod par;
pub mod pool;
pub mod reference;
pub mod scratch;
mod simd;
mod storage;
mod update;

pub use coefficients::{Coefficients, Formula};
pub use fused::{AttentionParams, CrossEntropyParams, FusedOps, Gelu, RngKey, View, Write};
pub use isa::{Isa, IsaError, isa};
pub use update::{AdamParams, UpdateRule};
