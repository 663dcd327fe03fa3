//! The loss of each token through a linear head: what [`linear_cross_entropy`](super::linear_cross_entropy) sums, for
//! losses that weigh tokens or add up rows (preference training).
//!
//! Shapes: `hidden` `[.., D]`, head `[V, D]`, `labels` i64 with `hidden`'s leading dims, the result f32 of `labels`' shape.
//! Formula: [`CrossEntropyParams`]; 0 where the label is `ignore_index`. With `p = softmax(z)`, smoothing `s`, z-loss `w`
//! and the gradient `g` of a token's loss, `dz[c] = g (p[c] (1 + 2 w lse) - s / V - (1 - s) [c = label])`.
//! Memory: logits are held for a chunk of tokens at a time, up to 8 Mi of them; the backward pass makes them a second
//! time, since only then it is known what each token's loss counts.
//! Errors: a label that is neither below `V` nor `ignore_index`.
//!
//! Composed of single operations: on every device as it is.

use candle_core::DType;
use tt_cpu::CrossEntropyParams;

use crate::device::common_device;
use crate::error::Result;
use crate::fused::head::Head;
use crate::fused::{expect_shape, logits};
use crate::ops::product;
use crate::tape::{Saved, record};
use crate::tensor::Tensor;

/// Most logits held at once.
const MAX_LOGITS: usize = 8 << 20;

/// The loss of each token, f32 of `labels`' shape, tracked; 0 where the label is `params.ignore_index`.
///
/// `hidden` `[.., D]`, `head` `[V, D]` (with a bias `[V]` or without), `labels` i64 `[..]`.
pub fn linear_token_losses(
    hidden: &Tensor,
    head: &(impl Into<Head> + Clone),
    labels: &Tensor,
    params: CrossEntropyParams,
) -> Result<Tensor> {
    const OP: &str = "linear_token_losses";
    let head: Head = head.clone().into();
    let device = common_device(OP, &[hidden.device, head.weight.device, labels.device])?;
    let (hidden, weight) = head.without_bias(OP, hidden)?;
    let [vocab, dim] = weight.dims_of(OP)?;
    let mut expected = labels.dims().to_vec();
    expected.push(dim);
    expect_shape(OP, &hidden, &expected)?;
    labels.expect_dtype(OP, DType::I64)?;

    let tokens = labels.elem_count();
    let rows = |tensor: &Tensor, width| tensor.detach().reshape((tokens, width));
    let (hidden_rows, labels_column) = (rows(&hidden, dim)?, rows(labels, 1)?);
    let chunks = Chunks::new(tokens, vocab);
    let targets = Targets::new(&labels_column, params.ignore_index)?;
    let mut losses = Vec::with_capacity(chunks.count());
    for (start, len) in chunks.ranges() {
        let logits = logits(&hidden_rows.narrow(0, start, len)?, &weight.detach())?; // [len, V]
        losses.push(Chunk::new(&logits)?.losses(&targets.narrow(start, len)?, &params)?);
    }
    let losses = if losses.is_empty() {
        Tensor::zeros(labels.shape().clone(), device)?
    } else {
        Tensor::cat(&losses, 0)?.reshape(labels.shape().clone())?
    };

    let weight_saved = Saved::new(&weight);
    let dims = hidden.shape().clone();
    record(OP, &[&hidden, &weight], losses, move |g| {
        let upstream = g.output().reshape((tokens, 1))?;
        let mut dhidden = Vec::with_capacity(chunks.count());
        for (start, len) in chunks.ranges() {
            let hidden = hidden_rows.narrow(0, start, len)?;
            let weight = weight_saved.get();
            let chunk = Chunk::new(&logits(&hidden, &weight.detach())?)?;
            let upstream = upstream.narrow(0, start, len)?;
            let dlogits = chunk.backward(&targets.narrow(start, len)?, &params, &upstream)?;
            let dlogits = dlogits.to_dtype(hidden.dtype)?; // the type of the products
            if g.wanted(0) {
                let out = hidden.device.alloc(hidden.dtype, len * dim)?;
                let out = Tensor::from_output(out, hidden.dtype, hidden.device, (len, dim));
                out.write(|out| product(&dlogits, &weight, out, tt_cpu::Write::Assign))?;
                dhidden.push(out);
            }
            if g.wanted(1) {
                let transposed = dlogits.transpose(0, 1)?;
                g.write(1, &weight, |dweight, write| {
                    product(&transposed, &hidden, dweight, write)
                })?;
            }
        }
        if dhidden.is_empty() {
            return Ok(());
        }
        g.add(0, Tensor::cat(&dhidden, 0)?.reshape(dims)?)
    })
}

/// `log p(target)` of each token, f32 of `targets`' shape, tracked; 0 where the target is `ignore_index`. Sums over a row
/// are the log-probability of its answer.
///
/// Shapes and memory are those of [`linear_token_losses`].
pub fn linear_log_probs(
    hidden: &Tensor,
    head: &(impl Into<Head> + Clone),
    targets: &Tensor,
    ignore_index: i64,
) -> Result<Tensor> {
    let params = CrossEntropyParams {
        ignore_index,
        label_smoothing: 0.0,
        z_loss: 0.0,
    };
    linear_token_losses(hidden, head, targets, params)?.neg()
}

/// How tokens are cut, by the shape alone.
#[derive(Clone, Copy)]
struct Chunks {
    tokens: usize,
    len: usize,
}

impl Chunks {
    fn new(tokens: usize, vocab: usize) -> Self {
        let most = (MAX_LOGITS / vocab.max(1) / 64 * 64).clamp(64, 1024);
        Self { tokens, len: most }
    }

    fn count(&self) -> usize {
        self.tokens.div_ceil(self.len)
    }

    /// (start, length) of each.
    fn ranges(self) -> impl Iterator<Item = (usize, usize)> {
        let starts = (0..self.tokens).step_by(self.len);
        starts.map(move |start| (start, self.len.min(self.tokens - start)))
    }
}

/// Labels as columns that single operations take.
struct Targets {
    /// i64 `[N, 1]`, 0 where there is no loss.
    ids: Tensor,
    /// f32 `[N, 1]`: 1 where there is a loss, else 0.
    counts: Tensor,
}

impl Targets {
    fn new(labels: &Tensor, ignore_index: i64) -> Result<Self> {
        let device = labels.device;
        let counts = labels.ne(&Tensor::scalar(ignore_index, device)?)?;
        Ok(Self {
            ids: counts.where_cond(labels, &Tensor::scalar(0i64, device)?)?,
            counts: counts.to_dtype(DType::F32)?,
        })
    }

    fn narrow(&self, start: usize, len: usize) -> Result<Self> {
        Ok(Self {
            ids: self.ids.narrow(0, start, len)?,
            counts: self.counts.narrow(0, start, len)?,
        })
    }
}

/// The logits of some tokens, their largest taken out.
struct Chunk {
    /// `[N, V]`, at most 0.
    shifted: Tensor,
    /// `log sum exp` of `shifted` `[N, 1]`, at least 0: so no log-probability is above 0.
    log_sum: Tensor,
    /// Of the logits themselves, `[N, 1]`.
    lse: Tensor,
}

impl Chunk {
    fn new(logits: &Tensor) -> Result<Self> {
        let max = logits.max_keepdim(1)?;
        let shifted = logits.sub(&max)?;
        let log_sum = shifted.exp()?.sum_keepdim(&[1])?.log()?;
        let lse = log_sum.add(&max)?;
        Ok(Self {
            shifted,
            log_sum,
            lse,
        })
    }

    /// `[N, 1]`.
    fn losses(&self, targets: &Targets, params: &CrossEntropyParams) -> Result<Tensor> {
        let smoothing = f64::from(params.label_smoothing);
        let target = self.shifted.gather(&targets.ids, 1)?;
        let mut losses = self.log_sum.sub(&target)?;
        if smoothing != 0.0 {
            let spread = self.log_sum.sub(&self.shifted.mean_keepdim(&[1])?)?;
            let spread = spread.affine(smoothing, 0.0)?;
            losses = losses.affine(1.0 - smoothing, 0.0)?.add(&spread)?;
        }
        if params.z_loss != 0.0 {
            let z_loss = self.lse.sqr()?.affine(f64::from(params.z_loss), 0.0)?;
            losses = losses.add(&z_loss)?;
        }
        losses.mul(&targets.counts)
    }

    /// Gradient `[N, V]` of the logits, given that of the losses, `[N, 1]`.
    fn backward(
        self,
        targets: &Targets,
        params: &CrossEntropyParams,
        upstream: &Tensor,
    ) -> Result<Tensor> {
        let smoothing = f64::from(params.label_smoothing);
        let upstream = upstream.mul(&targets.counts)?;
        let vocab = self.shifted.dims()[1] as f64;
        let probabilities = self.shifted.sub(&self.log_sum)?.exp()?;
        let factor = match params.z_loss {
            0.0 => upstream.clone(),
            z_loss => upstream.mul(&self.lse.affine(2.0 * f64::from(z_loss), 1.0)?)?,
        };
        let mut dlogits = probabilities.mul(&factor)?;
        if smoothing != 0.0 {
            dlogits = dlogits.sub(&upstream.affine(smoothing / vocab, 0.0)?)?;
        }
        let target = upstream.affine(smoothing - 1.0, 0.0)?;
        dlogits.scatter_add(&targets.ids, &target, 1)
    }
}
