//! `y[i] = value`.

use candle_core::{DType, Layout};
use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::launch::{code, kernels};
use crate::ops::copy::{self, Dim};
use crate::storage::{TpuStorage, elements};
use crate::traffic::{Operand, Traffic};

kernels! {
    Fill = "fill" {
        y: u64,
        n: u64,
        /// Of one element.
        bits: u32,
        dtype: u32,
    }
}

impl Traffic for Fill {
    fn operands(&self) -> Vec<Operand> {
        vec![Operand::write("y", [self.n as i64], self.dtype)]
    }
}

/// Sets elements `0..len`.
pub(crate) fn fill(y: &mut TpuStorage, len: usize, value: f64) -> Result<()> {
    assert!(len <= y.len(), "fill: {len} of {} elements", y.len());
    if len == 0 {
        return Ok(());
    }
    let dtype = y.kind();
    let bits = match dtype {
        DType::F32 => (value as f32).to_bits(),
        DType::BF16 => bf16::from_f64(value).to_bits().into(),
        DType::F16 => f16::from_f64(value).to_bits().into(),
        DType::U8 => (value as u8).into(),
        DType::U32 => value as u32,
        DType::I64 if i32::try_from(value as i64).is_err() => {
            return Err(Error::Narrow(value as i64));
        }
        DType::I32 | DType::I64 => value as i32 as u32,
        other => return Err(Error::DType(other)),
    };
    y.on().launch(Fill {
        y: y.address_at(0),
        n: len as u64,
        bits,
        dtype: code(dtype)?,
        ..Fill::default()
    })
}

/// Sets the elements of a view: one element, copied to all.
pub(crate) fn fill_view(y: &mut TpuStorage, layout: &Layout, value: f64) -> Result<()> {
    if layout.is_contiguous() && layout.start_offset() == 0 {
        return fill(y, elements(layout), value);
    }
    let mut one = y.on().alloc(y.kind(), 1)?;
    fill(&mut one, 1, value)?;
    let strided = layout.dims().iter().zip(layout.stride());
    let dims: Vec<Dim> = strided
        .map(|(&size, &dst)| Dim { size, src: 0, dst })
        .collect();
    copy::copy(&one, 0, y, layout.start_offset(), &dims)
}
