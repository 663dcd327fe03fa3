//! Small snapshots with content that depends on the step, and comparisons of them.

use std::{num::NonZeroUsize, path::Path};

use serde_json::json;
use tt_checkpoint::{Checkpoint, CheckpointConfig, HostTensor, Snapshot, Writer, latest};

pub fn snapshot(step: u64) -> Snapshot {
    let values = |n: usize, salt: u64| -> Vec<f32> {
        (0..n)
            .map(|i| ((i as u64 * 31 + step * 7 + salt) % 1009) as f32 * 0.37)
            .collect()
    };
    let mut snapshot = Snapshot {
        step,
        config: json!({"model_type": "qwen2", "hidden_size": 8}),
        generation_config: json!({"eos_token_id": 0}),
        state: json!({"step": step, "loss_scale": 0.1, "rng": [step, u64::MAX]}),
        ..Snapshot::default()
    };
    for (i, name) in [
        "embed.weight",
        "layers.0.weight",
        "layers.0.bias",
        "head.weight",
    ]
    .into_iter()
    .enumerate()
    {
        let tensor = HostTensor::from_f32([16, 8], &values(128, i as u64));
        snapshot.model.insert(name.into(), tensor);
        let slot = HostTensor::from_f32([16, 8], &values(128, 100 + i as u64));
        snapshot
            .optimizer
            .insert(format!("adamw/{name}/exp_avg"), slot);
    }
    let count = HostTensor::from_i64([], &[step as i64]);
    snapshot.optimizer.insert("adamw/count".into(), count);
    snapshot
}

pub fn keep_last(n: usize) -> CheckpointConfig {
    CheckpointConfig {
        keep_last: NonZeroUsize::new(n),
        ..CheckpointConfig::default()
    }
}

/// Writes the snapshots of `steps` into `dir`.
pub fn write(dir: &Path, config: CheckpointConfig, steps: impl IntoIterator<Item = u64>) {
    let mut writer = Writer::open(dir, config).unwrap();
    for step in steps {
        writer.submit(snapshot(step)).unwrap();
    }
    let saved = writer.finish().unwrap().unwrap();
    assert!(saved.removal_error.is_none());
}

pub fn assert_holds(checkpoint: &Checkpoint, expected: &Snapshot) {
    assert_eq!(checkpoint.step(), expected.step);
    assert_eq!(
        checkpoint.model().unwrap().read_all().unwrap(),
        expected.model
    );
    let optimizer = checkpoint.optimizer().unwrap().read_all().unwrap();
    assert_eq!(optimizer, expected.optimizer);
    assert_eq!(checkpoint.state().unwrap(), expected.state);
    assert_eq!(checkpoint.config().unwrap(), expected.config);
}

pub fn latest_step(dir: &Path) -> Option<u64> {
    latest(dir).unwrap().checkpoint.map(|c| c.step())
}

/// Names in `dir`, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
