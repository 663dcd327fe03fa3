//! Errors of ranks that are to work together.

use std::time::Duration;

/// Why ranks do not work together any more.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another rank has failed: its error is the one to look at.
    #[error("rank {rank} has failed: {why}")]
    Failed { rank: usize, why: String },
    /// Nothing was heard of a rank for too long.
    #[error(
        "waited {} s in {operation} for {}",
        .after.as_secs(),
        listed(.missing)
    )]
    Timeout {
        operation: &'static str,
        after: Duration,
        missing: Vec<usize>,
    },
    /// Ranks that do different things: an error of the program.
    #[error(
        "rank {rank} is in {found} where rank {own_rank} is in {own}: they have not done the same so far"
    )]
    OutOfStep {
        rank: usize,
        found: &'static str,
        own_rank: usize,
        own: &'static str,
    },
}

fn listed(ranks: &[usize]) -> String {
    let ranks: Vec<_> = ranks.iter().map(usize::to_string).collect();
    match ranks.len() {
        1 => format!("rank {}", ranks[0]),
        _ => format!("ranks {}", ranks.join(", ")),
    }
}

/// What is made, or why not.
pub type Result<T> = std::result::Result<T, Error>;
