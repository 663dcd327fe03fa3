//! Steps of every rule against the CPU's.

use crate::common::{device, fallbacks, launches, numbers, stored, upload, values, widened};
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::{AdamParams, FusedOps, UpdateRule};
use tt_tpu::TpuStorage;

fn adam(decoupled: bool, amsgrad: bool, step: u64) -> UpdateRule {
    UpdateRule::Adam(AdamParams {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        decoupled,
        amsgrad,
        step,
    })
}

fn rules(step: u64) -> Vec<UpdateRule> {
    let momentum = |nesterov| UpdateRule::Momentum {
        lr: 1e-2,
        momentum: 0.9,
        dampening: if nesterov { 0.0 } else { 0.2 },
        nesterov,
        weight_decay: 0.01,
        is_first: step == 1,
    };
    vec![
        UpdateRule::Descend {
            keep: 0.99,
            rate: 0.1,
        },
        adam(true, false, step),
        adam(false, false, step),
        adam(true, true, step),
        momentum(false),
        momentum(true),
        UpdateRule::Lion {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.99,
            weight_decay: 0.1,
        },
        UpdateRule::Adagrad {
            lr: 1e-2,
            eps: 1e-10,
            weight_decay: 0.01,
        },
        UpdateRule::RmsProp {
            lr: 1e-3,
            alpha: 0.99,
            eps: 1e-8,
            weight_decay: 0.01,
        },
    ]
}

#[test]
fn five_steps_of_every_rule_follow_the_cpus() {
    let Some(device) = device() else { return };
    let before = launches(device, "optimizer_step");
    let scale = CpuStorage::F32(vec![0.37]);
    let one = Layout::contiguous(1);
    for (len, state_dtype) in [
        (1, DType::F32),
        (4099, DType::F32),
        (70_001, DType::F32),
        (4099, DType::BF16),
    ] {
        let layout = Layout::contiguous(len);
        for kind in 0..rules(1).len() {
            let num_states = rules(1)[kind].num_states();
            let start = numbers(len, 1);
            let mut param = CpuStorage::F32(start.clone());
            let mut states: Vec<CpuStorage> = (0..num_states)
                .map(|_| stored(state_dtype, vec![0.0; len]))
                .collect();
            let mut our_param = upload(device, &param);
            let mut our_states: Vec<TpuStorage> =
                states.iter().map(|state| upload(device, state)).collect();
            let our_scale = upload(device, &scale);
            for step in 1..=5 {
                let rule = rules(step)[kind];
                let grad = CpuStorage::F32(numbers(len, 10 + step as usize));
                let our_grad = upload(device, &grad);
                let mut refs: Vec<&mut CpuStorage> = states.iter_mut().collect();
                CpuStorage::optimizer_step(
                    &rule,
                    &mut param,
                    (&grad, &layout),
                    (&scale, &one),
                    &mut refs,
                    None,
                )
                .unwrap();
                let mut refs: Vec<&mut TpuStorage> = our_states.iter_mut().collect();
                TpuStorage::optimizer_step(
                    &rule,
                    &mut our_param,
                    (&our_grad, &layout),
                    (&our_scale, &one),
                    &mut refs,
                    None,
                )
                .unwrap();
            }
            // Relative to the way that the weights have come.
            let moved = |param: &[f32]| -> Vec<f32> {
                param.iter().zip(&start).map(|(a, b)| a - b).collect()
            };
            let (ours, truth) = (moved(&values(&our_param)), moved(&widened(&param)));
            let size = truth.iter().map(|x| x * x).sum::<f32>().sqrt();
            let error = ours
                .iter()
                .zip(&truth)
                .map(|(a, b)| (a - b) * (a - b))
                .sum::<f32>()
                .sqrt()
                / size.max(1e-30);
            // A weight near 1 moves by 1e-3: its own rounding is 1e-4 of that, over five steps. A rounded state may go the other way.
            let tolerance = if state_dtype == DType::F32 {
                2e-4
            } else {
                2e-3
            };
            assert!(
                error < tolerance,
                "{:?} of {len}: {error:.1e}",
                rules(1)[kind]
            );
            for (ours, truth) in our_states.iter().zip(&states) {
                let (ours, truth) = (values(ours), widened(truth));
                let tolerance = if state_dtype == DType::F32 {
                    2e-6
                } else {
                    2f32.powi(-7)
                };
                for (a, b) in ours.iter().zip(&truth) {
                    assert!(
                        (a - b).abs() <= tolerance * (b.abs() + 0.1),
                        "{:?}: state {a} instead of {b}",
                        rules(1)[kind]
                    );
                }
            }
        }
    }
    assert!(launches(device, "optimizer_step") > before);
    assert_eq!(fallbacks(device, "optimizer_step"), 0);
}

#[test]
fn sums_of_a_step_are_the_cpus_and_the_weights_too() {
    let Some(device) = device() else { return };
    for len in [1, 1000, 20_003] {
        let layout = Layout::contiguous(len);
        let one = Layout::contiguous(1);
        let (mut param, grad, scale) = (
            CpuStorage::F32(numbers(len, 1)),
            CpuStorage::F32(numbers(len, 2)),
            CpuStorage::F32(vec![1.0]),
        );
        let (mut m, mut v) = (
            CpuStorage::F32(numbers(len, 3)),
            CpuStorage::F32(vec![0.5; len]),
        );
        let mut sums = CpuStorage::F32(vec![-1.0; 9]);
        let [mut p, g, s, mut a, mut b, mut out] =
            [&param, &grad, &scale, &m, &v, &sums].map(|host| upload(device, host));
        let rule = adam(true, false, 3);
        CpuStorage::optimizer_step(
            &rule,
            &mut param,
            (&grad, &layout),
            (&scale, &one),
            &mut [&mut m, &mut v],
            Some((&mut sums, 1)),
        )
        .unwrap();
        TpuStorage::optimizer_step(
            &rule,
            &mut p,
            (&g, &layout),
            (&s, &one),
            &mut [&mut a, &mut b],
            Some((&mut out, 1)),
        )
        .unwrap();
        let (ours, truth) = (values(&out), widened(&sums));
        assert_eq!([&ours[..3], &ours[6..]].concat(), [-1.0; 6]);
        for i in 3..6 {
            let error = (ours[i] - truth[i]).abs() / truth[i].max(1e-9);
            assert!(
                error < 1e-3,
                "{len}: sum {i} is {} instead of {}",
                ours[i],
                truth[i]
            );
        }
        assert_eq!(
            ours[5], truth[5],
            "weights that moved against their gradient"
        );
    }
}

#[test]
fn a_gradient_that_is_no_number_makes_none_of_its_weight_under_any_rule() {
    let Some(device) = device() else { return };
    let (layout, one) = (Layout::contiguous(4), Layout::contiguous(1));
    let grad = CpuStorage::F32(vec![0.5, f32::NAN, -0.5, 0.0]);
    let scale = CpuStorage::F32(vec![1.0]);
    for rule in rules(1) {
        let [mut param, grad, scale] =
            [&CpuStorage::F32(vec![1.0; 4]), &grad, &scale].map(|host| upload(device, host));
        let zeros = CpuStorage::F32(vec![0.0; 4]);
        let mut states = vec![(); rule.num_states()];
        let mut states: Vec<_> = states.iter_mut().map(|()| upload(device, &zeros)).collect();
        let mut states: Vec<_> = states.iter_mut().collect();
        TpuStorage::optimizer_step(
            &rule,
            &mut param,
            (&grad, &layout),
            (&scale, &one),
            &mut states,
            None,
        )
        .unwrap();
        let is_nan = values(&param).into_iter().map(f32::is_nan);
        let is_nan: Vec<_> = is_nan.collect();
        assert_eq!(is_nan, [false, true, false, false], "{rule:?}");
    }
}

#[test]
fn weights_that_move_against_a_tiny_gradient_are_counted() {
    let Some(device) = device() else { return };
    let (layout, one) = (Layout::contiguous(3), Layout::contiguous(1));
    // The product of step and gradient is 1e-53, which f32 does not have.
    let rule = UpdateRule::Descend {
        keep: 1.0,
        rate: 1e-3,
    };
    let [mut param, grad, scale, mut sums] = [
        CpuStorage::F32(vec![0.0; 3]),
        CpuStorage::F32(vec![1e-25, -1e-25, 0.0]),
        CpuStorage::F32(vec![1.0]),
        CpuStorage::F32(vec![0.0; 3]),
    ]
    .map(|host| upload(device, &host));
    TpuStorage::optimizer_step(
        &rule,
        &mut param,
        (&grad, &layout),
        (&scale, &one),
        &mut [],
        Some((&mut sums, 0)),
    )
    .unwrap();
    assert_eq!(values(&sums)[2], 2.0);
}
