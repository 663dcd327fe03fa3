//! A tensor's memory on the device.

use bytemuck::{NoUninit, Pod};
use candle_core::{CpuStorage, DType, Layout};
use half::{bf16, f16};
use tt_cpu::View;

use crate::device::TpuDevice;
use crate::error::{Error, Result};

/// Elements of one dtype in device memory; given back when dropped.
///
/// i64 is held as i32, since the device has no 64-bit integers; a value that does not fit is an error at upload.
pub struct TpuStorage {
    device: TpuDevice,
    address: u64,
    dtype: DType,
    len: usize,
}

impl TpuStorage {
    pub(crate) fn new(device: TpuDevice, address: u64, dtype: DType, len: usize) -> Self {
        Self {
            device,
            address,
            dtype,
            len,
        }
    }

    /// Device memory of `len` elements. Error: a dtype that the device does not have.
    pub(crate) fn bytes_of(dtype: DType, len: usize) -> Result<u64> {
        Ok(element_bytes(dtype)? as u64 * len as u64)
    }

    /// Copies `data` to the device.
    pub fn upload(device: TpuDevice, data: &CpuStorage) -> Result<Self> {
        let (dtype, len, bytes) = match data {
            CpuStorage::F32(data) => (DType::F32, data.len(), bytes(data)),
            CpuStorage::BF16(data) => (DType::BF16, data.len(), bytes(data)),
            CpuStorage::F16(data) => (DType::F16, data.len(), bytes(data)),
            CpuStorage::U32(data) => (DType::U32, data.len(), bytes(data)),
            CpuStorage::I32(data) => (DType::I32, data.len(), bytes(data)),
            CpuStorage::U8(data) => (DType::U8, data.len(), data.clone()),
            CpuStorage::I64(data) => (DType::I64, data.len(), bytes(&narrowed(data)?)),
            other => return Err(Error::DType(dtype_of(other))),
        };
        let storage = device.alloc(dtype, len)?;
        device.upload(storage.address, bytes)?;
        Ok(storage)
    }

    /// A copy on the host of `len` elements from `start`, after all that is queued.
    pub fn download(&self, start: usize, len: usize) -> Result<CpuStorage> {
        Ok(match self.dtype {
            DType::F32 => CpuStorage::F32(self.elements::<f32>(start, len)?),
            DType::BF16 => CpuStorage::BF16(self.elements::<bf16>(start, len)?),
            DType::F16 => CpuStorage::F16(self.elements::<f16>(start, len)?),
            DType::U32 => CpuStorage::U32(self.elements::<u32>(start, len)?),
            DType::I32 => CpuStorage::I32(self.elements::<i32>(start, len)?),
            DType::U8 => CpuStorage::U8(self.elements::<u8>(start, len)?),
            DType::I64 => {
                let narrow = self.elements::<i32>(start, len)?;
                CpuStorage::I64(narrow.into_iter().map(i64::from).collect())
            }
            other => return Err(Error::DType(other)),
        })
    }

    /// All elements on the host.
    pub(crate) fn to_host(&self) -> Result<CpuStorage> {
        self.download(0, self.len)
    }

    fn elements<T: Pod>(&self, start: usize, len: usize) -> Result<Vec<T>> {
        assert!(start + len <= self.len, "a view beyond its storage");
        let mut out = vec![T::zeroed(); len];
        self.device
            .download(self.address_at(start), bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    pub(crate) fn on(&self) -> TpuDevice {
        self.device
    }

    pub(crate) fn device_ref(&self) -> &TpuDevice {
        &self.device
    }

    pub(crate) fn kind(&self) -> DType {
        self.dtype
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of element `index`, for the arguments of a kernel.
    pub fn address_at(&self, index: usize) -> u64 {
        let bytes = element_bytes(self.dtype).expect("checked when allocated");
        self.address + (index * bytes) as u64
    }
}

/// Where a view begins. The caller has checked that it is contiguous or passes on its strides.
pub(crate) fn start((storage, layout): View<TpuStorage>) -> u64 {
    storage.address_at(layout.start_offset())
}

/// Elements of a view.
pub(crate) fn elements(layout: &Layout) -> usize {
    layout.shape().elem_count()
}

/// Bytes of an element in device memory.
pub(crate) fn element_bytes(dtype: DType) -> Result<usize> {
    Ok(match dtype {
        DType::U8 => 1,
        DType::BF16 | DType::F16 => 2,
        DType::F32 | DType::U32 | DType::I32 | DType::I64 => 4,
        other => return Err(Error::DType(other)),
    })
}

fn narrowed(data: &[i64]) -> Result<Vec<i32>> {
    let narrow = |&value: &i64| i32::try_from(value).map_err(|_| Error::Narrow(value));
    data.iter().map(narrow).collect()
}

fn bytes<T: NoUninit>(data: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(data).to_vec()
}

fn dtype_of(storage: &CpuStorage) -> DType {
    candle_core::backend::BackendStorage::dtype(storage)
}

impl Drop for TpuStorage {
    fn drop(&mut self) {
        let bytes = Self::bytes_of(self.dtype, self.len).expect("checked when allocated");
        self.device.give(self.address, bytes);
    }
}
