//! Functions of one operand, and casts.

use candle_core::{DType, Layout};
use tt_cpu::View;

use crate::error::{Error, Result};
use crate::launch::{code, kernels};
use crate::ops::copy::contiguous;
use crate::ops::operand::ensure;
use crate::storage::{TpuStorage, elements, start};
use crate::traffic::{Operand, Traffic};

kernels! {
    Unary = "unary" {
        x: u64,
        y: u64,
        n: u64,
        op: u32,
        x_dtype: u32,
        y_dtype: u32,
        p0: f32,
        p1: f32,
        reserved: u32,
    }
}

impl Traffic for Unary {
    fn operands(&self) -> Vec<Operand> {
        let n = [self.n as i64];
        vec![
            Operand::read("x", n, self.x_dtype),
            Operand::write("y", n, self.y_dtype),
        ]
    }
}

/// In the order of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    Cast,
    /// `p0 * x + p1`.
    Affine,
    /// `x` to the power `p0`.
    Powf,
    /// `x`, or `p0 * (exp(x) - 1)` below 0.
    Elu,
    Exp,
    Log,
    Sin,
    Cos,
    Tanh,
    Abs,
    Neg,
    Recip,
    Sqr,
    Sqrt,
    Relu,
    Silu,
    /// By tanh.
    Gelu,
    GeluErf,
    Erf,
    Sign,
    Floor,
    Ceil,
    Round,
    /// To the nearest number that bf16 has.
    RoundToBf16,
}

impl Function {
    /// The function that candle calls so.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "exp" => Self::Exp,
            "log" => Self::Log,
            "sin" => Self::Sin,
            "cos" => Self::Cos,
            "tanh" => Self::Tanh,
            "abs" => Self::Abs,
            "neg" => Self::Neg,
            "recip" => Self::Recip,
            "sqr" => Self::Sqr,
            "sqrt" => Self::Sqrt,
            "relu" => Self::Relu,
            "silu" => Self::Silu,
            "gelu" => Self::Gelu,
            "gelu_erf" => Self::GeluErf,
            "erf" => Self::Erf,
            "sign" => Self::Sign,
            "floor" => Self::Floor,
            "ceil" => Self::Ceil,
            "round" => Self::Round,
            _ => return None,
        })
    }
}

/// `f(x)` in a storage of its own, of `dtype`.
pub(crate) fn map(
    f: Function,
    params: [f64; 2],
    x: View<TpuStorage>,
    dtype: DType,
) -> Result<TpuStorage> {
    let mut y = x.0.on().alloc(dtype, elements(x.1))?;
    map_into(f, params, x, &mut y)?;
    Ok(y)
}

/// `y[i] = f(x[i])`, in `y`'s dtype.
pub(crate) fn map_into(
    f: Function,
    params: [f64; 2],
    x: View<TpuStorage>,
    y: &mut TpuStorage,
) -> Result<()> {
    let n = elements(x.1);
    ensure!(
        n <= y.len(),
        "{f:?}: room for {} elements instead of {n}",
        y.len()
    );
    if f != Function::Cast && !x.0.kind().is_float() {
        return Err(Error::DType(x.0.kind()));
    }
    if n == 0 {
        return Ok(());
    }
    let x = contiguous(x)?;
    launch(f, params, x.view(), y, n)
}

/// `y[i] = f(y[i])` for the first `len` elements.
pub(crate) fn update(f: Function, params: [f64; 2], y: &mut TpuStorage, len: usize) -> Result<()> {
    ensure!(
        len <= y.len(),
        "{f:?}: {} elements instead of {len}",
        y.len()
    );
    if len == 0 {
        return Ok(());
    }
    launch(f, params, (y, &Layout::contiguous(len)), y, len)
}

fn launch(
    f: Function,
    [p0, p1]: [f64; 2],
    x: View<TpuStorage>,
    y: &TpuStorage,
    n: usize,
) -> Result<()> {
    y.on().launch(Unary {
        x: start(x),
        y: y.address_at(0),
        n: n as u64,
        op: f as u32,
        x_dtype: code(x.0.kind())?,
        y_dtype: code(y.kind())?,
        p0: p0 as f32,
        p1: p1 as f32,
        ..Unary::default()
    })
}
