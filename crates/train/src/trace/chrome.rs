//! A trace as Chrome and Perfetto read it.

use std::collections::HashMap;

use serde_json::{Value, json};
use tt_tensor::profile::Event;
use tt_tensor::trace::{Access, Operand, TracedLaunch, Work};

use super::place::{Place, places};
use crate::device_memory::Sample;

/// How the times of a TPU are to be read.
const TIMES_OF_DEVICE: &str = "taken on the host: each launch and copy is waited for, so it lasts from its queueing to its end, \
    and a traced step takes longer than others; queued_us of it until the runtime had taken it";
const BYTES_OF_DEVICE: &str = "of operands, each element counted once";

pub(super) fn trace(events: &[Event], samples: &[Sample]) -> Value {
    let mut threads = HashMap::new();
    let places = places(events);
    let spans = events.iter().zip(&places).map(|(event, place)| {
        let next = threads.len() + 1;
        let thread = *threads.entry(event.thread).or_insert(next);
        let mut span = json!({
            "name": event.name,
            "cat": event.kind,
            "ph": "X",
            "ts": micros(event.start),
            "dur": micros(event.length),
            "pid": 1,
            "tid": thread,
        });
        if let Some((work, queued)) = &event.work {
            span["args"] = arguments(work, place);
            span["args"]["queued_us"] = micros(*queued).into();
        }
        span
    });
    let spans: Vec<Value> = spans.collect();
    let counters = samples.iter().map(|sample| {
        let owned: serde_json::Map<_, _> = sample.owned.rows().map(entry).into_iter().collect();
        json!({"name": "memory", "ph": "C", "ts": micros(sample.at), "pid": 1, "args": owned})
    });
    let mut trace = json!({
        "displayTimeUnit": "ms",
        "traceEvents": spans.into_iter().chain(counters).collect::<Vec<_>>(),
    });
    if events.iter().any(|event| event.work.is_some()) {
        trace["otherData"] = json!({"times": TIMES_OF_DEVICE, "bytes": BYTES_OF_DEVICE});
    }
    trace
}

fn micros(time: std::time::Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn entry((name, bytes): (&str, u64)) -> (String, Value) {
    (name.to_owned(), bytes.into())
}

fn arguments(work: &Work, place: &Place) -> Value {
    let mut told = match work {
        Work::Launch(launch) => of_launch(launch),
        Work::Upload { bytes } | Work::Download { bytes } => json!({"bytes": bytes}),
        Work::Wait => json!({}),
    };
    told["operation"] = place.operation.into();
    told["module"] = place.module.into();
    told["direction"] = place.part.into();
    told
}

fn of_launch(launch: &TracedLaunch) -> Value {
    let operands: serde_json::Map<_, _> = launch
        .operands
        .iter()
        .map(|it| (it.name.to_owned(), operand(it).into()))
        .collect();
    json!({
        "sequence": launch.sequence,
        "operands": operands,
        "read_bytes": launch.read_bytes(),
        "written_bytes": launch.written_bytes(),
        "arguments": launch.arguments,
    })
}

/// `f32 [2, 3] read`.
fn operand(operand: &Operand) -> String {
    let access = match operand.access {
        Access::Read => "read",
        Access::Write => "written",
        Access::Update => "read and written",
    };
    format!("{} {:?} {access}", operand.dtype, operand.shape)
}
