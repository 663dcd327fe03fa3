//! Work done ahead on threads, handed out in order.
//!
//! Job `n` makes item `n`, in one part or several: the next part of an item is made once the part before has been taken.
//! At most `depth` items are begun and not taken; none is begun while those that wait weigh as much as is allowed, or
//! while an item has parts to come. So memory is bounded, whatever the size of an item.
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

/// Writes item `n`, or the part of it that the rest begins with, over an old one; leaves in the rest what is to come.
type Job<T, R> = Box<dyn Fn(u64, &mut T, &mut R) -> Result<Made, DataError> + Send + Sync>;

/// Asked while waiting: whether not to wait any longer.
type Interrupt = Box<dyn Fn() -> bool + Send>;

/// How often that is asked.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(20);

/// How much is done ahead.
#[derive(Debug, Clone, Copy)]
pub struct Ahead {
    /// Items begun and not taken.
    pub depth: usize,
    /// With items of this weight waiting, none is begun.
    pub weight: usize,
}

/// What a job has made.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    /// What it counts towards the bound on work ahead.
    pub weight: usize,
    /// Nothing of the item is to come.
    pub is_whole: bool,
}

/// Items `0, 1, 2, ...`, made ahead. `R` is what a job leaves of an item for its next part.
pub struct Prefetch<T, R = ()> {
    shared: Arc<Shared<T, R>>,
    num_workers: usize,
    interrupt: Option<Interrupt>,
}

struct Shared<T, R> {
    job: Job<T, R>,
    ahead: Ahead,
    state: Mutex<State<T, R>>,
    /// There may be something for a worker to begin, or it should stop.
    room: Condvar,
    /// An item is ready.
    ready: Condvar,
}

struct State<T, R> {
    next_job: u64,
    next_item: u64,
    /// Item `n` waits at `n % depth`.
    slots: Vec<Option<Result<Part<T, R>, DataError>>>,
    waiting_weight: usize,
    /// Items of which a part has been made and another is to come.
    unfinished: usize,
    /// What is left of `next_item`, whose part before has been taken.
    rest: Option<R>,
    spare: Vec<T>,
    stopping: bool,
}

/// An item, or a part of one.
struct Part<T, R> {
    item: T,
    weight: usize,
    rest: Option<R>,
}

impl<T: Default + Send + 'static, R: Default + Send + 'static> Prefetch<T, R> {
    /// Starts `num_workers` threads; with 0 the work is done when an item is asked for.
    ///
    /// Errors: the system has no room for another thread.
    pub fn new(
        num_workers: usize,
        ahead: Ahead,
        job: impl Fn(u64, &mut T, &mut R) -> Result<Made, DataError> + Send + Sync + 'static,
    ) -> Result<Self, DataError> {
        let depth = ahead.depth.max(1);
        let shared = Arc::new(Shared {
            job: Box::new(job),
            ahead: Ahead { depth, ..ahead },
            state: Mutex::new(State {
                next_job: 0,
                next_item: 0,
                slots: (0..depth).map(|_| None).collect(),
                waiting_weight: 0,
                unfinished: 0,
                rest: None,
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

    /// Asking for an item ends with the error `Interrupted` when `interrupt` says so.
    pub fn interrupt_if(&mut self, interrupt: impl Fn() -> bool + Send + 'static) {
        self.interrupt = Some(Box::new(interrupt));
    }

    /// The next item, or the next part of it.
    pub fn next_item(&mut self) -> Result<T, DataError> {
        let is_interrupted = || self.interrupt.as_ref().is_some_and(|interrupt| interrupt());
        if is_interrupted() {
            return Err(DataError::Interrupted);
        }
        let shared = &self.shared;
        let mut state = shared.lock();
        if self.num_workers == 0 {
            let (n, rest, spare) = (state.next_item, state.rest.take(), state.spare.pop());
            drop(state);
            let part = shared.run(n, spare, rest);
            return shared.lock().hand_out(part);
        }
        let slot = (state.next_item % state.slots.len() as u64) as usize;
        loop {
            if let Some(part) = state.slots[slot].take() {
                if let Ok(part) = &part {
                    state.waiting_weight -= part.weight;
                }
                let item = state.hand_out(part);
                shared.room.notify_all();
                return item;
            }
            if is_interrupted() {
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

impl<T, R> State<T, R> {
    /// What comes next for a worker: a part of the item that is being taken, else a new one.
    fn next_work(&mut self, ahead: Ahead) -> Option<(u64, Option<R>)> {
        if let Some(rest) = self.rest.take() {
            return Some((self.next_item, Some(rest)));
        }
        let is_room = self.next_job < self.next_item + ahead.depth as u64
            && self.unfinished == 0
            && self.waiting_weight < ahead.weight;
        is_room.then(|| {
            self.next_job += 1;
            (self.next_job - 1, None)
        })
    }

    fn put(&mut self, n: u64, part: Result<Part<T, R>, DataError>, is_first: bool) {
        let has_rest = part.as_ref().is_ok_and(|part| part.rest.is_some());
        match (is_first, has_rest) {
            (true, true) => self.unfinished += 1,
            (false, false) => self.unfinished -= 1,
            _ => {}
        }
        if let Ok(part) = &part {
            self.waiting_weight += part.weight;
        }
        let slot = (n % self.slots.len() as u64) as usize;
        self.slots[slot] = Some(part);
    }

    fn hand_out(&mut self, part: Result<Part<T, R>, DataError>) -> Result<T, DataError> {
        let (item, rest) = match part {
            Ok(part) => (Ok(part.item), part.rest),
            Err(error) => (Err(error), None),
        };
        self.next_item += u64::from(rest.is_none());
        self.rest = rest;
        item
    }
}

impl<T: Default, R: Default> Shared<T, R> {
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return;
            }
            let Some((n, rest)) = state.next_work(self.ahead) else {
                state = self
                    .room
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (spare, is_first) = (state.spare.pop(), rest.is_none());
            drop(state);
            let part = self.run(n, spare, rest);
            state = self.lock();
            state.put(n, part, is_first);
            self.ready.notify_one();
            // The last part of an item lets the next begin.
            self.room.notify_all();
        }
    }

    fn run(&self, n: u64, spare: Option<T>, rest: Option<R>) -> Result<Part<T, R>, DataError> {
        let (mut item, mut rest) = (spare.unwrap_or_default(), rest.unwrap_or_default());
        // The item is dropped if the job panics, so nobody sees it half written.
        match catch_unwind(AssertUnwindSafe(|| (self.job)(n, &mut item, &mut rest))) {
            Ok(made) => made.map(|made| Part {
                item,
                weight: made.weight,
                rest: (!made.is_whole).then_some(rest),
            }),
            Err(panic) => Err(DataError::WorkerPanicked {
                message: message_of(panic.as_ref()),
            }),
        }
    }
}

impl<T, R> Shared<T, R> {
    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        // Jobs run outside the lock, so a panic cannot leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, R> Drop for Prefetch<T, R> {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
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

    const LIGHT: Made = Made {
        weight: 0,
        is_whole: true,
    };

    fn ahead(depth: usize) -> Ahead {
        Ahead { depth, weight: 100 }
    }

    #[test]
    fn items_come_in_order_for_any_number_of_workers() {
        for num_workers in [0, 1, 2, 5] {
            let mut prefetch = Prefetch::new(
                num_workers,
                ahead(3),
                |n, item: &mut Vec<u64>, (): &mut ()| {
                    // The first of each three is the slowest.
                    thread::sleep(Duration::from_micros((2 - n % 3) * 200));
                    item.clear();
                    item.push(n);
                    Ok(LIGHT)
                },
            )
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
        let mut prefetch = Prefetch::new(2, ahead(4), move |_, _: &mut (), (): &mut ()| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(LIGHT)
        })
        .unwrap();
        prefetch.next_item().unwrap();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(begun.load(Ordering::SeqCst), 5);
    }

    #[test]
    fn work_ahead_is_bounded_by_weight_too() {
        let begun = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&begun);
        let mut prefetch = Prefetch::new(1, ahead(50), move |_, _: &mut (), (): &mut ()| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(Made {
                weight: 40,
                is_whole: true,
            })
        })
        .unwrap();
        for taken in 0..3 {
            thread::sleep(Duration::from_millis(50));
            assert_eq!(begun.load(Ordering::SeqCst), 3 + taken);
            prefetch.next_item().unwrap();
        }
    }

    /// Item `n` has `n % 3` parts more than one, each made when the part before has been taken, and none of the next item
    /// before all are made.
    #[test]
    fn parts_come_in_order_and_one_at_a_time() {
        for num_workers in [0, 1, 3] {
            let begun = Arc::new(AtomicU64::new(0));
            let counter = Arc::clone(&begun);
            let job = move |n, item: &mut (u64, u64), part: &mut u64| {
                counter.fetch_add(1, Ordering::SeqCst);
                *item = (n, *part);
                *part += 1;
                Ok(Made {
                    weight: 1,
                    is_whole: *part > n % 3,
                })
            };
            let mut prefetch = Prefetch::new(num_workers, ahead(8), job).unwrap();
            for n in 0..20 {
                for part in 0..=n % 3 {
                    assert_eq!(prefetch.next_item().unwrap(), (n, part), "{num_workers}");
                }
            }
            if num_workers == 1 {
                // Item 20 waits with its first part.
                thread::sleep(Duration::from_millis(50));
                let made: u64 = (0..20).map(|n| n % 3 + 1).sum();
                assert_eq!(begun.load(Ordering::SeqCst), made + 1);
            }
        }
    }

    #[test]
    fn an_error_and_a_panic_come_in_place_of_their_items() {
        let mut prefetch = Prefetch::new(2, ahead(4), |n, item: &mut u64, (): &mut ()| {
            match n {
                1 => return Err(DataError::Empty { what: "x".into() }),
                2 => panic!("at {n}"),
                _ => *item = n,
            }
            Ok(LIGHT)
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
        let mut prefetch = Prefetch::new(1, ahead(2), |n, _: &mut (), (): &mut ()| {
            if n == 1 {
                thread::park(); // for ever
            }
            Ok(LIGHT)
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
        let prefetch = Prefetch::new(4, ahead(2), |_, _: &mut (), (): &mut ()| Ok(LIGHT)).unwrap();
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
