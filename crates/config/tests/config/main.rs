//! The crate from outside: composition, Hydra's recorded answers, and what is said of mistakes.

mod composition;
mod conformance;
mod messages;
mod support;
