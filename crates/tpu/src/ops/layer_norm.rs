//! Normalisation of rows by mean and deviation, and its gradients.

use candle_core::{DType, Layout};
use tt_cpu::{View, Write};

use crate::error::Result;
use crate::launch::{code, kernels};
use crate::ops::copy::contiguous;
use crate::ops::fill::fill;
use crate::ops::norm::rows_and_dim;
use crate::ops::operand::{dense, output};
use crate::ops::reduce;
use crate::storage::{TpuStorage, start};
use crate::traffic::{F32, Operand, Traffic};

kernels! {
    LayerNorm = "layer_norm" {
        x: u64,
        weight: u64,
        bias: u64,
        mean: u64,
        inv_std: u64,
        y: u64,
        rows: i64,
        dim: i64,
        eps: f32,
        x_dtype: u32,
        y_dtype: u32,
        reserved: u32,
    }

    LayerNormBackward = "layer_norm_backward" {
        x: u64,
        weight: u64,
        mean: u64,
        inv_std: u64,
        dy: u64,
        /// 0: not wanted.
        dx: u64,
        /// 0: not wanted.
        products: u64,
        rows: i64,
        dim: i64,
        x_dtype: u32,
        dy_dtype: u32,
    }
}

impl Traffic for LayerNorm {
    fn operands(&self) -> Vec<Operand> {
        let (rows, dim) = (self.rows, self.dim);
        vec![
            Operand::read("x", [rows, dim], self.x_dtype),
            Operand::read("weight", [dim], F32),
            Operand::read("bias", [dim], F32),
            Operand::write("mean", [rows], F32),
            Operand::write("inv_std", [rows], F32),
            Operand::write("y", [rows, dim], self.y_dtype),
        ]
    }
}

impl Traffic for LayerNormBackward {
    fn operands(&self) -> Vec<Operand> {
        let (rows, dim) = (self.rows, self.dim);
        let mut operands = vec![
            Operand::read("x", [rows, dim], self.x_dtype),
            Operand::read("weight", [dim], F32),
            Operand::read("mean", [rows], F32),
            Operand::read("inv_std", [rows], F32),
            Operand::read("dy", [rows, dim], self.dy_dtype),
        ];
        if self.dx != 0 {
            operands.push(Operand::write("dx", [rows, dim], self.x_dtype));
        }
        if self.products != 0 {
            operands.push(Operand::write("products", [rows, dim], F32));
        }
        operands
    }
}

pub(crate) fn layer_norm(
    x: View<TpuStorage>,
    [weight, bias]: [View<TpuStorage>; 2],
    eps: f32,
    y: &mut TpuStorage,
    [mean, inv_std]: [&mut TpuStorage; 2],
) -> Result<()> {
    let [rows, dim] = rows_and_dim("layer_norm", x.1, weight.1)?;
    if rows == 0 {
        return Ok(());
    }
    let x = contiguous(x)?;
    let x = x.view();
    y.on().launch(LayerNorm {
        x: start(x),
        weight: dense("layer_norm: weight", weight, DType::F32, dim)?,
        bias: dense("layer_norm: bias", bias, DType::F32, dim)?,
        mean: output("layer_norm: mean", mean, DType::F32, rows)?,
        inv_std: output("layer_norm: inv_std", inv_std, DType::F32, rows)?,
        y: output("layer_norm: y", y, y.kind(), rows * dim)?,
        rows: rows as i64,
        dim: dim as i64,
        eps,
        x_dtype: code(x.0.kind())?,
        y_dtype: code(y.kind())?,
        ..LayerNorm::default()
    })
}

/// What the forward pass has left for the backward pass.
pub(crate) struct Saved<'a> {
    pub x: View<'a, TpuStorage>,
    pub weight: View<'a, TpuStorage>,
    pub mean: View<'a, TpuStorage>,
    pub inv_std: View<'a, TpuStorage>,
}

/// A gradient of weights, and what happens to what is there.
type Sums<'a> = Option<(&'a mut TpuStorage, Write)>;

pub(crate) fn layer_norm_backward(
    saved: Saved,
    dy: View<TpuStorage>,
    dx: Option<&mut TpuStorage>,
    dweight: Sums,
    dbias: Sums,
) -> Result<()> {
    const OP: &str = "layer_norm_backward";
    let [rows, dim] = rows_and_dim(OP, saved.x.1, saved.weight.1)?;
    if rows == 0 {
        for (sums, write) in [dweight, dbias].into_iter().flatten() {
            if write == Write::Assign {
                fill(sums, dim, 0.0)?;
            }
        }
        return Ok(());
    }
    let device = saved.x.0.on();
    let (x, dy) = (contiguous(saved.x)?, contiguous(dy)?);
    let (x, dy) = (x.view(), dy.view());
    let (dtype, len) = (x.0.kind(), rows * dim);
    let dy_start = dense("layer_norm_backward: dy", dy, dy.0.kind(), len)?;
    let products = match &dweight {
        Some(_) => Some(device.alloc(DType::F32, len)?),
        None => None,
    };
    let dx = match dx {
        Some(dx) => output("layer_norm_backward: dx", dx, dtype, len)?,
        None => 0,
    };
    if dx != 0 || products.is_some() {
        let (mean, inv_std) = (saved.mean, saved.inv_std);
        device.launch(LayerNormBackward {
            x: start(x),
            weight: dense("layer_norm_backward: weight", saved.weight, DType::F32, dim)?,
            mean: dense("layer_norm_backward: mean", mean, DType::F32, rows)?,
            inv_std: dense("layer_norm_backward: inv_std", inv_std, DType::F32, rows)?,
            dy: dy_start,
            dx,
            products: products.as_ref().map_or(0, |it| it.address_at(0)),
            rows: rows as i64,
            dim: dim as i64,
            x_dtype: code(dtype)?,
            dy_dtype: code(dy.0.kind())?,
            ..LayerNormBackward::default()
        })?;
    }
    if let (Some((dweight, write)), Some(products)) = (dweight, products) {
        let layout = Layout::contiguous(len);
        reduce::sum_rows((&products, &layout), rows, dweight, write)?;
    }
    match dbias {
        Some((dbias, write)) => reduce::sum_rows(dy, rows, dbias, write),
        None => Ok(()),
    }
}
