//! Training through its public API.

mod common;
mod contract;
mod ranks;
mod stop;
