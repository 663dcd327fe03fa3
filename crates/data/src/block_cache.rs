//! Decoded blocks, kept while they are in use by several workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::order::WINDOW_BYTES;

/// The last blocks that were asked for: those of two windows, for one may still be in use when the next begins.
///
/// Bytes are what a source says that its blocks take, as for the windows; so what a window needs is always kept.
pub(crate) struct BlockCache<T> {
    /// Those used last stand last.
    blocks: Mutex<Vec<Cached<T>>>,
}

struct Cached<T> {
    block: usize,
    bytes: u64,
    content: Arc<T>,
}

impl<T> Default for BlockCache<T> {
    fn default() -> Self {
        Self {
            blocks: Mutex::new(Vec::new()),
        }
    }
}

impl<T> BlockCache<T> {
    const CAPACITY: u64 = 2 * WINDOW_BYTES;

    /// Block `block`, if it is here.
    pub(crate) fn find(&self, block: usize) -> Option<Arc<T>> {
        let mut blocks = self.lock();
        let at = blocks.iter().position(|cached| cached.block == block)?;
        let cached = blocks.remove(at);
        let content = Arc::clone(&cached.content);
        blocks.push(cached);
        Some(content)
    }

    /// Keeps block `block`, of about `bytes`, in the place of those used longest ago.
    pub(crate) fn put(&self, block: usize, bytes: u64, content: T) -> Arc<T> {
        let content = Arc::new(content);
        let mut blocks = self.lock();
        blocks.retain(|cached| cached.block != block);
        blocks.push(Cached {
            block,
            bytes,
            content: Arc::clone(&content),
        });
        let mut total: u64 = blocks.iter().map(|cached| cached.bytes).sum();
        let mut first = 0;
        while total > Self::CAPACITY && first + 1 < blocks.len() {
            total -= blocks[first].bytes;
            first += 1;
        }
        blocks.drain(..first);
        content
    }

    /// Blocks are put there whole, so a panic of another worker leaves nothing half made.
    fn lock(&self) -> MutexGuard<'_, Vec<Cached<T>>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_blocks_are_kept_within_their_bytes() {
        let cache = BlockCache::default();
        let part = BlockCache::<usize>::CAPACITY / 5 * 2;
        let has = |block: usize| cache.find(block).map(|it| *it) == Some(block);
        cache.put(0, part, 0);
        cache.put(1, part, 1);
        assert!(has(1) && has(0));
        cache.put(2, part, 2); // 1 was used least recently
        assert!(!has(1) && has(0) && has(2));
        cache.put(3, 10 * part, 3); // larger than all: alone
        assert!(has(3) && !has(0) && !has(2));
    }
}
