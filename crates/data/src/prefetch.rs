//! Work done ahead on threads, handed out in order.
//!
//! Job `n` makes item `n`. At most `depth` items are begun and not taken, so memory is bounded.
//! Items that come back through [`Prefetch::recycle`] are written again, so in the steady state
//! nothing is allocated here. What an item holds depends on its number alone, hence not on the
//! number of workers.
//! Errors and panics of a job come out in place of its item. Dropping begins no further job and waits for none: one
//! that reads from a file server that has gone away may never end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::DataError;

/// Writes item `n` over an old one.
type Job<T> = Box<dyn Fn(u64, &mut T) -> Result<(), DataError> + Send + Sync>;

/// Asked while waiting: whether not to wait any longer.
type Interrupt = Box<dyn Fn() -> bool + Send>;

/// How often that is asked.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(20);

/// Items `0, 1, 2, ...`, made ahead.
pub struct Prefetch<T> {
    shared: Arc<Shared<T>>,
    num_workers: usize,
    interrupt: Option<Interrupt>,
}

struct Shared<T> {
    job: Job<T>,
    state: Mutex<State<T>>,
    /// There is room for a worker to begin, or it should stop.
    room: Condvar,
    /// An item is ready.
    ready: Condvar,
}

struct State<T> {
    next_job: u64,
    next_item: u64,
    /// Item `n` waits at `n % depth`.
    slots: Vec<Option<Result<T, DataError>>>,
    spare: Vec<T>,
    stopping: bool,
}

impl<T: Default + Send + 'static> Prefetch<T> {
    /// Starts `num_workers` threads; with 0 the work is done when an item is asked for.
    ///
    /// Errors: the system has no room for another thread.
    pub fn new(
        num_workers: usize,
        depth: usize,
        job: impl Fn(u64, &mut T) -> Result<(), DataError> + Send + Sync + 'static,
    ) -> Result<Self, DataError> {
        let depth = depth.max(1);
        let shared = Arc::new(Shared {
            job: Box::new(job),
            state: Mutex::new(State {
                next_job: 0,
                next_item: 0,
                slots: (0..depth).map(|_| None).collect(),
                spare: Vec::with_capacity(depth),
                stopping: false,
            }),
            room: Condvar::new(),
            ready: Condvar::new(),
        });
        let prefetch = Self {
            shared,
            num_workers,
            interrupt: None,
        };
        for _ in 0..num_workers {
            let shared = Arc::clone(&prefetch.shared);
            thread::Builder::new()
                .name("data".to_owned())
                .spawn(move || shared.work())
                .map_err(|source| DataError::StartWorker {
                    num_workers,
                    source,
                })?;
        }
        Ok(prefetch)
    }

    /// Waiting for an item ends with the error `Interrupted` when `interrupt` says so. Without workers there is no
    /// waiting that could be ended.
    pub fn interrupt_if(&mut self, interrupt: impl Fn() -> bool + Send + 'static) {
        self.interrupt = Some(Box::new(interrupt));
    }

    /// The next item.
    pub fn next_item(&mut self) -> Result<T, DataError> {
        let shared = &self.shared;
        let mut state = shared.lock();
        if self.num_workers == 0 {
            let n = state.next_item;
            state.next_item += 1;
            let spare = state.spare.pop();
            drop(state);
            return shared.run(n, spare);
        }
        let slot = (state.next_item % state.slots.len() as u64) as usize;
        loop {
            if let Some(item) = state.slots[slot].take() {
                state.next_item += 1;
                shared.room.notify_one();
                return item;
            }
            if self.interrupt.as_ref().is_some_and(|interrupt| interrupt()) {
                return Err(DataError::Interrupted);
            }
            let waited = shared.ready.wait_timeout(state, INTERRUPT_INTERVAL);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives an item's buffers back.
    pub fn recycle(&mut self, item: T) {
        let mut state = self.shared.lock();
        if state.spare.len() < state.slots.len() {
            state.spare.push(item);
        }
    }
}

impl<T: Default> Shared<T> {
    fn work(&self) {
        let mut state = self.lock();
        loop {
            let depth = state.slots.len() as u64;
            if state.stopping {
                return;
            }
            if state.next_job >= state.next_item + depth {
                state = self
                    .room
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let n = state.next_job;
            state.next_job += 1;
            let spare = state.spare.pop();
            drop(state);
            let item = self.run(n, spare);
            state = self.lock();
            state.slots[(n % depth) as usize] = Some(item);
            self.ready.notify_one();
        }
    }

    fn run(&self, n: u64, spare: Option<T>) -> Result<T, DataError> {
        let mut item = spare.unwrap_or_default();
        // The item is dropped if the job panics, so nobody sees it half written.
        match catch_unwind(AssertUnwindSafe(|| (self.job)(n, &mut item))) {
            Ok(result) => result.map(|()| item),
            Err(panic) => Err(DataError::WorkerPanicked {
                message: message_of(panic.as_ref()),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Jobs run outside the lock, so a panic cannot leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .stopping = true;
        self.shared.room.notify_all();
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn items_come_in_order_for_any_number_of_workers() {
        for num_workers in [0, 1, 2, 5] {
            let mut prefetch = Prefetch::new(num_workers, 3, |n, item: &mut Vec<u64>| {
                // The first of each three is the slowest.
                thread::sleep(Duration::from_micros((2 - n % 3) * 200));
                item.clear();
                item.push(n);
                Ok(())
            })
            .unwrap();
            for n in 0..50 {
                let item = prefetch.next_item().unwrap();
                assert_eq!(item, [n]);
                prefetch.recycle(item);
            }
        }
    }

    #[test]
    fn work_ahead_is_bounded() {
        let begun = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&begun);
        let mut prefetch = Prefetch::new(2, 4, move |_, _: &mut ()| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .unwrap();
        prefetch.next_item().unwrap();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(begun.load(Ordering::SeqCst), 5);
    }

    #[test]
    fn an_error_and_a_panic_come_in_place_of_their_items() {
        let mut prefetch = Prefetch::new(2, 4, |n, item: &mut u64| {
            match n {
                1 => return Err(DataError::Empty { what: "x".into() }),
                2 => panic!("at {n}"),
                _ => *item = n,
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(prefetch.next_item().unwrap(), 0);
        assert!(matches!(prefetch.next_item(), Err(DataError::Empty { .. })));
        let error = prefetch.next_item().unwrap_err();
        assert_eq!(error.to_string(), "data worker panicked: at 2");
        assert_eq!(prefetch.next_item().unwrap(), 3);
    }

    #[test]
    fn waiting_can_be_interrupted_and_dropping_does_not_wait() {
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let mut prefetch = Prefetch::new(1, 2, |n, _: &mut ()| {
            if n == 1 {
                thread::park(); // for ever
            }
            Ok(())
        })
        .unwrap();
        prefetch.interrupt_if(move || count.fetch_add(1, Ordering::SeqCst) >= 2);
        prefetch.next_item().unwrap();
        let start = Instant::now();
        assert!(matches!(prefetch.next_item(), Err(DataError::Interrupted)));
        assert!(asked.load(Ordering::SeqCst) >= 3, "asked while it waits");
        drop(prefetch);
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn dropping_ends_idle_workers() {
        let prefetch = Prefetch::new(4, 2, |_, _: &mut ()| Ok(())).unwrap();
        thread::sleep(Duration::from_millis(20));
        let shared = Arc::downgrade(&prefetch.shared);
        drop(prefetch);
        let start = Instant::now();
        while shared.strong_count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(5));
            thread::yield_now();
        }
    }
}
