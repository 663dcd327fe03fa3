//! Checkpoints that are still read while a run goes on: retention leaves them until that is over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The steps held, one for each [`Hold`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds(Arc<Mutex<Vec<u64>>>);

impl Holds {
    pub(crate) fn hold(&self, step: u64) -> Hold {
        self.steps().push(step);
        Hold {
            step,
            all: self.clone(),
        }
    }

    pub(crate) fn contains(&self, step: u64) -> bool {
        self.steps().contains(&step)
    }

    fn steps(&self) -> MutexGuard<'_, Vec<u64>> {
        // A list of numbers is whole whatever has become of who last had it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As long as it lives, retention does not remove the checkpoint. It goes with the first one saved afterwards.
#[derive(Debug)]
pub struct Hold {
    step: u64,
    all: Holds,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut steps = self.all.steps();
        if let Some(index) = steps.iter().position(|step| *step == self.step) {
            steps.swap_remove(index);
        }
    }
}
