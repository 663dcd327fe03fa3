//! What a training step does on the device.

use std::fmt::Write;
use std::time::Instant;

use tt_collators::Batch;
use tt_nn::ParamTree;
use tt_optimizers::{AdamW, AdamWConfig, Optimizers, Schedule};
use tt_tensor::{Device, Precision, Seed, TpuDevice};
use tt_train::{Trainer, Training};
use tt_trainers::LMTrainer;

use crate::common::model;

const ROWS: usize = 4;
const LENGTH: usize = 64;

fn training(tpu: TpuDevice, precision: Precision) -> Training {
    let model = model(0.0); // the shape of `model/size=nano`
    let device = Device::Tpu(tpu);
    let params = ParamTree::init(&model.params(), Seed::new(0), device).unwrap();
    let adamw = AdamW::new(AdamWConfig::new(1e-3), &params).unwrap();
    let optimizers = Optimizers::single(adamw, Schedule::constant());
    let mut training = Training::new(model, params, optimizers, Seed::new(0), device);
    training.precision = precision;
    training.clipping.max_norm = Some(1.0);
    training
}

fn batch() -> Batch {
    let ids: Vec<u32> = (0..ROWS * LENGTH)
        .map(|i| (i * 7919 % 512) as u32)
        .collect();
    Batch {
        rows: ROWS,
        seq_len: LENGTH,
        labels: ids.iter().map(|&id| i64::from(id)).collect(),
        input_ids: ids,
        segment_ids: vec![1; ROWS * LENGTH],
        position_ids: (0..ROWS).flat_map(|_| 0..LENGTH as u32).collect(),
        num_targets: ROWS * (LENGTH - 1),
        ..Batch::default()
    }
}

/// `TT_TPU_COUNTS=FILE` is left with what the kernels of the last step asked of the engines.
fn forget_counts() {
    if let Some(path) = std::env::var_os("TT_TPU_COUNTS") {
        std::fs::write(path, "").unwrap();
    }
}

/// The part of the page about a step, measured now.
pub fn section(tpu: TpuDevice) -> String {
    let mut text = format!(
        "\
## A training step

Qwen2 of the size `nano`, one micro-batch of {ROWS} x {LENGTH} tokens, AdamW and clipping by the global norm. Uploads are ids, \
positions, segments and labels; the one download is the numbers that are logged. Seconds are those of the emulator on the \
machine that wrote this page and say nothing about a chip.

| precision | launches | uploads | downloads | emulator seconds |
| --- | --- | --- | --- | --- |
"
    );
    let mut launches = String::new();
    for (precision, name) in [(Precision::F32, "f32"), (Precision::Bf16, "bf16")] {
        let mut training = training(tpu, precision);
        let mut trainer = LMTrainer::new(0.0, 0.0);
        let batch = [batch()];
        trainer.train_step(&mut training, &batch).unwrap();
        forget_counts();
        let before = tpu.stats();
        let started = Instant::now();
        trainer.train_step(&mut training, &batch).unwrap();
        let seconds = started.elapsed().as_secs_f64();
        let after = tpu.stats();
        let counts = [
            after.num_launches() - before.num_launches(),
            after.uploads - before.uploads,
            after.downloads - before.downloads,
        ];
        let [launched, uploads, downloads] = counts;
        writeln!(
            text,
            "| {name} | {launched} | {uploads} | {downloads} | {seconds:.1} |"
        )
        .unwrap();
        if precision == Precision::F32 {
            let mut kernels: Vec<(&str, u64)> = after
                .launches
                .iter()
                .map(|(kernel, count)| (*kernel, count - before.launches.get(kernel).unwrap_or(&0)))
                .filter(|(_, count)| *count > 0)
                .collect();
            kernels.sort_by_key(|(kernel, count)| (std::cmp::Reverse(*count), *kernel));
            let kernels = kernels
                .iter()
                .map(|(kernel, count)| format!("`{kernel}` {count}"));
            launches = kernels.collect::<Vec<_>>().join(", ");
        }
    }
    writeln!(text, "\nWith `device.mode=batch` all launches of a step are one, and its uploads are part of it. Launches of the f32 step: {launches}.").unwrap();
    text
}
