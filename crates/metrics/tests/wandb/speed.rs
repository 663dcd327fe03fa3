//! How long training waits for it.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tt_metrics::wandb::Wandb;
use tt_metrics::{End, Jsonl, Metrics, Record, RunInfo, Sink, SinkResult, Truncation};

use crate::{Run, row};

/// Times the calls that training makes.
struct Timed {
    sink: Wandb,
    times: Arc<Mutex<Vec<Duration>>>,
}

impl Sink for Timed {
    fn start(&mut self, run: &RunInfo) -> SinkResult {
        self.sink.start(run)
    }

    fn record(&mut self, record: &Record, position: u64) -> SinkResult {
        let started = Instant::now();
        let done = self.sink.record(record, position);
        self.times.lock().unwrap().push(started.elapsed());
        done
    }

    fn news(&mut self) -> Vec<String> {
        let started = Instant::now();
        let news = self.sink.news();
        if let Some(last) = self.times.lock().unwrap().last_mut() {
            *last += started.elapsed();
        }
        news
    }

    fn finish(&mut self, end: &End) -> SinkResult {
        self.sink.finish(end)
    }
}

#[test]
fn a_server_that_hangs_is_not_felt_in_the_log_call() {
    // Takes connections, and never says a word.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut run = Run::new(&format!("http://{}", listener.local_addr().unwrap()));
    run.config.timing.flush = 0.1;
    let times = Arc::new(Mutex::new(Vec::new()));
    let sink = Wandb::new(run.config.clone()).in_environment(run.environment());
    let timed = Timed {
        sink,
        times: times.clone(),
    };
    let jsonl = Jsonl::create(&run.path().join("metrics.jsonl")).unwrap();
    let mut metrics = Metrics::new(jsonl).with(run.messages.clone()).with(timed);
    let info = RunInfo {
        id: "k3v8x0qa".into(),
        dir: run.path().to_owned(),
        ..RunInfo::default()
    };
    metrics.start(&info, Truncation::default());
    for step in 1..=20_000 {
        metrics.log(row(step)).unwrap();
    }
    let started = Instant::now();
    metrics.finish(&End::Finished).unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "the end waits for no more than the flush"
    );
    let said = run.messages().join("\n");
    assert!(said.contains("`tpu-train sync"), "{said}");
    let mut times = times.lock().unwrap().clone();
    times.sort();
    let percentile = |p: usize| times[times.len() * p / 100];
    println!(
        "p50 {:?}, p99 {:?}, longest {:?}",
        percentile(50),
        percentile(99),
        times.last()
    );
    assert!(
        percentile(99) < Duration::from_micros(100),
        "{:?}",
        percentile(99)
    );
}
