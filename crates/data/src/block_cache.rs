//! Decoded blocks, kept while they are in use by several workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::DataError;

/// The last blocks that were asked for, as many as fit into `capacity` bytes, and one at least. A block that several
/// workers want at a time is decoded by one, while the others wait; other blocks are decoded meanwhile.
pub(crate) struct BlockCache<T> {
    capacity: u64,
    /// Those used last stand last.
    slots: Mutex<Vec<Slot<T>>>,
}

struct Slot<T> {
    block: usize,
    bytes: u64,
    content: Arc<Mutex<Option<Arc<T>>>>,
}

impl<T> BlockCache<T> {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            slots: Mutex::new(Vec::new()),
        }
    }

    /// Block `block`, by `decode` if it is not here, which gives its bytes too.
    pub(crate) fn get(
        &self,
        block: usize,
        decode: impl FnOnce() -> Result<(T, u64), DataError>,
    ) -> Result<Arc<T>, DataError> {
        let content = {
            let mut slots = lock(&self.slots);
            let slot = match slots.iter().position(|slot| slot.block == block) {
                Some(at) => slots.remove(at),
                None => Slot {
                    block,
                    bytes: 0,
                    content: Arc::default(),
                },
            };
            let content = Arc::clone(&slot.content);
            slots.push(slot);
            content
        };
        let mut content = lock(&content);
        if let Some(decoded) = &*content {
            return Ok(Arc::clone(decoded));
        }
        let (decoded, bytes) = decode()?;
        let decoded = Arc::new(decoded);
        *content = Some(Arc::clone(&decoded));
        drop(content);
        self.make_room(block, bytes);
        Ok(decoded)
    }

    fn make_room(&self, block: usize, bytes: u64) {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.iter_mut().find(|slot| slot.block == block) {
            slot.bytes = bytes;
        }
        let mut total: u64 = slots.iter().map(|slot| slot.bytes).sum();
        let mut first = 0;
        while total > self.capacity && first + 1 < slots.len() {
            total -= slots[first].bytes;
            first += 1;
        }
        slots.drain(..first);
    }
}

/// Blocks are put there whole, so a panic of another worker leaves nothing half made.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_last_blocks_are_kept_within_their_bytes() {
        let cache = BlockCache::new(100);
        let decoded = Cell::new(0);
        let get = |block: usize, bytes: u64| {
            let decode = || {
                decoded.set(decoded.get() + 1);
                Ok((block, bytes))
            };
            assert_eq!(*cache.get(block, decode).unwrap(), block);
        };
        get(0, 40);
        get(1, 40);
        get(0, 40);
        assert_eq!(decoded.get(), 2);
        get(2, 40); // 1 was used least recently
        get(0, 40);
        assert_eq!(decoded.get(), 3);
        get(1, 40);
        assert_eq!(decoded.get(), 4);
        get(3, 1000); // larger than all: alone
        get(3, 1000);
        get(0, 40);
        assert_eq!(decoded.get(), 6);
    }

    #[test]
    fn an_error_is_not_kept() {
        let cache = BlockCache::new(100);
        let failing = || Err(DataError::Empty { what: "x".into() });
        assert!(cache.get(0, failing).is_err());
        assert_eq!(*cache.get(0, || Ok((7, 1))).unwrap(), 7);
    }
}
