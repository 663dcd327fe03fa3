//! Products of batches of matrices.

use candle_core::{DType, Layout};
use tt_cpu::{View, Write};

use crate::error::{Error, Result};
use crate::launch::{code, kernels};
use crate::ops::copy::{Contiguous, contiguous};
use crate::ops::fill::fill_view;
use crate::ops::operand::ensure;
use crate::storage::{TpuStorage, start};
use crate::traffic::{Operand, Traffic};
use crate::vendor::{self, vendor_kernels};

const BATCH_DIMS: usize = 4;

kernels! {
    Matmul = "matmul" {
        a: u64,
        b: u64,
        out: u64,
        a_batch: [i64; BATCH_DIMS],
        b_batch: [i64; BATCH_DIMS],
        batch: [i32; BATCH_DIMS],
        m: i32,
        n: i32,
        k: i32,
        a_ld: i32,
        b_ld: i32,
        a_trans: u32,
        b_trans: u32,
        a_dtype: u32,
        b_dtype: u32,
        dtype: u32,
        out_dtype: u32,
        accumulate: u32,
    }
}

impl Traffic for Matmul {
    fn operands(&self) -> Vec<Operand> {
        let [m, n, k] = [self.m, self.n, self.k].map(i64::from);
        let batch = self.batch.map(i64::from);
        // What the matrices of a batch share is there once.
        let matrices = |strides: [i64; BATCH_DIMS]| {
            let own = batch.iter().zip(strides).filter(|(_, stride)| *stride != 0);
            own.map(|(size, _)| size).product::<i64>()
        };
        let (of_a, of_b) = (matrices(self.a_batch), matrices(self.b_batch));
        vec![
            Operand::read("a", [of_a, m, k], self.a_dtype),
            Operand::read("b", [of_b, k, n], self.b_dtype),
            Operand::result(
                "out",
                [batch.iter().product(), m, n],
                self.out_dtype,
                self.accumulate == 1,
            ),
        ]
    }
}

vendor_kernels! {
    /// `out = L . R`, with shapes as they are stored. It has a bias whose flag is not known, and parts that do not compute here.
    MatmulMultiCore = "matmul_multi_core" {
        l: u64,
        r: u64,
        bias: u64,
        out: u64,
        l_shape: [i32; 8],
        r_shape: [i32; 8],
        l_dims: i32,
        r_dims: i32,
        l_trans: i32,
        r_trans: i32,
        in_dtype: i32,
        out_dtype: i32,
        reserved_slices: [i32; 5],
        reserved: [i32; 5],
        reserved_addresses: [u64; 24],
        reserved_end: [u64; 2],
    }
}

impl Traffic for MatmulMultiCore {
    fn operands(&self) -> Vec<Operand> {
        let stored = |shape: [i32; 8], dims: i32| match dims {
            2 => [1, shape[0], shape[1]].map(i64::from),
            _ => [shape[0], shape[1], shape[2]].map(i64::from),
        };
        let turned = |[batch, rows, cols]: [i64; 3], trans: i32| match trans {
            0 => [batch, rows, cols],
            _ => [batch, cols, rows],
        };
        let l = turned(stored(self.l_shape, self.l_dims), self.l_trans);
        let r = turned(stored(self.r_shape, self.r_dims), self.r_trans);
        let (of_in, of_out) = (
            vendor::as_ours(self.in_dtype),
            vendor::as_ours(self.out_dtype),
        );
        vec![
            Operand::read("a", l, of_in),
            Operand::read("b", r, of_in),
            Operand::write("out", [l[0], l[1], r[2]], of_out),
        ]
    }
}

/// How the last two dims of an operand lie.
struct Matrix {
    ld: i32,
    is_transposed: bool,
}

impl Matrix {
    /// `None`: neither row- nor column-major.
    fn of(layout: &Layout) -> Option<Self> {
        let (dims, stride) = (layout.dims(), layout.stride());
        let [.., rows, cols] = *dims else { return None };
        let [.., down, across] = *stride else {
            return None;
        };
        let matrix = |ld: usize, is_transposed| {
            let ld = i32::try_from(ld).ok()?;
            Some(Self { ld, is_transposed })
        };
        if (across == 1 || cols == 1) && (down >= cols || rows == 1) {
            return matrix(down.max(cols), false);
        }
        if (down == 1 || rows == 1) && (across >= rows || cols == 1) {
            return matrix(across.max(rows), true);
        }
        None
    }
}

/// `out = a . b` or `out += a . b`, in the type of `a`; `out` f32 or of that type.
pub(crate) fn matmul(
    a: View<TpuStorage>,
    b: View<TpuStorage>,
    out: &mut TpuStorage,
    write: Write,
) -> Result<()> {
    matmul_at(a, b, out, 0, write)
}

/// The same, into `out` from its element `offset` on.
pub(crate) fn matmul_at(
    a: View<TpuStorage>,
    b: View<TpuStorage>,
    out: &mut TpuStorage,
    offset: usize,
    write: Write,
) -> Result<()> {
    let (a_dims, b_dims) = (a.1.dims(), b.1.dims());
    let misfit = || {
        Err(Error::Operand(format!(
            "matmul: {a_dims:?} and {b_dims:?} do not multiply"
        )))
    };
    let ([a_batch @ .., m, k], [b_batch @ .., b_rows, n]) = (a_dims, b_dims) else {
        return misfit();
    };
    if a_batch != b_batch || k != b_rows {
        return misfit();
    }
    for dtype in [a.0.kind(), b.0.kind()] {
        if !dtype.is_float() {
            return Err(Error::DType(dtype));
        }
    }
    let dtype = a.0.kind();
    ensure!(
        out.kind() == DType::F32 || out.kind() == dtype,
        "matmul: a product of {dtype:?} into {:?}",
        out.kind()
    );
    let count = a_batch.iter().product::<usize>() * m * n;
    ensure!(
        offset + count <= out.len(),
        "matmul: room for {} elements instead of {count}",
        out.len()
    );
    if count == 0 {
        return Ok(());
    }
    if *k == 0 {
        return match write {
            Write::Assign => {
                let there = Layout::contiguous_with_offset(count, offset);
                fill_view(out, &there, 0.0)
            }
            Write::Accumulate => Ok(()),
        };
    }
    let (a, b) = (laid_out(a)?, laid_out(b)?);
    let (a, b) = (a.view(), b.view());
    let (left, right) = (Matrix::of(a.1), Matrix::of(b.1));
    let (Some(left), Some(right)) = (left, right) else {
        return misfit();
    };
    if out.on().takes_vendors() {
        match vendors(a, b, out, offset, write)? {
            Ok(args) => return out.on().launch_vendor(args),
            Err(why) => out.on().declined("matmul", why),
        }
    }
    let narrow = |value: usize| i32::try_from(value).map_err(|_| Error::Narrow(value as i64));
    let mut args = Matmul {
        a: start(a),
        b: start(b),
        out: out.address_at(offset),
        batch: [1; BATCH_DIMS],
        m: narrow(*m)?,
        n: narrow(*n)?,
        k: narrow(*k)?,
        a_ld: left.ld,
        b_ld: right.ld,
        a_trans: left.is_transposed.into(),
        b_trans: right.is_transposed.into(),
        a_dtype: code(dtype)?,
        b_dtype: code(b.0.kind())?,
        dtype: code(dtype)?,
        out_dtype: code(out.kind())?,
        accumulate: (write == Write::Accumulate).into(),
        ..Matmul::default()
    };
    ensure!(
        a_batch.len() <= BATCH_DIMS,
        "matmul: more than {BATCH_DIMS} batch dims in {a_dims:?}"
    );
    let first = BATCH_DIMS - a_batch.len();
    for (i, size) in a_batch.iter().enumerate() {
        args.batch[first + i] = narrow(*size)?;
        args.a_batch[first + i] = a.1.stride()[i] as i64;
        args.b_batch[first + i] = b.1.stride()[i] as i64;
    }
    out.on().launch(args)
}

/// The view itself if its matrices can be loaded as they lie, else a copy in order.
fn laid_out(view: View<TpuStorage>) -> Result<Contiguous> {
    match Matrix::of(view.1) {
        Some(_) => Ok(Contiguous::of(view)),
        None => contiguous(view),
    }
}

/// The same by the vendor's kernel, of operands that can be multiplied; else why it is not admitted.
///
/// It was compared with a reference for one matrix or a batch of them that lie one after another.
fn vendors(
    a: View<TpuStorage>,
    b: View<TpuStorage>,
    out: &TpuStorage,
    offset: usize,
    write: Write,
) -> Result<std::result::Result<MatmulMultiCore, &'static str>> {
    if write == Write::Accumulate {
        return Ok(Err("it is added to what is there"));
    }
    let dtype = a.0.kind();
    if b.0.kind() != dtype {
        return Ok(Err("of two types"));
    }
    let (Some(left), Some(right)) = (Stored::of(a.1), Stored::of(b.1)) else {
        return Ok(Err("matrices with gaps, or shared by a batch"));
    };
    if dtype != DType::F32 && left.is_transposed && right.is_transposed {
        return Ok(Err("in 16 bit, both transposed"));
    }
    Ok(Ok(MatmulMultiCore {
        l: start(a),
        r: start(b),
        out: out.address_at(offset),
        l_shape: left.shape,
        r_shape: right.shape,
        l_dims: left.dims,
        r_dims: right.dims,
        l_trans: left.is_transposed.into(),
        r_trans: right.is_transposed.into(),
        in_dtype: vendor::code(dtype)?,
        out_dtype: vendor::code(out.kind())?,
        ..MatmulMultiCore::default()
    }))
}

/// Matrices without gaps, as the vendor's kernel is told of them.
struct Stored {
    /// `[rows, cols]` or `[batch, rows, cols]`, as they lie.
    shape: [i32; 8],
    dims: i32,
    is_transposed: bool,
}

impl Stored {
    /// `None`: they do not lie so.
    fn of(layout: &Layout) -> Option<Self> {
        let [batch @ .., rows, cols] = layout.dims() else {
            return None;
        };
        let is_transposed = !layout.is_contiguous();
        let (rows, cols) = if is_transposed {
            let last = layout.dims().len() - 1;
            let turned = layout.transpose(last - 1, last).ok()?;
            if !turned.is_contiguous() {
                return None;
            }
            (cols, rows)
        } else {
            (rows, cols)
        };
        let matrices = batch.iter().product::<usize>();
        let stored = [matrices, *rows, *cols];
        // A batch of one is told as a matrix.
        let stored = &stored[usize::from(matrices == 1)..];
        let mut shape = [0; 8];
        for (told, size) in shape.iter_mut().zip(stored) {
            *told = i32::try_from(*size).ok()?;
        }
        Some(Self {
            shape,
            dims: stored.len() as i32,
            is_transposed,
        })
    }
}
