//! A tiny run: four micro-batches of two rows a step.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tt_collators::{Pipeline, PipelineOptions};
use tt_data::{DataConfig, TokenizerConfig};
use tt_metrics::{Jsonl, Metrics, Record, Sink, SinkResult};
use tt_models::{Model, Qwen2Config, Qwen2ForCausalLM};
use tt_nn::{Forward, ParamTree};
use tt_optimizers::{AdamW, AdamWConfig, CosineOptions, Optimizers, SchedulePlan, Shape};
use tt_tensor::{CrossEntropyParams, Device, Precision, Seed, fused};
use tt_train::{DeviceBatch, IGNORE, Loss, Result, StopFlag, TrainJob, Trainer, TrainerConfig};

pub const MICRO_BATCHES: usize = 4;

pub fn model(hidden_dropout: f64) -> Arc<dyn Model> {
    let config: Qwen2Config = serde_json::from_value(json!({
        "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "tie_word_embeddings": true, "hidden_dropout": hidden_dropout,
    }))
    .unwrap();
    Arc::new(Qwen2ForCausalLM::new(config).unwrap())
}

pub fn data() -> Pipeline {
    let data = DataConfig {
        sequence_length: 32,
        num_val_blocks: 8,
        tokenizer: TokenizerConfig {
            vocab_size: 512,
            ..TokenizerConfig::default()
        },
        ..DataConfig::default()
    };
    let options = PipelineOptions {
        seed: 1,
        micro_batch_size: 2,
        ..PipelineOptions::default()
    };
    Pipeline::open(&data, &options).unwrap()
}

/// AdamW for these parameters, its rate a cosine over `total` steps.
pub fn optimizers(params: &ParamTree, total: u64) -> Optimizers {
    let adamw = AdamW::new(AdamWConfig::new(1e-2), params).unwrap();
    let schedule = SchedulePlan::new(Shape::Cosine(CosineOptions::default()), 2);
    Optimizers::single(adamw, schedule.build(Some(total), 1e-2).unwrap())
}

/// With dropout, so that a step that is made again must draw the same again.
pub fn job(max_steps: u64, trainer: impl Trainer + 'static, stop: StopFlag) -> TrainJob {
    let config: TrainerConfig = serde_json::from_value(json!({
        "type": "plain", "max_steps": max_steps, "max_grad_norm": 1.0,
        "global_batch_size": 2 * MICRO_BATCHES, "micro_batch_size": 2,
        "sample": {"count": 0},
    }))
    .unwrap();
    let model = model(0.1);
    let params = ParamTree::init(&model.params(), Seed::new(1), Device::Cpu).unwrap();
    TrainJob {
        optimizers: optimizers(&params, max_steps),
        params,
        model,
        trainer: Box::new(trainer),
        config,
        data: data(),
        device: Device::Cpu,
        precision: Precision::F32,
        seed: 1,
        recompute: None,
        adapter: None,
        initial: None,
        token_ids: Default::default(),
        resume: None,
        stop,
        ranks: None,
        utilization: None,
        profile: None,
    }
}

/// The record of a run in `run_dir`.
pub fn metrics(run_dir: &Path) -> Metrics {
    Metrics::new(Jsonl::create(&run_dir.join("metrics.jsonl")).unwrap())
}

/// [`metrics`], and what the run has to say.
pub fn listened(run_dir: &Path) -> (Metrics, Messages) {
    let messages = Messages::default();
    let metrics = metrics(run_dir).with(messages.clone());
    (metrics, messages)
}

#[derive(Clone, Default)]
pub struct Messages(Arc<Mutex<Vec<String>>>);

impl Messages {
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Sink for Messages {
    fn record(&mut self, _: &Record, _: u64) -> SinkResult {
        Ok(())
    }

    fn message(&mut self, text: &str) -> SinkResult {
        self.0.lock().unwrap().push(text.to_owned());
        Ok(())
    }
}

/// Cross-entropy of the next token.
pub fn plain_loss(fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
    let hidden = model.hidden_states(fwd, &batch.input)?;
    let params = CrossEntropyParams {
        ignore_index: IGNORE,
        label_smoothing: 0.0,
        z_loss: 0.0,
    };
    let head = model.head(fwd)?;
    let loss = fused::linear_cross_entropy(&hidden, &head, &batch.targets, params)?;
    Ok(Loss {
        sum: loss.sum,
        weight: loss.count,
        scalars: vec![],
    })
}
