//! Rotary position embedding.

use candle_core::DType;
use tt_cpu::View;

use crate::error::{Error, Result};
use crate::launch::{code, kernels};
use crate::ops::copy::contiguous;
use crate::ops::index::Indices;
use crate::ops::operand::{Heads, ensure, output};
use crate::storage::{TpuStorage, start};
use crate::traffic::{F32, Operand, Traffic, U32};

/// What the lanes' memory holds.
const MAX_DIM: usize = 2048;

kernels! {
    Rope = "rope" {
        x: u64,
        cos: u64,
        sin: u64,
        positions: u64,
        /// Room for those of every token.
        angles: u64,
        y: u64,
        /// Rows of the tables.
        size: i64,
        x_batch: i64,
        x_token: i32,
        x_head: i32,
        batch: i32,
        tokens: i32,
        heads: i32,
        dim: i32,
        inverse: u32,
        dtype: u32,
    }
}

impl Traffic for Rope {
    fn operands(&self) -> Vec<Operand> {
        let [batch, tokens, heads, dim] =
            [self.batch, self.tokens, self.heads, self.dim].map(i64::from);
        vec![
            Operand::read("x", [batch, tokens, heads, dim], self.dtype),
            Operand::read("cos", [self.size, dim / 2], F32),
            Operand::read("sin", [self.size, dim / 2], F32),
            Operand::read("positions", [batch, tokens], U32),
            Operand::write("y", [batch, tokens, heads, dim], self.dtype),
        ]
    }
}

/// Rotates `x` `[B, T, H, D]` by rows `positions` of the tables. A position beyond them is found by the device.
pub(crate) fn rope(
    x: View<TpuStorage>,
    cos: View<TpuStorage>,
    sin: View<TpuStorage>,
    positions: View<TpuStorage>,
    inverse: bool,
    y: &mut TpuStorage,
) -> Result<()> {
    let &[batch, tokens, heads, dim] = x.1.dims() else {
        return Err(Error::Operand(format!("rope: x is {:?}", x.1.dims())));
    };
    let dtype = x.0.kind();
    ensure!(
        dim.is_multiple_of(2) && dim <= MAX_DIM,
        "rope: heads of {dim}, not even or above {MAX_DIM}"
    );
    for table in [cos, sin] {
        ensure!(
            table.1.dims().len() == 2
                && table.1.dims()[1] == dim / 2
                && table.0.kind() == DType::F32,
            "rope: a table of {:?} for heads of {dim}",
            table.1.dims()
        );
    }
    ensure!(
        positions.1.shape().elem_count() == batch * tokens,
        "rope: {:?} positions",
        positions.1.dims()
    );
    let from = Heads::new("rope: x", x, dtype, [batch, tokens, heads, dim])?;
    let to = output("rope: y", y, dtype, batch * tokens * heads * dim)?;
    if batch * tokens * heads * dim == 0 {
        return Ok(());
    }
    let size = cos.1.dims()[0];
    ensure!(
        sin.1.dims() == cos.1.dims() && (1..i32::MAX as usize).contains(&size),
        "rope: tables of {:?} and {:?}",
        cos.1.dims(),
        sin.1.dims()
    );
    let (cos, sin, positions) = (contiguous(cos)?, contiguous(sin)?, Indices::new(positions)?);
    let angles = y.on().alloc(DType::F32, batch * tokens * dim)?;
    let narrow = |value: usize| i32::try_from(value).map_err(|_| Error::Narrow(value as i64));
    y.on().launch(Rope {
        x: from.address,
        cos: start(cos.view()),
        sin: start(sin.view()),
        positions: positions.address,
        angles: angles.address_at(0),
        y: to,
        size: size as i64,
        x_batch: from.batch,
        x_token: from.row,
        x_head: from.head,
        batch: narrow(batch)?,
        tokens: narrow(tokens)?,
        heads: narrow(heads)?,
        dim: narrow(dim)?,
        inverse: inverse.into(),
        dtype: code(dtype)?,
        ..Rope::default()
    })
}
