//! StepRecord and its sinks: JSONL, console.
