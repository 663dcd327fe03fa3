//! Self-attention with grouped key/value heads and rotary positions, causal or looking both ways.
//!
//! Head counts are taken from the local weights' shapes, so a module sharded by heads needs no change.

use tt_tensor::Tensor;

use crate::attend::{AttentionMask, attend};
use crate::error::Result;
use crate::forward::{Forward, Positions};
use crate::linear::Linear;
use crate::norm::RmsNorm;
use crate::param_tree::ParamSpec;
use crate::path::ModulePath;
use crate::rope::Rope;

/// Sizes and switches of [`SelfAttention`].
#[derive(Clone, Debug)]
pub struct AttentionShape {
    /// Width of what goes in and comes out.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Biases on the query, key and value projections (Qwen2 has them, Llama does not).
    pub qkv_bias: bool,
    /// Bias on the output projection.
    pub output_bias: bool,
    /// RMSNorm of each query and key head before rotation, with this added to the mean square (Qwen3).
    pub qk_norm_eps: Option<f64>,
    /// Whether a query sees no position after its own.
    pub causal: bool,
    /// Positions a query looks back, itself included; `None`: all.
    pub window: Option<usize>,
    /// Standard deviation of the weights at the start.
    pub init_std: f32,
}

impl AttentionShape {
    /// Plain causal multi-head attention: as many key/value heads as query heads, no biases, no window.
    pub fn new(hidden: usize, heads: usize, head_dim: usize) -> Self {
        Self {
            hidden,
            heads,
            kv_heads: heads,
            head_dim,
            qkv_bias: false,
            output_bias: false,
            qk_norm_eps: None,
            causal: true,
            window: None,
            init_std: 0.02,
        }
    }
}

/// The projections `q_proj`, `k_proj`, `v_proj` and `o_proj`, and attention between them.
#[derive(Clone, Debug)]
pub struct SelfAttention {
    path: ModulePath,
    head_dim: usize,
    mask: AttentionMask,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// Of queries and of keys.
    qk_norm: Option<(RmsNorm, RmsNorm)>,
}

impl SelfAttention {
    /// The module at `path`, with weights of `shape`.
    pub fn new(path: ModulePath, shape: &AttentionShape) -> Self {
        let linear = |name: &str, inputs, outputs, bias| {
            let linear = Linear::new(path.join(name), inputs, outputs).with_std(shape.init_std);
            if bias { linear.with_bias() } else { linear }
        };
        let norm = |name: &str, eps| RmsNorm::new(path.join(name), shape.head_dim, eps);
        let (hidden, bias) = (shape.hidden, shape.qkv_bias);
        let (q_dim, kv_dim) = (
            shape.heads * shape.head_dim,
            shape.kv_heads * shape.head_dim,
        );
        Self {
            head_dim: shape.head_dim,
            mask: AttentionMask {
                causal: shape.causal,
                window: shape.window,
            },
            q_proj: linear("q_proj", hidden, q_dim, bias),
            k_proj: linear("k_proj", hidden, kv_dim, bias),
            v_proj: linear("v_proj", hidden, kv_dim, bias),
            o_proj: linear("o_proj", q_dim, hidden, shape.output_bias),
            qk_norm: shape
                .qk_norm_eps
                .map(|eps| (norm("q_norm", eps), norm("k_norm", eps))),
            path,
        }
    }

    /// Its parameters, all below its path.
    pub fn params(&self) -> Vec<ParamSpec> {
        let projections = [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj];
        let norms = self.qk_norm.iter().flat_map(|(q, k)| [q, k]);
        projections
            .into_iter()
            .flat_map(Linear::params)
            .chain(norms.flat_map(RmsNorm::params))
            .collect()
    }

    /// `x` `[B, T, hidden]` to the same shape. With a cache in `fwd`, `x` continues what it holds.
    pub fn forward(
        &self,
        fwd: &Forward,
        x: &Tensor,
        rope: &Rope,
        positions: &Positions,
    ) -> Result<Tensor> {
        let (this, rope, positions) = (self.clone(), rope.clone(), positions.clone());
        fwd.module(&self.path, "SelfAttention", x, move |fwd, x| {
            this.body(fwd, x, &rope, &positions)
        })
    }

    fn body(
        &self,
        fwd: &Forward,
        x: &Tensor,
        rope: &Rope,
        positions: &Positions,
    ) -> Result<Tensor> {
        let [b, t, _] = x.dims_of("self_attention")?;
        let heads = |y: Tensor| {
            let heads = y.dims()[2] / self.head_dim;
            y.reshape((b, t, heads, self.head_dim)) // [B, T, H, D]
        };
        let q = heads(self.q_proj.forward(fwd, x)?)?;
        let k = heads(self.k_proj.forward(fwd, x)?)?;
        let v = heads(self.v_proj.forward(fwd, x)?)?;
        let (q, k) = match &self.qk_norm {
            Some((q_norm, k_norm)) => (q_norm.forward(fwd, &q)?, k_norm.forward(fwd, &k)?),
            None => (q, k),
        };
        let q = rope.apply(&q, positions)?;
        let k = rope.apply(&k, positions)?;
        let y = attend(fwd, &self.path, [q, k, v], positions, self.mask)?; // [B, T, H, D]
        let width = y.dims()[2] * self.head_dim;
        self.o_proj.forward(fwd, &y.reshape((b, t, width))?)
    }
}
