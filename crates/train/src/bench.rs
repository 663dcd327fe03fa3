//! Parts of a run made for their time alone: steps on rows of random tokens, without data or records, and a checkpoint
//! that nobody goes on from.

use std::path::Path;
use std::time::{Duration, Instant};

use tt_checkpoint::{Checkpoint, CheckpointConfig, Saved, Writer};
use tt_collators::{Batch, BatchSpec, Values, WEIGHTS};
use tt_nn::ParamSpec;
use tt_tensor::Seed;

use crate::Trainer;
use crate::bad_step::BadStep;
use crate::config::OnOptimizerChange;
use crate::error::{Error, Result};
use crate::guard::Verdict;
use crate::snapshot::{restore, snapshot};
use crate::state::{OptimizerState, TrainState};
use crate::token_ids::TokenIds;
use crate::training::{StepTimes, Training};
use crate::weights::load_params;

/// A step that has been made.
#[derive(Clone, Copy, Debug)]
pub struct TimedStep {
    /// From the batches to the last optimizer.
    pub time: Duration,
    /// Of that, its parts.
    pub parts: StepTimes,
    /// Whether the optimizers have moved: one that was skipped has taken less.
    pub is_applied: bool,
}

/// A checkpoint that has been written.
#[derive(Debug)]
pub struct TimedSave {
    /// How long training could not go on.
    pub held: Duration,
    /// Until it was complete and durable.
    pub time: Duration,
    /// What was written.
    pub saved: Saved,
}

/// `count` batches of `rows` rows of data, each token counting and drawn from all `vocab_size`.
pub fn random_batches(
    count: usize,
    rows: usize,
    seq_len: usize,
    spec: &BatchSpec,
    vocab_size: usize,
) -> Vec<Batch> {
    let seed = Seed::new(0).fold_str("bench");
    let batch = |number: usize| {
        let mut batch = Batch::full(rows, seq_len, spec);
        let seed = seed.fold(number as u64);
        for (at, id) in batch.input_ids.iter_mut().enumerate() {
            *id = (seed.fold(at as u64).unit() * vocab_size as f64) as u32;
        }
        batch.labels = batch.input_ids.iter().map(|&id| id.into()).collect();
        for (field, values) in &mut batch.fields {
            if let (WEIGHTS, Values::F32(weights)) = (field.name, values) {
                weights.fill(1.0);
            }
        }
        batch
    };
    (0..count).map(batch).collect()
}

/// Makes a step of `batches`, its micro-batches. Error: [`Error::BadStep`] if it was not finite, and so had no end.
pub fn timed_step(
    training: &mut Training,
    trainer: &mut dyn Trainer,
    batches: &[Batch],
) -> Result<TimedStep> {
    training.times = StepTimes::default();
    let begun = Instant::now();
    let output = trainer.train_step(training, batches)?;
    let time = begun.elapsed();
    if let Verdict::Stop(cause) = output.verdict {
        let bad = BadStep {
            step: training.step + 1,
            cause,
            loss: output.numbers.loss,
            grad_norm: output.numbers.grad_norm,
            finding: None,
            is_examined: false,
            skipped_before: training.guard.skipped_in_a_row(),
            dump: None,
        };
        return Err(Error::BadStep {
            bad: Box::new(bad),
            checkpoint: None,
        });
    }
    Ok(TimedStep {
        time,
        parts: training.times,
        is_applied: matches!(output.verdict, Verdict::Apply | Verdict::Warn(_)),
    })
}

/// Writes the whole state into the folder `dir`, as a run does, and waits for it.
pub fn timed_save(
    training: &Training,
    trainer: &dyn Trainer,
    dir: &Path,
    config: CheckpointConfig,
) -> Result<TimedSave> {
    let mut writer = Writer::open(dir, config)?;
    let begun = Instant::now();
    let state = TrainState {
        step: training.step,
        tokens: 0,
        optimizer_steps: training.optimizers.steps(),
        seed: 0,
        cursor: tt_data::Cursor::default(),
        data: String::new(),
        validated: None,
        optimizers: OptimizerState::of(&training.optimizers, training.step),
        base: None, // filled in with the parameters
        instruction_set: training.device.instruction_set().to_owned(),
        guard: training.guard.state(),
        trainer: serde_json::Value::Null,
    };
    let snapshot = snapshot(training, trainer, state, &TokenIds::default(), &[])?;
    writer.submit(snapshot)?;
    let held = begun.elapsed();
    let saved = writer.wait()?;
    let time = begun.elapsed();
    let saved = saved.ok_or_else(|| Error::State("nothing was written".to_owned()))?;
    Ok(TimedSave { held, time, saved })
}

/// Takes the whole state up again from the checkpoint in `dir`, into new parameters.
pub fn timed_load(
    training: &mut Training,
    trainer: &mut dyn Trainer,
    dir: &Path,
) -> Result<Duration> {
    let begun = Instant::now();
    let checkpoint = Checkpoint::open(dir)?;
    let (model, device) = (training.model.clone(), training.device);
    let _params = match &training.adapter {
        None => load_params(&*model, &checkpoint.model()?, device)?,
        Some(adapted) => {
            let own: Vec<_> = adapted
                .lora
                .params()
                .into_iter()
                .map(|it| it.path)
                .collect();
            let base = training.params.filtered(|spec| !own.contains(&spec.path));
            adapted.resume(&base, &checkpoint, device, &ParamSpec::whole)?
        }
    };
    restore(training, trainer, &checkpoint, OnOptimizerChange::Refuse)?;
    Ok(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use tt_collators::Field;

    use super::*;

    #[test]
    fn random_rows_are_full_and_the_same_every_time() {
        let spec = BatchSpec {
            fields: vec![Field::weights()],
            ..BatchSpec::default()
        };
        let batches = || random_batches(2, 3, 64, &spec, 10);
        let made = batches();
        assert_eq!(made, batches());
        assert_ne!(made[0].input_ids, made[1].input_ids);
        for batch in &made {
            assert!((0..10).all(|id| batch.input_ids.contains(&id)));
            assert!(batch.input_ids.iter().all(|&id| id < 10));
            assert!(batch.segment_ids.iter().all(|&segment| segment == 1));
            // The first token of a row has nothing before it that would predict it.
            assert_eq!(batch.num_targets, 3 * 63);
            assert!(batch.targets().all(|(_, label)| label < 10));
            let weights = Values::F32(vec![1.0; 3 * 64]);
            assert_eq!(batch.fields, [(Field::weights(), weights)]);
        }
    }
}
