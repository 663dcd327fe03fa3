//! Steps that are not applied: what is found out about them, that they leave no trace, and that a resume agrees.

use std::path::Path;

use serde_json::Value;
use tt_checkpoint::{Checkpoint, latest};
use tt_models::Model;
use tt_nn::Forward;
use tt_tensor::{Device, Seed, Tensor};
use tt_train::{
    BadStep, BadStepAction, Cause, DeviceBatch, Error, IGNORE, Loss, LossScaleConfig, Outcome,
    Place, Result, SpikeAction, StepGuard, TrainJob, Trainer, Training, Verdict, load_params,
};
use tt_trainers::LMTrainer;

/// What goes wrong.
#[derive(Clone, Copy)]
enum Fault {
    InfiniteLoss,
    /// The loss is what it should be, its gradient is not.
    NanGradient,
    HighLoss,
}

/// Language modelling with one row that makes trouble in training, until its labels are taken from it.
struct Faulty {
    inner: LMTrainer,
    row: Vec<u32>,
    fault: Fault,
}

impl Trainer for Faulty {
    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        let mut loss = self.inner.loss(fwd, model, batch)?;
        let ids = batch.input.input_ids.to_vec::<u32>()?;
        let targets = batch.targets.to_vec::<i64>()?;
        let len = self.row.len();
        let is_hit = ids
            .chunks(len)
            .zip(targets.chunks(len))
            .any(|(ids, targets)| {
                ids == self.row && targets.iter().any(|&target| target != IGNORE)
            });
        if fwd.is_training() && is_hit {
            loss.sum = match self.fault {
                Fault::InfiniteLoss => loss.sum.affine(f64::INFINITY, 0.0)?,
                Fault::HighLoss => loss.sum.affine(50.0, 0.0)?,
                // The slope of a root at 0 is infinite.
                Fault::NanGradient => {
                    let zero = model.head(fwd)?.affine(0.0, 0.0)?.sqrt()?.sum_all()?;
                    loss.sum.add(&zero.reshape(loss.sum.shape().clone())?)?
                }
            };
        }
        Ok(loss)
    }
}

/// The third row of the second micro-batch of `step`.
fn faulty(fault: Fault, step: usize) -> Box<dyn Trainer> {
    let data = crate::common::job(1).data;
    let mut batches = data.train(None).unwrap();
    let mut batch = None;
    for _ in 0..2 * step {
        batch = batches.next_batch().unwrap();
    }
    let batch = batch.unwrap();
    let row = batch.input_ids.chunks(batch.seq_len).nth(2).unwrap();
    Box::new(Faulty {
        inner: LMTrainer::new(0.0, 0.0),
        row: row.to_vec(),
        fault,
    })
}

fn job(max_steps: u64, fault: Fault) -> TrainJob {
    let mut job = crate::common::job(max_steps);
    job.trainer = faulty(fault, 3);
    // The same rates however far it is to go.
    job.optimizers = crate::common::optimizers(&job.params, 9);
    job
}

fn run(job: TrainJob, dir: &Path) -> Result<Outcome> {
    job.prepare()?.run(dir, crate::common::metrics(dir))
}

/// Goes on from the newest checkpoint in `dir`.
fn resumed(mut job: TrainJob, dir: &Path) -> TrainJob {
    let checkpoint = latest(&dir.join("checkpoints"))
        .unwrap()
        .checkpoint
        .unwrap();
    let weights = checkpoint.model().unwrap();
    job.params
        .clone_from(&load_params(&*job.model, &weights, Device::Cpu).unwrap());
    // The optimizer holds the parameters that it was made for.
    job.optimizers = crate::common::optimizers(&job.params, 9);
    job.resume = Some(checkpoint);
    job
}

fn skipping(mut job: TrainJob) -> TrainJob {
    job.config.bad_steps.action = BadStepAction::Skip;
    job
}

fn weights(checkpoint: &Path) -> Vec<u8> {
    std::fs::read(checkpoint.join("model.safetensors")).unwrap()
}

fn rows(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.filter(|row: &Value| row.get("lr").is_some()).collect()
}

/// The bad step that ends `job`, and the checkpoint before it.
fn stopped(job: TrainJob, dir: &Path) -> (BadStep, Option<std::path::PathBuf>) {
    match run(job, dir) {
        Err(Error::BadStep { bad, checkpoint }) => (*bad, checkpoint),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_loss_that_is_not_finite_stops_before_any_weight_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (bad, checkpoint) = stopped(job(9, Fault::InfiniteLoss), dir.path());
    assert_eq!((bad.step, &bad.cause), (3, &Cause::NonFinite));
    let found = bad.finding.as_ref().unwrap();
    assert_eq!(found.place, Place::Loss);
    assert_eq!(found.micro_batch, Some(1));
    assert_eq!(found.rows, [2]);
    assert!(bad.to_string().contains("micro-batch 1, row 2"), "{bad}");

    let clean = tempfile::tempdir().unwrap();
    let outcome = run(job(2, Fault::InfiniteLoss), clean.path()).unwrap();
    let checkpoint = checkpoint.unwrap();
    assert!(checkpoint.ends_with("step-00000002"), "{checkpoint:?}");
    assert!(weights(&checkpoint) == weights(&outcome.checkpoint));
    assert_eq!(rows(dir.path()).last().unwrap()["loss"], Value::Null);
}

#[test]
fn the_batch_of_a_bad_step_is_kept_with_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let (bad, _) = stopped(job(9, Fault::InfiniteLoss), dir.path());
    let dump = bad.dump.unwrap();
    assert_eq!(dump, dir.path().join("bad_steps/step-00000003"));

    let mut batches = crate::common::job(1).data.train(None).unwrap();
    let expected: Vec<u32> = (0..6)
        .map(|_| batches.next_batch().unwrap().unwrap())
        .skip(4)
        .flat_map(|batch| batch.input_ids)
        .collect();
    let tensors =
        candle_core::safetensors::load(dump.join("batch.safetensors"), &candle_core::Device::Cpu)
            .unwrap();
    let ids = tensors["input_ids"].to_vec2::<u32>().unwrap();
    assert_eq!((ids.len(), ids.concat()), (8, expected));
    for name in ["labels", "segment_ids", "position_ids"] {
        assert_eq!(tensors[name].dims(), [8, 64], "{name}");
    }

    let report = std::fs::read_to_string(dump.join("report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["first_non_finite"]["place"], "loss");
    let rows = report["rows"].as_array().unwrap();
    let found: Vec<_> = rows.iter().filter(|row| row["found"] == true).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(
        (&found[0]["micro_batch"], &found[0]["row"]),
        (&1.into(), &2.into())
    );
    let document = found[0]["documents"][0].as_str().unwrap();
    assert!(document.starts_with("stories, row "), "{document}");

    let text = std::fs::read_to_string(dump.join("rows.txt")).unwrap();
    let (_, found) = text
        .split_once("--- micro-batch 1, row 2 (found): ")
        .unwrap();
    let shown = found.lines().nth(1).unwrap();
    let decoded = crate::common::job(1)
        .data
        .tokenizer()
        .decode(&ids[6])
        .unwrap();
    assert!(decoded.starts_with(shown), "{shown:?} of {decoded:?}");
}

#[test]
fn a_gradient_that_is_not_finite_names_its_weight() {
    let dir = tempfile::tempdir().unwrap();
    let (bad, _) = stopped(job(9, Fault::NanGradient), dir.path());
    assert!(bad.loss.is_finite() && bad.grad_norm.is_nan(), "{bad}");
    let found = bad.finding.unwrap();
    assert_eq!(found.place, Place::Backward);
    assert_eq!(found.tensor, "model.embed_tokens.weight");
    assert_eq!(found.module, "model.embed_tokens");
    assert_eq!((found.micro_batch, &found.rows[..]), (Some(1), &[2][..]));
    assert!(found.values.nan > 0);
}

#[test]
fn an_output_that_is_not_finite_names_its_module() {
    let dir = tempfile::tempdir().unwrap();
    let job = crate::common::job(9);
    // Each is finite, their product is not.
    for name in ["gate_proj", "up_proj"] {
        let weight = format!("model.layers.1.mlp.{name}.weight");
        let weight = job.params.get(&weight).unwrap();
        let large = weight.value().affine(1e30, 0.0).unwrap();
        weight.set(large).unwrap();
    }
    let (bad, checkpoint) = stopped(job, dir.path());
    let found = bad.finding.unwrap();
    assert_eq!(found.place, Place::Forward);
    assert_eq!(found.module, "model.layers.1.mlp.down_proj");
    assert_eq!(
        (found.micro_batch, &found.rows[..]),
        (Some(0), &[0, 1, 2, 3][..])
    );
    assert_eq!(checkpoint, None, "no step had been made");
}

#[test]
fn a_weight_that_was_not_finite_is_to_blame_itself() {
    let dir = tempfile::tempdir().unwrap();
    let job = crate::common::job(9);
    let weight = job.params.get("model.layers.0.mlp.up_proj.weight").unwrap();
    let mut values = weight.value().to_vec::<f32>().unwrap();
    values[7] = f32::NEG_INFINITY;
    weight
        .set(Tensor::from_slice(&values, weight.shape(), Device::Cpu).unwrap())
        .unwrap();
    let (bad, _) = stopped(job, dir.path());
    let found = bad.finding.unwrap();
    assert_eq!(found.place, Place::Weight);
    assert_eq!(found.tensor, "model.layers.0.mlp.up_proj.weight");
    assert_eq!((found.values.nan, found.values.infinite), (0, 1));
}

#[test]
fn a_skipped_step_leaves_weights_and_moments_alone_and_is_marked() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = run(skipping(job(3, Fault::InfiniteLoss)), dir.path()).unwrap();
    let clean = tempfile::tempdir().unwrap();
    let before = run(job(2, Fault::InfiniteLoss), clean.path()).unwrap();
    assert_eq!(outcome.step, 3);
    assert!(weights(&outcome.checkpoint) == weights(&before.checkpoint));
    let moments = |checkpoint: &Path| {
        std::fs::read(checkpoint.join("trainer_state/optimizer.safetensors")).unwrap()
    };
    assert!(moments(&outcome.checkpoint) == moments(&before.checkpoint));
    let state = Checkpoint::open(&outcome.checkpoint)
        .unwrap()
        .state()
        .unwrap();
    assert_eq!(
        (&state["step"], &state["optimizer_steps"]),
        (&3.into(), &2.into())
    );
    let rows = rows(dir.path());
    let marks: Vec<_> = rows.iter().map(|row| row["skipped"].as_u64()).collect();
    assert_eq!(marks, [None, None, Some(1)]);
}

#[test]
fn a_skipped_batch_is_not_fed_again_after_a_resume() {
    for fault in [Fault::InfiniteLoss, Fault::HighLoss] {
        let job = |max_steps| {
            let mut job = skipping(job(max_steps, fault));
            job.config.spike_guard.action = Some(SpikeAction::Skip);
            job.config.spike_guard.window = 4;
            job
        };
        let whole = tempfile::tempdir().unwrap();
        let expected = run(job(7), whole.path()).unwrap();
        let marked = rows(whole.path())
            .iter()
            .filter(|row| row["skipped"] == 1)
            .count();
        assert_eq!(marked, 1);
        for stop in [2, 3, 4] {
            let dir = tempfile::tempdir().unwrap();
            run(job(stop), dir.path()).unwrap();
            let outcome = run(resumed(job(7), dir.path()), dir.path()).unwrap();
            assert!(
                weights(&outcome.checkpoint) == weights(&expected.checkpoint),
                "resumed after step {stop}"
            );
            let timeless = |dir: &Path| {
                let mut rows = rows(dir);
                for row in &mut rows {
                    let row = row.as_object_mut().unwrap();
                    row.retain(|key, _| !tt_metrics::TIME_KEYS.contains(&key.as_str()));
                }
                rows
            };
            assert_eq!(
                timeless(dir.path()),
                timeless(whole.path())[stop as usize..],
                "resumed after step {stop}"
            );
        }
    }
}

#[test]
fn a_stopped_run_goes_on_past_the_batch_once_it_may_skip() {
    let whole = tempfile::tempdir().unwrap();
    let expected = run(skipping(job(5, Fault::NanGradient)), whole.path()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    stopped(job(5, Fault::NanGradient), dir.path());
    // As it is, it stops at the same place again.
    let again = resumed(job(5, Fault::NanGradient), dir.path());
    assert_eq!(stopped(again, dir.path()).0.step, 3);
    let job = skipping(resumed(job(5, Fault::NanGradient), dir.path()));
    let outcome = run(job, dir.path()).unwrap();
    assert!(weights(&outcome.checkpoint) == weights(&expected.checkpoint));
}

#[test]
fn too_many_skips_in_a_row_stop_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = skipping(crate::common::job(9));
    job.config.bad_steps.max_consecutive = 2;
    let weight = job.params.get("model.norm.weight").unwrap();
    weight
        .set(Tensor::full(f32::NAN, weight.shape(), Device::Cpu).unwrap())
        .unwrap();
    let (bad, checkpoint) = stopped(job, dir.path());
    assert_eq!((bad.step, bad.skipped_before), (3, 2));
    assert_eq!(
        checkpoint, None,
        "weights that are not finite are not saved"
    );
}

fn training(guard: StepGuard) -> Training {
    let job = crate::common::job(9);
    let (seed, device) = (Seed::new(1), Device::Cpu);
    let mut training = Training::new(job.model, job.params, job.optimizers, seed, device);
    training.clipping.max_norm = Some(1.0);
    training.guard = guard;
    training.step = 2; // the rate is no longer 0
    training
}

fn values(training: &Training) -> Vec<Vec<f32>> {
    let parameters = training.params.iter();
    parameters
        .map(|(_, p)| p.value().to_vec().unwrap())
        .collect()
}

#[test]
fn scaling_the_loss_changes_no_bit_where_nothing_overflows() {
    let mut batches = crate::common::job(1).data.train(None).unwrap();
    let mut plain = training(StepGuard::default());
    let scaling = StepGuard::default().with_loss_scale(&LossScaleConfig::default());
    let mut scaled = training(scaling);
    let mut trainer = LMTrainer::new(0.0, 0.0);
    for _ in 0..4 {
        let step = [(); 2].map(|()| batches.next_batch().unwrap().unwrap());
        let expected = trainer.train_step(&mut plain, &step).unwrap();
        let output = trainer.train_step(&mut scaled, &step).unwrap();
        assert_eq!(output, expected);
    }
    assert!(values(&plain) == values(&scaled));
}

#[test]
fn an_overflow_halves_the_loss_scale_and_leaves_the_weights_alone() {
    let mut batches = crate::common::job(1).data.train(None).unwrap();
    let config = LossScaleConfig {
        growth_interval: 2,
        ..LossScaleConfig::default()
    };
    let mut training = training(StepGuard::default().with_loss_scale(&config));
    let mut trainer = LMTrainer::new(0.0, 0.0);
    let mut overflowing = faulty(Fault::NanGradient, 3);
    let mut seen = Vec::new();
    for step in 1..=5 {
        let batches = [(); 2].map(|()| batches.next_batch().unwrap().unwrap());
        let before = values(&training);
        let output = match step {
            3 => overflowing.train_step(&mut training, &batches),
            _ => trainer.train_step(&mut training, &batches),
        };
        let is_applied = output.unwrap().verdict == Verdict::Apply;
        assert_eq!(values(&training) != before, is_applied);
        seen.push((is_applied, training.guard.loss_scale().unwrap()));
    }
    assert_eq!(
        seen,
        [
            (true, 65536.0),
            (true, 131072.0),
            (false, 65536.0),
            (true, 65536.0),
            (true, 131072.0),
        ]
    );
    assert_eq!((training.step, training.optimizers.steps()), (7, 4));
    assert_eq!(training.guard.skipped_steps(), 1);
}
