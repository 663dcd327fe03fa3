//! Where a tensor lives, and the one place that chooses a backend.
//!
//! An operation is written once, generic over [`Backend`], and run through [`on_device!`]. A new device
//! is a variant of [`Device`] and [`Storage`], an implementation of `Backend`, and an arm of the macro.

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{CpuStorage, DType, Layout, WithDType};
use tt_cpu::{FusedOps, View, pool};
use tt_meta::{MetaDevice, MetaStorage};
use tt_tpu::{TpuDevice, TpuStorage};

use crate::error::{Error, Result};

/// A device that holds tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// This machine's memory and cores.
    Cpu,
    /// Holds nothing and computes nothing, but counts what the CPU would: for plans.
    Meta(MetaDevice),
    /// A Sophgo TPU, or its emulator.
    Tpu(TpuDevice),
}

/// The memory of a tensor on its device.
pub enum Storage {
    Cpu(CpuStorage),
    Meta(MetaStorage),
    Tpu(TpuStorage),
}

/// A storage type of one device: candle's operations and ours.
pub(crate) trait Backend: BackendStorage + FusedOps {
    fn of(storage: &Storage) -> Result<&Self>;
    fn of_mut(storage: &mut Storage) -> Result<&mut Self>;
    fn wrap(self) -> Storage;
}

/// Says which variant of [`Storage`] a storage type is.
macro_rules! backend {
    ($variant:ident, $storage:ty) => {
        impl Backend for $storage {
            fn of(storage: &Storage) -> Result<&Self> {
                match storage {
                    Storage::$variant(storage) => Ok(storage),
                    _ => Err(Error::DeviceMismatch { op: "read" }),
                }
            }

            fn of_mut(storage: &mut Storage) -> Result<&mut Self> {
                match storage {
                    Storage::$variant(storage) => Ok(storage),
                    _ => Err(Error::DeviceMismatch { op: "write" }),
                }
            }

            fn wrap(self) -> Storage {
                Storage::$variant(self)
            }
        }
    };
}

backend!(Cpu, CpuStorage);
backend!(Meta, MetaStorage);
backend!(Tpu, TpuStorage);

/// Runs an expression with the type name `$backend` bound to the device's storage.
macro_rules! on_device {
    ($device:expr, $backend:ident, $body:expr) => {{
        let _span = $crate::profile::kernel(module_path!());
        match $device {
            $crate::device::Device::Cpu => {
                type $backend = candle_core::CpuStorage;
                $body
            }
            $crate::device::Device::Meta(_) => {
                type $backend = tt_meta::MetaStorage;
                $body
            }
            $crate::device::Device::Tpu(_) => {
                type $backend = tt_tpu::TpuStorage;
                $body
            }
        }
    }};
}
pub(crate) use on_device;

impl Device {
    /// The instruction set that kernels run with: another one rounds differently.
    pub fn instruction_set(self) -> &'static str {
        match self {
            Device::Cpu => tt_cpu::isa(),
            Device::Meta(_) => "none",
            Device::Tpu(_) => "tpu",
        }
    }

    /// Gives back to the system what is kept for reuse. For after a time with buffers unlike those that will be needed.
    pub fn trim(self) {
        match self {
            Device::Cpu => pool::trim(),
            Device::Meta(device) => device.trim(),
            Device::Tpu(device) => device.trim(),
        }
    }

    /// A buffer of `len` elements from the device's pool; its content is unspecified.
    pub(crate) fn alloc(self, dtype: DType, len: usize) -> Result<Output> {
        let storage = match self {
            Device::Cpu => Storage::Cpu(pool::take(dtype, len)),
            Device::Meta(device) => Storage::Meta(device.take(dtype, len)),
            Device::Tpu(device) => Storage::Tpu(device.alloc(dtype, len)?),
        };
        Ok(Output {
            storage,
            is_pooled: true,
        })
    }
}

/// A storage being written by the operation that made it; nobody else sees it yet.
pub(crate) struct Output {
    storage: Storage,
    is_pooled: bool,
}

impl Output {
    pub fn of<S: Backend>(&mut self) -> Result<&mut S> {
        S::of_mut(&mut self.storage)
    }

    /// A storage that one of candle's operations has made.
    pub fn from_backend<S: Backend>(storage: S) -> Self {
        Self {
            storage: storage.wrap(),
            is_pooled: false,
        }
    }

    /// Copies `data` to the device.
    pub fn upload<T: WithDType>(data: &[T], device: Device) -> Result<Self> {
        Ok(match device {
            Device::Cpu => {
                // Filling a pooled vector, not a fresh one, keeps the input path of a step free of allocation.
                let mut values = T::cpu_storage_data(pool::take(T::DTYPE, data.len()))?;
                values.copy_from_slice(data);
                Self {
                    storage: Storage::Cpu(T::to_cpu_storage_owned(values)),
                    is_pooled: true,
                }
            }
            Device::Meta(_) => device.alloc(T::DTYPE, data.len())?,
            Device::Tpu(device) => Self::from_backend(device.storage_from_slice(data)?),
        })
    }

    pub fn into_buffer(self) -> Arc<Buffer> {
        Arc::new(Buffer {
            storage: RwLock::new(Some(self.storage)),
            is_pooled: self.is_pooled,
        })
    }
}

/// A storage shared by the tensors that view it; returns to the pool with the last of them.
pub(crate) struct Buffer {
    storage: RwLock<Option<Storage>>,
    /// What candle made goes back to the system: nothing takes it from the pool, which would only grow.
    is_pooled: bool,
}

impl Buffer {
    /// Reads the storage. A poisoned lock means that a kernel panicked half-way: pass the panic on.
    pub fn read(&self) -> ReadGuard<'_> {
        ReadGuard(
            self.storage
                .read()
                .expect("a kernel panicked while writing"),
        )
    }

    /// Holds the storage for writing, where several are changed at once.
    pub fn lock(&self) -> WriteGuard<'_> {
        WriteGuard(
            self.storage
                .write()
                .expect("a kernel panicked while writing"),
        )
    }

    /// Changes the storage in place.
    pub fn write<R>(&self, change: impl FnOnce(&mut Storage) -> Result<R>) -> Result<R> {
        let mut guard = self
            .storage
            .write()
            .expect("a kernel panicked while writing");
        change(guard.as_mut().expect("present until dropped"))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.is_pooled {
            return;
        }
        if let Ok(slot) = self.storage.get_mut() {
            match slot.take() {
                Some(Storage::Cpu(storage)) => pool::give(storage),
                Some(Storage::Meta(_) | Storage::Tpu(_)) | None => {} // theirs to keep account of
            }
        }
    }
}

pub(crate) struct ReadGuard<'a>(RwLockReadGuard<'a, Option<Storage>>);

impl ReadGuard<'_> {
    pub fn of<S: Backend>(&self) -> Result<&S> {
        S::of(self.0.as_ref().expect("present until dropped"))
    }
}

pub(crate) struct WriteGuard<'a>(RwLockWriteGuard<'a, Option<Storage>>);

impl WriteGuard<'_> {
    pub fn of_mut<S: Backend>(&mut self) -> Result<&mut S> {
        S::of_mut(self.0.as_mut().expect("present until dropped"))
    }
}

/// A tensor's storage held for reading together with its layout.
pub(crate) struct Reading<'a> {
    pub(crate) guard: ReadGuard<'a>,
    pub(crate) layout: &'a Layout,
}

impl Reading<'_> {
    pub fn view<S: Backend>(&self) -> Result<View<'_, S>> {
        Ok((self.guard.of()?, self.layout))
    }
}

/// Fails unless all operands of `op` share a device, which it returns.
pub(crate) fn common_device(op: &'static str, devices: &[Device]) -> Result<Device> {
    match devices.split_first() {
        Some((first, rest)) if rest.iter().all(|d| d == first) => Ok(*first),
        _ => Err(Error::DeviceMismatch { op }),
    }
}
