//! The device, its storages, and the account of what they would hold.
//!
//! A process on the CPU holds two kinds of buffers. Those from the pool are kept when they are given back, for the next
//! request of their size class: of each class as many as were ever live at once ([`Usage::pool_bytes`]). Those that
//! candle's own operations make go back to the system. The peak counts both, but of a pooled buffer that was never
//! given back only what was asked for: nobody has written to the rest of its class, so the system has not given it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};

use candle_core::DType;
use tt_cpu::pool::class_above;

/// What has been allocated and computed on a device so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Elements of the storages that exist, without what size classes add.
    pub live_bytes: u64,
    /// The most that was ever live at once.
    pub peak_live_bytes: u64,
    /// Held by the pool, handed out or not, size classes included.
    pub pool_bytes: u64,
    /// The most memory that was ever in use at once, in the pool and beside it.
    pub peak_bytes: u64,
    /// Floating-point operations of matrix products and attention, an addition and a multiplication counting as two.
    /// Element-wise operations are left out, as is usual: they are bound by memory.
    pub flops: u64,
    /// Of these, what a kernel of the backward pass makes again because the forward pass did not keep it.
    pub recomputed_flops: u64,
}

/// Buffers of one class.
#[derive(Default)]
struct Class {
    live: u64,
    most: u64,
}

#[derive(Default)]
struct Account {
    usage: Usage,
    classes: HashMap<(DType, usize), Class>,
    /// In use by the pool's buffers, handed out or not.
    resident_bytes: u64,
    /// Live, and not from the pool.
    unpooled_bytes: u64,
    /// Whether scratch is left out.
    is_sketch: bool,
}

/// A device without memory; each has an account of its own. Equal to its copies only.
#[derive(Clone, Copy)]
pub struct MetaDevice(&'static Mutex<Account>);

/// A storage without elements; leaves the account when it is dropped.
pub struct MetaStorage {
    device: MetaDevice,
    dtype: DType,
    len: usize,
    origin: Origin,
}

/// Where the buffer of a storage is from.
#[derive(Clone, Copy, PartialEq)]
enum Origin {
    /// Allocated for this storage, of its size class.
    Fresh,
    /// Given back to the pool by another one.
    Reused,
    /// Made by candle.
    Unpooled,
}

impl MetaDevice {
    /// With an empty account, which is never freed: a device can be copied like a number, and a process needs few.
    #[expect(
        clippy::new_without_default,
        reason = "two defaults would not be equal"
    )]
    pub fn new() -> Self {
        Self(Box::leak(Box::default()))
    }

    /// One that leaves scratch out of its account, for who wants to know what is called and not what it takes: how much
    /// scratch kernels take depends on instruction set and threads, which may not be settled yet and would be by asking.
    pub fn sketch() -> Self {
        let device = Self::new();
        device.account().is_sketch = true;
        device
    }

    pub fn usage(self) -> Usage {
        self.account().usage
    }

    /// `len` elements from the pool.
    pub fn take(self, dtype: DType, len: usize) -> MetaStorage {
        self.storage(dtype, len, Origin::Fresh)
    }

    /// Takes out of the account what the pool keeps for reuse.
    pub fn trim(self) {
        let account = &mut *self.account();
        let mut freed_bytes = 0;
        for ((dtype, elements), class) in &mut account.classes {
            let free = class.most - class.live;
            freed_bytes += free * (elements * dtype.size_in_bytes()) as u64;
            class.most = class.live;
        }
        account.usage.pool_bytes -= freed_bytes;
        account.resident_bytes -= freed_bytes;
    }

    /// `len` elements beside the pool, as candle's operations make them.
    pub(crate) fn fresh(self, dtype: DType, len: usize) -> MetaStorage {
        self.storage(dtype, len, Origin::Unpooled)
    }

    /// Takes f32 scratch of these lengths from the pool at once, and gives it back.
    pub(crate) fn scratch(self, lens: impl FnOnce() -> Vec<usize>) {
        self.scratch_in_turn(|| vec![lens()]);
    }

    /// The same for what is taken one after the other.
    pub(crate) fn scratch_in_turn(self, moments: impl FnOnce() -> Vec<Vec<usize>>) {
        if self.account().is_sketch {
            return;
        }
        for lens in moments() {
            self.take_and_give(&lens);
        }
    }

    fn take_and_give(self, lens: &[usize]) {
        let held: Vec<_> = lens.iter().map(|len| self.take(DType::F32, *len)).collect();
        drop(held);
    }

    pub(crate) fn count_flops(self, flops: usize) {
        self.account().usage.flops += flops as u64;
    }

    pub(crate) fn count_recomputed_flops(self, flops: usize) {
        self.count_flops(flops);
        self.account().usage.recomputed_flops += flops as u64;
    }

    fn storage(self, dtype: DType, len: usize, origin: Origin) -> MetaStorage {
        let mut storage = MetaStorage {
            device: self,
            dtype,
            len,
            origin,
        };
        self.account().enter(&mut storage);
        storage
    }

    fn account(self) -> MutexGuard<'static, Account> {
        self.0.lock().expect("no panic while counting")
    }
}

impl Account {
    fn enter(&mut self, storage: &mut MetaStorage) {
        let bytes = storage.bytes();
        let usage = &mut self.usage;
        usage.live_bytes += bytes;
        usage.peak_live_bytes = usage.peak_live_bytes.max(usage.live_bytes);
        if storage.origin == Origin::Unpooled {
            self.unpooled_bytes += bytes;
        } else {
            let class = self.classes.entry(storage.class()).or_default();
            class.live += 1;
            if class.live > class.most {
                class.most = class.live;
                usage.pool_bytes += storage.class_bytes();
                self.resident_bytes += bytes;
            } else {
                storage.origin = Origin::Reused;
            }
        }
        let in_use = self.resident_bytes + self.unpooled_bytes;
        usage.peak_bytes = usage.peak_bytes.max(in_use);
    }

    fn leave(&mut self, storage: &MetaStorage) {
        let bytes = storage.bytes();
        self.usage.live_bytes -= bytes;
        match storage.origin {
            Origin::Unpooled => {
                self.unpooled_bytes -= bytes;
                return;
            }
            // The pool fills what was left of the class before it keeps the buffer.
            Origin::Fresh => {
                self.resident_bytes += storage.class_bytes() - bytes;
                let in_use = self.resident_bytes + self.unpooled_bytes;
                self.usage.peak_bytes = self.usage.peak_bytes.max(in_use);
            }
            Origin::Reused => {}
        }
        self.classes.entry(storage.class()).or_default().live -= 1;
    }
}

impl MetaStorage {
    pub(crate) fn on(&self) -> MetaDevice {
        self.device
    }

    pub(crate) fn device_ref(&self) -> &MetaDevice {
        &self.device
    }

    pub(crate) fn kind(&self) -> DType {
        self.dtype
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn class(&self) -> (DType, usize) {
        (self.dtype, class_above(self.len))
    }

    fn class_bytes(&self) -> u64 {
        (class_above(self.len) * self.dtype.size_in_bytes()) as u64
    }

    fn bytes(&self) -> u64 {
        (self.len * self.dtype.size_in_bytes()) as u64
    }
}

impl Drop for MetaStorage {
    fn drop(&mut self) {
        self.device.account().leave(self);
    }
}

impl PartialEq for MetaDevice {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for MetaDevice {}

impl fmt::Debug for MetaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meta")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_given_back_serves_the_next_request_of_its_class() {
        let device = MetaDevice::new();
        let class_bytes = 4 * class_above(1000) as u64;
        for _ in 0..3 {
            drop(device.take(DType::F32, 1000));
        }
        assert_eq!(device.usage().pool_bytes, class_bytes);
        assert_eq!(device.usage().peak_bytes, class_bytes);
        let both = [1000, 999].map(|len| device.take(DType::F32, len));
        assert_eq!(device.usage().pool_bytes, 2 * class_bytes);
        assert_eq!(device.usage().live_bytes, 4 * 1999);
        let new = device.usage().peak_bytes - class_bytes;
        assert_eq!(new, 4 * 999, "the slack of a new buffer is not in use yet");
        drop(both);
        let after = device.usage();
        assert_eq!((after.live_bytes, after.pool_bytes), (0, 2 * class_bytes));
    }

    #[test]
    fn trimming_leaves_what_is_live() {
        let device = MetaDevice::new();
        let held = device.take(DType::F32, 1000);
        drop(device.take(DType::F32, 1000));
        drop(device.take(DType::F32, 9000));
        device.trim();
        let class_bytes = 4 * class_above(1000) as u64;
        assert_eq!(device.usage().pool_bytes, class_bytes);
        assert_eq!(device.usage().live_bytes, 4000);
        drop(held);
        drop(device.take(DType::F32, 1000));
        assert_eq!(device.usage().pool_bytes, class_bytes);
    }

    #[test]
    fn what_candle_makes_is_not_kept() {
        let device = MetaDevice::new();
        for _ in 0..3 {
            drop(device.fresh(DType::BF16, 100));
        }
        let usage = device.usage();
        assert_eq!((usage.peak_bytes, usage.pool_bytes), (200, 0));
        assert_eq!(usage.live_bytes, 0);
    }

    #[test]
    fn devices_have_accounts_of_their_own() {
        let (a, b) = (MetaDevice::new(), MetaDevice::new());
        let _held = a.take(DType::F32, 1);
        assert_eq!(b.usage(), Usage::default());
        assert!(a == a && a != b);
    }
}
