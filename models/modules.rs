//! The modules of a model, found by running it on one token, on the device without memory.

use std::sync::{Arc, Mutex};

use tt_nn::{Forward, ModulePath, ParamTree, Recompute};
use tt_tensor::{Device, MetaDevice, Seed, Tape, Tensor};

use crate::error::Result;
use crate::{Input, Model};

/// Notes who asks, and has nobody recomputed.
#[derive(Default)]
struct Roll(Mutex<Vec<(ModulePath, &'static str)>>);

impl Recompute for Roll {
    fn recomputes(&self, module: &ModulePath, class: &'static str) -> bool {
        let mut called = self.0.lock().expect("no panic while noting");
        called.push((module.clone(), class));
        false
    }
}

/// All modules by path and class, in the order in which they are entered. Nothing is allocated.
pub fn modules(model: &dyn Model) -> Result<Vec<(ModulePath, &'static str)>> {
    let device = Device::Meta(MetaDevice::sketch());
    let params = ParamTree::init(&model.params(), Seed::new(0), device)?;
    let (roll, tape) = (Arc::new(Roll::default()), Tape::new());
    let fwd = Forward::training(&params, &tape, Seed::new(0)).with_recompute(roll.clone());
    let token = Tensor::from_slice(&[0u32], (1, 1), device)?;
    model.hidden_states(&fwd, &Input::rows(token)?)?;
    tape.reset();
    let mut called = roll.0.lock().expect("no panic while noting");
    Ok(std::mem::take(&mut *called))
}
