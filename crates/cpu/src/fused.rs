//! The operations that decide training speed, as one trait over candle's storages.
//!
//! `tt-cpu` implements it for [`candle_core::CpuStorage`], `tt-tpu` for its device storage; the tensor
//! crate calls it and owns shapes, broadcasting and gradients. Every method writes into storages that
//! the caller took from the device's pool, so a training step allocates nothing.
//!
//! Conventions: operands are `(storage, layout)` pairs ([`View`]); unless a method says otherwise an
//! operand is contiguous from its layout's start offset, and outputs are contiguous from element 0.
//! Activations and their gradients are f32, bf16 or f16; weights are f32, or 16-bit where they are frozen; what is summed
//! over tokens (gradients of weights, statistics, loss) is f32. Arithmetic is f32, but products take their operands
//! in the type of the activation. Ids, positions and segments are u32, labels i64.
//! `Write::Assign` overwrites an output, `Write::Accumulate` adds to it.
//! Results never depend on the number of threads: work is split into fixed blocks and partial results
//! are combined in a fixed order.
//! Errors: candle's, for a dtype or a shape that the method does not take.

use candle_core::backend::BackendStorage;
use candle_core::{Layout, Result};

use crate::UpdateRule;

/// A read-only operand.
pub type View<'a, S> = (&'a S, &'a Layout);

/// What happens to the previous content of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    Assign,
    Accumulate,
}

/// Shape and masking of scaled-dot-product attention.
///
/// Query `i` sits at absolute position `i + keys - queries` and sees key `j` if `j` is not later
/// (`causal`), is less than `window` positions back (if given), and carries the same segment id
/// (if segments are given). A query that sees no key gives zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams {
    pub batch: usize,
    pub queries: usize,
    pub keys: usize,
    pub heads: usize,
    /// Divides `heads`; query head `h` reads key/value head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Multiplies the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    pub causal: bool,
    pub window: Option<usize>,
}

/// Cross-entropy of a linear head. A label of `ignore_index` has neither loss nor gradient.
///
/// Per valid row with logits `z`, `lse = log sum exp z`:
/// `(1 - label_smoothing) * (lse - z[label]) + label_smoothing * (lse - mean z) + z_loss * lse^2`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyParams {
    pub ignore_index: i64,
    pub label_smoothing: f32,
    pub z_loss: f32,
}

/// A form of GELU, `x P(N < x)` with a normal `N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// By the error function: `x / 2 (1 + erf(x / sqrt 2))`.
    Erf,
    /// By the hyperbolic tangent in its place: `x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    Tanh,
}

/// Names one stream of the counter-based generator (Philox 4x32-10); element `i` of a stream is a pure
/// function of (`key`, `stream`, `i`), the same bits on every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RngKey {
    pub key: u64,
    pub stream: u64,
}

pub trait FusedOps: BackendStorage {
    /// Sets elements `0..len` to `value`.
    fn fill(&mut self, len: usize, value: f32) -> Result<()>;
    /// `out[i] = x[i]`, rounded to `out`'s type.
    fn cast_into(x: View<Self>, out: &mut Self) -> Result<()>;
    /// `out[i] = a[i] + b[i]`, `out` of `a`'s type.
    fn add_into(a: View<Self>, b: View<Self>, out: &mut Self) -> Result<()>;
    /// `self[i] += alpha * x[i]`, `self` contiguous from element 0.
    fn axpy(&mut self, alpha: f32, x: View<Self>) -> Result<()>;
    /// `self[i] *= alpha * factor[0]`, for the first `len` elements; `factor` absent counts as 1.
    fn scale(&mut self, len: usize, alpha: f32, factor: Option<View<Self>>) -> Result<()>;

    /// `out = a . b` or `out += a . b` for `a` `[.., m, k]`, `b` `[.., k, n]`, `out` `[.., m, n]`: equal leading
    /// dims, any strides (transposed and expanded operands are not copied); `out` contiguous from element 0.
    /// The product is of `a`'s type: `b` is rounded to it, or widened. `out` is f32 or of `a`'s type.
    fn matmul_into(a: View<Self>, b: View<Self>, out: &mut Self, write: Write) -> Result<()>;
    /// `out[r, c] = row[c]` for `rows` rows: a bias laid down before `matmul_into(.., Accumulate)`.
    fn broadcast_row_into(row: View<Self>, rows: usize, out: &mut Self) -> Result<()>;
    /// `out[c] (+)= sum_r x[r, c]`, `x` seen as `[rows, cols]`, `out` f32.
    fn sum_rows_into(x: View<Self>, rows: usize, out: &mut Self, write: Write) -> Result<()>;
    /// `out[slot] = sum_i x[i]^2`, accumulated in f64 and stored as f32.
    fn sum_squares_into(x: View<Self>, out: &mut Self, slot: usize) -> Result<()>;

    /// `y = x / rms(x) * weight` over rows of `x` `[rows, D]`, `inv_rms` `[rows]` is kept for the backward pass.
    /// `y`'s type may be another than `x`'s; `weight` is f32.
    fn rms_norm(
        x: View<Self>,
        weight: View<Self>,
        eps: f32,
        y: &mut Self,
        inv_rms: &mut Self,
    ) -> Result<()>;
    /// Gradients of [`FusedOps::rms_norm`]; `dx`, of `x`'s type, is assigned, `dweight` `[D]` written as asked.
    fn rms_norm_backward(
        x: View<Self>,
        weight: View<Self>,
        inv_rms: View<Self>,
        dy: View<Self>,
        dx: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
    ) -> Result<()>;

    /// `y = (x - mean) * inv_std * weight + bias` over rows of `x` `[rows, D]`, with `inv_std = 1 / sqrt(var + eps)` of the mean
    /// of squares, not corrected; `mean` and `inv_std` `[rows]` are kept for the backward pass.
    /// `y`'s type may be another than `x`'s; `weight` and `bias` are f32.
    fn layer_norm(
        x: View<Self>,
        weight: View<Self>,
        bias: View<Self>,
        eps: f32,
        y: &mut Self,
        mean: &mut Self,
        inv_std: &mut Self,
    ) -> Result<()>;
    /// Gradients of [`FusedOps::layer_norm`]; `dx`, of `x`'s type, is assigned, `dweight` and `dbias` `[D]` written as asked.
    #[allow(clippy::too_many_arguments)]
    fn layer_norm_backward(
        x: View<Self>,
        weight: View<Self>,
        mean: View<Self>,
        inv_std: View<Self>,
        dy: View<Self>,
        dx: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
        dbias: Option<(&mut Self, Write)>,
    ) -> Result<()>;

    /// Rotates pairs (i, i + D/2) of `x` `[B, T, H, D]` by the angle of row `positions[b, t]` of the tables
    /// `cos`, `sin` `[P, D/2]`; `positions` is `[B, T]`. `inverse` rotates back, which is the gradient.
    /// `x` may be a view whose last dim is contiguous (a slice of a fused projection).
    fn rope(
        x: View<Self>,
        cos: View<Self>,
        sin: View<Self>,
        positions: View<Self>,
        inverse: bool,
        y: &mut Self,
    ) -> Result<()>;

    /// `y = silu(gate) * up`.
    fn swiglu(gate: View<Self>, up: View<Self>, y: &mut Self) -> Result<()>;
    /// Gradients of [`FusedOps::swiglu`].
    fn swiglu_backward(
        gate: View<Self>,
        up: View<Self>,
        dy: View<Self>,
        dgate: &mut Self,
        dup: &mut Self,
    ) -> Result<()>;

    /// `y = gelu(x)`, element by element, in the given form.
    fn gelu(form: Gelu, x: View<Self>, y: &mut Self) -> Result<()>;
    /// Gradient of [`FusedOps::gelu`].
    fn gelu_backward(form: Gelu, x: View<Self>, dy: View<Self>, dx: &mut Self) -> Result<()>;

    /// Attention of `q` `[B, Tq, H, D]` over `k`, `v` `[B, Tk, Hkv, D]` into `out` `[B, Tq, H, D]`; `lse` `[B, H, Tq]` is
    /// kept for the backward pass. `segments` are the ids of queries `[B, Tq]` and keys `[B, Tk]`.
    /// `q`, `k`, `v` may be views whose last dim is contiguous; all are of one type, `lse` is f32. Scores are made block by block, never Tq x Tk.
    fn attention(
        params: &AttentionParams,
        q: View<Self>,
        k: View<Self>,
        v: View<Self>,
        segments: Option<(View<Self>, View<Self>)>,
        out: &mut Self,
        lse: &mut Self,
    ) -> Result<()>;
    /// Gradients of [`FusedOps::attention`], all assigned.
    #[allow(clippy::too_many_arguments)]
    fn attention_backward(
        params: &AttentionParams,
        q: View<Self>,
        k: View<Self>,
        v: View<Self>,
        segments: Option<(View<Self>, View<Self>)>,
        out: View<Self>,
        lse: View<Self>,
        dout: View<Self>,
        dq: &mut Self,
        dk: &mut Self,
        dv: &mut Self,
    ) -> Result<()>;

    /// Loss of `hidden` `[rows, D]` through the head `weight` `[V, D]` against `labels` `[rows]`, in chunks of rows, the
    /// logits never held whole. `totals[0]` is the summed loss, `totals[1]` the number of valid rows,
    /// `totals[2]` the sum of `lse^2` over them.
    /// If asked for, `dhidden` `[rows, D]` and `dweight` `[V, D]` are assigned the gradients of `grad_scale` times the *sum*,
    /// computed while the logits of a chunk are at hand: `dhidden` of `hidden`'s type, `dweight` f32. The gradients of
    /// logits are scaled before they are rounded to `hidden`'s type: in a large vocabulary most of them are too small for an
    /// f16.
    #[allow(clippy::too_many_arguments)]
    fn linear_cross_entropy(
        params: &CrossEntropyParams,
        grad_scale: f32,
        hidden: View<Self>,
        weight: View<Self>,
        labels: View<Self>,
        totals: &mut Self,
        dhidden: Option<&mut Self>,
        dweight: Option<&mut Self>,
    ) -> Result<()>;

    /// What [`linear_cross_entropy`](Self::linear_cross_entropy) sums: `losses` `[rows]`, f32, 0 where there is no label.
    fn linear_token_losses(
        params: &CrossEntropyParams,
        hidden: View<Self>,
        weight: View<Self>,
        labels: View<Self>,
        losses: &mut Self,
    ) -> Result<()>;
    /// The gradients of each loss times its element of `dlosses` `[rows]`, f32, with logits made again: `dhidden` `[rows, D]`
    /// of `hidden`'s type is assigned, `dweight` `[V, D]`, f32, written.
    #[allow(clippy::too_many_arguments)]
    fn linear_token_losses_backward(
        params: &CrossEntropyParams,
        hidden: View<Self>,
        weight: View<Self>,
        labels: View<Self>,
        dlosses: View<Self>,
        dhidden: Option<&mut Self>,
        dweight: Option<(&mut Self, Write)>,
    ) -> Result<()>;

    /// `y[r] = weight[ids[r]]` for `weight` `[V, D]`, `y` f32. An id that is not below `V` is an error.
    fn embedding(weight: View<Self>, ids: View<Self>, y: &mut Self) -> Result<()>;
    /// `dweight[ids[r]] += dy[r]`, in the order of `r`.
    fn embedding_backward(ids: View<Self>, dy: View<Self>, dweight: &mut Self) -> Result<()>;

    /// `y[i] = x[i] / (1 - p)` if element `i` of the stream is kept, else 0. The same call on `dy` is the gradient.
    fn dropout(x: View<Self>, p: f32, rng: RngKey, y: &mut Self) -> Result<()>;
    /// `self[i] = mean + std * normal(i)` for the first `len` elements.
    fn fill_normal(&mut self, len: usize, mean: f32, std: f32, rng: RngKey) -> Result<()>;
    /// `self[i]` uniform in `[low, high)` for the first `len` elements.
    fn fill_uniform(&mut self, len: usize, low: f32, high: f32, rng: RngKey) -> Result<()>;

    /// One step of `rule` on `param` in place; all operands contiguous from element 0. `grad_scale` `[1]` (the clip coefficient
    /// over the divisor of the loss) multiplies the gradient and stays on the device. Of `states`, in the rule's order,
    /// each is f32 or bf16. With `sums` `(out, slot)` elements `3 * slot ..` of `out` are assigned, over all elements, the
    /// sum of squares of the step, the sum of squares of the weights after it, and how many weights moved against
    /// their gradient.
    fn optimizer_step(
        rule: &UpdateRule,
        param: &mut Self,
        grad: View<Self>,
        grad_scale: View<Self>,
        states: &mut [&mut Self],
        sums: Option<(&mut Self, usize)>,
    ) -> Result<()>;
    /// `self[i] = alpha * self[i] + beta * x[i]` for the first `len` elements, `x` absent counts as 0; if `to_bf16`, rounded to
    /// the nearest number that bf16 has, and kept as f32.
    fn combine(
        &mut self,
        len: usize,
        alpha: f32,
        x: Option<(f32, View<Self>)>,
        to_bf16: bool,
    ) -> Result<()>;
    /// `self[i] = clamp(self[i] * scale[0], -max, max)` for the first `len` elements.
    fn clip_value(&mut self, len: usize, scale: View<Self>, max: f32) -> Result<()>;
}
