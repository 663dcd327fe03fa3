//! Rotary position embedding.

use candle_core::{DType, Layout};
use tt_cpu::View;

use crate::error::{Error, Result};
use crate::launch::{code, kernels};
use crate::ops::index;
use crate::ops::operand::{Heads, ensure, output};
use crate::storage::TpuStorage;

/// What the lanes' memory holds.
const MAX_DIM: usize = 2048;

kernels! {
    Rope = "rope" {
        x: u64,
        cos: u64,
        sin: u64,
        y: u64,
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
            table.1.dims().last() == Some(&(dim / 2)) && table.0.kind() == DType::F32,
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
    // Angles of every token, found once for all heads.
    let flat = Layout::contiguous_with_offset(batch * tokens, positions.1.start_offset());
    ensure!(
        positions.1.is_contiguous(),
        "rope: positions strided {:?}",
        positions.1.stride()
    );
    let cos = index::select(cos, (positions.0, &flat), 0)?;
    let sin = index::select(sin, (positions.0, &flat), 0)?;
    let narrow = |value: usize| i32::try_from(value).map_err(|_| Error::Narrow(value as i64));
    y.on().launch(Rope {
        x: from.address,
        cos: cos.address_at(0),
        sin: sin.address_at(0),
        y: to,
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
