//! Element-wise operations of two tensors, broadcasting as NumPy does.
//!
//! Comparisons give u8 (1 where true) and have no gradient. At a tie `maximum` and `minimum` give the
//! whole gradient to the left operand.

use candle_core::DType;
use candle_core::backend::BackendStorage;
use candle_core::op::{self, BinaryOpT, CmpOp};
use tt_cpu::FusedOps;

use crate::device::{Output, common_device, on_device};
use crate::error::{Error, Result};
use crate::ops::is_float;
use crate::tape::record;
use crate::tensor::Tensor;

/// Broadcasts two operands to their common shape.
fn broadcast(name: &'static str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    common_device(name, &[a.device, b.device])?;
    b.expect_dtype(name, a.dtype)?;
    let shape = a
        .shape()
        .broadcast_shape_binary_op(b.shape(), name)
        .map_err(|_| Error::shapes(name, a.shape(), b.shape()))?;
    Ok((a.expand(shape.clone())?, b.expand(shape)?))
}

fn apply<B: BinaryOpT>(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (x, y) = (a.read(), b.read());
    let out = on_device!(a.device, S, {
        let ((xs, xl), (ys, yl)) = (x.view::<S>()?, y.view::<S>()?);
        Output::from_backend(xs.binary_impl::<B>(ys, xl, yl)?)
    });
    let shape = a.shape().clone();
    Ok(Tensor::from_output(out, a.dtype, a.device, shape))
}

impl Tensor {
    /// `self + rhs`, broadcast as NumPy does: shapes are aligned at their last dims, and a dim of 1 is repeated.
    ///
    /// Of one type, or f32 and a 16-bit float, which give f32. Errors: shapes, types or devices that do not fit.
    pub fn add(&self, rhs: &Tensor) -> Result<Tensor> {
        if self.shape() == rhs.shape() && self.dtype == DType::F32 {
            return self.add_float(rhs);
        }
        let (a, b) = match (self.dtype, rhs.dtype) {
            (DType::F32, DType::BF16 | DType::F16) => (self.clone(), rhs.to_dtype(DType::F32)?),
            (DType::BF16 | DType::F16, DType::F32) => (self.to_dtype(DType::F32)?, rhs.clone()),
            _ => (self.clone(), rhs.clone()),
        };
        let (a, b) = broadcast("add", &a, &b)?;
        if is_float(a.dtype) && a.layout.is_contiguous() && b.layout.is_contiguous() {
            return a.add_float(&b);
        }
        let out = apply::<op::Add>(&a, &b)?;
        record("add", &[&a, &b], out, |g| {
            let grad = g.output();
            g.add(0, grad.clone())?;
            g.add(1, grad)
        })
    }

    /// The residual stream and what joins it, of equal shapes: into a pooled buffer, with threads.
    fn add_float(&self, rhs: &Tensor) -> Result<Tensor> {
        common_device("add", &[self.device, rhs.device])?;
        if !is_float(rhs.dtype) {
            rhs.expect_dtype("add", self.dtype)?;
        }
        let (a, b) = (self.contiguous()?, rhs.contiguous()?);
        let mut out = a.device.alloc(a.dtype, a.elem_count())?;
        {
            let (x, y) = (a.read(), b.read());
            on_device!(a.device, S, {
                S::add_into(x.view()?, y.view()?, out.of::<S>()?)?
            });
        }
        let out = Tensor::from_output(out, a.dtype, a.device, a.shape().clone());
        let of_rhs = b.dtype;
        record("add", &[&a, &b], out, move |g| {
            let grad = g.output();
            if g.wanted(1) {
                g.add(1, grad.to_dtype(of_rhs)?)?;
            }
            g.add(0, grad)
        })
    }

    /// `self - rhs`. Broadcasting and errors are those of [`Tensor::add`], the types equal.
    pub fn sub(&self, rhs: &Tensor) -> Result<Tensor> {
        let (a, b) = broadcast("sub", self, rhs)?;
        let out = apply::<op::Sub>(&a, &b)?;
        record("sub", &[&a, &b], out, |g| {
            let grad = g.output();
            if g.wanted(1) {
                g.add(1, grad.neg()?)?;
            }
            g.add(0, grad)
        })
    }

    /// `self * rhs`, element by element. Broadcasting and errors are those of [`Tensor::add`], the types equal.
    pub fn mul(&self, rhs: &Tensor) -> Result<Tensor> {
        let (a, b) = broadcast("mul", self, rhs)?;
        let out = apply::<op::Mul>(&a, &b)?;
        let (x, y) = (a.detach(), b.detach());
        record("mul", &[&a, &b], out, move |g| {
            let grad = g.output();
            if g.wanted(0) {
                g.add(0, grad.mul(&y)?)?;
            }
            if g.wanted(1) {
                g.add(1, grad.mul(&x)?)?;
            }
            Ok(())
        })
    }

    /// `self / rhs`, element by element; what is divided by 0 is infinite or NaN. Broadcasting and errors are those of [`Tensor::add`], the types equal.
    pub fn div(&self, rhs: &Tensor) -> Result<Tensor> {
        let (a, b) = broadcast("div", self, rhs)?;
        let out = apply::<op::Div>(&a, &b)?;
        let (quotient, y) = (out.clone(), b.detach());
        record("div", &[&a, &b], out, move |g| {
            let scaled = g.output().div(&y)?;
            if g.wanted(1) {
                g.add(1, scaled.mul(&quotient)?.neg()?)?;
            }
            g.add(0, scaled)
        })
    }

    /// The larger of each two elements; at a tie the gradient is the left one's.
    ///
    /// Broadcasting and errors are those of [`Tensor::add`], the types equal.
    pub fn maximum(&self, rhs: &Tensor) -> Result<Tensor> {
        let (a, b) = broadcast("maximum", self, rhs)?;
        let out = apply::<op::Maximum>(&a, &b)?;
        pick("maximum", &a, &b, out, CmpOp::Ge)
    }

    /// The smaller of each two elements; at a tie the gradient is the left one's.
    ///
    /// Broadcasting and errors are those of [`Tensor::add`], the types equal.
    pub fn minimum(&self, rhs: &Tensor) -> Result<Tensor> {
        let (a, b) = broadcast("minimum", self, rhs)?;
        let out = apply::<op::Minimum>(&a, &b)?;
        pick("minimum", &a, &b, out, CmpOp::Le)
    }

    /// u8, 1 where `self` is equal to `rhs` and 0 elsewhere; broadcast as [`Tensor::add`], without a gradient.
    pub fn eq(&self, rhs: &Tensor) -> Result<Tensor> {
        self.compare(rhs, CmpOp::Eq)
    }

    /// u8, 1 where `self` is not equal to `rhs` and 0 elsewhere; broadcast as [`Tensor::add`], without a gradient.
    pub fn ne(&self, rhs: &Tensor) -> Result<Tensor> {
        self.compare(rhs, CmpOp::Ne)
    }

    /// u8, 1 where `self` is less than `rhs` and 0 elsewhere; broadcast as [`Tensor::add`], without a gradient.
    pub fn lt(&self, rhs: &Tensor) -> Result<Tensor> {
        self.compare(rhs, CmpOp::Lt)
    }

    /// u8, 1 where `self` is at most `rhs` and 0 elsewhere; broadcast as [`Tensor::add`], without a gradient.
    pub fn le(&self, rhs: &Tensor) -> Result<Tensor> {
        self.compare(rhs, CmpOp::Le)
    }

    /// u8, 1 where `self` is greater than `rhs` and 0 elsewhere; broadcast as [`Tensor::add`], without a gradient.
    pub fn gt(&self, rhs: &Tensor) -> Result<Tensor> {
        self.compare(rhs, CmpOp::Gt)
    }

    /// u8, 1 where `self` is at least `rhs` and 0 elsewhere; broadcast as [`Tensor::add`], without a gradient.
    pub fn ge(&self, rhs: &Tensor) -> Result<Tensor> {
        self.compare(rhs, CmpOp::Ge)
    }

    fn compare(&self, rhs: &Tensor, op: CmpOp) -> Result<Tensor> {
        let (a, b) = broadcast("compare", &self.detach(), &rhs.detach())?;
        let (x, y) = (a.read(), b.read());
        let out = on_device!(a.device, S, {
            let ((xs, xl), (ys, yl)) = (x.view::<S>()?, y.view::<S>()?);
            Output::from_backend(xs.cmp(op, ys, xl, yl)?)
        });
        let shape = a.shape().clone();
        Ok(Tensor::from_output(out, DType::U8, a.device, shape))
    }

    /// `on_true` where this u8 tensor is not 0, else `on_false`; all three are broadcast together, as in [`Tensor::add`].
    ///
    /// Gradients go to the one that was taken. Errors: `self` is not u8; shapes, types or devices that do not fit.
    pub fn where_cond(&self, on_true: &Tensor, on_false: &Tensor) -> Result<Tensor> {
        self.expect_dtype("where_cond", DType::U8)?;
        let (a, b) = broadcast("where_cond", on_true, on_false)?;
        let shape = a
            .shape()
            .broadcast_shape_binary_op(self.shape(), "where_cond")
            .map_err(|_| Error::shapes("where_cond", a.shape(), self.shape()))?;
        let (a, b) = (a.expand(shape.clone())?, b.expand(shape.clone())?);
        let condition = self.expand(shape)?;
        let (c, x, y) = (condition.read(), a.read(), b.read());
        let out = on_device!(a.device, S, {
            let (cs, cl) = c.view::<S>()?;
            let ((xs, xl), (ys, yl)) = (x.view::<S>()?, y.view::<S>()?);
            Output::from_backend(cs.where_cond(cl, xs, xl, ys, yl)?)
        });
        drop(c);
        let out = Tensor::from_output(out, a.dtype, a.device, a.shape().clone());
        record("where_cond", &[&a, &b], out, move |g| {
            let grad = g.output();
            let zero = Tensor::zeros((), grad.device)?.to_dtype(grad.dtype)?;
            if g.wanted(0) {
                g.add(0, condition.where_cond(&grad, &zero)?)?;
            }
            if g.wanted(1) {
                g.add(1, condition.where_cond(&zero, &grad)?)?;
            }
            Ok(())
        })
    }
}

/// Records an operation that passes on one of its operands: the left one where `op` holds.
fn pick(name: &'static str, a: &Tensor, b: &Tensor, out: Tensor, op: CmpOp) -> Result<Tensor> {
    let (x, y) = (a.detach(), b.detach());
    record(name, &[a, b], out, move |g| {
        let grad = g.output();
        let left = x.compare(&y, op)?;
        let zero = Tensor::zeros((), grad.device)?.to_dtype(grad.dtype)?;
        g.add(0, left.where_cond(&grad, &zero)?)?;
        g.add(1, left.where_cond(&zero, &grad)?)
    })
}
