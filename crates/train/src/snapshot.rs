//! What a checkpoint takes of a run and gives back.
//!
//! `model.safetensors` holds the parameters (those that are trained in `adapter_model.safetensors`, if an adapter is),
//! `trainer_state/optimizer.safetensors` the optimizers' slots as `<optimizer>/<slot>/<parameter>`,
//! `trainer_state/state.json` the rest.

use std::path::PathBuf;

use serde_json::Value;
use tt_checkpoint::{Checkpoint, Snapshot, TensorMap, Weights};
use tt_optimizers::{MAIN, Optimizers};
use tt_tensor::{Device, Shard, Tensor};

use crate::Trainer;
use crate::config::OnOptimizerChange;
use crate::error::{Error, Result};
use crate::saved_tensor::SavedTensor;
use crate::state::TrainState;
use crate::token_ids::TokenIds;
use crate::training::Training;

/// The run as a checkpoint takes it: its tensors by handle, to be read while they are written.
pub(crate) fn snapshot(
    training: &Training,
    trainer: &dyn Trainer,
    state: TrainState,
    token_ids: &TokenIds,
    tokenizer_files: &[PathBuf],
) -> Result<Snapshot<SavedTensor>> {
    let ranks = training.ranks.as_deref();
    let (adapter_config, model) = match &training.adapter {
        Some(adapted) => adapted.saved(&training.params, ranks)?,
        None => (Value::Null, whole_model(training)?),
    };
    training.optimizers.check_slots()?;
    let slots = training.optimizers.slots().map(|(name, slot)| {
        let key = slot_key(name, &slot.parameter, slot.name);
        Ok((key, SavedTensor::new(slot.value, slot.shard, ranks)?))
    });
    let optimizer = slots.collect::<Result<_>>()?;
    let mut config = training.model.hf_config();
    if let Value::Object(config) = &mut config {
        config.extend(token_ids.config().clone());
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
        generation_config: token_ids.generation_config(),
        assets: tokenizer_files.to_vec(),
        optimizer,
        state: serde_json::to_value(state).map_err(|error| Error::State(error.to_string()))?,
    })
}

fn whole_model(training: &Training) -> Result<TensorMap<SavedTensor>> {
    let (names, params) = (training.model.tensor_names(), training.params.iter());
    let ranks = training.ranks.as_deref();
    let saved = params.map(|(spec, parameter)| {
        let tensor = SavedTensor::of(parameter, ranks)?;
        Ok((names.saved(&spec.path), tensor))
    });
    saved.collect()
}

/// Takes up a checkpoint: parameters are loaded by the caller, the rest here.
pub(crate) fn restore(
    training: &mut Training,
    trainer: &mut dyn Trainer,
    checkpoint: &Checkpoint,
    on_change: OnOptimizerChange,
) -> Result<TrainState> {
    let state = TrainState::read(checkpoint)?;
    if takes_optimizer_state(&state, &training.optimizers, checkpoint, on_change)? {
        restore_optimizers(training, &state, checkpoint)?;
    }
    trainer.restore(&state.trainer)?;
    training.guard.restore(state.guard.clone());
    training.step = state.step;
    Ok(state)
}

/// Whether the state of the checkpoint's optimizers is of these. Slots of different optimizers often have the same names
/// and shapes and never the same meaning, so it is their types that decide.
fn takes_optimizer_state(
    state: &TrainState,
    optimizers: &Optimizers,
    checkpoint: &Checkpoint,
    on_change: OnOptimizerChange,
) -> Result<bool> {
    let saved = state
        .optimizers
        .iter()
        .map(|it| (it.name.as_str(), it.kind.as_str()));
    let mut saved: Vec<_> = saved.collect();
    let mut own: Vec<_> = optimizers.kinds().collect();
    saved.sort_unstable();
    own.sort_unstable();
    // The oldest checkpoints do not say.
    if saved.is_empty() || saved == own {
        return Ok(true);
    }
    if on_change == OnOptimizerChange::Fresh {
        return Ok(false);
    }
    Err(Error::OtherOptimizer {
        checkpoint: checkpoint.dir().to_owned(),
        saved: listed(&saved),
        own: listed(&own),
    })
}

/// `adamw.AdamW`, or `muon: muon.Muon, rest: adamw.AdamW` of several.
fn listed(optimizers: &[(&str, &str)]) -> String {
    match optimizers {
        [(MAIN, kind)] => (*kind).to_owned(),
        _ => {
            let each = optimizers
                .iter()
                .map(|(name, kind)| format!("{name}: {kind}"));
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

fn restore_optimizers(
    training: &mut Training,
    state: &TrainState,
    checkpoint: &Checkpoint,
) -> Result<()> {
    let weights = checkpoint.optimizer()?;
    let device = training.device;
    let steps = state.optimizer_steps;
    training
        .optimizers
        .restore(steps, &mut |optimizer, parameter, slot, shard| {
            let key = slot_key(optimizer, parameter, slot);
            load_slot(&weights, &key, shard, device).map_err(|why| tt_optimizers::Error::State {
                parameter: parameter.to_owned(),
                slot,
                why,
            })
        })?;
    Ok(())
}

/// The part `shard` of a slot.
fn load_slot(
    weights: &Weights,
    key: &str,
    shard: &Shard,
    device: Device,
) -> std::result::Result<Tensor, String> {
    let shape = weights.shape(key).ok_or("missing in the checkpoint")?;
    if shape != shard.shape() {
        return Err(format!("{shape:?} instead of {:?}", shard.shape()));
    }
    let mut values = Vec::new();
    weights
        .read_f32_runs(key, shard.runs(), &mut values)
        .map_err(|error| error.to_string())?;
    Tensor::from_slice(&values, shard.local_shape(), device).map_err(|error| error.to_string())
}

fn slot_key(optimizer: &str, parameter: &str, slot: &str) -> String {
    format!("{optimizer}/{slot}/{parameter}")
}
