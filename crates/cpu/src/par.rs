//! Work split over threads in ways that cannot show in the result.
//!
//! A piece either writes outputs of its own, or a partial result into a slot of its own, combined afterwards in the order
//! of the slots. Pieces with partial results are cut by the size of the problem alone; only cuts that change no
//! sum look at the number of threads.

use rayon::prelude::*;

use crate::pool::scratch;

/// Elements that one task of an elementwise kernel takes at most: small enough to balance, large enough to hide the
/// cost of a task (about a microsecond).
pub(crate) const GRAIN: usize = 16 * 1024;

/// And at least, where there would be too few tasks for the threads.
pub(crate) const MIN_GRAIN: usize = 1024;

/// Tasks for each thread, at least, where there is enough to do: some threads are slower than others.
const TASKS_PER_THREAD: usize = 4;

/// Pieces, at least, that a kernel is cut into by its shape alone, where there is enough to do: tasks for 16 threads.
pub(crate) const PIECES: usize = 16 * TASKS_PER_THREAD;

/// Work that is not worth waking other threads for, in elements of an elementwise kernel: about 5 microseconds.
const SERIAL: usize = 32 * 1024;

/// Calls `f(piece)` for every piece, on all threads if `work` (in elements of an elementwise kernel) is worth it.
///
/// Not generic: rayon's machinery compiled once for all kernels and their types, not once for each, saves minutes.
pub(crate) fn for_each(pieces: usize, work: usize, f: &(dyn Fn(usize) + Sync)) {
    #[cfg(test)]
    if tests::note(pieces, work) {
        return;
    }
    if is_serial(pieces, work) {
        (0..pieces).for_each(f);
    } else {
        (0..pieces).into_par_iter().with_max_len(1).for_each(f);
    }
}

/// The same, with `len` elements of scratch for each call, content unspecified. One piece per thread is taken from the
/// pool beforehand, so that what a call takes does not depend on how its tasks happen to overlap.
pub(crate) fn for_each_with(
    pieces: usize,
    work: usize,
    len: usize,
    f: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    let threads = threads(pieces, work);
    let mut memory = scratch(scratch_len(pieces, work, len));
    let len = memory.len() / threads;
    let shared = Shared::new(&mut memory);
    for_each(pieces, work, &|piece| {
        let thread = if threads == 1 {
            0
        } else {
            rayon::current_thread_index().unwrap_or(0)
        };
        // SAFETY: a thread runs one task at a time, as tasks never wait for others.
        f(piece, unsafe { shared.slice(thread * len, len) });
    });
}

/// What [`for_each_with`] takes from the pool for `len` elements a call.
pub(crate) fn scratch_len(pieces: usize, work: usize, len: usize) -> usize {
    threads(pieces, work) * len.next_multiple_of(CACHE_LINE)
}

fn threads(pieces: usize, work: usize) -> usize {
    match is_serial(pieces, work) {
        true => 1,
        false => rayon::current_num_threads(),
    }
}

fn is_serial(pieces: usize, work: usize) -> bool {
    pieces <= 1 || is_small(work)
}

/// Whether one thread does the work, into however many pieces it is cut.
pub(crate) fn is_small(work: usize) -> bool {
    work <= SERIAL
}

/// Tasks that keep all threads busy.
pub(crate) fn enough_tasks() -> usize {
    TASKS_PER_THREAD * rayon::current_num_threads()
}

/// The work of as many multiplications and additions in a matrix product.
pub(crate) fn product_work(dims: &[usize]) -> usize {
    dims.iter()
        .fold(1usize, |work, dim| work.saturating_mul(*dim))
        / 32
}

/// f32 elements of a cache line (or two): threads' scratch does not share one.
const CACHE_LINE: usize = 32;

/// Elements of each of at least `tasks` pieces of `len`, whole multiples of `unit` within the limits of a task.
pub(crate) fn piece_len(len: usize, tasks: usize, unit: usize) -> usize {
    (len / tasks / unit * unit).clamp(MIN_GRAIN, GRAIN)
}

/// Rows, of `rows` of `cols` elements, that make one task of an elementwise kernel.
pub(crate) fn rows_per_task(rows: usize, cols: usize) -> usize {
    (piece_len(rows * cols, enough_tasks(), 1) / cols.max(1)).max(1)
}

/// How `items` are cut for a reduction: at most `max_pieces` pieces of at least `min_items` each.
/// Returns (items per piece, pieces).
pub(crate) fn cut(items: usize, min_items: usize, max_pieces: usize) -> (usize, usize) {
    let per_piece = items.div_ceil(max_pieces).max(min_items).max(1);
    (per_piece, items.div_ceil(per_piece))
}

/// An output that several tasks write to, each in places of its own.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(*mut T, usize);

// SAFETY: a `Shared` gives access only through its unsafe methods, whose callers promise that no two tasks touch
// the same element.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr(), slice.len())
    }

    /// The same elements as another type.
    pub(crate) fn cast<U>(self) -> Shared<U> {
        debug_assert!(size_of::<T>() == size_of::<U>());
        Shared(self.0.cast(), self.1)
    }

    /// # Safety
    /// No other task may touch these elements while the slice is alive, and the output must outlive it.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice<'a>(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(
            start <= self.1 && len <= self.1 - start,
            "task writes outside of its output"
        );
        // SAFETY: in bounds by the assertion, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }

    /// A pointer to element `start`, with `len` elements of the output from there on.
    pub(crate) fn pointer(&self, start: usize, len: usize) -> *mut T {
        assert!(
            start <= self.1 && len <= self.1 - start,
            "task writes outside of its output"
        );
        self.0.wrapping_add(start)
    }
}

/// Elements that the pieces of [`elementwise`] are whole multiples of.
const UNIT: usize = 64;

/// `f(out, first)` on pieces of `out` that start at element `first`, on all threads.
#[inline(always)]
pub(crate) fn elementwise<T: Send>(out: &mut [T], f: impl Fn(&mut [T], usize) + Sync) {
    let per_piece = piece_len(out.len(), enough_tasks(), UNIT);
    elementwise_by(per_piece, out, f);
}

/// The same with pieces of `per_piece` elements.
#[inline(always)]
pub(crate) fn elementwise_by<T: Send>(
    per_piece: usize,
    out: &mut [T],
    f: impl Fn(&mut [T], usize) + Sync,
) {
    let len = out.len();
    let shared = Shared::new(out);
    for_each(len.div_ceil(per_piece), len, &|piece| {
        let first = piece * per_piece;
        // SAFETY: pieces do not overlap.
        f(
            unsafe { shared.slice(first, per_piece.min(len - first)) },
            first,
        );
    });
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::isa;

    /// One call of [`for_each`].
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Call {
        pub pieces: usize,
        pub work: usize,
    }

    thread_local! {
        static CALLS: RefCell<Option<Vec<Call>>> = const { RefCell::new(None) };
    }

    /// What `f` offers to `threads` threads. Its pieces are counted but not run, so that the largest shapes take no time;
    /// what `f` does besides is done on memory that no piece has written.
    pub(crate) fn calls_on(threads: usize, f: impl FnOnce() + Send) -> Vec<Call> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        let isa = isa::in_use();
        pool.install(|| {
            isa::tests::force(isa);
            CALLS.set(Some(Vec::new()));
            f();
            CALLS.take().unwrap()
        })
    }

    /// Whether the call was counted instead.
    pub(super) fn note(pieces: usize, work: usize) -> bool {
        CALLS.with_borrow_mut(|calls| match calls {
            Some(calls) => {
                calls.push(Call { pieces, work });
                true
            }
            None => false,
        })
    }

    #[test]
    fn a_cut_covers_all_items_within_its_limits() {
        for items in [0, 1, 31, 32, 33, 1000, 100_000] {
            let (per_piece, pieces) = cut(items, 32, 64);
            assert!(per_piece >= 32 && pieces <= 64);
            assert!(per_piece * pieces >= items);
            assert!(
                items == 0 || per_piece * (pieces - 1) < items,
                "no piece is empty"
            );
        }
    }
}
