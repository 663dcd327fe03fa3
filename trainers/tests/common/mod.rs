//! A tiny run, made through the public API.

#![allow(dead_code)] // each test binary uses its part

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tt_collators::{Pipeline, PipelineOptions};
use tt_data::{DataConfig, TokenizerConfig};
use tt_metrics::{Jsonl, Metrics};
use tt_models::{Model, Qwen2Config, Qwen2ForCausalLM};
use tt_nn::ParamTree;
use tt_optimizers::{AdamW, AdamWConfig, CosineOptions, Optimizers, SchedulePlan, Shape};
use tt_tensor::{Device, Precision, Seed};
use tt_train::{StopFlag, TrainJob, TrainerConfig};
use tt_trainers::LMTrainer;

/// Qwen2 with sizes in multiples of 16, as real models have.
pub fn model(hidden_dropout: f64) -> Arc<dyn Model> {
    let config: Qwen2Config = serde_json::from_value(json!({
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "tie_word_embeddings": true, "hidden_dropout": hidden_dropout,
    }))
    .unwrap();
    Arc::new(Qwen2ForCausalLM::new(config).unwrap())
}

/// The record of a run in `run_dir`.
pub fn metrics(run_dir: &Path) -> Metrics {
    Metrics::new(Jsonl::create(&run_dir.join("metrics.jsonl")).unwrap())
}

/// `max_steps` steps of two micro-batches on the embedded stories.
pub fn job(max_steps: u64) -> TrainJob {
    job_on(Device::Cpu, max_steps)
}

pub fn job_on(device: Device, max_steps: u64) -> TrainJob {
    let config: TrainerConfig = serde_json::from_value(json!({
        "type": "lm_trainer.LMTrainer", "max_steps": max_steps,
        "global_batch_size": 8, "micro_batch_size": 4, "max_grad_norm": 1.0,
        "sample": {"count": 1, "max_new_tokens": 8},
    }))
    .unwrap();
    let data = DataConfig {
        sequence_length: 64,
        num_val_blocks: 8,
        tokenizer: TokenizerConfig {
            vocab_size: 512,
            ..TokenizerConfig::default()
        },
        ..DataConfig::default()
    };
    let options = PipelineOptions {
        seed: 1,
        micro_batch_size: config.micro_batch_size,
        ..PipelineOptions::default()
    };
    let data = Pipeline::open(&data, &options).unwrap();
    let model = model(0.1);
    let params = ParamTree::init(&model.params(), Seed::new(1), device).unwrap();
    TrainJob {
        optimizers: optimizers(&params, max_steps),
        params,
        model,
        trainer: Box::new(LMTrainer::new(0.0, 0.0)),
        config,
        data,
        device,
        precision: Precision::F32,
        seed: 1,
        recompute: None,
        adapter: None,
        initial: None,
        token_ids: Default::default(),
        resume: None,
        stop: StopFlag::default(),
        ranks: None,
        utilization: None,
        profile: None,
    }
}

/// AdamW for these parameters, its rate a cosine over `total` steps.
pub fn optimizers(params: &ParamTree, total: u64) -> Optimizers {
    let adamw = AdamWConfig {
        betas: [0.9, 0.95],
        weight_decay: 0.1,
        ..AdamWConfig::new(1e-3)
    };
    let adamw = AdamW::new(adamw, params).unwrap();
    let schedule = SchedulePlan::new(Shape::Cosine(CosineOptions::default()), 2);
    Optimizers::single(adamw, schedule.build(Some(total), 1e-3).unwrap())
}
