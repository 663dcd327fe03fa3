//! Reusable buffers, so that a training step allocates nothing once it has run.
//!
//! [`take`] hands out a [`CpuStorage`] of exactly the length asked for, its content unspecified (but always
//! initialised memory), and [`give`] returns it. Capacities are rounded up to a size class, eight per octave
//! (at most 12.5 % waste); a request is served from its own class only, so which buffer it gets never
//! depends on what else is free. Kernels take their scratch here too.
//!
//! A storage that is dropped instead of given back is not reused and stays in `live_bytes`.
//! All functions may be called from any thread.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_core::{CpuStorage, DType, WithDType};
use half::{bf16, f16};

/// What the pool holds and has handed out. Bytes count capacities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Handed out and not yet given back.
    pub live_bytes: usize,
    /// The most that was ever live at once.
    pub peak_bytes: usize,
    /// Free, waiting for reuse.
    pub pooled_bytes: usize,
    /// Requests that had to allocate.
    pub misses: usize,
}

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static POOLED: AtomicUsize = AtomicUsize::new(0);
static MISSES: AtomicUsize = AtomicUsize::new(0);

/// Below this many elements everything is one class.
const SMALLEST_CLASS: usize = 16;

/// The smallest class that holds `len` elements: what [`take`] gives room for.
pub fn class_above(len: usize) -> usize {
    if len <= SMALLEST_CLASS {
        return SMALLEST_CLASS;
    }
    let step = (1usize << (len - 1).ilog2()) / 8;
    len.div_ceil(step) * step
}

/// The largest class that fits into `capacity` elements, if any does.
fn class_below(capacity: usize) -> Option<usize> {
    if capacity < SMALLEST_CLASS {
        return None;
    }
    let step = (1usize << capacity.ilog2()) / 8;
    Some(capacity / step * step)
}

/// Free buffers of one element type by class. Every buffer on the shelf has the length of its class, so its
/// whole memory is initialised and handing it out is a `truncate`.
struct Shelf<T>(Mutex<BTreeMap<usize, Vec<Vec<T>>>>);

impl<T: Copy + Default> Shelf<T> {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn classes(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, Vec<Vec<T>>>> {
        // A panic elsewhere cannot leave the map half changed.
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn take(&self, len: usize) -> Vec<T> {
        let class = class_above(len);
        let bytes = class * size_of::<T>();
        let free = self.classes().get_mut(&class).and_then(Vec::pop);
        let mut buffer = match free {
            Some(buffer) => {
                POOLED.fetch_sub(bytes, Relaxed);
                buffer
            }
            None => {
                MISSES.fetch_add(1, Relaxed);
                vec![T::default(); class]
            }
        };
        let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
        PEAK.fetch_max(live, Relaxed);
        buffer.truncate(len);
        buffer
    }

    fn give(&self, mut buffer: Vec<T>) {
        let Some(class) = class_below(buffer.capacity()) else {
            return;
        };
        let bytes = class * size_of::<T>();
        // A storage that was not taken here (one made by candle, say) is welcome too, hence saturating.
        let _ = LIVE.fetch_update(Relaxed, Relaxed, |live| Some(live.saturating_sub(bytes)));
        // Fills only the slack between the length and its class: nothing for the usual tensor sizes.
        buffer.resize(class, T::default());
        self.classes().entry(class).or_default().push(buffer);
        POOLED.fetch_add(bytes, Relaxed);
    }

    fn trim(&self) {
        let classes = std::mem::take(&mut *self.classes());
        for (class, buffers) in classes {
            POOLED.fetch_sub(class * size_of::<T>() * buffers.len(), Relaxed);
        }
    }
}

static U8: Shelf<u8> = Shelf::new();
static U32: Shelf<u32> = Shelf::new();
static I16: Shelf<i16> = Shelf::new();
static I32: Shelf<i32> = Shelf::new();
static I64: Shelf<i64> = Shelf::new();
static BF16: Shelf<bf16> = Shelf::new();
static F16: Shelf<f16> = Shelf::new();
static F32: Shelf<f32> = Shelf::new();
static F64: Shelf<f64> = Shelf::new();

/// A storage of `len` elements with unspecified content. The sub-byte types are raw bytes, as in candle; the
/// 8-bit float is not pooled.
pub fn take(dtype: DType, len: usize) -> CpuStorage {
    match dtype {
        DType::U8 => CpuStorage::U8(U8.take(len)),
        DType::U32 => CpuStorage::U32(U32.take(len)),
        DType::I16 => CpuStorage::I16(I16.take(len)),
        DType::I32 => CpuStorage::I32(I32.take(len)),
        DType::I64 => CpuStorage::I64(I64.take(len)),
        DType::BF16 => CpuStorage::BF16(BF16.take(len)),
        DType::F16 => CpuStorage::F16(F16.take(len)),
        DType::F32 => CpuStorage::F32(F32.take(len)),
        DType::F64 => CpuStorage::F64(F64.take(len)),
        DType::F6E2M3 => CpuStorage::F6E2M3(U8.take(len)),
        DType::F6E3M2 => CpuStorage::F6E3M2(U8.take(len)),
        DType::F4 => CpuStorage::F4(U8.take(len)),
        DType::F8E8M0 => CpuStorage::F8E8M0(U8.take(len)),
        DType::F8E4M3 => CpuStorage::F8E4M3(vec![WithDType::from_f64(0.0); len]),
        other => unreachable!("candle is pinned to a version without {other:?}"),
    }
}

/// Returns a storage for reuse.
pub fn give(storage: CpuStorage) {
    match storage {
        CpuStorage::U8(buffer) => U8.give(buffer),
        CpuStorage::U32(buffer) => U32.give(buffer),
        CpuStorage::I16(buffer) => I16.give(buffer),
        CpuStorage::I32(buffer) => I32.give(buffer),
        CpuStorage::I64(buffer) => I64.give(buffer),
        CpuStorage::BF16(buffer) => BF16.give(buffer),
        CpuStorage::F16(buffer) => F16.give(buffer),
        CpuStorage::F32(buffer) => F32.give(buffer),
        CpuStorage::F64(buffer) => F64.give(buffer),
        CpuStorage::F6E2M3(buffer)
        | CpuStorage::F6E3M2(buffer)
        | CpuStorage::F4(buffer)
        | CpuStorage::F8E8M0(buffer) => U8.give(buffer),
        CpuStorage::F8E4M3(_) => {}
    }
}

pub fn stats() -> Stats {
    Stats {
        live_bytes: LIVE.load(Relaxed),
        peak_bytes: PEAK.load(Relaxed),
        pooled_bytes: POOLED.load(Relaxed),
        misses: MISSES.load(Relaxed),
    }
}

/// Starts a new peak: from now on `peak_bytes` is the most that is live at once.
pub fn reset_peak() {
    PEAK.store(LIVE.load(Relaxed), Relaxed);
}

/// Frees every buffer that waits for reuse.
pub fn trim() {
    U8.trim();
    U32.trim();
    I16.trim();
    I32.trim();
    I64.trim();
    BF16.trim();
    F16.trim();
    F32.trim();
    F64.trim();
}

/// f32 scratch of a kernel, returned to the pool when dropped.
pub(crate) struct Scratch(Vec<f32>);

/// `len` elements of scratch, content unspecified.
pub(crate) fn scratch(len: usize) -> Scratch {
    Scratch(F32.take(len))
}

/// Takes the first `len` elements off `scratch`.
pub(crate) fn carve<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (taken, rest) = std::mem::take(scratch).split_at_mut(len);
    *scratch = rest;
    taken
}

impl Deref for Scratch {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        F32.give(std::mem::take(&mut self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Result;

    #[test]
    fn a_class_holds_what_it_was_made_for_with_little_waste() {
        for len in (0..4096).chain([1 << 20, (1 << 20) + 1, 720_896, 768 * 1024]) {
            let class = class_above(len);
            assert!(class >= len, "{len} -> {class}");
            assert!(
                class <= SMALLEST_CLASS.max(len + len / 8 + 1),
                "{len} -> {class}"
            );
            assert_eq!(
                class_below(class),
                Some(class),
                "{len} -> {class} is found again"
            );
        }
        assert_eq!(
            class_above(1024 * 704),
            1024 * 704,
            "usual tensor sizes waste nothing"
        );
    }

    #[test]
    fn a_returned_buffer_is_handed_out_again() -> Result<()> {
        // A class that no other test uses, as the pool is shared by the whole process.
        let len = 98_304 + 1;
        let first = take(DType::I16, len);
        let address = i16::cpu_storage_as_slice(&first)?.as_ptr();
        give(first);
        let second = take(DType::I16, len + 5);
        let slice = i16::cpu_storage_as_slice(&second)?;
        assert_eq!(slice.len(), len + 5);
        assert_eq!(slice.as_ptr(), address);
        Ok(())
    }

    #[test]
    fn a_storage_made_elsewhere_is_accepted() -> Result<()> {
        let mut foreign = Vec::with_capacity(3_145_728);
        foreign.push(1i32);
        let address = foreign.as_ptr();
        give(CpuStorage::I32(foreign));
        let taken = take(DType::I32, 3_145_728);
        let slice = i32::cpu_storage_as_slice(&taken)?;
        assert_eq!(slice.as_ptr(), address);
        assert_eq!(slice[1], 0, "its unused capacity was initialised");
        Ok(())
    }
}
