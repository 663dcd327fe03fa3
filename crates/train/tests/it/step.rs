//! The four calls of a step, and what each leaves behind.

use tt_collators::Batch;
use tt_models::Model;
use tt_nn::{Forward, ParamTree};
use tt_optimizers::{AdamW, AdamWConfig, MAIN, Optimizers, Schedule, Scheduled};
use tt_tensor::{Device, Seed};
use tt_train::{
    BadStepAction, BadStepsConfig, Cause, DeviceBatch, Error, Loss, LossScaleConfig, Result,
    SpikeGuardConfig, StepGuard, StepOutput, Training, Verdict,
};

use crate::common::{self, plain_loss};

/// With an optimizer of each name and rate; of two, the first has the matrices.
fn training(rates: &[(&str, f64)]) -> Training {
    let model = common::model(0.0);
    let params = ParamTree::init(&model.params(), Seed::new(1), Device::Cpu).unwrap();
    let scheduled = |(i, &(name, rate)): (usize, &(&str, f64))| {
        let own = params.filtered(|spec| rates.len() == 1 || spec.decays() == (i == 0));
        Scheduled {
            name: name.to_owned(),
            kind: "adamw.AdamW".to_owned(),
            optimizer: Box::new(AdamW::new(AdamWConfig::new(rate), &own).unwrap()),
            params: Some(own),
            schedule: Schedule::constant(),
        }
    };
    let optimizers = Optimizers::new(rates.iter().enumerate().map(scheduled).collect());
    Training::new(model, params, optimizers, Seed::new(1), Device::Cpu)
}

fn step(training: &mut Training, micro_batches: &[Batch]) -> Result<StepOutput> {
    let mut totals = training.accumulate(micro_batches, plain_loss)?;
    training.reduce(&mut totals)?;
    let judgement = training.judge(&totals)?;
    training.take_step(judgement)
}

fn batches(count: usize) -> Vec<Batch> {
    let mut loader = common::data().train(None).unwrap();
    let batch = || loader.next_batch().unwrap().unwrap();
    std::iter::repeat_with(batch).take(count).collect()
}

fn weights(training: &Training) -> Vec<Vec<f32>> {
    let params = training.params.iter();
    params.map(|(_, it)| it.value().to_vec().unwrap()).collect()
}

fn nan_loss(fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
    let mut loss = plain_loss(fwd, model, batch)?;
    loss.sum = loss.sum.affine(f64::NAN, 0.0)?;
    Ok(loss)
}

#[test]
fn a_step_tells_its_rate_and_of_several_optimizers_each_ones() {
    let batches = batches(1);
    let alone = step(&mut training(&[(MAIN, 0.01)]), &batches).unwrap();
    assert_eq!((alone.lr, alone.of_optimizers), (0.01, vec![]));
    let several = step(&mut training(&[("hidden", 0.02), ("rest", 0.01)]), &batches).unwrap();
    assert_eq!(several.lr, 0.02);
    let expected = [("hidden_lr", 0.02), ("rest_lr", 0.01)];
    let expected = expected.map(|(name, rate)| (name.to_owned(), rate.into()));
    assert_eq!(several.of_optimizers, expected);
}

#[test]
fn metrics_of_optimizers_are_made_in_every_so_many_steps() {
    let batches = batches(1);
    let mut training = training(&[(MAIN, 0.01)]);
    training.metrics_interval = Some(2);
    let has_metrics = [(); 4].map(|()| {
        let output = step(&mut training, &batches).unwrap();
        !output.of_optimizers.is_empty()
    });
    assert_eq!(has_metrics, [false, true, false, true]);
}

#[test]
fn a_step_that_is_skipped_counts_and_leaves_nothing() {
    let batches = batches(1);
    let bad_steps = BadStepsConfig {
        action: BadStepAction::Skip,
        ..BadStepsConfig::default()
    };
    let mut training = training(&[(MAIN, 0.01)]);
    training.guard = StepGuard::new(&bad_steps, &SpikeGuardConfig::default());
    let before = weights(&training);
    for steps in 1..4 {
        let totals = training.accumulate(&batches, nan_loss).unwrap();
        let judgement = training.judge(&totals).unwrap();
        let output = training.take_step(judgement).unwrap();
        assert_eq!(output.verdict, Verdict::Skip(Cause::NonFinite));
        assert_eq!(training.step, steps);
        assert!(training.params.iter().all(|(_, it)| it.grad().is_none()));
    }
    assert_eq!(weights(&training), before);
}

#[test]
fn a_loss_scale_changes_no_bit_where_nothing_overflows() {
    let batches = batches(2);
    let mut plain = training(&[(MAIN, 0.01)]);
    let mut scaled = training(&[(MAIN, 0.01)]);
    scaled.guard = StepGuard::default().with_loss_scale(&LossScaleConfig::default());
    for _ in 0..2 {
        let expected = step(&mut plain, &batches).unwrap();
        assert_eq!(step(&mut scaled, &batches).unwrap(), expected);
    }
    assert_eq!(weights(&scaled), weights(&plain));
}

#[test]
fn a_step_without_a_gradient_is_named() {
    let mut training = training(&[(MAIN, 0.01)]);
    let totals = training.accumulate(&batches(1), plain_loss).unwrap();
    training.params.iter().for_each(|(_, it)| {
        it.take_grad();
    });
    let error = training.judge(&totals).err();
    assert!(matches!(error, Some(Error::NoGradient { step: 1 })));
}
