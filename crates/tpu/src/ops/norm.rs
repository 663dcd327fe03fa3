//! RMS normalisation of rows, and its gradients.

use candle_core::{DType, Layout};
use tt_cpu::{View, Write};

use crate::error::Result;
use crate::launch::{code, kernels};
use crate::ops::copy::contiguous;
use crate::ops::fill::fill;
use crate::ops::operand::{dense, ensure, output};
use crate::ops::reduce;
use crate::storage::{TpuStorage, elements, start};
use crate::traffic::{F32, Operand, Traffic};

kernels! {
    RmsNorm = "rms_norm" {
        x: u64,
        weight: u64,
        inv_rms: u64,
        y: u64,
        rows: i64,
        dim: i64,
        eps: f32,
        x_dtype: u32,
        y_dtype: u32,
        reserved: u32,
    }

    RmsNormBackward = "rms_norm_backward" {
        x: u64,
        weight: u64,
        inv_rms: u64,
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

impl Traffic for RmsNorm {
    fn operands(&self) -> Vec<Operand> {
        let (rows, dim) = (self.rows, self.dim);
        vec![
            Operand::read("x", [rows, dim], self.x_dtype),
            Operand::read("weight", [dim], F32),
            Operand::write("inv_rms", [rows], F32),
            Operand::write("y", [rows, dim], self.y_dtype),
        ]
    }
}

impl Traffic for RmsNormBackward {
    fn operands(&self) -> Vec<Operand> {
        let (rows, dim) = (self.rows, self.dim);
        let mut operands = vec![
            Operand::read("x", [rows, dim], self.x_dtype),
            Operand::read("weight", [dim], F32),
            Operand::read("inv_rms", [rows], F32),
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

/// Rows and their length, which is that of the weight.
pub(crate) fn rows_and_dim(op: &str, x: &Layout, weight: &Layout) -> Result<[usize; 2]> {
    let (len, dim) = (elements(x), elements(weight));
    ensure!(
        dim > 0 && len.is_multiple_of(dim) && dim < i32::MAX as usize,
        "{op}: {:?} and a weight of {dim}",
        x.dims()
    );
    Ok([len / dim, dim])
}

pub(crate) fn rms_norm(
    x: View<TpuStorage>,
    weight: View<TpuStorage>,
    eps: f32,
    y: &mut TpuStorage,
    inv_rms: &mut TpuStorage,
) -> Result<()> {
    let [rows, dim] = rows_and_dim("rms_norm", x.1, weight.1)?;
    if rows == 0 {
        return Ok(());
    }
    let x = contiguous(x)?;
    let x = x.view();
    y.on().launch(RmsNorm {
        x: start(x),
        weight: dense("rms_norm: weight", weight, DType::F32, dim)?,
        inv_rms: output("rms_norm: inv_rms", inv_rms, DType::F32, rows)?,
        y: output("rms_norm: y", y, y.kind(), rows * dim)?,
        rows: rows as i64,
        dim: dim as i64,
        eps,
        x_dtype: code(x.0.kind())?,
        y_dtype: code(y.kind())?,
        ..RmsNorm::default()
    })
}

pub(crate) fn rms_norm_backward(
    x: View<TpuStorage>,
    weight: View<TpuStorage>,
    inv_rms: View<TpuStorage>,
    dy: View<TpuStorage>,
    dx: Option<&mut TpuStorage>,
    dweight: Option<(&mut TpuStorage, Write)>,
) -> Result<()> {
    let [rows, dim] = rows_and_dim("rms_norm_backward", x.1, weight.1)?;
    if rows == 0 {
        return match dweight {
            Some((dweight, Write::Assign)) => fill(dweight, dim, 0.0),
            _ => Ok(()),
        };
    }
    let device = x.0.on();
    let (x, dy) = (contiguous(x)?, contiguous(dy)?);
    let (x, dy) = (x.view(), dy.view());
    let (dtype, len) = (x.0.kind(), rows * dim);
    let products = match &dweight {
        Some(_) => Some(device.alloc(DType::F32, len)?),
        None => None,
    };
    let dx = match dx {
        Some(dx) => output("rms_norm_backward: dx", dx, dtype, len)?,
        None => 0,
    };
    device.launch(RmsNormBackward {
        x: start(x),
        weight: dense("rms_norm_backward: weight", weight, DType::F32, dim)?,
        inv_rms: dense("rms_norm_backward: inv_rms", inv_rms, DType::F32, rows)?,
        dy: dense("rms_norm_backward: dy", dy, dy.0.kind(), len)?,
        dx,
        products: products
            .as_ref()
            .map_or(0, |products| products.address_at(0)),
        rows: rows as i64,
        dim: dim as i64,
        x_dtype: code(dtype)?,
        dy_dtype: code(dy.0.kind())?,
        ..RmsNormBackward::default()
    })?;
    match (dweight, products) {
        (Some((dweight, write)), Some(products)) => {
            let layout = Layout::contiguous(len);
            reduce::sum_rows((&products, &layout), rows, dweight, write)
        }
        _ => Ok(()),
    }
}
