//! Where a tensor lives, and the one place that chooses a backend.
//!
//! An operation is written once, generic over [`Backend`], and run through [`on_device!`]. A new device
//! is a variant of [`Device`] and [`Storage`], an implementation of `Backend`, and an arm of the macro.

use std::sync::{Arc, RwLock, RwLockReadGuard};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::{FusedOps, View, pool};

use crate::error::{Error, Result};

/// A device that holds tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu,
}

/// The memory of a tensor on its device.
pub enum Storage {
    Cpu(CpuStorage),
}

/// A storage type of one device: candle's operations and ours.
pub(crate) trait Backend: BackendStorage + FusedOps {
    fn of(storage: &Storage) -> Result<&Self>;
    fn of_mut(storage: &mut Storage) -> Result<&mut Self>;
    fn wrap(self) -> Storage;
}

// With a single device the patterns cannot fail; a second variant turns them into DeviceMismatch.
impl Backend for CpuStorage {
    fn of(storage: &Storage) -> Result<&Self> {
        let Storage::Cpu(storage) = storage;
        Ok(storage)
    }

    fn of_mut(storage: &mut Storage) -> Result<&mut Self> {
        let Storage::Cpu(storage) = storage;
        Ok(storage)
    }

    fn wrap(self) -> Storage {
        Storage::Cpu(self)
    }
}

/// Runs an expression with the type name `$backend` bound to the device's storage.
macro_rules! on_device {
    ($device:expr, $backend:ident, $body:expr) => {
        match $device {
            $crate::device::Device::Cpu => {
                type $backend = candle_core::CpuStorage;
                $body
            }
        }
    };
}
pub(crate) use on_device;

impl Device {
    /// The instruction set that kernels run with: another one rounds differently.
    pub fn instruction_set(self) -> &'static str {
        match self {
            Device::Cpu => tt_cpu::isa(),
        }
    }

    /// A buffer of `len` elements from the device's pool; its content is unspecified.
    pub(crate) fn alloc(self, dtype: DType, len: usize) -> Output {
        let storage = match self {
            Device::Cpu => Storage::Cpu(pool::take(dtype, len)),
        };
        Output { storage }
    }
}

/// A storage being written by the operation that made it; nobody else sees it yet.
pub(crate) struct Output {
    storage: Storage,
}

impl Output {
    pub fn of<S: Backend>(&mut self) -> Result<&mut S> {
        S::of_mut(&mut self.storage)
    }

    pub fn from_backend<S: Backend>(storage: S) -> Self {
        Self {
            storage: storage.wrap(),
        }
    }

    pub fn into_buffer(self) -> Arc<Buffer> {
        Arc::new(Buffer(RwLock::new(Some(self.storage))))
    }
}

/// A storage shared by the tensors that view it; returns to the pool with the last of them.
pub(crate) struct Buffer(RwLock<Option<Storage>>);

impl Buffer {
    /// Reads the storage. A poisoned lock means that a kernel panicked half-way: pass the panic on.
    pub fn read(&self) -> ReadGuard<'_> {
        ReadGuard(self.0.read().expect("a kernel panicked while writing"))
    }

    /// Changes the storage in place.
    pub fn write<R>(&self, change: impl FnOnce(&mut Storage) -> Result<R>) -> Result<R> {
        let mut guard = self.0.write().expect("a kernel panicked while writing");
        change(guard.as_mut().expect("present until dropped"))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Ok(slot) = self.0.get_mut() {
            match slot.take() {
                Some(Storage::Cpu(storage)) => pool::give(storage),
                None => {}
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
