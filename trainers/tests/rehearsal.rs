//! A device without memory counts what the CPU takes, to the byte. Alone in its process: the pool is shared.

mod common;

use tt_collators::Batch;
use tt_cpu::pool;
use tt_nn::ParamTree;
use tt_optimizers::{AdamW, AdamWConfig, Optimizers, Schedule};
use tt_tensor::{Device, MetaDevice, Seed};
use tt_trainers::{LMTrainer, Result, Trainer, Training};

/// Rows whose length and vocabulary fill neither blocks nor vectors, so that kernels need all of their scratch.
fn batches() -> Vec<Batch> {
    let (rows, seq_len) = (3, 100);
    let len = rows * seq_len;
    let batch = Batch {
        rows,
        seq_len,
        input_ids: (0..len as u32).map(|i| i % 512).collect(),
        labels: (0..len as i64).map(|i| i % 512).collect(),
        segment_ids: vec![1; len],
        position_ids: (0..len as u32).map(|i| i % seq_len as u32).collect(),
        num_targets: rows * (seq_len - 1),
        ..Batch::default()
    };
    vec![batch; 2]
}

/// Two steps of two micro-batches; gives the bytes of weights, gradients and optimizer state.
fn train(device: Device) -> Result<(Training, [usize; 3])> {
    let model = common::model(0.1);
    let params = ParamTree::init(&model.params(), Seed::new(1), device)?;
    let config = AdamWConfig {
        betas: [0.9, 0.95],
        weight_decay: 0.1,
        ..AdamWConfig::new(1e-3)
    };
    let adamw = AdamW::new(config, &params)?;
    let optimizers = Optimizers::single(adamw, Schedule::constant());
    let mut training = Training::new(model, params, optimizers, Seed::new(1), device);
    training.clipping.max_norm = Some(1.0);
    let mut trainer = LMTrainer::new(0.0, 0.0);
    let batches = batches();
    trainer.train_step(&mut training, &batches)?;
    let totals = training.accumulate(&batches, |fwd, model, batch| {
        trainer.loss(fwd, model, batch)
    })?;
    let gradients = training.params.iter().filter_map(|(_, p)| p.grad());
    let sizes = [
        training
            .params
            .iter()
            .map(|(_, p)| p.value().elem_count())
            .sum(),
        gradients.map(|grad| grad.elem_count()).sum(),
        training
            .optimizers
            .slots()
            .map(|(_, slot)| slot.value.elem_count())
            .sum(),
    ];
    training.apply(totals)?;
    Ok((training, sizes.map(|elements: usize| 4 * elements)))
}

#[test]
fn the_account_is_that_of_the_cpus_pool() -> Result<()> {
    let meta = MetaDevice::new();
    let (_planned, planned_sizes) = train(Device::Meta(meta))?;
    assert_eq!(
        pool::stats(),
        pool::Stats::default(),
        "a plan takes no memory"
    );
    let (_trained, trained_sizes) = train(Device::Cpu)?;
    assert_eq!(planned_sizes, trained_sizes);
    let stats = pool::stats();
    assert_eq!(
        meta.usage().pool_bytes,
        (stats.live_bytes + stats.pooled_bytes) as u64
    );
    Ok(())
}
