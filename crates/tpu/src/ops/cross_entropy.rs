//! The language-model loss: a linear head and cross-entropy in one, in chunks of rows, the logits never held whole.

use candle_core::{DType, Layout};
use tt_cpu::{CrossEntropyParams, View, Write};

use crate::error::{Error, Result};
use crate::launch::{code, kernels};
use crate::ops::copy::contiguous;
use crate::ops::fill::fill;
use crate::ops::matmul;
use crate::ops::operand::{ensure, output};
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
        if self.grad != 0 {
            operands.push(Operand::write("grad", logits, self.grad_dtype));
        }
        operands
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
    mut dhidden: Option<&mut TpuStorage>,
    mut dweight: Option<&mut TpuStorage>,
) -> Result<()> {
    let device = hidden.0.on();
    let &[vocab, dim] = weight.1.dims() else {
        return Err(Error::Operand(format!(
            "linear_cross_entropy: a head of {:?}",
            weight.1.dims()
        )));
    };
    let (rows, dtype) = (elements(labels.1), hidden.0.kind());
    ensure!(
        elements(hidden.1) == rows * dim && vocab > 0 && vocab < i32::MAX as usize,
        "linear_cross_entropy: {:?} for {rows} labels of {vocab}",
        hidden.1.dims()
    );
    ensure!(
        labels.0.kind() == DType::I64,
        "linear_cross_entropy: labels are {:?}",
        labels.0.kind()
    );
    output("linear_cross_entropy: totals", totals, DType::F32, 3)?;
    if let Some(dhidden) = &dhidden {
        output("linear_cross_entropy: dhidden", dhidden, dtype, rows * dim)?;
    }
    if let Some(dweight) = &dweight {
        output(
            "linear_cross_entropy: dweight",
            dweight,
            DType::F32,
            vocab * dim,
        )?;
    }
    if rows == 0 {
        if let Some(dweight) = dweight {
            fill(dweight, vocab * dim, 0.0)?;
        }
        return fill(totals, 3, 0.0);
    }
    let (hidden, labels) = (contiguous(hidden)?, contiguous(labels)?);
    let (hidden, labels) = (hidden.view(), labels.view());
    let ignore_index =
        i32::try_from(params.ignore_index).map_err(|_| Error::Narrow(params.ignore_index))?;
    let transposed = |layout: &Layout| {
        layout
            .transpose(0, 1)
            .map_err(|error| Error::Operand(error.to_string()))
    };
    let weight_t = transposed(weight.1)?;

    let at_once = (CHUNK_LOGITS / vocab / MIN_ROWS * MIN_ROWS).clamp(MIN_ROWS, rows.max(MIN_ROWS));
    let mut logits = device.alloc(DType::F32, at_once.min(rows) * vocab)?;
    let wants_grad = dhidden.is_some() || dweight.is_some();
    // Products of gradients are of the type of the activations; in f32 the gradient takes the place of the logits.
    let narrow = match wants_grad && dtype != DType::F32 {
        true => Some(device.alloc(dtype, at_once.min(rows) * vocab)?),
        false => None,
    };
    let stats = device.alloc(DType::F32, 3 * rows)?;
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
            rows: count as i64,
            vocab: vocab as i64,
            stats_stride: rows as i64,
            ignore_index,
            smoothing: params.label_smoothing,
            z_loss: params.z_loss,
            grad_dtype: code(grad.kind())?,
            grad_scale,
            ..CrossEntropy::default()
        })?;
        let of_grad = Layout::contiguous((count, vocab));
        if let Some(dhidden) = &mut dhidden {
            matmul::matmul_at(
                (grad, &of_grad),
                weight,
                dhidden,
                first * dim,
                Write::Assign,
            )?;
        }
        if let Some(dweight) = &mut dweight {
            let write = if first == 0 {
                Write::Assign
            } else {
                Write::Accumulate
            };
            let of_grad = transposed(&of_grad)?;
            matmul::matmul((grad, &of_grad), chunk, dweight, write)?;
        }
    }
    reduce::rows(
        reduce::Op::Sum,
        stats.address_at(0),
        DType::F32,
        totals,
        0,
        [3, rows],
    )
}
