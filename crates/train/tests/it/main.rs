//! Training through its public API.

mod common;
mod contract;
mod evaluation;
mod model_contract;
mod optimizer_contract;
mod ranks;
mod step;
mod stop;
