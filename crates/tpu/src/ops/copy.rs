//! Copies between layouts: what makes a permuted, sliced or expanded view lie in order, and what joins tensors.

use std::borrow::Cow;

use candle_core::Layout;
use tt_cpu::View;

use crate::error::{Error, Result};
use crate::launch::kernels;
use crate::storage::{TpuStorage, element_bytes, elements};
use crate::traffic::{Access, Operand, Traffic};

const DIMS: usize = 8;
/// Dims that one command of the DMA engine has.
const INNER: usize = 4;
/// The longest dim of a command that the kernel asks for.
const MAX_DMA_DIM: usize = 32768;
const CORES: usize = 8;

kernels! {
    StridedCopy = "strided_copy" {
        src: u64,
        dst: u64,
        src_stride: [i64; DIMS],
        dst_stride: [i64; DIMS],
        shape: [i32; DIMS],
        step: [i32; DIMS],
        /// Of an element.
        bytes: u32,
        reserved: u32,
    }
}

impl Traffic for StridedCopy {
    fn operands(&self) -> Vec<Operand> {
        let shape = self.shape.map(i64::from);
        // What is repeated is there once.
        let mut read = shape;
        for (size, stride) in read.iter_mut().zip(self.src_stride) {
            *size = if stride == 0 { 1 } else { *size };
        }
        vec![
            Operand::of_bytes("src", Access::Read, read, self.bytes),
            Operand::of_bytes("dst", Access::Write, shape, self.bytes),
        ]
    }
}

/// One dim of a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dim {
    pub size: usize,
    /// In elements.
    pub src: usize,
    pub dst: usize,
}

/// A view whose elements lie in order: the same one, or a copy of it.
pub(crate) struct Contiguous<'a> {
    pub(crate) copy: Option<TpuStorage>,
    view: View<'a, TpuStorage>,
    layout: Cow<'a, Layout>,
}

impl<'a> Contiguous<'a> {
    /// The view as it is, by a caller who has looked at its strides.
    pub(crate) fn of(view: View<'a, TpuStorage>) -> Self {
        let layout = Cow::Borrowed(view.1);
        Self {
            copy: None,
            view,
            layout,
        }
    }

    pub(crate) fn view(&self) -> View<'_, TpuStorage> {
        (self.copy.as_ref().unwrap_or(self.view.0), &self.layout)
    }
}

/// Copies the elements of a view into order, if they do not lie so.
pub(crate) fn contiguous(view: View<TpuStorage>) -> Result<Contiguous> {
    let (storage, layout) = view;
    if layout.is_contiguous() {
        return Ok(Contiguous::of(view));
    }
    let mut copy = storage.on().alloc(storage.kind(), elements(layout))?;
    into_order(view, &mut copy, 0)?;
    let layout = Cow::Owned(Layout::contiguous(layout.shape()));
    Ok(Contiguous {
        copy: Some(copy),
        view,
        layout,
    })
}

/// The same, but a view that repeats one element is that element.
pub(crate) fn one_or_all(view: View<TpuStorage>) -> Result<Contiguous> {
    let layout = view.1;
    let repeats = layout
        .stride()
        .iter()
        .zip(layout.dims())
        .all(|(stride, size)| *stride == 0 || *size == 1);
    if !repeats || elements(layout) == 0 {
        return contiguous(view);
    }
    let one = Layout::contiguous_with_offset(1, layout.start_offset());
    Ok(Contiguous {
        layout: Cow::Owned(one),
        ..Contiguous::of(view)
    })
}

/// Copies the elements of `src` in order to `dst`, from its element `offset` on.
pub(crate) fn into_order(src: View<TpuStorage>, dst: &mut TpuStorage, offset: usize) -> Result<()> {
    let (storage, layout) = src;
    let mut stride = 1;
    let mut dims: Vec<Dim> = layout
        .dims()
        .iter()
        .zip(layout.stride())
        .rev()
        .map(|(&size, &src)| {
            let dim = Dim {
                size,
                src,
                dst: stride,
            };
            stride *= size;
            dim
        })
        .collect();
    dims.reverse();
    copy(storage, layout.start_offset(), dst, offset, &dims)
}

/// Copies element by element over `dims`, outermost first.
pub(crate) fn copy(
    src: &TpuStorage,
    src_offset: usize,
    dst: &mut TpuStorage,
    dst_offset: usize,
    dims: &[Dim],
) -> Result<()> {
    if dims.iter().any(|dim| dim.size == 0) {
        return Ok(());
    }
    let reach = |offset: usize, stride: fn(&Dim) -> usize| {
        offset
            + dims
                .iter()
                .map(|dim| (dim.size - 1) * stride(dim))
                .sum::<usize>()
    };
    assert!(
        reach(src_offset, |dim| dim.src) < src.len(),
        "copy: a view beyond its storage"
    );
    assert!(
        reach(dst_offset, |dim| dim.dst) < dst.len(),
        "copy: a view beyond its storage"
    );
    assert_eq!(src.kind(), dst.kind(), "copy: two dtypes");
    let dims = merged(dims)?;
    let mut args = StridedCopy {
        src: src.address_at(src_offset),
        dst: dst.address_at(dst_offset),
        bytes: element_bytes(src.kind())? as u32,
        ..StridedCopy::default()
    };
    for (i, dim) in dims.iter().enumerate() {
        args.shape[i] = narrow(dim.size)?;
        args.src_stride[i] = dim.src as i64;
        args.dst_stride[i] = dim.dst as i64;
        if i >= INNER {
            narrow(dim.src)?;
            narrow(dim.dst)?;
        }
        args.step[i] = if i < INNER {
            1
        } else {
            dim.size.min(MAX_DMA_DIM) as i32
        };
    }
    // A single command is shared out between the cores along its first dim that has elements for it.
    let commands: i64 = dims
        .iter()
        .zip(args.step)
        .map(|(dim, step)| dim.size as i64 / i64::from(step))
        .product();
    if commands < CORES as i64
        && let Some(i) = (INNER..DIMS).find(|&i| dims[i].size >= CORES)
    {
        args.step[i] = args.step[i].min(dims[i].size.div_ceil(CORES) as i32);
    }
    src.on().launch(args)
}

/// The same copy over exactly [`DIMS`] dims, the last with stride 1 on both sides.
fn merged(dims: &[Dim]) -> Result<[Dim; DIMS]> {
    let mut kept: Vec<Dim> = Vec::with_capacity(DIMS + 1);
    for dim in dims.iter().filter(|dim| dim.size > 1) {
        match kept.last_mut() {
            // Steps of the one before are as long as this whole dim: they are one dim.
            Some(last)
                if last.src == dim.src * dim.size
                    && last.dst == dim.dst * dim.size
                    && last.size * dim.size <= i32::MAX as usize =>
            {
                *last = Dim {
                    size: last.size * dim.size,
                    ..*dim
                };
            }
            _ => kept.push(*dim),
        }
    }
    let unit = Dim {
        size: 1,
        src: 1,
        dst: 1,
    };
    if kept
        .last()
        .is_none_or(|last| last.src != 1 || last.dst != 1)
    {
        kept.push(unit);
    }
    // A long run as rows: cores share rows, and no core starts in the middle of a word.
    if let [run] = kept[..]
        && run.size > MAX_DMA_DIM
        && let Some(width) = (CORES..=MAX_DMA_DIM)
            .rev()
            .find(|width| run.size % width == 0)
    {
        kept = vec![
            Dim {
                size: run.size / width,
                src: width,
                dst: width,
            },
            Dim { size: width, ..run },
        ];
    }
    if kept.len() > DIMS {
        return Err(Error::Rank(kept.len()));
    }
    let mut dims = [unit; DIMS];
    dims[DIMS - kept.len()..].copy_from_slice(&kept);
    Ok(dims)
}

fn narrow(value: usize) -> Result<i32> {
    i32::try_from(value).map_err(|_| Error::Narrow(value as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dim(size: usize, src: usize, dst: usize) -> Dim {
        Dim { size, src, dst }
    }

    #[test]
    fn dims_that_lie_in_order_are_one() {
        let dims = merged(&[dim(3, 20, 20), dim(1, 99, 99), dim(4, 5, 5), dim(5, 1, 1)]).unwrap();
        assert_eq!(dims[DIMS - 1], dim(60, 1, 1));
    }

    #[test]
    fn a_transposed_last_dim_is_followed_by_one_of_a_single_element() {
        let dims = merged(&[dim(3, 1, 4), dim(4, 3, 1)]).unwrap();
        assert_eq!(dims[DIMS - 3..], [dim(3, 1, 4), dim(4, 3, 1), dim(1, 1, 1)]);
    }
}
