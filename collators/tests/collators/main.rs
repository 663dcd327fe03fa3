//! What becomes of data on its way to a batch.

mod chat;
mod columns;
mod fields;
mod loader;
mod masked_lm;
mod packing;
mod parts;
mod pipeline;
mod preference;
mod preference_records;
mod start;
mod starts_and_ends;
mod token_cache;
