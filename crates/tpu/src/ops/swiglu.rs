//! `silu(gate) * up` and its gradients.

use tt_cpu::View;

use crate::error::Result;
use crate::launch::{code, kernels};
use crate::ops::copy::contiguous;
use crate::ops::operand::ensure;
use crate::storage::{TpuStorage, elements, start};
use crate::traffic::{Operand, Traffic};

kernels! {
    Swiglu = "swiglu" {
        gate: u64,
        up: u64,
        y: u64,
        n: u64,
        dtype: u32,
        reserved: u32,
    }

    SwigluBackward = "swiglu_backward" {
        gate: u64,
        up: u64,
        dy: u64,
        dgate: u64,
        dup: u64,
        n: u64,
        dtype: u32,
        reserved: u32,
    }
}

impl Traffic for Swiglu {
    fn operands(&self) -> Vec<Operand> {
        let n = [self.n as i64];
        vec![
            Operand::read("gate", n, self.dtype),
            Operand::read("up", n, self.dtype),
            Operand::write("y", n, self.dtype),
        ]
    }
}

impl Traffic for SwigluBackward {
    fn operands(&self) -> Vec<Operand> {
        let n = [self.n as i64];
        vec![
            Operand::read("gate", n, self.dtype),
            Operand::read("up", n, self.dtype),
            Operand::read("dy", n, self.dtype),
            Operand::write("dgate", n, self.dtype),
            Operand::write("dup", n, self.dtype),
        ]
    }
}

/// Operands and results must agree in dtype, a float type; each has `n` elements or room for them.
fn check(what: &str, inputs: &[View<TpuStorage>], outputs: &[&TpuStorage]) -> Result<()> {
    let (first, layout) = inputs[0];
    let (dtype, n) = (first.kind(), elements(layout));
    ensure!(dtype.is_float(), "{what}: {dtype:?} is not a float type");
    for (x, layout) in inputs {
        let (len, other) = (elements(layout), x.kind());
        ensure!(len == n, "{what}: {len} elements instead of {n}");
        ensure!(other == dtype, "{what}: {other:?} instead of {dtype:?}");
    }
    for y in outputs {
        let (len, other) = (y.len(), y.kind());
        ensure!(len >= n, "{what}: room for {len} elements instead of {n}");
        ensure!(other == dtype, "{what}: {other:?} instead of {dtype:?}");
    }
    Ok(())
}

pub(crate) fn forward(
    gate: View<TpuStorage>,
    up: View<TpuStorage>,
    y: &mut TpuStorage,
) -> Result<()> {
    check("swiglu", &[gate, up], &[y])?;
    let n = elements(gate.1);
    if n == 0 {
        return Ok(());
    }
    let (gate, up) = (contiguous(gate)?, contiguous(up)?);
    y.on().launch(Swiglu {
        gate: start(gate.view()),
        up: start(up.view()),
        y: y.address_at(0),
        n: n as u64,
        dtype: code(y.kind())?,
        ..Swiglu::default()
    })
}

pub(crate) fn backward(
    gate: View<TpuStorage>,
    up: View<TpuStorage>,
    dy: View<TpuStorage>,
    dgate: &mut TpuStorage,
    dup: &mut TpuStorage,
) -> Result<()> {
    check("swiglu_backward", &[gate, up, dy], &[dgate, dup])?;
    let n = elements(gate.1);
    if n == 0 {
        return Ok(());
    }
    let (gate, up, dy) = (contiguous(gate)?, contiguous(up)?, contiguous(dy)?);
    dgate.on().launch(SwigluBackward {
        gate: start(gate.view()),
        up: start(up.view()),
        dy: start(dy.view()),
        dgate: dgate.address_at(0),
        dup: dup.address_at(0),
        n: n as u64,
        dtype: code(dgate.kind())?,
        ..SwigluBackward::default()
    })
}
