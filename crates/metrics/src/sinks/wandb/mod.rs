//! Weights & Biases, spoken without its client: `logging=wandb`, and by itself where a key is found.
//!
//! # How it goes
//!
//! ```text
//! training --position--> journal (thread) --> run-ID.wandb --> uploader (thread) --> server
//!                         metrics.jsonl                    \-> `tpu-train sync`, `wandb sync`
//!                         samples.jsonl, histograms.jsonl
//!                         console.log, /proc, git
//! ```
//!
//! The sink itself stores one number and a time. The *journal* reads the run's record up to there and writes a log in
//! W&B's own format, always, also online. The *uploader* reads that log and speaks to the server. So nothing that a network
//! does is felt by training, memory is bounded by nothing but the disk, and what was not sent can be sent later: what
//! uploads a log that was left is the same code that uploads one that is being written.
//!
//! # The protocol
//!
//! Measured from the reference client, Python's wandb 0.31.0. `client` has the requests, `upload` what goes when and
//! how it arrives once, `record` and `log` the format of logs, `media` and `artifact` what is no number, `settings` the
//! variables, `segments` the folders. In short:
//!
//! - `RunResumeStatus`, `UpsertBucket`, then file_stream requests; at the end `UpsertBucket`, files, and a file_stream
//!   request with `complete` and `exitcode`.
//! - Files of a run grow by *lines*. A line is given its number once, and a request is repeated as it is.
//! - `_step` of a row must grow, `_timestamp` is in seconds, and NaN is the bare word.
//! - The config wraps each value as `{"value": ...}` and has `_wandb.t`, or the run counts as never begun.
//! - The key goes to the server alone, never to the addresses of uploads and after no redirect.

mod artifact;
mod chance;
mod client;
mod config;
mod digest;
mod journal;
mod json;
mod log;
mod media;
mod proto;
mod record;
mod segments;
mod server_config;
mod settings;
mod shared;
mod sink;
mod source;
mod stream;
mod summary;
mod sync;
mod system;
mod tail;
mod timing;
mod upload;

pub use config::{Mode, ResumeRule, SummaryRule, WandbConfig};
pub use settings::{Environment, is_expected};
pub use sink::Wandb;
pub use sync::{SyncError, Synced, sync};
pub use timing::Timing;
