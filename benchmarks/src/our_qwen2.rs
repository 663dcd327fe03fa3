//! The same model in tpu-train: fused operations, our tape, our AdamW.

use std::sync::Arc;

use anyhow::Result;
use tt_collators::Batch;
use tt_models::{DecoderConfig, Model, Qwen2Config, Qwen2ForCausalLM, SlidingWindowConfig};
use tt_nn::ParamTree;
use tt_optimizers::{AdamW, AdamWConfig, Optimizers, Schedule};
use tt_tensor::{Device, Precision, Seed};
use tt_train::{Trainer, Training};
use tt_trainers::LMTrainer;

use crate::Step;
use crate::shape::Shape;

/// Builds the model, its optimizer and the batch.
pub fn step(shape: &Shape, precision: Precision) -> Result<Step> {
    let decoder = DecoderConfig {
        vocab_size: shape.vocab,
        hidden_size: shape.hidden,
        intermediate_size: shape.intermediate,
        num_hidden_layers: shape.layers,
        num_attention_heads: shape.heads,
        num_key_value_heads: shape.kv_heads,
        head_dim: None,
        max_position_embeddings: shape.seq,
        rms_norm_eps: 1e-6,
        rope_theta: 1e6,
        rope_scaling: None,
        tie_word_embeddings: true,
        initializer_range: 0.02,
        hidden_dropout: 0.0,
    };
    let config = Qwen2Config {
        decoder,
        windows: SlidingWindowConfig::default(),
    };
    let model: Arc<dyn Model> = Arc::new(Qwen2ForCausalLM::new(config)?);
    let params = ParamTree::init(&model.params(), Seed::new(0), Device::Cpu)?;
    let adamw = AdamWConfig {
        weight_decay: 0.1,
        ..AdamWConfig::new(1e-3)
    };
    let adamw = AdamW::new(adamw, &params)?;
    let mut training = Training::new(
        model,
        params,
        Optimizers::single(adamw, Schedule::constant()),
        Seed::new(0),
        Device::Cpu,
    );
    training.precision = precision;
    let mut trainer = LMTrainer::new(0.0, 0.0);
    let batch = [batch(shape)];
    Ok(Box::new(move || {
        let output = trainer.train_step(&mut training, &batch)?;
        Ok(output.numbers.loss)
    }))
}

/// One document a row. The loss shifts labels itself, so the last position of a row has none.
fn batch(shape: &Shape) -> Batch {
    let (ids, _) = shape.ids_and_labels();
    Batch {
        rows: shape.batch,
        seq_len: shape.seq,
        labels: ids.iter().map(|&id| i64::from(id)).collect(),
        input_ids: ids,
        segment_ids: vec![1; shape.tokens()],
        position_ids: (0..shape.batch).flat_map(|_| 0..shape.seq as u32).collect(),
        num_targets: shape.batch * (shape.seq - 1),
        ..Batch::default()
    }
}
