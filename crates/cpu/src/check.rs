//! From `(storage, layout)` operands to slices: every check of dtype, shape and bounds that the kernels rely on.
//!
//! `what` names the operation and the operand in the error, as in `"rope: x"`.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Result, WithDType, bail};

use crate::element::Element;
use crate::kernels::cross_entropy::Operands;
use crate::kernels::matmul::Matrix;
use crate::{CrossEntropyParams, View};

/// Ends with a candle error unless `condition` holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            candle_core::bail!($($message)+);
        }
    };
}
pub(crate) use ensure;

/// The elements of a contiguous operand.
pub(crate) fn dense<'a, T: WithDType>(
    what: &str,
    (storage, layout): View<'a, CpuStorage>,
) -> Result<&'a [T]> {
    let all = typed::<T>(what, storage)?;
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!(
            "{what} must be contiguous, not {:?} strided {:?}",
            layout.dims(),
            layout.stride()
        );
    };
    match all.get(start..end) {
        Some(slice) => Ok(slice),
        None => bail!("{what} spans {start}..{end} of a storage of {}", all.len()),
    }
}

/// The same, and exactly `len` elements.
pub(crate) fn dense_of<'a, T: WithDType>(
    what: &str,
    view: View<'a, CpuStorage>,
    len: usize,
) -> Result<&'a [T]> {
    let slice = dense(what, view)?;
    ensure!(
        slice.len() == len,
        "{what} has {} elements instead of {len}",
        slice.len()
    );
    Ok(slice)
}

/// The elements of an operand of any strides, from its start offset on; every element that its layout can
/// reach is inside.
pub(crate) fn strided<'a, T: WithDType>(
    what: &str,
    (storage, layout): View<'a, CpuStorage>,
) -> Result<&'a [T]> {
    let all = typed::<T>(what, storage)?;
    if layout.dims().contains(&0) {
        return Ok(&[]);
    }
    let start = layout.start_offset();
    let last = layout
        .dims()
        .iter()
        .zip(layout.stride())
        .map(|(dim, stride)| (dim - 1) * stride);
    let end = start + last.sum::<usize>() + 1;
    ensure!(
        end <= all.len(),
        "{what} reaches {end} of a storage of {}",
        all.len()
    );
    Ok(&all[start..])
}

/// The first `len` elements of an output.
pub(crate) fn output<'a, T: Element>(
    what: &str,
    storage: &'a mut CpuStorage,
    len: usize,
) -> Result<&'a mut [T]> {
    let dtype = storage.dtype();
    let Some(all) = T::of_mut(storage) else {
        bail!("{what} must be {:?}, not {dtype:?}", T::DTYPE);
    };
    let have = all.len();
    match all.get_mut(..len) {
        Some(slice) => Ok(slice),
        None => bail!("{what} has room for {have} elements instead of {len}"),
    }
}

fn typed<'a, T: WithDType>(what: &str, storage: &'a CpuStorage) -> Result<&'a [T]> {
    match storage.as_slice::<T>() {
        Ok(slice) => Ok(slice),
        Err(_) => bail!("{what} must be {:?}, not {:?}", T::DTYPE, storage.dtype()),
    }
}

/// `x` seen as rows of its last dim: (rows, cols).
pub(crate) fn rows_and_cols(what: &str, view: View<CpuStorage>) -> Result<(usize, usize)> {
    match view.1.dims() {
        [leading @ .., cols] => Ok((leading.iter().product(), *cols)),
        [] => bail!("{what} must have at least one dim"),
    }
}

/// The operands of a loss through a linear head, checked.
pub(crate) struct HeadLoss<'a> {
    op: &'a str,
    params: &'a CrossEntropyParams,
    hidden: View<'a, CpuStorage>,
    weight: View<'a, CpuStorage>,
    labels: &'a [i64],
    pub(crate) vocab: usize,
    pub(crate) dim: usize,
}

impl<'a> HeadLoss<'a> {
    pub(crate) fn new(
        op: &'a str,
        params: &'a CrossEntropyParams,
        hidden: View<'a, CpuStorage>,
        weight: View<'a, CpuStorage>,
        labels: View<'a, CpuStorage>,
    ) -> Result<Self> {
        let (rows, dim) = rows_and_cols(&format!("{op}: hidden"), hidden)?;
        let (vocab, weight_dim) = rows_and_cols(&format!("{op}: weight"), weight)?;
        ensure!(
            dim == weight_dim,
            "{op}: hidden rows of {dim} meet head rows of {weight_dim}"
        );
        ensure!(dim > 0, "{op}: the hidden dim is 0");
        ensure!(
            (0.0..=1.0).contains(&params.label_smoothing),
            "{op}: label_smoothing {} is not in 0..=1",
            params.label_smoothing
        );
        let labels = dense_of::<i64>(&format!("{op}: labels"), labels, rows)?;
        let in_range = |label: i64| usize::try_from(label).is_ok_and(|label| label < vocab);
        let bad = labels
            .iter()
            .find(|l| **l != params.ignore_index && !in_range(**l));
        if let Some(label) = bad {
            bail!("{op}: label {label} is not below the vocabulary of {vocab}");
        }
        Ok(Self {
            op,
            params,
            hidden,
            weight,
            labels,
            vocab,
            dim,
        })
    }

    pub(crate) fn rows(&self) -> usize {
        self.labels.len()
    }

    pub(crate) fn operands<T: Element, W: Element>(&self) -> Result<Operands<'a, T, W>> {
        Ok(Operands {
            params: self.params,
            hidden: dense(&format!("{}: hidden", self.op), self.hidden)?,
            weight: dense(&format!("{}: weight", self.op), self.weight)?,
            labels: self.labels,
            dim: self.dim,
        })
    }

    /// An output that is asked for.
    pub(crate) fn output<'b, T: Element>(
        &self,
        what: &str,
        out: Option<&'b mut CpuStorage>,
        len: usize,
    ) -> Result<Option<&'b mut [T]>> {
        out.map(|out| output(&format!("{}: {what}", self.op), out, len))
            .transpose()
    }
}

/// An operand `[B, T, H, D]` whose last dim is contiguous.
#[derive(Clone, Copy)]
pub(crate) struct Heads<'a, T> {
    data: &'a [T],
    batch_stride: usize,
    row_stride: usize,
    head_stride: usize,
}

impl<'a, T: Element> Heads<'a, T> {
    pub(crate) fn new(what: &str, view: View<'a, CpuStorage>, dims: [usize; 4]) -> Result<Self> {
        let data = strided(what, view)?;
        let layout = view.1;
        ensure!(
            layout.dims() == dims,
            "{what} is {:?} instead of {dims:?}",
            layout.dims()
        );
        let &[batch_stride, row_stride, head_stride, last] = layout.stride() else {
            bail!("{what} must have four dims, not {:?}", layout.dims());
        };
        ensure!(
            last == 1 || dims[3] <= 1,
            "the last dim of {what} must be contiguous"
        );
        Ok(Self {
            data,
            batch_stride,
            row_stride,
            head_stride,
        })
    }

    /// A dense `[B, T, H, D]`.
    pub(crate) fn dense(data: &'a [T], [_, rows, heads, dim]: [usize; 4]) -> Self {
        let (head_stride, row_stride) = (dim, heads * dim);
        Self {
            data,
            batch_stride: rows * row_stride,
            row_stride,
            head_stride,
        }
    }

    /// Everything from the first element of (`b`, `t`, `h`) on; the head's `D` elements come first.
    #[inline(always)]
    pub(crate) fn from(&self, b: usize, t: usize, h: usize) -> &'a [T] {
        &self.data[b * self.batch_stride + t * self.row_stride + h * self.head_stride..]
    }

    /// The rows of one head from `t` on, `[.., D]`.
    pub(crate) fn rows(&self, b: usize, t: usize, h: usize) -> Matrix<'a, T> {
        Matrix::rows(self.from(b, t, h), self.row_stride)
    }

    pub(crate) fn head_stride(&self) -> usize {
        self.head_stride
    }
}
