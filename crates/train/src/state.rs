//! `state.json`: everything of a run that must survive, but for tensors.

use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use tt_checkpoint::Checkpoint;
use tt_data::Cursor;
use tt_optimizers::Optimizers;

use crate::base::Base;
use crate::error::{Error, Result};
use crate::guard::GuardState;

const STATE: &str = "trainer_state/state.json";

/// Written by training, and read by whoever asks what a checkpoint is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainState {
    /// Steps done.
    pub step: u64,
    /// Tokens seen.
    pub tokens: u64,
    /// Steps that were applied: those done without those skipped.
    pub optimizer_steps: u64,
    /// The run's `seed`.
    pub seed: u64,
    /// How far the data has been used.
    pub cursor: Cursor,
    /// Fingerprint of the data that the cursor is a position in.
    #[serde(default)]
    pub data: String,
    /// Step and loss of the last validation, which is not logged twice.
    #[serde(default, deserialize_with = "step_and_loss")]
    pub validated: Option<(u64, f32)>,
    /// The optimizers whose state lies beside this; empty in checkpoints of versions that did not say.
    #[serde(default)]
    pub optimizers: Vec<OptimizerState>,
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

/// What a checkpoint says of an optimizer besides its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerState {
    /// Which optimizer it is.
    pub name: String,
    /// `trainer.optimizer.type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The learning rate that the next step would have had.
    pub next_lr: f64,
}

impl OptimizerState {
    /// Of each optimizer, after `step` steps.
    pub(crate) fn of(optimizers: &Optimizers, step: u64) -> Vec<Self> {
        let rates = optimizers.rates(step).map(|(_, rate)| rate);
        let all = optimizers.kinds().zip(rates);
        let all = all.map(|((name, kind), next_lr)| Self {
            name: name.to_owned(),
            kind: kind.to_owned(),
            next_lr,
        });
        all.collect()
    }
}

impl TrainState {
    /// Where the learning rate of the next step is not what it would have been in the run that was saved: (optimizer,
    /// before, now).
    pub fn rate_changes<'o>(&self, optimizers: &'o Optimizers) -> Vec<(&'o str, f64, f64)> {
        let changes = optimizers.rates(self.step).filter_map(|(name, now)| {
            let before = self.optimizers.iter().find(|it| it.name == name)?.next_lr;
            // The same schedule gives the same bits on one machine, and all but the same on another.
            let is_same = (now - before).abs() <= 1e-9 * before.abs();
            (!is_same).then_some((name, before, now))
        });
        changes.collect()
    }

    /// What `checkpoint` says of its run.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        serde_json::from_value(checkpoint.state()?)
            .map_err(|error| Error::State(format!("{}: {error}", checkpoint.dir().display())))
    }

    /// What the folder of a model says of the run that made it; `None` if no run of this program did.
    pub fn read_in(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(STATE);
        if !path.exists() {
            return Ok(None);
        }
        let state = tt_disk::read_json(&path)?;
        Ok(Some(state))
    }
}

/// JSON has no NaN: a loss that is not finite was written as null.
fn step_and_loss<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<(u64, f32)>, D::Error> {
    let validated: Option<(u64, Option<f32>)> = Option::deserialize(from)?;
    Ok(validated.map(|(step, loss)| (step, loss.unwrap_or(f32::NAN))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tt_nn::ParamTree;
    use tt_optimizers::{AdamW, AdamWConfig, Schedule, Scheduled};
    use tt_tensor::{Device, Seed};

    use super::*;

    fn optimizers(rates: [(&str, f64); 2]) -> Optimizers {
        let params = ParamTree::init(&[], Seed::new(1), Device::Cpu).unwrap();
        let scheduled = |(name, rate): (&str, f64)| Scheduled {
            name: name.to_owned(),
            kind: "adamw.AdamW".to_owned(),
            params: None,
            optimizer: Box::new(AdamW::new(AdamWConfig::new(rate), &params).unwrap()),
            schedule: Schedule::constant(),
        };
        Optimizers::new(rates.map(scheduled).into())
    }

    fn saved_with(optimizers: Vec<OptimizerState>) -> TrainState {
        let state = json!({
            "step": 7, "tokens": 1, "optimizer_steps": 7, "seed": 0, "cursor": Cursor::default(),
            "optimizers": optimizers, "instruction_set": "any", "trainer": null,
        });
        serde_json::from_value(state).unwrap()
    }

    #[test]
    fn rates_that_a_resumed_run_would_change_are_named() {
        let state = saved_with(OptimizerState::of(
            &optimizers([("hidden", 0.02), ("rest", 0.1)]),
            7,
        ));
        let kinds = state.optimizers.iter().map(|it| (&*it.name, &*it.kind));
        assert!(kinds.eq([("hidden", "adamw.AdamW"), ("rest", "adamw.AdamW")]));
        // The last bits may differ from one machine to another.
        let same = optimizers([("rest", 0.1 + 1e-11), ("hidden", 0.02)]);
        assert_eq!(state.rate_changes(&same), []);
        let close = 0.1 - 5e-9;
        let other = optimizers([("rest", close), ("hidden", 0.03)]);
        let expected = [("rest", 0.1, close), ("hidden", 0.02, 0.03)];
        assert_eq!(state.rate_changes(&other), expected);
        // An optimizer that was not there has not changed.
        let renamed = optimizers([("rest", 0.1), ("new", 0.03)]);
        assert_eq!(state.rate_changes(&renamed), []);
    }

    #[test]
    fn a_folder_without_a_state_is_no_runs() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(TrainState::read_in(folder.path()).unwrap(), None);
        let state = saved_with(Vec::new());
        let path = folder.path().join(STATE);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, serde_json::to_string(&state).unwrap()).unwrap();
        assert_eq!(TrainState::read_in(folder.path()).unwrap(), Some(state));
    }

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
