//! A run folder that an earlier version has left goes on: nothing in it has changed its meaning.
//!
//! `earlier_run/` is of version 0.1.0 at commit 7db3867, as killed after step 3 with a checkpoint at step 2. What that
//! version went on to log is written down here.

use std::fs;
use std::path::Path;

use crate::harness::{Place, RunFolder, entries};

const RUN: &[&str] = &[
    "+model=qwen2",
    "+trainer=lm",
    "model/size=nano",
    "model.hidden_size=16",
    "model.intermediate_size=32",
    "model.num_hidden_layers=1",
    "model.num_attention_heads=2",
    "model.num_key_value_heads=1",
    "data.tokenizer.vocab_size=300",
    "data.sequence_length=64",
    "data.num_val_blocks=4",
    "trainer.global_batch_size=4",
    "trainer.micro_batch_size=2",
    "trainer.checkpoint_interval=2",
    "trainer.eval_interval=null",
    "trainer.sample_interval=null",
    "trainer.max_steps=6",
    "hydra.run.dir=run",
    "device.threads=1",
];

/// Losses and gradient norms of steps 3 to 6.
const LOGGED: [(f64, f64); 4] = [
    (5.7079415, 0.42214048),
    (5.6892767, 0.5229531),
    (5.6943674, 0.4774515),
    (5.699278, 0.4498532),
];

/// Other processors round differently.
const TOLERANCE: f64 = 1e-3;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("folder made");
    for entry in entries(from) {
        let to = to.join(entry.file_name().expect("a name"));
        if entry.is_dir() {
            copy(&entry, &to);
        } else {
            fs::copy(&entry, &to).expect("file copied");
        }
    }
}

#[test]
fn a_run_folder_of_an_earlier_version_goes_on() {
    let place = Place::new();
    let run = RunFolder(place.path().join("run"));
    let earlier = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/earlier_run");
    copy(&earlier, &run.0);
    let finished = place.run(RUN).with_code(0);
    let finished = finished.prints("from step 2: hydra.run.dir holds it\n");
    let finished = finished.prints("1 step after the checkpoint is made again\n");
    assert!(
        !finished.stdout.contains("config changed"),
        "{}",
        finished.stdout
    );
    let rows = run.rows();
    for (step, (loss, grad_norm)) in (3..).zip(LOGGED) {
        let row = rows.iter().find(|row| row["step"] == step);
        let row = row.expect("a row for each step");
        for (name, expected) in [("loss", loss), ("grad_norm", grad_norm)] {
            let logged = row[name].as_f64().expect("a number");
            assert!(
                (logged - expected).abs() <= TOLERANCE * expected,
                "{name} of step {step}: {logged} instead of {expected}"
            );
        }
    }
}
