//! candle's backend traits: each operation gives a storage of the dtype and length that candle's would.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use candle_core::scalar::Scalar;
use candle_core::{CpuStorage, DType, DeviceLocation, Layout, Result, Shape, WithDType};

use crate::{MetaDevice, MetaStorage};

impl MetaStorage {
    /// What an operation on the elements of `layout` makes.
    fn like(&self, layout: &Layout) -> Result<Self> {
        Ok(self.on().fresh(self.dtype(), layout.shape().elem_count()))
    }

    fn typed(&self, layout: &Layout, dtype: DType) -> Result<Self> {
        Ok(self.on().fresh(dtype, layout.shape().elem_count()))
    }
}

impl BackendStorage for MetaStorage {
    type Device = MetaDevice;

    fn try_clone(&self, _: &Layout) -> Result<Self> {
        Ok(self.on().fresh(self.dtype(), self.len()))
    }

    fn dtype(&self) -> DType {
        self.kind()
    }

    fn device(&self) -> &MetaDevice {
        self.device_ref()
    }

    fn to_cpu_storage(&self) -> Result<CpuStorage> {
        CpuDevice.zeros_impl(&self.len().into(), self.dtype())
    }

    fn affine(&self, l: &Layout, _: f64, _: f64) -> Result<Self> {
        self.like(l)
    }

    fn powf(&self, l: &Layout, _: f64) -> Result<Self> {
        self.like(l)
    }

    fn elu(&self, l: &Layout, _: f64) -> Result<Self> {
        self.like(l)
    }

    fn reduce_op(&self, op: ReduceOp, l: &Layout, dims: &[usize]) -> Result<Self> {
        let kept = l.dims().iter().enumerate();
        let kept = kept.filter(|(dim, _)| !dims.contains(dim));
        let dtype = match op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => DType::U32,
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::Min => self.dtype(),
        };
        Ok(self.on().fresh(dtype, kept.map(|(_, size)| size).product()))
    }

    fn cmp(&self, _: CmpOp, _: &Self, l: &Layout, _: &Layout) -> Result<Self> {
        self.typed(l, DType::U8)
    }

    fn to_dtype(&self, l: &Layout, dtype: DType) -> Result<Self> {
        self.typed(l, dtype)
    }

    fn unary_impl<B: UnaryOpT>(&self, l: &Layout) -> Result<Self> {
        self.like(l)
    }

    fn binary_impl<B: BinaryOpT>(&self, _: &Self, l: &Layout, _: &Layout) -> Result<Self> {
        self.like(l)
    }

    fn where_cond(
        &self,
        l: &Layout,
        on_true: &Self,
        _: &Layout,
        _: &Self,
        _: &Layout,
    ) -> Result<Self> {
        on_true.like(l)
    }

    tt_cpu::unsupported_image_ops!("convolution, pooling and resampling are not counted");

    fn gather(&self, _: &Layout, _: &Self, ids: &Layout, _: usize) -> Result<Self> {
        self.like(ids)
    }

    fn scatter_set(
        &mut self,
        _: &Layout,
        _: &Self,
        _: &Layout,
        _: &Self,
        _: &Layout,
        _: usize,
    ) -> Result<()> {
        Ok(())
    }

    fn scatter_add_set(
        &mut self,
        _: &Layout,
        _: &Self,
        _: &Layout,
        _: &Self,
        _: &Layout,
        _: usize,
    ) -> Result<()> {
        Ok(())
    }

    fn index_select(&self, _: &Self, l: &Layout, ids: &Layout, dim: usize) -> Result<Self> {
        let mut dims = l.dims().to_vec();
        dims[dim] = ids.shape().elem_count();
        Ok(self.on().fresh(self.dtype(), dims.iter().product()))
    }

    fn index_add(
        &self,
        l: &Layout,
        _: &Self,
        _: &Layout,
        _: &Self,
        _: &Layout,
        _: usize,
    ) -> Result<Self> {
        self.like(l)
    }

    fn matmul(
        &self,
        _: &Self,
        (b, m, n, k): (usize, usize, usize, usize),
        _: &Layout,
        _: &Layout,
    ) -> Result<Self> {
        self.on().count_flops(2 * b * m * n * k);
        Ok(self.on().fresh(self.dtype(), b * m * n))
    }

    fn copy_strided_src(&self, _: &mut Self, _: usize, _: &Layout) -> Result<()> {
        Ok(())
    }

    fn copy2d(
        &self,
        _: &mut Self,
        _: usize,
        _: usize,
        _: usize,
        _: usize,
        _: usize,
        _: usize,
    ) -> Result<()> {
        Ok(())
    }

    fn const_set(&mut self, _: Scalar, _: &Layout) -> Result<()> {
        Ok(())
    }
}

impl BackendDevice for MetaDevice {
    type Storage = MetaStorage;

    fn new(_: usize) -> Result<Self> {
        Ok(MetaDevice::new())
    }

    /// candle has no name for it.
    fn location(&self) -> DeviceLocation {
        DeviceLocation::Cpu
    }

    fn same_device(&self, other: &Self) -> bool {
        self == other
    }

    fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<MetaStorage> {
        Ok(self.fresh(dtype, shape.elem_count()))
    }

    #[expect(
        unsafe_code,
        reason = "declared so by the trait; there is no memory to be uninitialised"
    )]
    unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<MetaStorage> {
        self.zeros_impl(shape, dtype)
    }

    fn storage_from_slice<T: WithDType>(&self, data: &[T]) -> Result<MetaStorage> {
        Ok(self.fresh(T::DTYPE, data.len()))
    }

    fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<MetaStorage> {
        self.storage_from_cpu_storage_owned(storage.clone())
    }

    fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<MetaStorage> {
        let len = match &storage {
            CpuStorage::U8(data) | CpuStorage::F6E2M3(data) | CpuStorage::F6E3M2(data) => {
                data.len()
            }
            CpuStorage::F4(data) | CpuStorage::F8E8M0(data) => data.len(),
            CpuStorage::U32(data) => data.len(),
            CpuStorage::I16(data) => data.len(),
            CpuStorage::I32(data) => data.len(),
            CpuStorage::I64(data) => data.len(),
            CpuStorage::BF16(data) => data.len(),
            CpuStorage::F16(data) => data.len(),
            CpuStorage::F32(data) => data.len(),
            CpuStorage::F64(data) => data.len(),
            CpuStorage::F8E4M3(data) => data.len(),
        };
        Ok(self.fresh(storage.dtype(), len))
    }

    fn rand_uniform(&self, shape: &Shape, dtype: DType, _: f64, _: f64) -> Result<MetaStorage> {
        self.zeros_impl(shape, dtype)
    }

    fn rand_normal(&self, shape: &Shape, dtype: DType, _: f64, _: f64) -> Result<MetaStorage> {
        self.zeros_impl(shape, dtype)
    }

    fn set_seed(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_current_seed(&self) -> Result<u64> {
        Ok(0)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}
