//! What becomes of data on its way to a batch.

mod fields;
mod loader;
mod parts;
mod pipeline;
