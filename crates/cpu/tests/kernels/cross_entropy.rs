//! Linear cross-entropy against the plain definition, which is checked against finite differences.

use candle_core::{CpuStorage, Result};
use tt_cpu::{CrossEntropyParams, FusedOps, Write, reference};

use crate::common::*;

const PLAIN: CrossEntropyParams = CrossEntropyParams {
    ignore_index: -100,
    label_smoothing: 0.0,
    z_loss: 0.0,
};
const FULL: CrossEntropyParams = CrossEntropyParams {
    ignore_index: -100,
    label_smoothing: 0.1,
    z_loss: 0.01,
};

fn labels(rows: usize, vocab: usize) -> Vec<i64> {
    (0..rows)
        .map(|r| {
            if r % 5 == 3 {
                -100
            } else {
                (r * 7 % vocab) as i64
            }
        })
        .collect()
}

fn check(
    params: CrossEntropyParams,
    rows: usize,
    dim: usize,
    vocab: usize,
    spread: f32,
    tolerance: f64,
) -> Result<()> {
    let what = format!("{rows} x {dim} x {vocab}, {params:?}");
    let hidden: Vec<f32> = random(rows * dim, 1).iter().map(|x| x * spread).collect();
    let (weight, labels) = (random(vocab * dim, 2), labels(rows, vocab));
    let (totals, want_dh, want_dw) =
        reference::linear_cross_entropy(&params, &wide(&hidden), &wide(&weight), &labels, dim);
    let hidden = Operand::f32(hidden, (rows, dim));
    let weight = Operand::f32(weight, (vocab, dim));
    let labels = Operand::i64(labels, rows);
    let [mut got, mut dh, mut dw] = [3, rows * dim, vocab * dim].map(garbage);
    CpuStorage::linear_cross_entropy(
        &params,
        1.0,
        hidden.view(),
        weight.view(),
        labels.view(),
        &mut got,
        Some(&mut dh),
        Some(&mut dw),
    )?;
    for i in 0..3 {
        assert_close(
            &format!("totals[{i}] {what}"),
            &f32s(&got)[i..=i],
            &totals[i..=i],
            2e-6,
        );
    }
    // Gradients are sums of `p - target`, differences of terms of order 0.1 and more.
    assert_close_from(
        &format!("dhidden {what}"),
        0.1,
        f32s(&dh),
        &want_dh,
        tolerance,
    );
    assert_close_from(
        &format!("dweight {what}"),
        0.1,
        f32s(&dw),
        &want_dw,
        tolerance,
    );

    let (mut alone, before) = (garbage(3), f32s(&got).to_vec());
    let (h, w, l) = (hidden.view(), weight.view(), labels.view());
    CpuStorage::linear_cross_entropy(&params, 1.0, h, w, l, &mut alone, None, None)?;
    assert_eq!(
        f32s(&alone),
        before,
        "the loss does not depend on the gradients asked for"
    );
    Ok(())
}

#[test]
fn loss_and_gradients_of_odd_sizes_match_the_reference() -> Result<()> {
    for (rows, dim, vocab) in [
        (1, 1, 1),
        (1, 17, 3),
        (3, 16, 129),
        (65, 33, 63),
        (129, 64, 300),
        (200, 130, 257),
        (20, 16, 9000),
    ] {
        check(PLAIN, rows, dim, vocab, 1.0, 3e-6)?;
        check(FULL, rows, dim, vocab, 1.0, 3e-6)?;
    }
    Ok(())
}

#[test]
fn several_chunks_of_rows_match_the_reference() -> Result<()> {
    check(FULL, 1500, 16, 140, 1.0, 3e-6)
}

#[test]
fn large_logits_do_not_overflow() -> Result<()> {
    // Logits of order 500 are themselves rounded by 3e-5, and so are their exponentials' ratios.
    check(PLAIN, 70, 16, 150, 300.0, 1e-4)
}

#[test]
fn ignored_rows_have_neither_loss_nor_gradient() -> Result<()> {
    let hidden = Operand::f32(random(6, 1), (2, 3));
    let weight = Operand::f32(random(12, 2), (4, 3));
    let labels = Operand::i64(vec![7, 7], 2);
    let params = CrossEntropyParams {
        ignore_index: 7,
        ..FULL
    };
    let [mut totals, mut dh, mut dw] = [3, 6, 12].map(garbage);
    let (h, w, l) = (hidden.view(), weight.view(), labels.view());
    CpuStorage::linear_cross_entropy(
        &params,
        1.0,
        h,
        w,
        l,
        &mut totals,
        Some(&mut dh),
        Some(&mut dw),
    )?;
    for storage in [totals, dh, dw] {
        assert!(f32s(&storage).iter().all(|x| *x == 0.0));
    }
    Ok(())
}

/// Losses of the rows, and the gradients of each times its element of `upstream`.
fn token_losses(
    hidden: &[f32],
    weight: &[f32],
    labels: &[i64],
    upstream: &[f32],
    dim: usize,
) -> Result<[CpuStorage; 3]> {
    let rows = labels.len();
    let vocab = weight.len() / dim;
    let hidden = Operand::f32(hidden.to_vec(), (rows, dim));
    let weight = Operand::f32(weight.to_vec(), (vocab, dim));
    let labels = Operand::i64(labels.to_vec(), rows);
    let upstream = Operand::f32(upstream.to_vec(), rows);
    let [mut losses, mut dh, mut dw] = [rows, rows * dim, vocab * dim].map(garbage);
    let (h, w, l) = (hidden.view(), weight.view(), labels.view());
    CpuStorage::linear_token_losses(&FULL, h, w, l, &mut losses)?;
    CpuStorage::linear_token_losses_backward(
        &FULL,
        h,
        w,
        l,
        upstream.view(),
        Some(&mut dh),
        Some((&mut dw, Write::Assign)),
    )?;
    Ok([losses, dh, dw])
}

#[test]
fn rows_without_a_label_change_nothing_whatever_they_hold() -> Result<()> {
    let (rows, dim, vocab) = (150, 24, 300);
    let labels = labels(rows, vocab);
    let has_label = |row: usize| labels[row] != -100;
    let mut hidden = random(rows * dim, 1);
    for row in (0..rows).filter(|row| !has_label(*row)) {
        hidden[row * dim..][..dim].fill(f32::NAN);
    }
    let (weight, upstream) = (random(vocab * dim, 2), random(rows, 3));
    let all = token_losses(&hidden, &weight, &labels, &upstream, dim)?;
    // The same without these rows.
    let kept = |x: &[f32], width: usize| -> Vec<f32> {
        let rows = x.chunks_exact(width).enumerate();
        let rows = rows.filter(|(row, _)| has_label(*row));
        rows.flat_map(|(_, x)| x.to_vec()).collect()
    };
    let few_labels: Vec<i64> = labels.iter().copied().filter(|l| *l != -100).collect();
    let (few_hidden, few_upstream) = (kept(&hidden, dim), kept(&upstream, 1));
    let few = token_losses(&few_hidden, &weight, &few_labels, &few_upstream, dim)?;
    assert_eq!(kept(f32s(&all[0]), 1), f32s(&few[0]));
    assert_eq!(kept(f32s(&all[1]), dim), f32s(&few[1]));
    assert_eq!(f32s(&all[2]), f32s(&few[2]));
    for row in (0..rows).filter(|row| !has_label(*row)) {
        assert_eq!(f32s(&all[0])[row], 0.0);
        assert!(f32s(&all[1])[row * dim..][..dim].iter().all(|x| *x == 0.0));
    }
    Ok(())
}

#[test]
fn losses_one_by_one_are_those_of_the_sum() -> Result<()> {
    let (rows, dim, vocab) = (1500, 16, 140);
    let (hidden, weight) = (random(rows * dim, 1), random(vocab * dim, 2));
    let labels = labels(rows, vocab);
    let [losses, dh, dw] = token_losses(&hidden, &weight, &labels, &vec![0.5; rows], dim)?;
    let hidden = Operand::f32(hidden, (rows, dim));
    let weight = Operand::f32(weight, (vocab, dim));
    let labels = Operand::i64(labels, rows);
    let [mut totals, mut dh_of_sum, mut dw_of_sum] = [3, rows * dim, vocab * dim].map(garbage);
    let (h, w, l) = (hidden.view(), weight.view(), labels.view());
    let (to_hidden, to_weight) = (Some(&mut dh_of_sum), Some(&mut dw_of_sum));
    CpuStorage::linear_cross_entropy(&FULL, 0.5, h, w, l, &mut totals, to_hidden, to_weight)?;
    let sum: f64 = wide(f32s(&losses)).iter().sum();
    assert_close("sum", &f32s(&totals)[..1], &[sum], 1e-6);
    assert_eq!(f32s(&dh), f32s(&dh_of_sum));
    assert_eq!(f32s(&dw), f32s(&dw_of_sum));
    Ok(())
}

#[test]
fn no_rows_give_zeros() -> Result<()> {
    let hidden = Operand::f32(vec![], (0, 3));
    let weight = Operand::f32(random(12, 2), (4, 3));
    let labels = Operand::i64(vec![], 0);
    let [mut totals, mut dh, mut dw] = [3, 0, 12].map(garbage);
    let (h, w, l) = (hidden.view(), weight.view(), labels.view());
    CpuStorage::linear_cross_entropy(
        &PLAIN,
        1.0,
        h,
        w,
        l,
        &mut totals,
        Some(&mut dh),
        Some(&mut dw),
    )?;
    assert!(f32s(&totals).iter().chain(f32s(&dw)).all(|x| *x == 0.0));
    Ok(())
}

#[test]
fn the_backward_pass_is_the_derivative() {
    let (dim, vocab) = (3, 5);
    let (hidden, weight) = (wide(&random(4 * dim, 1)), wide(&random(vocab * dim, 2)));
    let labels = [0, 4, -100, 2];
    let loss = |hidden: &[f64], weight: &[f64]| {
        reference::linear_cross_entropy(&FULL, hidden, weight, &labels, dim).0[0]
    };
    let (_, dh, dw) = reference::linear_cross_entropy(&FULL, &hidden, &weight, &labels, dim);
    let narrow = |x: Vec<f64>| x.iter().map(|x| *x as f32).collect::<Vec<_>>();
    assert_close(
        "dhidden",
        &narrow(dh),
        &numeric_gradient(&hidden, |h| loss(h, &weight)),
        1e-6,
    );
    assert_close(
        "dweight",
        &narrow(dw),
        &numeric_gradient(&weight, |w| loss(&hidden, w)),
        1e-6,
    );
}

#[test]
fn a_label_outside_of_the_vocabulary_is_an_error() {
    let hidden = Operand::f32(vec![0.0; 6], (2, 3));
    let weight = Operand::f32(vec![0.0; 12], (4, 3));
    for label in [4, -1, i64::MAX] {
        let labels = Operand::i64(vec![0, label], 2);
        let mut totals = zeros(3);
        let (h, w, l) = (hidden.view(), weight.view(), labels.view());
        let error = CpuStorage::linear_cross_entropy(&PLAIN, 1.0, h, w, l, &mut totals, None, None)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("label {label} is not below the vocabulary of 4")),
            "{error}"
        );
    }
}
