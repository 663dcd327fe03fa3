//! Functions of two operands, comparisons, and the choice between two.

use candle_core::op::CmpOp;
use candle_core::{DType, Layout};
use tt_cpu::View;

use crate::error::Result;
use crate::launch::{code, kernels};
use crate::ops::copy::{contiguous, one_or_all};
use crate::ops::operand::ensure;
use crate::storage::{TpuStorage, elements, start};
use crate::traffic::{Operand, Traffic};

kernels! {
    Binary = "binary" {
        a: u64,
        b: u64,
        y: u64,
        n: u64,
        op: u32,
        a_dtype: u32,
        b_dtype: u32,
        y_dtype: u32,
        a_is_scalar: u32,
        b_is_scalar: u32,
        p0: f32,
        p1: f32,
    }

    Where = "where_select" {
        condition: u64,
        a: u64,
        b: u64,
        y: u64,
        n: u64,
        condition_dtype: u32,
        dtype: u32,
    }
}

impl Traffic for Binary {
    fn operands(&self) -> Vec<Operand> {
        let n = self.n as i64;
        let elements = |is_scalar| [if is_scalar == 1 { 1 } else { n }];
        vec![
            Operand::read("a", elements(self.a_is_scalar), self.a_dtype),
            Operand::read("b", elements(self.b_is_scalar), self.b_dtype),
            Operand::write("y", [n], self.y_dtype),
        ]
    }
}

impl Traffic for Where {
    fn operands(&self) -> Vec<Operand> {
        let n = [self.n as i64];
        vec![
            Operand::read("condition", n, self.condition_dtype),
            Operand::read("a", n, self.dtype),
            Operand::read("b", n, self.dtype),
            Operand::write("y", n, self.dtype),
        ]
    }
}

/// In the order of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// `p0 * a + p1 * b`.
    Linear,
    /// `a * (p0 * b)`.
    Scale,
    /// `a * b`, but no further from 0 than `p0`.
    Clip,
}

impl Function {
    /// The function that candle calls so.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "add" => Self::Add,
            "sub" => Self::Sub,
            "mul" => Self::Mul,
            "div" => Self::Div,
            "maximum" => Self::Max,
            "minimum" => Self::Min,
            _ => return None,
        })
    }
}

impl From<CmpOp> for Function {
    fn from(op: CmpOp) -> Self {
        match op {
            CmpOp::Eq => Self::Eq,
            CmpOp::Ne => Self::Ne,
            CmpOp::Lt => Self::Lt,
            CmpOp::Le => Self::Le,
            CmpOp::Gt => Self::Gt,
            CmpOp::Ge => Self::Ge,
        }
    }
}

/// `f(a, b)` of two views of one shape, in a storage of its own, of `dtype`.
pub(crate) fn map(
    f: Function,
    a: View<TpuStorage>,
    b: View<TpuStorage>,
    dtype: DType,
) -> Result<TpuStorage> {
    let mut y = a.0.on().alloc(dtype, elements(a.1))?;
    map_into(f, [0.0; 2], a, b, &mut y)?;
    Ok(y)
}

/// `y[i] = f(a[i], b[i])` in `y`'s dtype. An operand of one element counts for all.
pub(crate) fn map_into(
    f: Function,
    params: [f32; 2],
    a: View<TpuStorage>,
    b: View<TpuStorage>,
    y: &mut TpuStorage,
) -> Result<()> {
    let n = elements(a.1).max(elements(b.1));
    for len in [elements(a.1), elements(b.1)] {
        ensure!(
            len == n || len == 1,
            "{f:?}: {:?} and {:?} elements",
            a.1.dims(),
            b.1.dims()
        );
    }
    ensure!(
        n <= y.len(),
        "{f:?}: room for {} elements instead of {n}",
        y.len()
    );
    if elements(a.1) == 0 || elements(b.1) == 0 {
        return Ok(());
    }
    let (a, b) = (one_or_all(a)?, one_or_all(b)?);
    let (a, b) = (a.view(), b.view());
    launch(f, params, a, b, y, n)
}

/// `y[i] = f(y[i], b[i])` for the first `len` elements; `b` may be one element.
pub(crate) fn update(
    f: Function,
    params: [f32; 2],
    y: &mut TpuStorage,
    len: usize,
    b: View<TpuStorage>,
) -> Result<()> {
    ensure!(
        len <= y.len(),
        "{f:?}: {} elements instead of {len}",
        y.len()
    );
    let count = elements(b.1);
    ensure!(
        count == len || count == 1,
        "{f:?}: {count} elements instead of {len}"
    );
    if len == 0 {
        return Ok(());
    }
    let (layout, b) = (Layout::contiguous(len), one_or_all(b)?);
    launch(f, params, (y, &layout), b.view(), y, len)
}

fn launch(
    f: Function,
    [p0, p1]: [f32; 2],
    a: View<TpuStorage>,
    b: View<TpuStorage>,
    y: &TpuStorage,
    n: usize,
) -> Result<()> {
    y.on().launch(Binary {
        a: start(a),
        b: start(b),
        y: y.address_at(0),
        n: n as u64,
        op: f as u32,
        a_dtype: code(a.0.kind())?,
        b_dtype: code(b.0.kind())?,
        y_dtype: code(y.kind())?,
        a_is_scalar: (elements(a.1) == 1).into(),
        b_is_scalar: (elements(b.1) == 1).into(),
        p0,
        p1,
        ..Binary::default()
    })
}

/// `condition[i] != 0 ? a[i] : b[i]`.
pub(crate) fn choose(
    condition: View<TpuStorage>,
    a: View<TpuStorage>,
    b: View<TpuStorage>,
) -> Result<TpuStorage> {
    let n = elements(condition.1);
    let (dtype, other) = (a.0.kind(), b.0.kind());
    ensure!(dtype == other, "where: {dtype:?} and {other:?}");
    ensure!(
        elements(a.1) == n && elements(b.1) == n,
        "where: operands of several shapes"
    );
    let y = a.0.on().alloc(dtype, n)?;
    if n > 0 {
        let (condition, a, b) = (contiguous(condition)?, contiguous(a)?, contiguous(b)?);
        y.on().launch(Where {
            condition: start(condition.view()),
            a: start(a.view()),
            b: start(b.view()),
            y: y.address_at(0),
            n: n as u64,
            condition_dtype: code(condition.view().0.kind())?,
            dtype: code(dtype)?,
            ..Where::default()
        })?;
    }
    Ok(y)
}
