//! The kernels of the TPU, a family a file, against the CPU's or against plain f64; each asserts that it was launched.
//!
//! One test binary, so that the emulator starts once.

#[path = "../common/mod.rs"]
mod common;

mod attention;
mod copy;
mod cross_entropy;
mod elementwise;
mod gelu;
mod index;
mod layer_norm;
mod matmul;
mod norm;
mod optimizer;
mod random;
mod reduce;
mod swiglu;
mod traffic;
