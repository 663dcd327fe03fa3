//! Gathers weights on a thread of its own, one after another in the order in which they are asked for, while the rank
//! computes.
//!
//! All ranks ask in the same order: what is asked for depends on the modules that run, and never on how far others are.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use tt_tensor::Tensor;

use crate::error::{Error, Result};
use crate::shared::{Shared, is_rehearsed};

pub(crate) struct Gatherer {
    /// `None`: at once, where it is asked for.
    asked: Option<Sender<(Shared, Sender<Result<Tensor>>)>>,
}

/// A weight that is being gathered.
pub(crate) enum Gathering {
    Begun(Receiver<Result<Tensor>>),
    Done(Result<Tensor>),
}

impl Gatherer {
    /// On a thread of its own, if it is to be `ahead` of its use.
    pub(crate) fn new(ahead: bool) -> Result<Self> {
        if !ahead {
            return Ok(Self { asked: None });
        }
        let (asked, to_gather) = mpsc::channel::<(Shared, Sender<Result<Tensor>>)>();
        let work = move || {
            for (shared, answer) in to_gather {
                // Whoever has asked may have failed meanwhile.
                let _ = answer.send(shared.whole());
            }
        };
        let thread = thread::Builder::new().name("gather".into());
        thread.spawn(work).map_err(Error::Thread)?;
        Ok(Self { asked: Some(asked) })
    }

    pub(crate) fn gather(&self, shared: &Shared) -> Gathering {
        match &self.asked {
            Some(asked) if !is_rehearsed(&shared.parameter.local()) => {
                let (answer, begun) = mpsc::channel();
                let sent = asked.send((shared.clone(), answer));
                sent.expect("it gathers as long as there is somebody to ask");
                Gathering::Begun(begun)
            }
            _ => Gathering::Done(shared.whole()),
        }
    }
}

impl Gathering {
    pub(crate) fn wait(self) -> Result<Tensor> {
        match self {
            Self::Begun(begun) => begun.recv().expect("it answers all that it is asked"),
            Self::Done(whole) => whole,
        }
    }
}
