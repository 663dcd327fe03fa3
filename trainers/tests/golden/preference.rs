//! Losses of pairs against their formulas in PyTorch: what they come to, their gradients and twenty steps, the pairs of a step
//! together and one at a time.

use std::cell::RefCell;
use std::collections::HashMap;

use tt_collators::Batch;
use tt_models::Qwen2Config;
use tt_nn::Forward;
use tt_tensor::Device;
use tt_testkit::on_each_device;
use tt_train::DeviceBatch;

use crate::batches::{flat, micro_batches, scalar};
use crate::check::{Check, assert_close};

on_each_device! {
    #[full_on_tpu]
    fn golden_preference_dpo(device) {
        check("preference_dpo", device);
    }
}

#[test]
fn golden_preference_dpo_smoothed() {
    check("preference_dpo_smoothed", Device::Cpu);
}

#[test]
fn golden_preference_ipo() {
    check("preference_ipo", Device::Cpu);
}

#[test]
fn golden_preference_simpo() {
    check("preference_simpo", Device::Cpu);
}

on_each_device! {
    #[full_on_tpu]
    fn golden_preference_orpo(device) {
        check("preference_orpo", device);
    }
}

fn check(name: &str, device: Device) {
    let check = Check::open::<Qwen2Config>(name, device);
    check.decay_rule();
    check.logits();
    what_is_logged(&check);
    check.gradients();
    check.curve();
    // The mean is over pairs, and of ORPO also over tokens, whatever the micro-batches.
    let pairs = |tensors: &_| {
        let batches = micro_batches(tensors);
        batches.iter().flat_map(pair_by_pair).collect()
    };
    check.curve_by(&mut *check.trainer(), check.training(), pairs, usize::MAX);
}

/// A micro-batch for each pair of a batch.
fn pair_by_pair(batch: &Batch) -> Vec<Batch> {
    let pairs = (0..batch.rows / 2).map(|pair| {
        let tokens = 2 * pair * batch.seq_len..2 * (pair + 1) * batch.seq_len;
        let labels = &batch.labels[tokens.clone()];
        let targets = labels.chunks(batch.seq_len).flat_map(|row| &row[1..]);
        Batch {
            rows: 2,
            seq_len: batch.seq_len,
            num_targets: targets.filter(|&&label| label >= 0).count(),
            input_ids: batch.input_ids[tokens.clone()].to_vec(),
            labels: labels.to_vec(),
            segment_ids: batch.segment_ids[tokens.clone()].to_vec(),
            position_ids: batch.position_ids[tokens].to_vec(),
            ..Batch::default()
        }
    });
    pairs.collect()
}

/// Log-probabilities, their margin and the accuracy are those of the case.
fn what_is_logged(check: &Check) {
    let expected = check.golden.tensors("expected");
    let (mut trainer, mut training) = (check.trainer(), check.training());
    trainer.post_init(&mut training).unwrap();
    let batches = micro_batches(&check.golden.tensors("inputs"));
    training
        .count(&batches, |batch| trainer.counts(batch))
        .unwrap();
    let logged = RefCell::new(HashMap::new());
    let totals = training.accumulate(&batches, |fwd, model, batch| {
        let loss = trainer.loss(fwd, model, batch)?;
        for mean in &loss.scalars {
            let weight = mean.weight.as_ref().unwrap_or(&loss.weight);
            let [sum, weight] = [&mean.sum, weight].map(|it| it.to_vec::<f32>().unwrap()[0]);
            logged.borrow_mut().insert(mean.name, sum / weight);
        }
        Ok(loss)
    });
    totals.unwrap();
    let logged = logged.into_inner();
    let logps = flat(&expected["logps"]);
    let mean = |of: usize| {
        let rows = logps.iter().skip(of).step_by(2);
        rows.sum::<f32>() / (logps.len() / 2) as f32
    };
    let rel = check.case.tolerances.loss_rel;
    assert_close("logps/chosen", logged["logps/chosen"], mean(0), rel);
    assert_close("logps/rejected", logged["logps/rejected"], mean(1), rel);
    assert_eq!(logged["rewards/accuracies"], scalar(&expected["accuracy"]));
    let margin = logged["rewards/chosen"] - logged["rewards/rejected"];
    assert!((logged["rewards/margins"] - margin).abs() < 1e-5);
}

/// A rank that has no pair left runs another's without its targets: it adds nothing.
#[test]
fn a_pair_without_targets_counts_nothing() {
    for name in [
        "preference_dpo_smoothed",
        "preference_simpo",
        "preference_orpo",
    ] {
        let check = Check::open::<Qwen2Config>(name, Device::Cpu);
        let (mut trainer, mut training) = (check.trainer(), check.training());
        trainer.post_init(&mut training).unwrap();
        let mut batch = micro_batches(&check.golden.tensors("inputs")).remove(0);
        batch.labels.fill(-100);
        let counts = trainer.counts(&batch);
        assert!(counts.iter().all(|&count| count == 0.0), "{counts:?}");
        let mut on_device = DeviceBatch::upload(&batch, Device::Cpu).unwrap();
        on_device.counts = vec![2.0; counts.len()];
        let fwd = Forward::inference(&training.params);
        let loss = trainer.loss(&fwd, &*check.model, &on_device).unwrap();
        let numbers = loss.scalars.iter().map(|mean| &mean.sum);
        for number in numbers.chain([&loss.sum, &loss.weight]) {
            assert_eq!(number.to_vec::<f32>().unwrap(), [0.0], "{name}");
        }
    }
}
