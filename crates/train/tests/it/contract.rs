//! What a trainer gives, and what becomes of it: sums checked, divided and logged, in training and in validation.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tt_models::Model;
use tt_nn::Forward;
use tt_tensor::{Device, Tensor};
use tt_train::{DeviceBatch, Error, Loss, Mean, Outcome, Result, StopFlag, Trainer};

use crate::common::{self, MICRO_BATCHES, plain_loss};

/// Cross-entropy, and what else `more` makes of it.
struct With<F>(F);

impl<F> Trainer for With<F>
where
    F: Fn(&Forward, &DeviceBatch, Loss) -> Result<Loss> + Send,
{
    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        (self.0)(fwd, batch, plain_loss(fwd, model, batch)?)
    }
}

fn run(
    dir: &Path,
    max_steps: u64,
    more: impl Fn(&Forward, &DeviceBatch, Loss) -> Result<Loss> + Send + 'static,
) -> Result<Outcome> {
    let job = common::job(max_steps, With(more), StopFlag::default());
    job.prepare()?.run(dir, common::metrics(dir))
}

fn rows(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key]
        .as_f64()
        .unwrap_or_else(|| panic!("no `{key}` in {row}"))
}

fn ones() -> Tensor {
    Tensor::ones((), Device::Cpu).unwrap()
}

#[track_caller]
fn refused(more: impl Fn(&Forward, &DeviceBatch, Loss) -> Result<Loss> + Send + 'static) -> String {
    let dir = tempfile::tempdir().unwrap();
    match run(dir.path(), 2, more) {
        Err(Error::Trainer(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_scalar_may_be_tracked_and_is_divided_by_its_weight_or_the_losss() {
    let dir = tempfile::tempdir().unwrap();
    let done = run(dir.path(), 2, |_, _, loss| {
        let sum = loss.sum.clone(); // not detached
        Ok(Loss {
            scalars: vec![
                Mean::new("same", sum.clone()),
                Mean::new("halved", sum.affine(0.5, 0.0)?),
                Mean::new("each", sum.clone()).over(ones()),
            ],
            ..loss
        })
    });
    done.unwrap();
    let rows = rows(dir.path());
    for row in rows.iter().filter(|row| row["loss"].is_number()) {
        let loss = number(row, "loss");
        assert_eq!(number(row, "same"), loss);
        assert!((number(row, "halved") / loss - 0.5).abs() < 1e-6, "{row}");
        // The sum of a micro-batch on average, of 2 rows with 31 targets at most.
        let targets = number(row, "each") / loss;
        assert!((10.0..=62.0).contains(&targets), "{row}");
    }
    let validated = rows.last().unwrap();
    let (val_loss, same) = (number(validated, "val_loss"), number(validated, "val_same"));
    assert!((same / val_loss - 1.0).abs() < 1e-6, "{validated}");
    assert!(number(validated, "val_each") > 10.0 * val_loss);
}

#[test]
fn cross_entropy_is_validated_beside_an_objective_of_another_kind() {
    let [plain, tripled] = [1.0, 3.0].map(|factor| {
        let dir = tempfile::tempdir().unwrap();
        // The first step has a rate of 0: the weights are the same.
        let job = common::job(
            1,
            With(move |_: &Forward, _: &DeviceBatch, loss: Loss| {
                Ok(Loss {
                    sum: loss.sum.affine(factor, 0.0)?,
                    ..loss
                })
            }),
            StopFlag::default(),
        );
        let outcome = job
            .prepare()
            .unwrap()
            .run(dir.path(), common::metrics(dir.path()));
        let row = rows(dir.path()).pop().unwrap();
        assert_eq!(
            number(&row, "val_loss") as f32,
            outcome.unwrap().final_val_loss.unwrap()
        );
        row
    });
    assert_eq!(plain["val_loss"], tripled["val_loss"]);
    assert_eq!(plain["val_loss"], plain["val_objective"]);
    let factor = number(&tripled, "val_objective") / number(&tripled, "val_loss");
    assert!((factor - 3.0).abs() < 1e-6, "{tripled}");
}

#[test]
fn what_is_no_sum_is_refused_by_its_name() {
    let why = refused(|_, batch, loss| {
        let (_, weights) = batch.target_ids()?;
        Ok(Loss {
            scalars: vec![Mean::new("accuracy", weights)],
            ..loss
        })
    });
    assert!(why.contains("`accuracy` is [2, 32] of F32"), "{why}");
    let why = refused(|_, batch, loss| {
        Ok(Loss {
            weight: batch.input_ids().sum_all()?,
            ..loss
        })
    });
    assert!(why.contains("the loss's weight is [] of U32"), "{why}");
}

#[test]
fn scalars_that_change_from_one_micro_batch_to_the_next_are_refused() {
    let calls = Mutex::new(0);
    let why = refused(move |_, _, loss| {
        let mut calls = calls.lock().unwrap();
        *calls += 1;
        let name = if *calls == 1 { "first" } else { "second" };
        Ok(Loss {
            scalars: vec![Mean::new(name, ones())],
            ..loss
        })
    });
    assert!(why.contains("first") && why.contains("second"), "{why}");
}

/// Masks that repeat leave every loss finite and every resume exact: only the numbers themselves tell.
#[test]
fn dropout_and_the_trainers_own_draws_differ_by_step_and_micro_batch() {
    let draws = || {
        let dir = tempfile::tempdir().unwrap();
        let seen: Arc<Mutex<Vec<[f32; 2]>>> = Arc::default();
        let to = seen.clone();
        let dropped = move |fwd: &Forward, _: &DeviceBatch, loss: Loss| {
            let (path, ones) = (
                tt_nn::ModulePath::root().join("dropout"),
                Tensor::ones(32, Device::Cpu)?,
            );
            let bits = |tensor: Tensor| -> Result<f32> {
                let values = tensor.to_vec::<f32>()?;
                let hash = values.iter().enumerate();
                Ok(hash.map(|(i, x)| x * (1 + i) as f32).sum())
            };
            if fwd.is_training() {
                let mask = bits(fwd.dropout(&path, ones, 0.5)?)?;
                let own = fwd.seed("noise");
                let own = bits(Tensor::rand(0.0, 1.0, 32, own, Device::Cpu)?)?;
                to.lock().unwrap().push([mask, own]);
            }
            Ok(loss)
        };
        run(dir.path(), 3, dropped).unwrap();
        let seen = seen.lock().unwrap();
        seen.clone()
    };
    let first = draws();
    assert_eq!(first.len(), 3 * MICRO_BATCHES);
    for kind in [0, 1] {
        let mut values: Vec<_> = first.iter().map(|both| both[kind].to_bits()).collect();
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), first.len(), "one is drawn twice");
    }
    assert_eq!(draws(), first, "the same run draws the same");
}

#[test]
fn a_validation_that_is_not_finite_fails_the_run_after_it_has_saved() {
    let dir = tempfile::tempdir().unwrap();
    let job = common::job(1, NanInValidation, StopFlag::default());
    let error = job
        .prepare()
        .unwrap()
        .run(dir.path(), common::metrics(dir.path()))
        .unwrap_err();
    let Error::NonFiniteValidation { checkpoint, .. } = error else {
        panic!("{error}")
    };
    assert!(checkpoint.join("model.safetensors").is_file());
}

struct NanInValidation;

impl Trainer for NanInValidation {
    fn validates_by_cross_entropy(&self) -> bool {
        true
    }

    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        let loss = plain_loss(fwd, model, batch)?;
        if fwd.is_training() {
            return Ok(loss);
        }
        let sum = loss.sum.affine(f64::NAN, 0.0)?;
        Ok(Loss { sum, ..loss })
    }
}
