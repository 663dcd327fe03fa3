//! What is drawn on the device: dropout. Weights are drawn on the host, once.

use tt_cpu::{RngKey, View};

use crate::error::Result;
use crate::launch::{code, kernels};
use crate::ops::copy::contiguous;
use crate::ops::operand::{ensure, output};
use crate::storage::{TpuStorage, elements, start};
use crate::traffic::{Operand, Traffic};

/// Counters of blocks are 32 bits on the device.
const MAX_ELEMENTS: usize = 1 << 33;

kernels! {
    Dropout = "dropout" {
        x: u64,
        y: u64,
        n: u64,
        key: u64,
        stream: u64,
        p: f32,
        dtype: u32,
    }
}

impl Traffic for Dropout {
    fn operands(&self) -> Vec<Operand> {
        let n = [self.n as i64];
        vec![
            Operand::read("x", n, self.dtype),
            Operand::write("y", n, self.dtype),
        ]
    }
}

pub(crate) fn dropout(x: View<TpuStorage>, p: f32, rng: RngKey, y: &mut TpuStorage) -> Result<()> {
    let (n, dtype) = (elements(x.1), x.0.kind());
    ensure!(dtype.is_float(), "dropout: {dtype:?}");
    ensure!((0.0..1.0).contains(&p), "dropout: a probability of {p}");
    ensure!(
        n < MAX_ELEMENTS,
        "dropout: {n} elements, more than {MAX_ELEMENTS}"
    );
    let to = output("dropout: y", y, dtype, n)?;
    if n == 0 {
        return Ok(());
    }
    let x = contiguous(x)?;
    y.on().launch(Dropout {
        x: start(x.view()),
        y: to,
        n: n as u64,
        key: rng.key,
        stream: rng.stream,
        p,
        dtype: code(dtype)?,
        ..Dropout::default()
    })
}
