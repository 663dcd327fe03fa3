//! The model in tpu-train: fused operations, our tape, our AdamW. The weights that it draws are those of all sides.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use candle_core::Tensor;
use tt_adapters::{Lora, LoraConfig};
use tt_collators::Batch;
use tt_models::{DecoderConfig, Model, Qwen2Config, Qwen2ForCausalLM, SlidingWindowConfig};
use tt_nn::ParamTree;
use tt_optimizers::{AdamW, AdamWConfig, Optimizers, Schedule};
use tt_tensor::{Device, Precision, Seed};
use tt_train::{Trainer, Training};
use tt_trainers::LMTrainer;

use crate::Step;
use crate::shape::Shape;

/// Writes the shape, the first weights and the batch.
pub fn write_beginning(shape: &Shape, folder: &Path) -> Result<()> {
    std::fs::write(folder.join("config.json"), serde_json::to_string(shape)?)?;
    let params = params(model(shape)?.as_ref())?;
    let weights = params
        .iter()
        .map(|(spec, parameter)| Ok((spec.path.clone(), parameter.value().to_candle()?)))
        .collect::<Result<HashMap<_, _>>>()?;
    candle_core::safetensors::save(&weights, folder.join("model.safetensors"))?;
    let ids: Vec<i64> = shape.ids().into_iter().map(i64::from).collect();
    let ids = Tensor::from_vec(ids, (shape.batch, shape.seq), &candle_core::Device::Cpu)?;
    let batch = HashMap::from([("input_ids", ids)]);
    candle_core::safetensors::save(&batch, folder.join("batch.safetensors"))?;
    Ok(())
}

fn model(shape: &Shape) -> Result<Arc<dyn Model>> {
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
    Ok(Arc::new(Qwen2ForCausalLM::new(config)?))
}

fn params(model: &dyn Model) -> Result<ParamTree> {
    Ok(ParamTree::init(&model.params(), Seed::new(0), Device::Cpu)?)
}

/// LoRA of rank 8 on all linear layers, as peft's defaults scale it; its weights are drawn.
fn with_lora(model: &dyn Model, base: &ParamTree) -> Result<ParamTree> {
    let config: LoraConfig =
        serde_json::from_str(r#"{"target_modules": "all-linear", "lora_alpha": 8}"#)?;
    let lora = Arc::new(Lora::new(config, &model.params())?);
    lora.freeze(base);
    let own = ParamTree::init(&lora.params(), Seed::new(0), Device::Cpu)?;
    Ok(base.with_adapter(lora, &own)?)
}

/// Builds the model, its optimizer and the batch.
pub fn step(shape: &Shape, precision: Precision, is_lora: bool) -> Result<Step> {
    let model = model(shape)?;
    let mut params = params(model.as_ref())?;
    if is_lora {
        params = with_lora(model.as_ref(), &params)?;
    }
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
    training.clipping.max_norm = Some(1.0);
    let mut trainer = LMTrainer::new(0.0, 0.0);
    let batch = [batch(shape)];
    Ok(Box::new(move || {
        let output = trainer.train_step(&mut training, &batch)?;
        Ok(output.numbers.loss)
    }))
}

/// One document a row. The loss shifts labels itself, so the last position of a row has none.
fn batch(shape: &Shape) -> Batch {
    let ids = shape.ids();
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
