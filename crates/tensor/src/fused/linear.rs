//! `y = x W^T + b`, weights in Hugging Face's layout `[out, in]`, or `[in, out]` as in GPT-2's `Conv1D`.
//!
//! Shapes: `x` `[.., K]`, `weight` `[N, K]` (`[K, N]`), `bias` `[N]`, `y` `[.., N]`. The product is of `x`'s type: a wider weight is
//! rounded as it is read, never copied. `y` is of `x`'s type; logits ([`super::logits`]) are f32.
//! Gradients: `dx = dy W`, `dW += dy^T x`, `db += sum of dy over rows`, the last two in place.

use candle_core::DType;
use tt_cpu::{FusedOps, Write};

use crate::device::{Backend, common_device, on_device};
use crate::error::{Error, Result};
use crate::fused::dense;
use crate::ops::product;
use crate::tape::{Saved, record};
use crate::tensor::Tensor;

/// Which dim of a weight counts outputs.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum WeightLayout {
    OutIn,
    InOut,
}

/// `x W^T + b`: `x` `[.., K]` through `weight` `[N, K]` and `bias` `[N]` to `[.., N]`.
///
/// The product and the result are of `x`'s type; a wider weight is rounded as it is read, never copied. Gradients:
/// `dx = dy W`, `dW += dy^T x`, `db +=` the sum of `dy` over rows. Errors: shapes, types or devices that do not fit.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    linear_to(x.dtype, x, weight, bias, WeightLayout::OutIn)
}

/// [`linear`] with the weight `[K, N]`, as GPT-2 keeps it.
pub fn linear_in_out(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    linear_to(x.dtype, x, weight, bias, WeightLayout::InOut)
}

/// A linear layer whose result is of the type `dtype`.
pub(super) fn linear_to(
    dtype: DType,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    layout: WeightLayout,
) -> Result<Tensor> {
    let device = common_device("linear", &[x.device, weight.device])?;
    let x = dense("linear", x)?;
    let weight = dense("linear", weight)?;
    let [first, second] = weight.dims_of("linear")?;
    let [outputs, inputs] = match layout {
        WeightLayout::OutIn => [first, second],
        WeightLayout::InOut => [second, first],
    };
    if x.dims().last() != Some(&inputs) {
        return Err(Error::shapes("linear", x.shape(), weight.shape()));
    }
    if let Some(bias) = bias {
        super::expect_shape("linear", bias, &[outputs])?;
    }
    let rows = x.elem_count() / inputs.max(1);
    let mut dims = x.dims().to_vec();
    *dims.last_mut().expect("rank checked above") = outputs;

    // The weight as the operand `[K, N]` of a product, or `[N, K]`, whichever way it lies.
    let seen = move |weight: &Tensor, as_layout: WeightLayout| -> Result<Tensor> {
        Ok(if layout == as_layout {
            weight.clone()
        } else {
            weight.with_layout(weight.layout.transpose(0, 1)?)
        })
    };
    let mut out = device.alloc(dtype, rows * outputs)?;
    let x_rows = matrix(&x, rows)?;
    on_device!(device, S, {
        let write = match bias {
            Some(bias) => {
                S::broadcast_row_into(bias.read().view()?, rows, out.of::<S>()?)?;
                Write::Accumulate
            }
            None => Write::Assign,
        };
        let operand = seen(&weight, WeightLayout::InOut)?;
        let (a, b) = (x_rows.read(), operand.read());
        S::matmul_into(a.view()?, b.view()?, out.of::<S>()?, write)?
    });
    let y = Tensor::from_output(out, dtype, device, dims);

    let (x_saved, w_saved) = (x.detach(), Saved::new(&weight));
    let bias_like = bias.map(Tensor::detach);
    let mut inputs = vec![&x, &weight];
    inputs.extend(bias);
    record("linear", &inputs, y, move |g| {
        let dy = matrix(&g.output().to_dtype(x_saved.dtype)?.contiguous()?, rows)?;
        if g.wanted(0) {
            let weight = seen(&w_saved.get(), WeightLayout::OutIn)?;
            g.write(0, &x_saved, |dx, write| product(&dy, &weight, dx, write))?;
        }
        if g.wanted(1) {
            let x = matrix(&x_saved, rows)?;
            let transposed =
                |of: &Tensor| -> Result<Tensor> { Ok(of.with_layout(of.layout.transpose(0, 1)?)) };
            let (a, b) = match layout {
                WeightLayout::OutIn => (transposed(&dy)?, x),
                WeightLayout::InOut => (transposed(&x)?, dy.clone()),
            };
            let weight = w_saved.get();
            g.write(1, &weight, |dw, write| product(&a, &b, dw, write))?;
        }
        if let Some(bias) = &bias_like {
            g.write(2, bias, |db, write| {
                let reading = dy.read();
                on_device!(dy.device, S, {
                    S::sum_rows_into(reading.view()?, rows, S::of_mut(db)?, write)?
                });
                Ok(())
            })?;
        }
        Ok(())
    })
}

/// `x` seen as `[rows, last dim]`, off the tape.
fn matrix(x: &Tensor, rows: usize) -> Result<Tensor> {
    let columns = x.dims().last().copied().unwrap_or(1);
    x.detach().reshape((rows, columns))
}
