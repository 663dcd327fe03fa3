//! The model as it was before the first step, for trainers that compare with it: a second, frozen copy.
//!
//! A run that goes on makes it from where the first process had it from (weights to start from, or the seed), never from the
//! checkpoint. What a trainer keeps of [`Initial::base`] in its state tells whether it still is the same.

use std::sync::Arc;

use tt_adapters::BaseDType;
use tt_nn::ParamTree;
use tt_sharding::Sharded;

use crate::adapted::fingerprint;
use crate::base::{Base, BaseOrigin};
use crate::error::{Error, Result};

/// The model as it was before the first step.
pub struct Initial {
    /// Frozen, of each the part that is this rank's; with the adapter that training begins with, if it begins with one.
    pub params: ParamTree,
    /// Where they are from, and a fingerprint of them.
    pub base: Base,
    ranks: Option<Arc<Sharded>>,
}

impl Initial {
    /// `ranks` share `params`, if there are several. All ranks do this together.
    pub fn new(
        params: ParamTree,
        origin: BaseOrigin,
        dtype: BaseDType,
        ranks: Option<Arc<Sharded>>,
    ) -> Result<Self> {
        let fingerprint = fingerprint(&params)?;
        let initial = Self::without_memory(params, ranks);
        initial.release();
        let base = Base {
            origin,
            dtype,
            fingerprint,
        };
        Ok(Self { base, ..initial })
    }

    /// For a rehearsal: without values, so without a fingerprint.
    pub fn without_memory(params: ParamTree, ranks: Option<Arc<Sharded>>) -> Self {
        for (_, parameter) in params.iter() {
            parameter.set_trainable(false);
        }
        Self {
            params,
            base: Base {
                origin: BaseOrigin::Seed(0),
                dtype: BaseDType::F32,
                fingerprint: String::new(),
            },
            ranks,
        }
    }

    /// Lets weights go that have been gathered from other ranks for a pass.
    pub fn release(&self) {
        if let Some(ranks) = &self.ranks {
            ranks.release();
        }
    }

    /// Error: it is not `saved`, which the run was begun with.
    pub fn check(&self, saved: &Base) -> Result<()> {
        let Base {
            origin,
            dtype,
            fingerprint,
        } = &self.base;
        if *fingerprint == saved.fingerprint {
            return Ok(());
        }
        let what = if *origin != saved.origin {
            format!("the run was begun with {}, this is {origin}", saved.origin)
        } else if *dtype != saved.dtype {
            format!("{origin} is held in another type")
        } else {
            format!("{origin} has changed since")
        };
        let then = &saved.fingerprint;
        Err(Error::State(format!(
            "another reference model: {what} (fingerprint {fingerprint:.16}, was {then:.16})"
        )))
    }
}
