//! The language-model loss: a linear head and cross-entropy in one, in chunks of rows, the logits never held whole.

use candle_core::{DType, Layout};
use tt_cpu::{CrossEntropyParams, View, Write};

use crate::error::{Error, Result};
use crate::launch::{code, kernels};
use crate::ops::copy::{Contiguous, contiguous, into_order};
use crate::ops::fill::fill;
use crate::ops::matmul;
use crate::ops::operand::{dense, ensure, output};
use crate::ops::reduce;
use crate::storage::{TpuStorage, elements};
use crate::traffic::{F32, I32, Operand, Traffic};

/// Logits of a chunk: 16 MiB, or the least rows.
const CHUNK_LOGITS: usize = 1 << 22;
/// Of a chunk, and what its rows are a multiple of: as many as a product's tile has, since each chunk reads the whole head
/// three times, and full lanes for all cores.
const MIN_ROWS: usize = 1024;

kernels! {
    CrossEntropy = "cross_entropy" {
        logits: u64,
        labels: u64,
        stats: u64,
        /// 0: not wanted.
        grad: u64,
        /// Of each row, beside `grad_scale`. 0: none.
        scales: u64,
        rows: i64,
        vocab: i64,
        stats_stride: i64,
        ignore_index: i32,
        smoothing: f32,
        z_loss: f32,
        grad_dtype: u32,
        grad_scale: f32,
        reserved: u32,
    }
}

impl Traffic for CrossEntropy {
    fn operands(&self) -> Vec<Operand> {
        let logits = [self.rows, self.vocab];
        let mut operands = vec![
            Operand::read("logits", logits, F32),
            Operand::read("labels", [self.rows], I32),
            Operand::write("stats", [3, self.rows], F32),
        ];
        if self.scales != 0 {
            operands.push(Operand::read("scales", [self.rows], F32));
        }
        if self.grad != 0 {
            operands.push(Operand::write("grad", logits, self.grad_dtype));
        }
        operands
    }
}

/// The operands of a loss through a linear head, checked.
struct Loss<'a> {
    params: &'a CrossEntropyParams,
    hidden: Contiguous<'a>,
    weight: View<'a, TpuStorage>,
    labels: Contiguous<'a>,
    ignore_index: i32,
    rows: usize,
    vocab: usize,
    dim: usize,
}

impl<'a> Loss<'a> {
    fn new(
        op: &str,
        params: &'a CrossEntropyParams,
        hidden: View<'a, TpuStorage>,
        weight: View<'a, TpuStorage>,
        labels: View<'a, TpuStorage>,
    ) -> Result<Self> {
        let &[vocab, dim] = weight.1.dims() else {
            let dims = weight.1.dims();
            return Err(Error::Operand(format!("{op}: a head of {dims:?}")));
        };
        let rows = elements(labels.1);
        ensure!(
            elements(hidden.1) == rows * dim && vocab > 0 && vocab < i32::MAX as usize,
            "{op}: {:?} for {rows} labels of {vocab}",
            hidden.1.dims()
        );
        ensure!(
            labels.0.kind() == DType::I64,
            "{op}: labels are {:?}",
            labels.0.kind()
        );
        let ignore_index =
            i32::try_from(params.ignore_index).map_err(|_| Error::Narrow(params.ignore_index))?;
        Ok(Self {
            params,
            hidden: contiguous(hidden)?,
            weight,
            labels: contiguous(labels)?,
            ignore_index,
            rows,
            vocab,
            dim,
        })
    }

    /// Loss, validity and `lse^2` of each row, `[3, rows]`, and the gradients of the losses times `grad_scale` and their
    /// elements of `scales`.
    fn chunks(
        &self,
        grad_scale: f32,
        scales: Option<View<TpuStorage>>,
        mut dhidden: Option<&mut TpuStorage>,
        mut dweight: Option<(&mut TpuStorage, Write)>,
    ) -> Result<TpuStorage> {
        const OP: &str = "linear_cross_entropy";
        let &Self {
            rows, vocab, dim, ..
        } = self;
        let (hidden, labels, weight) = (self.hidden.view(), self.labels.view(), self.weight);
        let (device, dtype) = (hidden.0.on(), hidden.0.kind());
        if let Some(dhidden) = &dhidden {
            output(&format!("{OP}: dhidden"), dhidden, dtype, rows * dim)?;
        }
        if let Some((dweight, _)) = &dweight {
            output(&format!("{OP}: dweight"), dweight, DType::F32, vocab * dim)?;
        }
        let scales = match scales {
            Some(scales) => Some(dense(&format!("{OP}: scales"), scales, DType::F32, rows)?),
            None => None,
        };
        let stats = device.alloc(DType::F32, 3 * rows)?;
        if rows == 0 {
            if let Some((dweight, Write::Assign)) = dweight {
                fill(dweight, vocab * dim, 0.0)?;
            }
            return Ok(stats);
        }
        let transposed = |layout: &Layout| {
            layout
                .transpose(0, 1)
                .map_err(|error| Error::Operand(error.to_string()))
        };
        let weight_t = transposed(weight.1)?;

        let at_once =
            (CHUNK_LOGITS / vocab / MIN_ROWS * MIN_ROWS).clamp(MIN_ROWS, rows.max(MIN_ROWS));
        let mut logits = device.alloc(DType::F32, at_once.min(rows) * vocab)?;
        let wants_grad = dhidden.is_some() || dweight.is_some();
        // Products of gradients are of the type of the activations; in f32 the gradient takes the place of the logits.
        let narrow = match wants_grad && dtype != DType::F32 {
            true => Some(device.alloc(dtype, at_once.min(rows) * vocab)?),
            false => None,
        };
        for first in (0..rows).step_by(at_once) {
            let count = at_once.min(rows - first);
            let of_hidden =
                Layout::contiguous_with_offset((count, dim), hidden.1.start_offset() + first * dim);
            let chunk = (hidden.0, &of_hidden);
            matmul::matmul(chunk, (weight.0, &weight_t), &mut logits, Write::Assign)?;
            let grad = narrow.as_ref().unwrap_or(&logits);
            device.launch(CrossEntropy {
                logits: logits.address_at(0),
                labels: labels.0.address_at(labels.1.start_offset() + first),
                stats: stats.address_at(first),
                grad: if wants_grad { grad.address_at(0) } else { 0 },
                scales: scales.map_or(0, |scales| scales + 4 * first as u64),
                rows: count as i64,
                vocab: vocab as i64,
                stats_stride: rows as i64,
                ignore_index: self.ignore_index,
                smoothing: self.params.label_smoothing,
                z_loss: self.params.z_loss,
                grad_dtype: code(grad.kind())?,
                grad_scale,
                ..CrossEntropy::default()
            })?;
            let of_grad = Layout::contiguous((count, vocab));
            if let Some(dhidden) = &mut dhidden {
                let grad = (grad, &of_grad);
                matmul::matmul_at(grad, weight, dhidden, first * dim, Write::Assign)?;
            }
            if let Some((dweight, write)) = &mut dweight {
                let of_grad = transposed(&of_grad)?;
                matmul::matmul((grad, &of_grad), chunk, dweight, *write)?;
                *write = Write::Accumulate;
            }
        }
        Ok(stats)
    }
}

/// `totals` are the summed loss, the number of valid rows and the sum of `lse^2`; the gradients are those of
/// `grad_scale` times the sum.
#[expect(clippy::too_many_arguments, reason = "those of the trait's method")]
pub(crate) fn linear_cross_entropy(
    params: &CrossEntropyParams,
    grad_scale: f32,
    hidden: View<TpuStorage>,
    weight: View<TpuStorage>,
    labels: View<TpuStorage>,
    totals: &mut TpuStorage,
    dhidden: Option<&mut TpuStorage>,
    dweight: Option<&mut TpuStorage>,
) -> Result<()> {
    let loss = Loss::new("linear_cross_entropy", params, hidden, weight, labels)?;
    output("linear_cross_entropy: totals", totals, DType::F32, 3)?;
    let dweight = dweight.map(|dweight| (dweight, Write::Assign));
    let stats = loss.chunks(grad_scale, None, dhidden, dweight)?;
    if loss.rows == 0 {
        return fill(totals, 3, 0.0);
    }
    let all = [3, loss.rows];
    reduce::rows(
        reduce::Op::Sum,
        stats.address_at(0),
        DType::F32,
        totals,
        0,
        all,
    )
}

/// The loss of each row, 0 where it has no label.
pub(crate) fn linear_token_losses(
    params: &CrossEntropyParams,
    hidden: View<TpuStorage>,
    weight: View<TpuStorage>,
    labels: View<TpuStorage>,
    losses: &mut TpuStorage,
) -> Result<()> {
    let loss = Loss::new("linear_token_losses", params, hidden, weight, labels)?;
    output("linear_token_losses: losses", losses, DType::F32, loss.rows)?;
    let stats = loss.chunks(1.0, None, None, None)?;
    into_order((&stats, &Layout::contiguous(loss.rows)), losses, 0)
}

/// The gradients of each loss times its element of `dlosses`.
pub(crate) fn linear_token_losses_backward(
    params: &CrossEntropyParams,
    hidden: View<TpuStorage>,
    weight: View<TpuStorage>,
    labels: View<TpuStorage>,
    dlosses: View<TpuStorage>,
    dhidden: Option<&mut TpuStorage>,
    dweight: Option<(&mut TpuStorage, Write)>,
) -> Result<()> {
    let loss = Loss::new(
        "linear_token_losses_backward",
        params,
        hidden,
        weight,
        labels,
    )?;
    loss.chunks(1.0, Some(dlosses), dhidden, dweight).map(drop)
}
