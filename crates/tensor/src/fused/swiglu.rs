//! SwiGLU's gate: `y = silu(gate) * up`, element by element. Source: Shazeer 2020, arXiv:2002.05202.

use tt_cpu::FusedOps;

use crate::device::{common_device, on_device};
use crate::error::Result;
use crate::fused::{alloc_like, dense, expect_shape, finish};
use crate::tape::record;
use crate::tensor::Tensor;

/// SwiGLU's gate: `silu(gate) * up` with `silu(x) = x / (1 + exp(-x))`, element by element.
///
/// Both are of one shape and one type, and so is the result: nothing is broadcast. Errors: shapes, types or devices that do
/// not fit.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let device = common_device("swiglu", &[gate.device, up.device])?;
    let (gate, up) = (dense("swiglu", gate)?, dense("swiglu", up)?);
    expect_shape("swiglu", &up, gate.dims())?;
    up.expect_dtype("swiglu", gate.dtype)?;
    let mut y = alloc_like(&gate)?;
    on_device!(device, S, {
        let (gr, ur) = (gate.read(), up.read());
        S::swiglu(gr.view()?, ur.view()?, y.of::<S>()?)?
    });
    let y = finish(y, &gate);
    let (gate_saved, up_saved) = (gate.detach(), up.detach());
    record("swiglu", &[&gate, &up], y, move |g| {
        let dy = g.output().contiguous()?;
        let (mut dgate, mut dup) = (alloc_like(&gate_saved)?, alloc_like(&up_saved)?);
        on_device!(device, S, {
            let (gr, ur, dyr) = (gate_saved.read(), up_saved.read(), dy.read());
            let (dgate, dup) = (dgate.of::<S>()?, dup.of::<S>()?);
            S::swiglu_backward(gr.view()?, ur.view()?, dyr.view()?, dgate, dup)?
        });
        g.add(0, finish(dgate, &gate_saved))?;
        g.add(1, finish(dup, &up_saved))
    })
}
