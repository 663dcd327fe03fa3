//! What becomes of data on its way to a batch.

mod chat;
mod columns;
mod fields;
mod loader;
mod packing;
mod parts;
mod pipeline;
mod start;
mod token_cache;
