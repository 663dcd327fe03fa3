//! A device without memory counts what the CPU takes, to the byte. Alone in its process: the pool is shared.

mod common;

use std::sync::Arc;

use tt_collators::Batch;
use tt_cpu::pool;
use tt_nn::ParamTree;
use tt_optimizers::{AdamW, AdamWConfig, Muon, Optimizers, Schedule};
use tt_remat::{BLOCKS, Remat, RematConfig};
use tt_tensor::{Device, MetaDevice, Seed};
use tt_train::{Result, Trainer, Training};
use tt_trainers::LMTrainer;

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

/// What is done in different ways by the runs compared.
#[derive(Clone, Copy)]
struct Way {
    optimizers: fn(&ParamTree) -> Optimizers,
    remat: bool,
}

fn adamw(params: &ParamTree) -> Optimizers {
    let adamw = AdamW::new(AdamWConfig::new(1e-3), params).unwrap();
    Optimizers::single(adamw, Schedule::constant())
}

/// Made of tensor operations, some of them candle's, where AdamW is one kernel.
fn muon(params: &ParamTree) -> Optimizers {
    let config = serde_json::from_str(r#"{"lr": 0.02, "adamw": {"lr": 1e-3}}"#).unwrap();
    Optimizers::single(Muon::new(config, params).unwrap(), Schedule::constant())
}

const WAYS: &[Way] = &[
    Way {
        optimizers: adamw,
        remat: false,
    },
    Way {
        optimizers: muon,
        remat: true,
    },
];

/// Two steps of two micro-batches; gives the number of elements of weights, gradients and optimizer state.
fn train(way: Way, device: Device) -> Result<[usize; 3]> {
    let model = common::model(0.1);
    let params = ParamTree::init(&model.params(), Seed::new(1), device)?;
    let optimizers = (way.optimizers)(&params);
    let blocks = model.blocks();
    let mut training = Training::new(model, params, optimizers, Seed::new(1), device);
    training.clipping.max_norm = Some(1.0);
    if way.remat {
        let config = RematConfig {
            activation_checkpoint_layers: vec![BLOCKS.to_owned()],
            every: 1,
        };
        let modules: Vec<_> = blocks.iter().map(|path| (path.clone(), "Block")).collect();
        training.recompute = Some(Arc::new(Remat::new(&config, &modules, &blocks).unwrap()));
    }
    let mut trainer = LMTrainer::new(0.0, 0.0);
    let batches = batches();
    trainer.train_step(&mut training, &batches)?;
    let totals = training.accumulate(&batches, |fwd, model, batch| {
        trainer.loss(fwd, model, batch)
    })?;
    let params = || training.params.iter().map(|(_, parameter)| parameter);
    let slots = training.optimizers.slots();
    let sizes = [
        params().map(|p| p.value().elem_count()).sum(),
        params()
            .filter_map(|p| p.grad())
            .map(|grad| grad.elem_count())
            .sum(),
        slots.map(|(_, slot)| slot.value.elem_count()).sum(),
    ];
    let judgement = training.judge(&totals)?;
    training.take_step(judgement)?;
    Ok(sizes)
}

#[test]
fn the_account_is_that_of_the_cpus_pool() -> Result<()> {
    let meta = MetaDevice::new();
    let mut expected = Vec::new();
    for way in WAYS {
        let sizes = train(*way, Device::Meta(meta))?;
        expected.push((sizes, meta.usage().pool_bytes));
    }
    let nothing = pool::Stats::default();
    assert_eq!(pool::stats(), nothing, "a plan takes no memory");
    for (way, expected) in WAYS.iter().zip(expected) {
        let sizes = train(*way, Device::Cpu)?;
        let stats = pool::stats();
        let held = (stats.live_bytes + stats.pooled_bytes) as u64;
        assert_eq!((sizes, held), expected);
    }
    assert_eq!(pool::stats().live_bytes, 0, "nothing is left of the runs");
    Ok(())
}
