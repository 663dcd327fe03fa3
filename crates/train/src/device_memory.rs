//! Whose the memory of a TPU is, over the steps that are traced.
//!
//! The owners are those that `plan` tells: weights, gradients and optimizer state are looked up, each tensor with the bytes it
//! was asked for. What the device holds beyond them is, from the beginning of a forward pass to the end of its backward
//! pass, the activations (with what operations need for a moment), and else buffers. What is added to fill the units of the
//! device's memory, and what is kept for reuse, is told apart.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tt_nn::ParamTree;
use tt_optimizers::Optimizers;
use tt_tensor::{DType, Device, Tensor, TpuDevice, profile};

/// When the memory is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Between the passes.
    Outside,
    /// A forward pass begins.
    BeforeForward,
    InPass,
    /// The forward pass is over: what there is more than before is kept for the backward pass.
    AfterForward,
}

/// The bytes of each owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) weights: u64,
    pub(crate) gradients: u64,
    pub(crate) optimizer: u64,
    pub(crate) activations: u64,
    /// Other tensors.
    pub(crate) buffers: u64,
    /// To fill the units of memory.
    pub(crate) rounding: u64,
    /// Kept for reuse.
    pub(crate) free: u64,
}

impl Owned {
    pub(crate) fn rows(&self) -> [(&'static str, u64); 7] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer state", self.optimizer),
            ("activations", self.activations),
            ("buffers", self.buffers),
            ("rounding", self.rounding),
            ("kept for reuse", self.free),
        ]
    }

    /// Of tensors that exist.
    pub(crate) fn tensors(&self) -> u64 {
        self.weights + self.gradients + self.optimizer + self.activations + self.buffers
    }
}

/// What there is at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Duration,
    pub(crate) moment: Moment,
    pub(crate) owned: Owned,
}

/// The samples of a trace.
pub(crate) struct MemoryRecord {
    tpu: TpuDevice,
    params: ParamTree,
    optimizer: AtomicU64,
    samples: Mutex<Vec<Sample>>,
}

impl MemoryRecord {
    /// `None`: the device does not tell.
    pub(crate) fn begin(
        device: Device,
        params: &ParamTree,
        optimizers: &Optimizers,
    ) -> Option<Arc<Self>> {
        let Device::Tpu(tpu) = device else {
            return None;
        };
        let record = Self {
            tpu,
            params: params.clone(),
            optimizer: AtomicU64::default(),
            samples: Mutex::default(),
        };
        record.look_at(optimizers, Moment::Outside);
        Some(Arc::new(record))
    }

    /// Between the parts of a step, when the optimizers can be asked for what they hold.
    pub(crate) fn look_at(&self, optimizers: &Optimizers, moment: Moment) {
        let slots = optimizers.slots();
        let optimizer = slots.map(|(_, slot)| bytes(&slot.value)).sum();
        self.optimizer.store(optimizer, Ordering::Relaxed);
        self.sample(moment);
    }

    pub(crate) fn sample(&self, moment: Moment) {
        let Some(at) = profile::since_begin() else {
            return;
        };
        let params = self.params.iter();
        let weights: u64 = params.map(|(_, it)| bytes(&it.local())).sum();
        let gradients = self.params.iter().filter_map(|(_, it)| it.grad());
        let gradients = gradients.map(|grad| bytes(&grad)).sum();
        let optimizer = self.optimizer.load(Ordering::Relaxed);
        let stats = self.tpu.stats();
        let known = weights + gradients + optimizer;
        let owned = Owned {
            weights,
            gradients,
            optimizer,
            activations: 0,
            buffers: stats.tensor_bytes.saturating_sub(known),
            rounding: stats.live_bytes - stats.tensor_bytes,
            free: stats.free_bytes,
        };
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push(Sample { at, moment, owned });
    }

    pub(crate) fn samples(&self) -> Vec<Sample> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        split(samples.clone())
    }
}

/// In a pass, what there is more than before it is activations.
fn split(mut samples: Vec<Sample>) -> Vec<Sample> {
    let mut before = 0;
    for sample in &mut samples {
        let owned = &mut sample.owned;
        match sample.moment {
            Moment::Outside => {}
            Moment::BeforeForward => before = owned.buffers,
            Moment::InPass | Moment::AfterForward => {
                owned.activations = owned.buffers.saturating_sub(before);
                owned.buffers -= owned.activations;
            }
        }
    }
    samples
}

/// On a TPU, where 64-bit integers are held in 32.
fn bytes(tensor: &Tensor) -> u64 {
    let of_element = match tensor.dtype() {
        DType::I64 => 4,
        other => other.size_in_bytes(),
    };
    (tensor.elem_count() * of_element) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pass_holds_beyond_what_was_there_before_is_activations() {
        let sample = |moment, buffers| Sample {
            at: Duration::ZERO,
            moment,
            owned: Owned {
                buffers,
                ..Owned::default()
            },
        };
        let samples = split(vec![
            sample(Moment::Outside, 7),
            sample(Moment::BeforeForward, 10),
            sample(Moment::InPass, 25),
            sample(Moment::AfterForward, 30),
            sample(Moment::InPass, 4),
            sample(Moment::Outside, 12),
        ]);
        let told: Vec<_> = samples
            .iter()
            .map(|it| (it.owned.buffers, it.owned.activations))
            .collect();
        assert_eq!(told, [(7, 0), (10, 0), (10, 15), (10, 20), (4, 0), (12, 0)]);
    }
}
