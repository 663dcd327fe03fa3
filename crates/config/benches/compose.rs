//! How long composition takes: `cargo bench -p tt-config`.
//!
//! Composes, resolves and writes the project's own tree, as the program does at its start. Fails
//! if the median exceeds the 20 ms that a start may spend on it.

use std::path::Path;
use std::time::{Duration, Instant};

use tt_config::{Composer, Missing};

const LIMIT: Duration = Duration::from_millis(20);

fn main() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let arguments = ["+model=qwen2", "+trainer=lm", "lr=5e-5"];
    let mut times: Vec<Duration> = (0..200)
        .map(|_| {
            let start = Instant::now();
            let composition = Composer::new("default")
                .directory("main", &configs)
                .lenient_groups(true)
                .compose(&arguments)
                .unwrap_or_else(|problems| panic!("{problems}"));
            let resolved = composition
                .resolve(Missing::Keep)
                .unwrap_or_else(|problems| panic!("{problems}"));
            std::hint::black_box(resolved.to_yaml());
            start.elapsed()
        })
        .collect();
    // The first is that of a fresh process: nothing is cached between compositions.
    let first = times[0];
    times.sort();
    let median = times[times.len() / 2];
    println!("compose and resolve: first {first:.2?}, median {median:.2?}, limit {LIMIT:?}");
    assert!(median < LIMIT, "composition takes {median:?}");
}
