//! How long things take, in one place: those of the reference client, unless a test wants them shorter.

use std::time::Duration;

use serde::Deserialize;

/// Of one kind there is one alert in this time: a run that fails every step need not ring every step.
pub(super) const ALERT_INTERVAL: Duration = Duration::from_secs(300);

/// Durations in seconds, as `kwargs.timing` may give them.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timing {
    /// How often the record is looked at for new rows.
    pub poll: f64,
    /// From one file_stream request to the next.
    pub stream: f64,
    /// Without any request for this long, an empty one says that the run is alive; after about 300 it counts as crashed.
    pub heartbeat: f64,
    /// From one sample of the system to the next.
    pub system: f64,
    /// Before the second attempt; doubled before each further one, with up to a quarter more by chance.
    pub first_delay: f64,
    /// The longest of these.
    pub max_delay: f64,
    /// For a file_stream request.
    pub stream_timeout: f64,
    /// For a GraphQL request.
    pub graphql_timeout: f64,
    /// For a connection.
    pub connect_timeout: f64,
    /// After failing for this long, the run is said to go on offline.
    pub offline_after: f64,
    /// At the end of a run, for what is left, beyond what the server asks to wait.
    pub flush: f64,
    /// `tpu-train sync`: of failures in a row.
    pub sync_patience: f64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            poll: 0.5,
            stream: 15.0,
            heartbeat: 30.0,
            system: 15.0,
            first_delay: 2.0,
            max_delay: 60.0,
            stream_timeout: 180.0,
            graphql_timeout: 30.0,
            connect_timeout: 15.0,
            offline_after: 10.0,
            flush: 30.0,
            sync_patience: 120.0,
        }
    }
}

/// Seconds as a duration; nonsense is none at all.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
