//! `y = x W^T + b`, weights in Hugging Face's layout.
//!
//! Shapes: `x` `[.., K]`, `weight` `[N, K]`, `bias` `[N]`, `y` `[.., N]`. The product is of `x`'s type: a wider weight is
//! rounded as it is read, never copied. `y` is of `x`'s type, logits are f32.
//! Gradients: `dx = dy W`, `dW += dy^T x`, `db += sum of dy over rows`, the last two in place.

use candle_core::DType;
use tt_cpu::{FusedOps, Write};

use crate::device::{Backend, common_device, on_device};
use crate::error::{Error, Result};
use crate::fused::dense;
use crate::ops::product;
use crate::tape::{Saved, record};
use crate::tensor::Tensor;

pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    linear_to(x.dtype, x, weight, bias)
}

/// What a model's head says of `hidden` `[.., K]`: f32 `[.., N]`, not rounded to the type of `hidden`.
pub fn logits(hidden: &Tensor, head: &Tensor) -> Result<Tensor> {
    linear_to(DType::F32, hidden, head, None)
}

fn linear_to(dtype: DType, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let device = common_device("linear", &[x.device, weight.device])?;
    let x = dense("linear", x)?;
    let weight = dense("linear", weight)?;
    let [outputs, inputs] = weight.dims_of("linear")?;
    if x.dims().last() != Some(&inputs) {
        return Err(Error::shapes("linear", x.shape(), weight.shape()));
    }
    if let Some(bias) = bias {
        super::expect_shape("linear", bias, &[outputs])?;
    }
    let rows = x.elem_count() / inputs.max(1);
    let mut dims = x.dims().to_vec();
    *dims.last_mut().expect("rank checked above") = outputs;

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
        let transposed = weight.with_layout(weight.layout.transpose(0, 1)?);
        let (a, b) = (x_rows.read(), transposed.read());
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
            let weight = w_saved.get();
            g.write(0, &x_saved, |dx, write| product(&dy, &weight, dx, write))?;
        }
        if g.wanted(1) {
            let dy_t = dy.with_layout(dy.layout.transpose(0, 1)?);
            let x = matrix(&x_saved, rows)?;
            let weight = w_saved.get();
            g.write(1, &weight, |dw, write| product(&dy_t, &x, dw, write))?;
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
