//! Optimizer steps against their plain definitions, for f32 and bf16 states, and the sums that metrics are made of.

use candle_core::{CpuStorage, Result};
use half::bf16;
use tt_cpu::{FusedOps, UpdateRule, reference};

use crate::common::*;

/// More than a task takes, and no multiple of any block.
const LEN: usize = 40_003;

/// The rule as its `t`-th step, counted from 1.
fn at_step(rule: &UpdateRule, t: u64) -> UpdateRule {
    match *rule {
        UpdateRule::Adam(adam) => UpdateRule::Adam(tt_cpu::AdamParams { step: t, ..adam }),
        UpdateRule::Momentum {
            lr,
            momentum,
            dampening,
            nesterov,
            weight_decay,
            ..
        } => UpdateRule::Momentum {
            lr,
            momentum,
            dampening,
            nesterov,
            weight_decay,
            is_first: t == 1,
        },
        other => other,
    }
}

/// Weights and states after `steps` steps with the gradient scale 0.25, and the sums of the last.
fn run(
    rule: &UpdateRule,
    steps: u64,
    state: impl Fn() -> CpuStorage,
) -> Result<(Vec<f32>, Vec<CpuStorage>, [f32; 3])> {
    let mut param = CpuStorage::F32(random(LEN, 1));
    let mut states: Vec<_> = (0..rule.num_states()).map(|_| state()).collect();
    let mut sums = garbage(6);
    for t in 1..=steps {
        let grad = Operand::f32(random(LEN, 10 + t), LEN);
        let scale = Operand::f32(vec![0.25], 1);
        let mut states: Vec<_> = states.iter_mut().collect();
        CpuStorage::optimizer_step(
            &at_step(rule, t),
            &mut param,
            grad.view(),
            scale.view(),
            &mut states,
            (t == steps).then_some((&mut sums, 1)),
        )?;
    }
    let all = f32s(&sums);
    assert!(all[..3].iter().all(|x| x.is_nan()), "slot 0 is untouched");
    Ok((f32s(&param).to_vec(), states, [all[3], all[4], all[5]]))
}

#[test]
fn every_rule_matches_its_definition_for_ten_steps() -> Result<()> {
    for rule in reference::RULES {
        let mut param = wide(&random(LEN, 1));
        let mut states = vec![vec![0.0; LEN]; rule.num_states()];
        let (mut squares, mut against) = (0.0, 0);
        for t in 1..=10 {
            let grad = wide(&random(LEN, 10 + t));
            let before = param.clone();
            reference::optimizer_step(&at_step(rule, t), &mut param, &grad, 0.25, &mut states);
            let moved = || param.iter().zip(&before).map(|(p, before)| p - before);
            squares = moved().map(|moved| moved * moved).sum();
            against = moved().zip(&grad).filter(|(m, g)| m * *g < 0.0).count();
        }
        let (ours, our_states, sums) = run(rule, 10, || zeros(LEN))?;
        let what = format!("{rule:?}");
        assert_close(&what, &ours, &param, 1e-6);
        for (ours, state) in our_states.iter().zip(&states) {
            assert_close(&what, f32s(ours), state, 1e-6);
        }
        let weights: f64 = param.iter().map(|p| p * p).sum();
        for (sum, truth) in sums.iter().zip([squares, weights, against as f64]) {
            let error = (*sum as f64 - truth).abs() / truth;
            assert!(error < 1e-4, "{what}: {sum} instead of {truth}");
        }
    }
    Ok(())
}

#[test]
fn bf16_states_are_those_of_one_f32_step_rounded() -> Result<()> {
    for rule in reference::RULES {
        let start = bf16::from_f32(0.3);
        let (narrow, narrow_states, _) = run(rule, 1, || CpuStorage::BF16(vec![start; LEN]))?;
        let wide_start = || CpuStorage::F32(vec![start.to_f32(); LEN]);
        let (wide, wide_states, _) = run(rule, 1, wide_start)?;
        assert!(
            narrow == wide,
            "{rule:?}: the state is rounded after the step"
        );
        for (narrow, wide) in narrow_states.iter().zip(&wide_states) {
            let rounded = f32s(wide).iter().map(|x| bf16::from_f32(*x));
            assert!(narrow.as_slice::<bf16>()?.iter().copied().eq(rounded));
        }
    }
    Ok(())
}

#[test]
fn sums_do_not_change_the_step_and_threads_change_nothing() -> Result<()> {
    let on = |threads: usize, rule: &UpdateRule| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(candle_core::Error::wrap)?;
        pool.install(|| run(rule, 3, || zeros(LEN)))
    };
    for rule in reference::RULES {
        let (param, states, sums) = on(1, rule)?;
        for threads in [2, 3, 8] {
            let (p, s, again) = on(threads, rule)?;
            let same = s.iter().zip(&states).all(|(a, b)| f32s(a) == f32s(b));
            assert!(p == param && same && again == sums, "{rule:?}");
        }
        // `run` asks for sums at its last step only: three steps, or two and one without.
        let mut plain = CpuStorage::F32(random(LEN, 1));
        let mut states: Vec<_> = (0..rule.num_states()).map(|_| zeros(LEN)).collect();
        for t in 1..=3 {
            let grad = Operand::f32(random(LEN, 10 + t), LEN);
            let scale = Operand::f32(vec![0.25], 1);
            let mut states: Vec<_> = states.iter_mut().collect();
            let rule = at_step(rule, t);
            let (grad, scale) = (grad.view(), scale.view());
            CpuStorage::optimizer_step(&rule, &mut plain, grad, scale, &mut states, None)?;
        }
        assert!(f32s(&plain) == param, "{rule:?}");
    }
    Ok(())
}

#[test]
fn lion_leaves_a_weight_without_a_direction_to_its_decay() -> Result<()> {
    let rule = UpdateRule::Lion {
        lr: 0.5,
        beta1: 0.9,
        beta2: 0.99,
        weight_decay: 0.5,
    };
    let (grad, scale) = (Operand::f32(vec![0.0, -2.0], 2), Operand::f32(vec![1.0], 1));
    let (mut param, mut m) = (CpuStorage::F32(vec![4.0, 4.0]), zeros(2));
    let states = &mut [&mut m];
    CpuStorage::optimizer_step(&rule, &mut param, grad.view(), scale.view(), states, None)?;
    assert_eq!(f32s(&param), [3.0, 3.5]);
    Ok(())
}

#[test]
fn gradients_are_clipped_by_value_after_they_are_scaled() -> Result<()> {
    let mut grad = CpuStorage::F32(vec![1.0, -8.0, 0.5, f32::NAN, 8.0]);
    let scale = Operand::f32(vec![0.5], 1);
    grad.clip_value(4, scale.view(), 2.0)?;
    let [a, b, c, d, e] = f32s(&grad) else {
        unreachable!("five elements");
    };
    assert_eq!([*a, *b, *c, *e], [0.5, -2.0, 0.25, 8.0]);
    assert!(d.is_nan());
    Ok(())
}

#[test]
fn combinations_are_rounded_to_bf16_where_asked() -> Result<()> {
    let (start, x) = (random(LEN, 1), random(LEN, 2));
    let operand = Operand::f32(x.clone(), LEN);
    for to_bf16 in [false, true] {
        let mut out = CpuStorage::F32(start.clone());
        out.combine(LEN, 0.5, Some((-3.0, operand.view())), to_bf16)?;
        let mut alone = CpuStorage::F32(start.clone());
        alone.combine(LEN, 0.3, None, to_bf16)?;
        let rounded = |x: f32| {
            if to_bf16 {
                bf16::from_f32(x).to_f32()
            } else {
                x
            }
        };
        for i in 0..LEN {
            assert_eq!(f32s(&out)[i], rounded(0.5 * start[i] + -3.0 * x[i]));
            assert_eq!(f32s(&alone)[i], rounded(0.3 * start[i]));
        }
    }
    Ok(())
}

#[test]
fn states_that_do_not_fit_are_named() {
    let grad = Operand::f32(vec![1.0; 4], 4);
    let scale = Operand::f32(vec![1.0], 1);
    let rule = reference::RULES[1];
    let (mut param, mut m, mut short) = (zeros(4), zeros(4), CpuStorage::BF16(vec![bf16::ONE; 3]));
    let mut step = |states: &mut [&mut CpuStorage]| {
        let (grad, scale) = (grad.view(), scale.view());
        let result = CpuStorage::optimizer_step(&rule, &mut param, grad, scale, states, None);
        result.expect_err("refused").to_string()
    };
    assert!(step(&mut [&mut m]).contains("1 states instead of 2"));
    assert!(step(&mut [&mut m, &mut short]).contains("3 elements instead of 4"));
}
