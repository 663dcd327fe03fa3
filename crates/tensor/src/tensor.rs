//! `Tensor`: shape, dtype and device of a shared buffer, and its place on a tape if gradients are asked for.
//!
//! Cloning is cheap and shares memory. Operations never change their operands; only parameters and
//! gradient buffers are changed in place, by [`Parameter`] and the optimizer.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{CpuStorage, DType, Layout, Shape, WithDType};
use tt_cpu::FusedOps;
use tt_tpu::TpuStorage;

use crate::device::{Backend, Buffer, Device, Output, Reading, Storage, on_device};
use crate::error::{Error, Result};
use crate::parameter::Parameter;
use crate::tape::Track;

/// An n-dimensional array on a device.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) layout: Layout,
    pub(crate) dtype: DType,
    pub(crate) device: Device,
    pub(crate) track: Option<Track>,
    /// Set if this is the whole value of a parameter, so that the tape can keep the parameter instead.
    pub(crate) weight: Option<Arc<Parameter>>,
}

impl Tensor {
    pub(crate) fn from_output(
        out: Output,
        dtype: DType,
        device: Device,
        shape: impl Into<Shape>,
    ) -> Self {
        Self {
            buffer: out.into_buffer(),
            layout: Layout::contiguous(shape),
            dtype,
            device,
            track: None,
            weight: None,
        }
    }

    /// Copies `data` to the device. Error: `data` does not have the shape's number of elements.
    pub fn from_slice<T: WithDType>(
        data: &[T],
        shape: impl Into<Shape>,
        device: Device,
    ) -> Result<Self> {
        let shape = shape.into();
        if data.len() != shape.elem_count() {
            let why = format!("{} values for shape {shape:?}", data.len());
            return Err(Error::invalid("from_slice", why));
        }
        let out = Output::upload(data, device)?;
        Ok(Self::from_output(out, T::DTYPE, device, shape))
    }

    /// A scalar tensor (shape `[]`).
    pub fn scalar<T: WithDType>(value: T, device: Device) -> Result<Self> {
        Self::from_slice(&[value], (), device)
    }

    /// f32 zeros.
    pub fn zeros(shape: impl Into<Shape>, device: Device) -> Result<Self> {
        Self::full(0.0, shape, device)
    }

    /// f32 ones.
    pub fn ones(shape: impl Into<Shape>, device: Device) -> Result<Self> {
        Self::full(1.0, shape, device)
    }

    /// An f32 tensor with one value everywhere.
    pub fn full(value: f32, shape: impl Into<Shape>, device: Device) -> Result<Self> {
        Self::filled(shape.into(), device, |out, len| {
            on_device!(device, S, out.of::<S>()?.fill(len, value)?);
            Ok(())
        })
    }

    /// A tensor whose content is unspecified: for a kernel of your own to write.
    pub fn uninitialised(shape: impl Into<Shape>, dtype: DType, device: Device) -> Result<Self> {
        let shape = shape.into();
        let out = device.alloc(dtype, shape.elem_count())?;
        Ok(Self::from_output(out, dtype, device, shape))
    }

    /// Where its elements begin in the memory of a TPU, for the arguments of a kernel. It stays there for all that is
    /// launched while this tensor lives. Error: it is elsewhere, or not contiguous.
    pub fn tpu_address(&self) -> Result<u64> {
        if !self.layout.is_contiguous() {
            let why = format!("not contiguous: {:?}", self.layout);
            return Err(Error::invalid("tpu_address", why));
        }
        let reading = self.read();
        let storage: &TpuStorage = reading.guard.of()?;
        Ok(storage.address_at(self.layout.start_offset()))
    }

    /// An f32 tensor whose `len` elements `fill` writes.
    pub(crate) fn filled(
        shape: Shape,
        device: Device,
        fill: impl FnOnce(&mut Output, usize) -> Result<()>,
    ) -> Result<Self> {
        let len = shape.elem_count();
        let mut out = device.alloc(DType::F32, len)?;
        fill(&mut out, len)?;
        Ok(Self::from_output(out, DType::F32, device, shape))
    }

    /// How many elements it has in each dim.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// The sizes of its dims.
    pub fn dims(&self) -> &[usize] {
        self.layout.dims()
    }

    /// The number of its dims.
    pub fn rank(&self) -> usize {
        self.dims().len()
    }

    /// The number of its elements: the product of its dims.
    pub fn elem_count(&self) -> usize {
        self.shape().elem_count()
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where it is.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Its shape, strides and offset in the buffer it is a view of.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Sizes of a tensor of rank 1, 2, 3 or 4. Error: another rank.
    pub fn dims_of<const N: usize>(&self, op: &'static str) -> Result<[usize; N]> {
        self.dims().try_into().map_err(|_| {
            let why = format!("expected {N} dims, got {:?}", self.shape());
            Error::invalid(op, why)
        })
    }

    /// The same buffer seen through another layout, off the tape.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        Self {
            layout,
            ..self.detach()
        }
    }

    /// True if operations on this tensor are recorded on a tape.
    pub fn is_tracked(&self) -> bool {
        self.track.is_some()
    }

    /// The same values outside the tape: no gradient flows through the result.
    pub fn detach(&self) -> Self {
        Self {
            track: None,
            weight: None,
            ..self.clone()
        }
    }

    pub(crate) fn read(&self) -> Reading<'_> {
        Reading {
            guard: self.buffer.read(),
            layout: &self.layout,
        }
    }

    /// Runs `change` on the elements in place. Only for tensors that own their whole buffer.
    pub(crate) fn write<R>(&self, change: impl FnOnce(&mut Storage) -> Result<R>) -> Result<R> {
        debug_assert!(self.layout.is_contiguous() && self.layout.start_offset() == 0);
        self.buffer.write(change)
    }

    /// True if no other tensor shares this buffer, so that it may be changed in place.
    pub(crate) fn is_sole_owner(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
            && self.layout.is_contiguous()
            && self.layout.start_offset() == 0
    }

    /// The tensor itself if it may be changed in place, else a copy.
    pub(crate) fn into_owned(self) -> Result<Self> {
        if self.is_sole_owner() {
            Ok(self)
        } else {
            self.copy()
        }
    }

    /// The sum, in the memory of `self` if nobody else sees it. Error: another shape.
    pub(crate) fn add_in_place(self, x: &Tensor) -> Result<Self> {
        let sum = self.into_owned()?;
        let x = x.contiguous()?;
        if sum.dims() != x.dims() {
            return Err(Error::shapes("accumulate", sum.shape(), x.shape()));
        }
        let reading = x.read();
        on_device!(sum.device, S, {
            sum.write(|storage| Ok(S::of_mut(storage)?.axpy(1.0, reading.view::<S>()?)?))?
        });
        drop(reading);
        Ok(sum)
    }

    pub(crate) fn expect_dtype(&self, op: &'static str, expected: DType) -> Result<()> {
        if self.dtype != expected {
            let got = self.dtype;
            return Err(Error::DTypeMismatch { op, got, expected });
        }
        Ok(())
    }

    /// The elements in row-major order, copied to the host. Error: `T` is not the tensor's dtype.
    pub fn to_vec<T: WithDType>(&self) -> Result<Vec<T>> {
        let mut out = Vec::with_capacity(self.elem_count());
        self.read_into(&mut out)?;
        Ok(out)
    }

    /// Like [`Tensor::to_vec`], into a vector that is cleared first and keeps its capacity.
    pub fn read_into<T: WithDType>(&self, out: &mut Vec<T>) -> Result<()> {
        self.read_range_into(0..self.elem_count(), out)
    }

    /// Like [`Tensor::read_into`], of the elements `range` alone. Error: it goes beyond the tensor.
    pub fn read_range_into<T: WithDType>(
        &self,
        range: Range<usize>,
        out: &mut Vec<T>,
    ) -> Result<()> {
        self.expect_dtype("to_vec", T::DTYPE)?;
        if range.end > self.elem_count() {
            let why = format!("{range:?} of {} elements", self.elem_count());
            return Err(Error::invalid("read_range_into", why));
        }
        out.clear();
        let source = self.contiguous()?;
        let reading = source.read();
        let start = source.layout.start_offset() + range.start;
        match source.device {
            Device::Cpu => {
                let storage: &CpuStorage = reading.guard.of()?;
                out.extend_from_slice(&storage.as_slice::<T>()?[start..start + range.len()]);
            }
            Device::Meta(_) => out.resize(range.len(), T::from_f64(0.0)),
            Device::Tpu(_) => {
                let storage: &TpuStorage = reading.guard.of()?;
                let host = storage.download(start, range.len())?;
                out.extend_from_slice(host.as_slice::<T>()?);
            }
        }
        Ok(())
    }

    /// The single element of a tensor, read by the host (on a device this waits for the queue).
    pub fn to_scalar<T: WithDType>(&self) -> Result<T> {
        match self.to_vec::<T>()?.as_slice() {
            [value] => Ok(*value),
            _ => {
                let why = format!("shape {:?} is not one element", self.shape());
                Err(Error::invalid("to_scalar", why))
            }
        }
    }

    /// A copy as candle's tensor on the CPU, without gradient.
    pub fn to_candle(&self) -> Result<candle_core::Tensor> {
        macro_rules! copy {
            ($t:ty) => {
                candle_core::Tensor::from_vec(
                    self.to_vec::<$t>()?,
                    self.shape().clone(),
                    &candle_core::Device::Cpu,
                )?
            };
        }
        Ok(match self.dtype {
            DType::F32 => copy!(f32),
            DType::BF16 => copy!(half::bf16),
            DType::F16 => copy!(half::f16),
            DType::U32 => copy!(u32),
            DType::I64 => copy!(i64),
            DType::U8 => copy!(u8),
            other => return Err(Error::invalid("to_candle", format!("dtype {other:?}"))),
        })
    }

    /// A copy of candle's tensor.
    pub fn from_candle(tensor: &candle_core::Tensor, device: Device) -> Result<Self> {
        let flat = tensor.flatten_all()?;
        macro_rules! copy {
            ($t:ty) => {
                Self::from_slice(&flat.to_vec1::<$t>()?, tensor.shape().clone(), device)
            };
        }
        match tensor.dtype() {
            DType::F32 => copy!(f32),
            DType::BF16 => copy!(half::bf16),
            DType::F16 => copy!(half::f16),
            DType::U32 => copy!(u32),
            DType::I64 => copy!(i64),
            DType::U8 => copy!(u8),
            other => Err(Error::invalid("from_candle", format!("dtype {other:?}"))),
        }
    }
}

impl Tensor {
    /// A copy on another device, by way of the host.
    pub(crate) fn to(&self, device: Device) -> Result<Self> {
        Self::from_candle(&self.to_candle()?, device)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dims, dtype, device) = (self.dims(), self.dtype, self.device);
        write!(f, "Tensor({dims:?}, {dtype:?}, {device:?})")
    }
}
