//! Sums, extrema and their positions, along any dims.

use candle_core::op::ReduceOp;
use candle_core::{DType, Layout};
use tt_cpu::{View, Write};

use crate::error::{Error, Result};
use crate::launch::{code, kernels};
use crate::ops::copy::{self, Dim, contiguous};
use crate::ops::operand::ensure;
use crate::ops::unary;
use crate::storage::{TpuStorage, elements, start};
use crate::traffic::{Operand, Traffic};

/// Rows that a single long one is cut into, and the length from which it is: enough for all lanes of all cores.
const PIECES: usize = 512;
const LONG: usize = 16 * PIECES;
/// Positions are found as f32.
const MAX_POSITION: usize = 1 << 24;

kernels! {
    ReduceRows = "reduce_rows" {
        x: u64,
        y: u64,
        rows: i64,
        len: i64,
        op: u32,
        x_dtype: u32,
        y_dtype: u32,
        reserved: u32,
    }

    SumColumns = "sum_columns" {
        x: u64,
        y: u64,
        outer: i64,
        len: i64,
        cols: i64,
        x_dtype: u32,
        y_dtype: u32,
        accumulate: u32,
        reserved: u32,
    }
}

impl Traffic for ReduceRows {
    fn operands(&self) -> Vec<Operand> {
        vec![
            Operand::read("x", [self.rows, self.len], self.x_dtype),
            Operand::write("y", [self.rows], self.y_dtype),
        ]
    }
}

impl Traffic for SumColumns {
    fn operands(&self) -> Vec<Operand> {
        let (outer, cols) = (self.outer, self.cols);
        vec![
            Operand::read("x", [outer, self.len, cols], self.x_dtype),
            Operand::result("y", [outer, cols], self.y_dtype, self.accumulate == 1),
        ]
    }
}

/// In the order of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    Sum,
    SumSquares,
    Max,
    Min,
    ArgMax,
    ArgMin,
}

impl From<ReduceOp> for Op {
    fn from(op: ReduceOp) -> Self {
        match op {
            ReduceOp::Sum => Self::Sum,
            ReduceOp::Max => Self::Max,
            ReduceOp::Min => Self::Min,
            ReduceOp::ArgMax => Self::ArgMax,
            ReduceOp::ArgMin => Self::ArgMin,
        }
    }
}

/// Reduces `dims` of `x`; the result has the other dims, in their order.
pub(crate) fn reduce(op: Op, x: View<TpuStorage>, dims: &[usize]) -> Result<TpuStorage> {
    let (storage, layout) = x;
    let device = storage.on();
    if !storage.kind().is_float() {
        return Err(Error::DType(storage.kind()));
    }
    let shape = layout.dims();
    let (reduced, kept): (Vec<usize>, Vec<usize>) =
        (0..shape.len()).partition(|dim| dims.contains(dim));
    let size = |dims: &[usize]| dims.iter().map(|&dim| shape[dim]).product::<usize>();
    let (len, count) = (size(&reduced), size(&kept));
    let finds = matches!(op, Op::ArgMax | Op::ArgMin);
    let dtype = if finds { DType::U32 } else { storage.kind() };
    ensure!(len > 0 || op == Op::Sum, "{op:?} of no elements");
    ensure!(
        !finds || len <= MAX_POSITION,
        "{op:?} of {len} elements, more than {MAX_POSITION}"
    );
    let mut y = device.alloc(dtype, count)?;
    if count == 0 {
        return Ok(y);
    }
    if len == 0 {
        super::fill::fill(&mut y, count, 0.0)?;
        return Ok(y);
    }
    // Dims that follow each other in memory are summed where they lie.
    let follow = reduced.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    if let (Op::Sum, true, Some(&last)) = (op, follow, reduced.last())
        && last + 1 < shape.len()
    {
        let x = contiguous(x)?;
        let outer = shape[..reduced[0]].iter().product();
        let cols = shape[last + 1..].iter().product();
        sum_columns(
            start(x.view()),
            storage.kind(),
            &mut y,
            [outer, len, cols],
            Write::Assign,
        )?;
        return Ok(y);
    }
    let order: Vec<usize> = kept.into_iter().chain(reduced).collect();
    let permuted = layout
        .permute(&order)
        .map_err(|error| Error::Operand(error.to_string()))?;
    let x = contiguous((storage, &permuted))?;
    rows(op, start(x.view()), storage.kind(), &mut y, 0, [count, len])?;
    Ok(y)
}

/// `y[slot] = sum x[i]^2`.
pub(crate) fn sum_squares(x: View<TpuStorage>, y: &mut TpuStorage, slot: usize) -> Result<()> {
    ensure!(
        slot < y.len() && y.kind() == DType::F32,
        "sum_squares: no f32 slot {slot}"
    );
    let x = contiguous(x)?;
    let (view, len) = (x.view(), elements(x.view().1));
    rows(
        Op::SumSquares,
        start(view),
        view.0.kind(),
        y,
        slot,
        [1, len],
    )
}

/// `y[c] (+)= sum_r x[r, c]`.
pub(crate) fn sum_rows(
    x: View<TpuStorage>,
    count: usize,
    y: &mut TpuStorage,
    write: Write,
) -> Result<()> {
    let n = elements(x.1);
    ensure!(
        count > 0 && n.is_multiple_of(count),
        "sum_rows: {n} elements are not {count} rows"
    );
    let cols = n / count;
    ensure!(
        cols <= y.len(),
        "sum_rows: room for {} elements instead of {cols}",
        y.len()
    );
    if cols == 0 {
        return Ok(());
    }
    let x = contiguous(x)?;
    sum_columns(
        start(x.view()),
        x.view().0.kind(),
        y,
        [1, count, cols],
        write,
    )
}

/// `y[r, c] = row[c]` for `count` rows.
pub(crate) fn broadcast_row(row: View<TpuStorage>, count: usize, y: &mut TpuStorage) -> Result<()> {
    let cols = elements(row.1);
    let typed;
    let layout = Layout::contiguous(cols);
    let row = if row.0.kind() == y.kind() {
        row
    } else {
        typed = unary::map(unary::Function::Cast, [0.0; 2], row, y.kind())?;
        (&typed, &layout)
    };
    let row = contiguous(row)?;
    let (row, layout) = row.view();
    let dims = [
        Dim {
            size: count,
            src: 0,
            dst: cols,
        },
        Dim {
            size: cols,
            src: 1,
            dst: 1,
        },
    ];
    copy::copy(row, layout.start_offset(), y, 0, &dims)
}

/// Reduces `count` rows of `len` elements at `x` to `y[slot ..]`.
pub(crate) fn rows(
    op: Op,
    x: u64,
    dtype: DType,
    y: &mut TpuStorage,
    slot: usize,
    [count, len]: [usize; 2],
) -> Result<()> {
    let launch = |op: Op, x: u64, dtype: DType, y: &TpuStorage, slot, [rows, len]: [usize; 2]| {
        y.on().launch(ReduceRows {
            x,
            y: y.address_at(slot),
            rows: rows as i64,
            len: len as i64,
            op: op as u32,
            x_dtype: code(dtype)?,
            y_dtype: code(y.kind())?,
            ..ReduceRows::default()
        })
    };
    ensure!(len < i32::MAX as usize, "{op:?} of rows of {len} elements");
    let is_one_long = count == 1 && len >= LONG && !matches!(op, Op::ArgMax | Op::ArgMin);
    if !is_one_long {
        return launch(op, x, dtype, y, slot, [count, len]);
    }
    // In pieces of one length, then what is left, then their results.
    let (piece, rest) = (len / PIECES, len % PIECES);
    let parts = y.on().alloc(DType::F32, PIECES + 1)?;
    launch(op, x, dtype, &parts, 0, [PIECES, piece])?;
    let mut num_parts = PIECES;
    if rest > 0 {
        let tail = x + (PIECES * piece * dtype.size_in_bytes()) as u64;
        launch(op, tail, dtype, &parts, PIECES, [1, rest])?;
        num_parts += 1;
    }
    let of_parts = if op == Op::SumSquares { Op::Sum } else { op };
    launch(
        of_parts,
        parts.address_at(0),
        DType::F32,
        y,
        slot,
        [1, num_parts],
    )
}

fn sum_columns(
    x: u64,
    dtype: DType,
    y: &mut TpuStorage,
    [outer, len, cols]: [usize; 3],
    write: Write,
) -> Result<()> {
    ensure!(
        cols < i32::MAX as usize,
        "the sum of rows of {cols} elements"
    );
    y.on().launch(SumColumns {
        x,
        y: y.address_at(0),
        outer: outer as i64,
        len: len as i64,
        cols: cols as i64,
        x_dtype: code(dtype)?,
        y_dtype: code(y.kind())?,
        accumulate: (write == Write::Accumulate).into(),
        ..SumColumns::default()
    })
}
