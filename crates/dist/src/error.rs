//! Errors of ranks that are to work together.

use std::fmt;
use std::time::Duration;

/// A rank, as messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Of the whole run.
    pub rank: usize,
    /// Where it runs, if that may be another machine.
    pub host: Option<String>,
}

impl From<usize> for Peer {
    fn from(rank: usize) -> Self {
        Self { rank, host: None }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => write!(f, "{} ({host})", self.rank),
            None => self.rank.fmt(f),
        }
    }
}

/// Why ranks do not work together any more.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another rank has failed: its error is the one to look at.
    #[error("rank {rank} has failed: {why}")]
    Failed { rank: Peer, why: String },
    /// Nothing was heard of a rank for too long.
    #[error(
        "nothing was heard of {} for {} s, in {operation} (dist.timeout_seconds)",
        listed(.missing),
        .after.as_secs()
    )]
    Timeout {
        operation: &'static str,
        after: Duration,
        missing: Vec<Peer>,
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
    /// MPI does not do what is needed of it.
    #[error("MPI: {0}")]
    Mpi(String),
}

fn listed(ranks: &[Peer]) -> String {
    let ranks: Vec<_> = ranks.iter().map(Peer::to_string).collect();
    match ranks.len() {
        1 => format!("rank {}", ranks[0]),
        _ => format!("ranks {}", ranks.join(", ")),
    }
}

/// What is made, or why not.
pub type Result<T> = std::result::Result<T, Error>;
