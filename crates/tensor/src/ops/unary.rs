//! Element-wise operations of one tensor.

use candle_core::DType;
use candle_core::backend::BackendStorage;
use candle_core::op::{self, UnaryOpT};

use crate::device::{Output, on_device};
use crate::error::Result;
use crate::tape::record;
use crate::tensor::Tensor;

fn apply<B: UnaryOpT>(x: &Tensor) -> Result<Tensor> {
    let reading = x.read();
    let out = on_device!(x.device, S, {
        let (storage, layout) = reading.view::<S>()?;
        Output::from_backend(storage.unary_impl::<B>(layout)?)
    });
    let shape = x.shape().clone();
    Ok(Tensor::from_output(out, x.dtype, x.device, shape))
}

/// Records `y = f(x)` with `dx = dy * slope(x, y)`.
fn differentiable<B: UnaryOpT>(
    name: &'static str,
    x: &Tensor,
    slope: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor> + Send + 'static,
) -> Result<Tensor> {
    let y = apply::<B>(x)?;
    let (x_saved, y_saved) = (x.detach(), y.clone());
    record(name, &[x], y, move |g| {
        let grad = g.output().mul(&slope(&x_saved, &y_saved)?)?;
        g.add(0, grad)
    })
}

impl Tensor {
    /// `self * mul + add`, element by element.
    pub fn affine(&self, mul: f64, add: f64) -> Result<Tensor> {
        let x = self.read();
        let out = on_device!(self.device, S, {
            let (storage, layout) = x.view::<S>()?;
            Output::from_backend(storage.affine(layout, mul, add)?)
        });
        let out = Tensor::from_output(out, self.dtype, self.device, self.shape().clone());
        record("affine", &[self], out, move |g| {
            let grad = g.output().affine(mul, 0.0)?;
            g.add(0, grad)
        })
    }

    /// `-self`.
    pub fn neg(&self) -> Result<Tensor> {
        self.affine(-1.0, 0.0)
    }

    /// `self^exponent`; NaN for a negative element and an exponent that is no integer.
    pub fn powf(&self, exponent: f64) -> Result<Tensor> {
        let x = self.read();
        let out = on_device!(self.device, S, {
            let (storage, layout) = x.view::<S>()?;
            Output::from_backend(storage.powf(layout, exponent)?)
        });
        let out = Tensor::from_output(out, self.dtype, self.device, self.shape().clone());
        let saved = self.detach();
        record("powf", &[self], out, move |g| {
            let slope = saved.powf(exponent - 1.0)?.affine(exponent, 0.0)?;
            let grad = g.output().mul(&slope)?;
            g.add(0, grad)
        })
    }

    /// `e^self`.
    pub fn exp(&self) -> Result<Tensor> {
        differentiable::<op::Exp>("exp", self, |_, y| Ok(y.clone()))
    }

    /// The natural logarithm; NaN below 0.
    pub fn log(&self) -> Result<Tensor> {
        differentiable::<op::Log>("log", self, |x, _| x.recip())
    }

    /// The square root; NaN below 0. Its gradient at 0 is infinite.
    pub fn sqrt(&self) -> Result<Tensor> {
        differentiable::<op::Sqrt>("sqrt", self, |_, y| y.recip()?.affine(0.5, 0.0))
    }

    /// `self * self`.
    pub fn sqr(&self) -> Result<Tensor> {
        differentiable::<op::Sqr>("sqr", self, |x, _| x.affine(2.0, 0.0))
    }

    /// `1 / self`.
    pub fn recip(&self) -> Result<Tensor> {
        differentiable::<op::Recip>("recip", self, |_, y| y.sqr()?.neg())
    }

    /// `|self|`; its gradient at 0 is 0.
    pub fn abs(&self) -> Result<Tensor> {
        differentiable::<op::Abs>("abs", self, |x, _| apply::<op::Sign>(x))
    }

    /// The sine, of radians.
    pub fn sin(&self) -> Result<Tensor> {
        differentiable::<op::Sin>("sin", self, |x, _| apply::<op::Cos>(x))
    }

    /// The cosine, of radians.
    pub fn cos(&self) -> Result<Tensor> {
        differentiable::<op::Cos>("cos", self, |x, _| apply::<op::Sin>(x)?.neg())
    }

    /// The hyperbolic tangent.
    pub fn tanh(&self) -> Result<Tensor> {
        differentiable::<op::Tanh>("tanh", self, |_, y| y.sqr()?.affine(-1.0, 1.0))
    }

    /// `1 / (1 + exp(-self))`.
    pub fn sigmoid(&self) -> Result<Tensor> {
        // Half the argument through tanh: neither branch overflows.
        self.affine(0.5, 0.0)?.tanh()?.affine(0.5, 0.5)
    }

    /// `max(self, 0)`; its gradient at 0 is 0.
    pub fn relu(&self) -> Result<Tensor> {
        differentiable::<op::Relu>("relu", self, |x, _| {
            let zero = Tensor::zeros((), x.device)?.to_dtype(x.dtype)?;
            x.gt(&zero)?.to_dtype(x.dtype)
        })
    }

    /// `self * sigmoid(self)`.
    pub fn silu(&self) -> Result<Tensor> {
        differentiable::<op::Silu>("silu", self, |x, y| {
            let sigmoid = x.sigmoid()?;
            // sigmoid * (1 + x - y), since y = x * sigmoid.
            sigmoid.mul(&x.sub(y)?.affine(1.0, 1.0)?)
        })
    }

    /// True if no element is NaN or infinite; reads the host.
    pub fn is_finite(&self) -> Result<bool> {
        let values = self.to_dtype(DType::F32)?.to_vec::<f32>()?;
        Ok(values.iter().all(|value| value.is_finite()))
    }
}
