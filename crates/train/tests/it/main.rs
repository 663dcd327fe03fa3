//! Training through its public API.

mod common;
mod ranks;
mod stop;
