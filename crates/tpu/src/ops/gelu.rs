//! GELU in its two forms, and its gradient.

use candle_core::DType;
use tt_cpu::{Gelu, View};

use crate::error::Result;
use crate::launch::{code, kernels};
use crate::ops::copy::contiguous;
use crate::ops::operand::{dense, ensure, output};
use crate::storage::{TpuStorage, elements, start};
use crate::traffic::{Operand, Traffic};

kernels! {
    GeluForward = "gelu" {
        x: u64,
        y: u64,
        n: u64,
        form: u32,
        dtype: u32,
    }

    GeluBackward = "gelu_backward" {
        x: u64,
        dy: u64,
        dx: u64,
        n: u64,
        form: u32,
        dtype: u32,
    }
}

impl Traffic for GeluForward {
    fn operands(&self) -> Vec<Operand> {
        let n = [self.n as i64];
        vec![
            Operand::read("x", n, self.dtype),
            Operand::write("y", n, self.dtype),
        ]
    }
}

impl Traffic for GeluBackward {
    fn operands(&self) -> Vec<Operand> {
        let n = [self.n as i64];
        vec![
            Operand::read("x", n, self.dtype),
            Operand::read("dy", n, self.dtype),
            Operand::write("dx", n, self.dtype),
        ]
    }
}

/// The kernel's number of a form.
fn number(form: Gelu) -> u32 {
    match form {
        Gelu::Erf => 0,
        Gelu::Tanh => 1,
    }
}

fn float_type(what: &str, x: View<TpuStorage>) -> Result<DType> {
    let dtype = x.0.kind();
    ensure!(dtype.is_float(), "{what}: {dtype:?} is not a float type");
    Ok(dtype)
}

pub(crate) fn forward(form: Gelu, x: View<TpuStorage>, y: &mut TpuStorage) -> Result<()> {
    let (dtype, n) = (float_type("gelu", x)?, elements(x.1));
    let to = output("gelu: y", y, dtype, n)?;
    if n == 0 {
        return Ok(());
    }
    let x = contiguous(x)?;
    y.on().launch(GeluForward {
        x: start(x.view()),
        y: to,
        n: n as u64,
        form: number(form),
        dtype: code(dtype)?,
        ..GeluForward::default()
    })
}

pub(crate) fn backward(
    form: Gelu,
    x: View<TpuStorage>,
    dy: View<TpuStorage>,
    dx: &mut TpuStorage,
) -> Result<()> {
    let (dtype, n) = (float_type("gelu_backward", x)?, elements(x.1));
    let to = output("gelu_backward: dx", dx, dtype, n)?;
    let (x, dy) = (contiguous(x)?, contiguous(dy)?);
    let dy = dense("gelu_backward: dy", dy.view(), dtype, n)?;
    if n == 0 {
        return Ok(());
    }
    dx.on().launch(GeluBackward {
        x: start(x.view()),
        dy,
        dx: to,
        n: n as u64,
        form: number(form),
        dtype: code(dtype)?,
        ..GeluBackward::default()
    })
}
