//! Everything of a run that must survive: what a checkpoint takes and gives back.
//!
//! `model.safetensors` holds the parameters (those that are trained in `adapter_model.safetensors`, if an adapter is),
//! `trainer_state/optimizer.safetensors` the optimizers' slots as `<optimizer>/<slot>/<parameter>`,
//! `trainer_state/state.json` the rest.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use tt_checkpoint::{Checkpoint, HostTensor, Snapshot, TensorMap, Weights};
use tt_data::{Cursor, Tokenizer};
use tt_tensor::{DType, Device, Tensor};

use crate::Trainer;
use crate::adapted::Base;
use crate::error::{Error, Result};
use crate::guard::GuardState;
use crate::training::Training;

/// `state.json`: written by training, and read by whoever asks what a checkpoint is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainState {
    pub step: u64,
    /// Tokens seen.
    pub tokens: u64,
    pub optimizer_steps: u64,
    pub seed: u64,
    pub cursor: Cursor,
    /// Fingerprint of the data that the cursor is a position in.
    #[serde(default)]
    pub data: String,
    /// Step and loss of the last validation, which is not logged twice.
    #[serde(default, deserialize_with = "step_and_loss")]
    pub validated: Option<(u64, f32)>,
    /// Instruction set of the kernels: resuming on another changes rounding.
    pub instruction_set: String,
    /// Skipped steps, loss scale, and the steps that the next is compared with.
    #[serde(default)]
    pub guard: GuardState,
    /// What the adapter is on, if one is trained.
    #[serde(default)]
    pub base: Option<Base>,
    /// The trainer's own.
    pub trainer: Value,
}

impl TrainState {
    /// What `checkpoint` says of its run.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        serde_json::from_value(checkpoint.state()?)
            .map_err(|error| Error::State(format!("{}: {error}", checkpoint.dir().display())))
    }
}

/// The base of the adapter that `checkpoint` holds; `None` if it holds a whole model.
pub fn base_of(checkpoint: &Checkpoint) -> Result<Option<Base>> {
    Ok(TrainState::read(checkpoint)?.base)
}

/// JSON has no NaN: a loss that is not finite was written as null.
fn step_and_loss<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<(u64, f32)>, D::Error> {
    let validated: Option<(u64, Option<f32>)> = Option::deserialize(from)?;
    Ok(validated.map(|(step, loss)| (step, loss.unwrap_or(f32::NAN))))
}

/// A copy of the run on the host.
pub(crate) fn snapshot(
    training: &Training,
    trainer: &dyn Trainer,
    state: TrainState,
    tokenizer: &Tokenizer,
    tokenizer_files: &[PathBuf],
) -> Result<Snapshot> {
    let (adapter_config, model) = match &training.adapter {
        Some(adapted) => adapted.saved(&training.params)?,
        None => (Value::Null, whole_model(training)?),
    };
    let mut optimizer = TensorMap::new();
    for (name, slot) in training.optimizers.slots() {
        let key = slot_key(name, &slot.parameter, slot.name);
        optimizer.insert(key, host(&slot.value)?);
    }
    let mut config = training.model.hf_config();
    let token_ids = json!({"eos_token_id": tokenizer.eos_id(), "pad_token_id": tokenizer.pad_id()});
    if let (Value::Object(config), Value::Object(ids)) = (&mut config, &token_ids) {
        config.extend(ids.clone());
    }
    let state = TrainState {
        base: training.adapter.as_ref().map(|it| it.base.clone()),
        trainer: trainer.state(),
        ..state
    };
    Ok(Snapshot {
        step: training.step,
        model,
        adapter_config,
        config,
        generation_config: token_ids,
        assets: tokenizer_files.to_vec(),
        optimizer,
        state: serde_json::to_value(state).map_err(|error| Error::State(error.to_string()))?,
    })
}

fn whole_model(training: &Training) -> Result<TensorMap> {
    let (names, params) = (training.model.tensor_names(), training.params.iter());
    params
        .map(|(spec, parameter)| Ok((names.saved(&spec.path), host(&parameter.value())?)))
        .collect()
}

/// Takes up a checkpoint: parameters are loaded by the caller, the rest here.
pub(crate) fn restore(
    training: &mut Training,
    trainer: &mut dyn Trainer,
    checkpoint: &Checkpoint,
) -> Result<TrainState> {
    let state = TrainState::read(checkpoint)?;
    let weights = checkpoint.optimizer()?;
    let device = training.device;
    let steps = state.optimizer_steps;
    training
        .optimizers
        .restore(steps, &mut |optimizer, parameter, slot| {
            let key = slot_key(optimizer, parameter, slot);
            load_slot(&weights, &key, device).map_err(|why| tt_optimizers::Error::State {
                parameter: parameter.to_owned(),
                slot,
                why,
            })
        })?;
    trainer.restore(&state.trainer)?;
    training.guard.restore(state.guard.clone());
    training.step = state.step;
    Ok(state)
}

fn load_slot(weights: &Weights, key: &str, device: Device) -> std::result::Result<Tensor, String> {
    let shape = weights.shape(key).ok_or("missing in the checkpoint")?;
    let mut values = Vec::new();
    weights
        .read_f32(key, &mut values)
        .map_err(|error| error.to_string())?;
    Tensor::from_slice(&values, shape, device).map_err(|error| error.to_string())
}

fn slot_key(optimizer: &str, parameter: &str, slot: &str) -> String {
    format!("{optimizer}/{slot}/{parameter}")
}

fn host(tensor: &Tensor) -> Result<HostTensor> {
    Ok(match tensor.dtype() {
        DType::BF16 => HostTensor::from_bf16(tensor.dims(), &tensor.to_vec()?),
        _ => HostTensor::from_f32(tensor.dims(), &tensor.to_vec()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_validation_that_was_not_finite_can_be_resumed_from() {
        let state = |loss: f32| {
            let state = json!({
                "step": 7, "tokens": 1, "optimizer_steps": 7, "seed": 0, "cursor": Cursor::default(),
                "validated": (7, loss), "instruction_set": "any", "trainer": null,
            });
            serde_json::from_value::<TrainState>(state)
                .unwrap()
                .validated
        };
        assert_eq!(state(2.5), Some((7, 2.5)));
        assert!(state(f32::NAN).is_some_and(|(step, loss)| step == 7 && loss.is_nan()));
    }
}
