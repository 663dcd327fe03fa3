//! Qwen2 in plain candle-nn, trained with candle's own autograd and AdamW: the code that a careful user writes.
//!
//! Where candle-nn has a fused operation without a backward pass (`rms_norm`, `rope`, `softmax_last_dim`), its
//! differentiable counterpart is used. Everything else is candle-nn as it comes.

use std::path::Path;

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Result, Tensor, Var, safetensors};
use candle_nn::{
    AdamW, Embedding, Linear, Module, Optimizer, ParamsAdamW, RmsNorm, VarBuilder, VarMap, linear,
    linear_no_bias, loss, ops, rms_norm, rotary_emb,
};

use crate::Step;
use crate::shape::Shape;

const ROPE_THETA: f32 = 1e6;
const RMS_NORM_EPS: f64 = 1e-6;

/// Builds the model with the weights in `folder`, its optimizers and the batch.
pub fn step(shape: &Shape, folder: &Path) -> anyhow::Result<Step> {
    let device = Device::Cpu;
    let mut variables = VarMap::new();
    let model = Model::new(
        shape,
        VarBuilder::from_varmap(&variables, DType::F32, &device),
    )?;
    variables.load(folder.join("model.safetensors"))?;
    let ids = safetensors::load(folder.join("batch.safetensors"), &device)?;
    let ids = ids["input_ids"].to_dtype(DType::U32)?;
    let labels = ids.narrow(1, 1, shape.seq - 1)?.flatten_all()?;
    // Norms and biases do not decay.
    let (matrices, vectors): (Vec<_>, Vec<_>) = variables
        .all_vars()
        .into_iter()
        .partition(|var| var.rank() > 1);
    let optimizer = |vars, weight_decay| {
        let params = ParamsAdamW {
            lr: 1e-3,
            weight_decay,
            ..Default::default()
        };
        AdamW::new(vars, params)
    };
    let mut optimizers = [optimizer(matrices, 0.1)?, optimizer(vectors, 0.0)?];
    Ok(Box::new(move || {
        let loss = loss::cross_entropy(&model.logits(&ids)?, &labels)?;
        let mut grads = loss.backward()?;
        clip(&mut grads, &variables.all_vars(), 1.0)?;
        for optimizer in &mut optimizers {
            optimizer.step(&grads)?;
        }
        Ok(loss.to_scalar::<f32>()?)
    }))
}

/// Scales gradients so that the norm of all of them is at most `max_norm`.
fn clip(grads: &mut GradStore, vars: &[Var], max_norm: f64) -> Result<()> {
    let mut squares = 0.0;
    for grad in vars.iter().filter_map(|var| grads.get(var)) {
        squares += f64::from(grad.sqr()?.sum_all()?.to_scalar::<f32>()?);
    }
    let scale = max_norm / (squares.sqrt() + 1e-6);
    if scale < 1.0 {
        for var in vars {
            if let Some(grad) = grads.remove(var) {
                grads.insert(var, (grad * scale)?);
            }
        }
    }
    Ok(())
}

struct Model {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    rope: Rope,
}

impl Model {
    fn new(shape: &Shape, vb: VarBuilder) -> Result<Self> {
        let vb = vb.pp("model");
        let layers = (0..shape.layers).map(|i| Layer::new(shape, vb.pp("layers").pp(i)));
        Ok(Self {
            embed_tokens: Embedding::new(
                vb.get((shape.vocab, shape.hidden), "embed_tokens.weight")?,
                shape.hidden,
            ),
            layers: layers.collect::<Result<_>>()?,
            norm: rms_norm(shape.hidden, RMS_NORM_EPS, vb.pp("norm"))?,
            rope: Rope::new(shape, vb.device())?,
        })
    }

    /// `[B, T]` to `[B * (T - 1), V]`: the last position of a row has no label.
    fn logits(&self, ids: &Tensor) -> Result<Tensor> {
        let mut hidden = self.embed_tokens.forward(ids)?; // [B, T, H]
        for layer in &self.layers {
            hidden = layer.forward(&hidden, &self.rope)?;
        }
        let hidden = self.norm.forward_diff(&hidden)?;
        let hidden = hidden.narrow(1, 0, hidden.dim(1)? - 1)?.flatten_to(1)?; // [B * (T - 1), H]
        hidden.matmul(&self.embed_tokens.embeddings().t()?)
    }
}

struct Layer {
    input_layernorm: RmsNorm,
    attention: Attention,
    post_attention_layernorm: RmsNorm,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Layer {
    fn new(shape: &Shape, vb: VarBuilder) -> Result<Self> {
        let (hidden, intermediate) = (shape.hidden, shape.intermediate);
        let mlp = vb.pp("mlp");
        Ok(Self {
            input_layernorm: rms_norm(hidden, RMS_NORM_EPS, vb.pp("input_layernorm"))?,
            attention: Attention::new(shape, vb.pp("self_attn"))?,
            post_attention_layernorm: rms_norm(
                hidden,
                RMS_NORM_EPS,
                vb.pp("post_attention_layernorm"),
            )?,
            gate_proj: linear_no_bias(hidden, intermediate, mlp.pp("gate_proj"))?,
            up_proj: linear_no_bias(hidden, intermediate, mlp.pp("up_proj"))?,
            down_proj: linear_no_bias(intermediate, hidden, mlp.pp("down_proj"))?,
        })
    }

    fn forward(&self, x: &Tensor, rope: &Rope) -> Result<Tensor> {
        let normed = self.input_layernorm.forward_diff(x)?;
        let x = (x + self.attention.forward(&normed, rope)?)?;
        let normed = self.post_attention_layernorm.forward_diff(&x)?;
        let gate = ops::silu(&self.gate_proj.forward(&normed)?)?;
        let up = self.up_proj.forward(&normed)?;
        &x + self.down_proj.forward(&(gate * up)?)?
    }
}

struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Attention {
    fn new(shape: &Shape, vb: VarBuilder) -> Result<Self> {
        let (hidden, kv_hidden) = (shape.hidden, shape.kv_heads * shape.head_dim());
        Ok(Self {
            q_proj: linear(hidden, hidden, vb.pp("q_proj"))?,
            k_proj: linear(hidden, kv_hidden, vb.pp("k_proj"))?,
            v_proj: linear(hidden, kv_hidden, vb.pp("v_proj"))?,
            o_proj: linear_no_bias(hidden, hidden, vb.pp("o_proj"))?,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim(),
        })
    }

    fn forward(&self, x: &Tensor, rope: &Rope) -> Result<Tensor> {
        let (batch, seq, hidden) = x.dims3()?;
        let split = |x: Tensor, heads: usize| {
            x.reshape((batch, seq, heads, self.head_dim))?
                .transpose(1, 2)?
                .contiguous()
        };
        let q = rope.apply(&split(self.q_proj.forward(x)?, self.heads)?)?; // [B, H, T, D]
        let k = rope.apply(&split(self.k_proj.forward(x)?, self.kv_heads)?)?;
        let v = split(self.v_proj.forward(x)?, self.kv_heads)?;
        let (k, v) = (self.repeat(&k)?, self.repeat(&v)?);
        let scores = (q.matmul(&k.t()?)? * (1.0 / (self.head_dim as f64).sqrt()))?; // [B, H, T, T]
        let probs = ops::softmax(&scores.broadcast_add(&rope.causal_mask)?, D::Minus1)?;
        let out = probs
            .matmul(&v)?
            .transpose(1, 2)?
            .reshape((batch, seq, hidden))?;
        self.o_proj.forward(&out)
    }

    /// `[B, Hkv, T, D]` to `[B, H, T, D]`, each key/value head for its group of query heads.
    fn repeat(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, kv_heads, seq, dim) = x.dims4()?;
        let group = self.heads / kv_heads;
        x.unsqueeze(2)?
            .expand((batch, kv_heads, group, seq, dim))?
            .reshape((batch, self.heads, seq, dim))
    }
}

/// What all layers share: rotation tables `[T, D/2]` and the causal mask `[T, T]`.
struct Rope {
    cos: Tensor,
    sin: Tensor,
    causal_mask: Tensor,
}

impl Rope {
    fn new(shape: &Shape, device: &Device) -> Result<Self> {
        let (seq, dim) = (shape.seq, shape.head_dim());
        let inv_freq: Vec<f32> = (0..dim / 2)
            .map(|i| ROPE_THETA.powf(-2.0 * i as f32 / dim as f32))
            .collect();
        let inv_freq = Tensor::from_vec(inv_freq, (1, dim / 2), device)?;
        let positions = Tensor::arange(0, seq as u32, device)?.to_dtype(DType::F32)?;
        let angles = positions.reshape((seq, 1))?.matmul(&inv_freq)?;
        let hidden = |i: usize| {
            if i % seq > i / seq {
                f32::NEG_INFINITY
            } else {
                0.0
            }
        };
        let causal_mask =
            Tensor::from_vec((0..seq * seq).map(hidden).collect(), (seq, seq), device)?;
        Ok(Self {
            cos: angles.cos()?,
            sin: angles.sin()?,
            causal_mask,
        })
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        rotary_emb::rope_slow(x, &self.cos, &self.sin)
    }
}
