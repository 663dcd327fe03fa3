//! From `(storage, layout)` operands to device addresses: every check of dtype, shape and bounds that kernels rely on.
//!
//! `what` names the operation and the operand in the error, as in `"attention: q"`.

use candle_core::DType;
use tt_cpu::View;

use crate::error::{Error, Result};
use crate::storage::{TpuStorage, start};

/// Ends with [`Error::Operand`] unless `condition` holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::error::Error::Operand(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// The address of a contiguous operand of `len` elements.
pub(crate) fn dense(what: &str, view: View<TpuStorage>, dtype: DType, len: usize) -> Result<u64> {
    let (storage, layout) = view;
    expect_dtype(what, storage.kind(), dtype)?;
    let Some((first, end)) = layout.contiguous_offsets() else {
        let (dims, stride) = (layout.dims(), layout.stride());
        return Err(Error::Operand(format!(
            "{what} must be contiguous, not {dims:?} strided {stride:?}"
        )));
    };
    let have = end - first;
    ensure!(have == len, "{what} has {have} elements instead of {len}");
    let room = storage.len();
    ensure!(
        end <= room,
        "{what} spans {first}..{end} of a storage of {room}"
    );
    Ok(start(view))
}

/// The address of an output with room for `len` elements.
pub(crate) fn output(what: &str, storage: &TpuStorage, dtype: DType, len: usize) -> Result<u64> {
    expect_dtype(what, storage.kind(), dtype)?;
    let room = storage.len();
    ensure!(
        len <= room,
        "{what} has room for {room} elements instead of {len}"
    );
    Ok(storage.address_at(0))
}

/// Strides of an operand `[B, T, H, D]` whose last dim is contiguous, in elements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heads {
    pub address: u64,
    pub batch: i64,
    pub row: i32,
    pub head: i32,
}

impl Heads {
    pub(crate) fn new(
        what: &str,
        view: View<TpuStorage>,
        dtype: DType,
        dims: [usize; 4],
    ) -> Result<Self> {
        let (storage, layout) = view;
        expect_dtype(what, storage.kind(), dtype)?;
        let have = layout.dims();
        ensure!(have == dims, "{what} is {have:?} instead of {dims:?}");
        let &[batch, row, head, last] = layout.stride() else {
            unreachable!("four dims have four strides");
        };
        ensure!(
            last == 1 || dims[3] <= 1,
            "the last dim of {what} must be contiguous"
        );
        if !dims.contains(&0) {
            let reach = dims
                .iter()
                .zip(layout.stride())
                .map(|(dim, stride)| (dim - 1) * stride);
            let end = layout.start_offset() + reach.sum::<usize>() + 1;
            let room = storage.len();
            ensure!(end <= room, "{what} reaches {end} of a storage of {room}");
        }
        let narrow = |stride: usize| {
            let why = || Error::Operand(format!("{what} has a stride of {stride}"));
            i32::try_from(stride).map_err(|_| why())
        };
        Ok(Self {
            address: start(view),
            batch: batch as i64,
            row: narrow(row)?,
            head: narrow(head)?,
        })
    }
}

fn expect_dtype(what: &str, have: DType, want: DType) -> Result<()> {
    ensure!(have == want, "{what} must be {want:?}, not {have:?}");
    Ok(())
}
