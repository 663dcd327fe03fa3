//! Every kernel against its plain definition, on each instruction set of this processor.
//!
//! One test program rather than one a file: linking is what integration tests cost. Allocations are counted in a program
//! of their own.

mod attention;
#[path = "../common/mod.rs"]
mod common;
mod cross_entropy;
mod determinism;
mod instruction_sets;
mod matmul;
mod optimizer;
mod precision;
mod random;
mod rowwise;
