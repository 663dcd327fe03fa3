//! Primitive operations, one family a file: forward through candle's backend traits, gradient on the tape.
//!
//! They are methods of [`Tensor`](crate::Tensor). The operations that decide training speed are in `fused`.

mod binary;
mod index;
mod matmul;
mod reduce;
mod unary;
mod view;

pub(crate) use matmul::product;
pub(crate) use view::is_float;
