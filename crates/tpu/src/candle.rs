//! candle's backend traits. What has no kernel runs on the CPU, counted.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use candle_core::scalar::Scalar;
use candle_core::{CpuStorage, DType, DeviceLocation, Layout, Result, Shape, WithDType};

use tt_cpu::Write;

use crate::ops::binary::{self, Function as Binary};
use crate::ops::index::{self, Element};
use crate::ops::unary::{self, Function as Unary};
use crate::{Options, TpuDevice, TpuStorage, fallback, ops};

impl TpuStorage {
    /// The result of the CPU on this storage.
    fn on_cpu(
        &self,
        op: &'static str,
        body: impl FnOnce(&CpuStorage) -> Result<CpuStorage>,
    ) -> Result<Self> {
        fallback::compute(self.on(), op, || body(&self.to_host()?))
    }
}

impl BackendStorage for TpuStorage {
    type Device = TpuDevice;

    fn try_clone(&self, _: &Layout) -> Result<Self> {
        let mut copy = self.on().alloc(self.kind(), self.len())?;
        ops::copy::into_order((self, &Layout::contiguous(self.len())), &mut copy, 0)?;
        Ok(copy)
    }

    fn dtype(&self) -> DType {
        self.kind()
    }

    fn device(&self) -> &TpuDevice {
        self.device_ref()
    }

    fn to_cpu_storage(&self) -> Result<CpuStorage> {
        Ok(self.to_host()?)
    }

    fn affine(&self, l: &Layout, mul: f64, add: f64) -> Result<Self> {
        Ok(unary::map(
            Unary::Affine,
            [mul, add],
            (self, l),
            self.kind(),
        )?)
    }

    fn powf(&self, l: &Layout, exponent: f64) -> Result<Self> {
        Ok(unary::map(
            Unary::Powf,
            [exponent, 0.0],
            (self, l),
            self.kind(),
        )?)
    }

    fn elu(&self, l: &Layout, alpha: f64) -> Result<Self> {
        Ok(unary::map(
            Unary::Elu,
            [alpha, 0.0],
            (self, l),
            self.kind(),
        )?)
    }

    fn reduce_op(&self, op: ReduceOp, l: &Layout, dims: &[usize]) -> Result<Self> {
        if !self.kind().is_float() {
            return self.on_cpu("reduce", |x| x.reduce_op(op, l, dims));
        }
        Ok(ops::reduce::reduce(op.into(), (self, l), dims)?)
    }

    fn cmp(&self, op: CmpOp, other: &Self, l: &Layout, other_l: &Layout) -> Result<Self> {
        Ok(binary::map(
            op.into(),
            (self, l),
            (other, other_l),
            DType::U8,
        )?)
    }

    fn to_dtype(&self, l: &Layout, dtype: DType) -> Result<Self> {
        Ok(unary::map(Unary::Cast, [0.0; 2], (self, l), dtype)?)
    }

    fn unary_impl<B: UnaryOpT>(&self, l: &Layout) -> Result<Self> {
        match Unary::named(B::NAME) {
            Some(f) if self.kind().is_float() => {
                Ok(unary::map(f, [0.0; 2], (self, l), self.kind())?)
            }
            _ => self.on_cpu(B::NAME, |x| x.unary_impl::<B>(l)),
        }
    }

    fn binary_impl<B: BinaryOpT>(
        &self,
        other: &Self,
        l: &Layout,
        other_l: &Layout,
    ) -> Result<Self> {
        if let (Some(f), true) = (Binary::named(B::NAME), self.kind().is_float()) {
            return Ok(binary::map(f, (self, l), (other, other_l), self.kind())?);
        }
        self.on_cpu(B::NAME, |x| {
            x.binary_impl::<B>(&other.to_host()?, l, other_l)
        })
    }

    fn where_cond(
        &self,
        l: &Layout,
        on_true: &Self,
        on_true_l: &Layout,
        on_false: &Self,
        on_false_l: &Layout,
    ) -> Result<Self> {
        Ok(binary::choose(
            (self, l),
            (on_true, on_true_l),
            (on_false, on_false_l),
        )?)
    }

    tt_cpu::unsupported_image_ops!(
        "convolution, pooling and resampling are not implemented on the TPU"
    );

    fn gather(&self, l: &Layout, ids: &Self, ids_l: &Layout, dim: usize) -> Result<Self> {
        Ok(index::gather((self, l), (ids, ids_l), dim)?)
    }

    fn scatter_set(
        &mut self,
        l: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<()> {
        Ok(index::scatter(
            Element::Scatter,
            (self, l),
            (ids, ids_l),
            (src, src_l),
            dim,
        )?)
    }

    fn scatter_add_set(
        &mut self,
        l: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<()> {
        Ok(index::scatter(
            Element::ScatterAdd,
            (self, l),
            (ids, ids_l),
            (src, src_l),
            dim,
        )?)
    }

    fn index_select(&self, ids: &Self, l: &Layout, ids_l: &Layout, dim: usize) -> Result<Self> {
        Ok(index::select((self, l), (ids, ids_l), dim)?)
    }

    fn index_add(
        &self,
        l: &Layout,
        ids: &Self,
        ids_l: &Layout,
        src: &Self,
        src_l: &Layout,
        dim: usize,
    ) -> Result<Self> {
        Ok(index::add((self, l), (ids, ids_l), (src, src_l), dim)?)
    }

    fn matmul(
        &self,
        other: &Self,
        bmnk: (usize, usize, usize, usize),
        l: &Layout,
        other_l: &Layout,
    ) -> Result<Self> {
        let (batch, m, n, _) = bmnk;
        let mut out = self.on().alloc(self.kind(), batch * m * n)?;
        ops::matmul::matmul((self, l), (other, other_l), &mut out, Write::Assign)?;
        Ok(out)
    }

    fn copy_strided_src(&self, dst: &mut Self, dst_offset: usize, l: &Layout) -> Result<()> {
        Ok(ops::copy::into_order((self, l), dst, dst_offset)?)
    }

    fn copy2d(
        &self,
        dst: &mut Self,
        d1: usize,
        d2: usize,
        src_stride: usize,
        dst_stride: usize,
        src_offset: usize,
        dst_offset: usize,
    ) -> Result<()> {
        let rows = ops::copy::Dim {
            size: d1,
            src: src_stride,
            dst: dst_stride,
        };
        let columns = ops::copy::Dim {
            size: d2,
            src: 1,
            dst: 1,
        };
        Ok(ops::copy::copy(
            self,
            src_offset,
            dst,
            dst_offset,
            &[rows, columns],
        )?)
    }

    fn const_set(&mut self, value: Scalar, l: &Layout) -> Result<()> {
        Ok(ops::fill::fill_view(self, l, value.to_f64())?)
    }
}

impl BackendDevice for TpuDevice {
    type Storage = TpuStorage;

    fn new(_: usize) -> Result<Self> {
        Ok(TpuDevice::open(&Options::default())?)
    }

    /// candle has no name for it.
    fn location(&self) -> DeviceLocation {
        DeviceLocation::Cpu
    }

    fn same_device(&self, other: &Self) -> bool {
        self == other
    }

    fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<TpuStorage> {
        let mut storage = self.alloc(dtype, shape.elem_count())?;
        ops::fill::fill(&mut storage, shape.elem_count(), 0.0)?;
        Ok(storage)
    }

    unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<TpuStorage> {
        Ok(self.alloc(dtype, shape.elem_count())?)
    }

    fn storage_from_slice<T: WithDType>(&self, data: &[T]) -> Result<TpuStorage> {
        self.storage_from_cpu_storage_owned(T::to_cpu_storage(data))
    }

    fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<TpuStorage> {
        Ok(TpuStorage::upload(*self, storage)?)
    }

    fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<TpuStorage> {
        self.storage_from_cpu_storage(&storage)
    }

    /// Drawn on the host: candle's generator is the host's.
    fn rand_uniform(&self, shape: &Shape, dtype: DType, low: f64, high: f64) -> Result<TpuStorage> {
        self.storage_from_cpu_storage_owned(CpuDevice.rand_uniform(shape, dtype, low, high)?)
    }

    /// Drawn on the host: candle's generator is the host's.
    fn rand_normal(&self, shape: &Shape, dtype: DType, mean: f64, std: f64) -> Result<TpuStorage> {
        self.storage_from_cpu_storage_owned(CpuDevice.rand_normal(shape, dtype, mean, std)?)
    }

    fn set_seed(&self, seed: u64) -> Result<()> {
        CpuDevice.set_seed(seed)
    }

    fn get_current_seed(&self) -> Result<u64> {
        CpuDevice.get_current_seed()
    }

    fn synchronize(&self) -> Result<()> {
        Ok(TpuDevice::synchronize(*self)?)
    }
}
