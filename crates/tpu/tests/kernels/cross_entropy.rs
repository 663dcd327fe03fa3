//! The language-model loss and its gradients against the CPU's.

use crate::common::{
    device, fallbacks, launches, numbers, relative_l2, stored, unit_roundoff, upload, wide, widened,
};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::{CrossEntropyParams, FusedOps, Write};
use tt_tpu::TpuStorage;

fn error(ours: &TpuStorage, truth: &CpuStorage) -> f64 {
    let ours = ours.to_cpu_storage().expect("the device answers");
    relative_l2(&ours, &wide(&widened(truth)))
}

fn check(rows: usize, dim: usize, vocab: usize, params: CrossEntropyParams, dtype: DType) {
    let Some(device) = device() else { return };
    let (hidden, weight) = (
        stored(dtype, numbers(rows * dim, 1)),
        CpuStorage::F32(numbers(vocab * dim, 2)),
    );
    let label = |i: usize| {
        if i % 5 == 3 {
            -100
        } else {
            (i * 37 % vocab) as i64
        }
    };
    let labels = CpuStorage::I64((0..rows).map(label).collect());
    let layouts = [
        Layout::contiguous((rows, dim)),
        Layout::contiguous((vocab, dim)),
        Layout::contiguous(rows),
    ];
    let mut totals = CpuStorage::F32(vec![0.0; 3]);
    let mut dhidden = stored(dtype, vec![0.0; rows * dim]);
    let mut dweight = CpuStorage::F32(vec![0.0; vocab * dim]);
    let [mut our_totals, mut our_dhidden, mut our_dweight] =
        [&totals, &dhidden, &dweight].map(|host| upload(device, host));
    CpuStorage::linear_cross_entropy(
        &params,
        1.0,
        (&hidden, &layouts[0]),
        (&weight, &layouts[1]),
        (&labels, &layouts[2]),
        &mut totals,
        Some(&mut dhidden),
        Some(&mut dweight),
    )
    .unwrap();
    let host = (hidden, weight, labels);
    let [hidden, weight, labels] = [&host.0, &host.1, &host.2].map(|host| upload(device, host));
    let views = (
        (&hidden, &layouts[0]),
        (&weight, &layouts[1]),
        (&labels, &layouts[2]),
    );
    TpuStorage::linear_cross_entropy(
        &params,
        1.0,
        views.0,
        views.1,
        views.2,
        &mut our_totals,
        Some(&mut our_dhidden),
        Some(&mut our_dweight),
    )
    .unwrap();
    let what = format!("{rows}x{dim}x{vocab} {dtype:?}");
    let tolerance = if dtype == DType::F32 {
        3e-6
    } else {
        2.0 * unit_roundoff(dtype)
    };
    let ours = widened(&our_totals.to_cpu_storage().unwrap());
    for (ours, truth) in ours.iter().zip(widened(&totals)) {
        let error = f64::from((ours - truth).abs() / truth.abs().max(1.0));
        assert!(
            error < tolerance,
            "{what}: {ours} instead of {truth}, {error:.1e}"
        );
    }
    for (name, ours, truth) in [
        ("dhidden", &our_dhidden, &dhidden),
        ("dweight", &our_dweight, &dweight),
    ] {
        let error = error(ours, truth);
        assert!(error < tolerance, "{what}: {name} is off by {error:.1e}");
    }
    // Without gradients the same loss.
    TpuStorage::linear_cross_entropy(
        &params,
        1.0,
        views.0,
        views.1,
        views.2,
        &mut our_totals,
        None,
        None,
    )
    .unwrap();
    assert_eq!(
        widened(&our_totals.to_cpu_storage().unwrap()),
        ours,
        "{what}"
    );
    // Loss by loss, each with a gradient of its own.
    let (upstream, one_each) = (CpuStorage::F32(numbers(rows, 3)), Layout::contiguous(rows));
    let mut losses = CpuStorage::F32(vec![0.0; rows]);
    let mut our_losses = upload(device, &losses);
    let cpu = (
        (&host.0, &layouts[0]),
        (&host.1, &layouts[1]),
        (&host.2, &layouts[2]),
    );
    CpuStorage::linear_token_losses(&params, cpu.0, cpu.1, cpu.2, &mut losses).unwrap();
    TpuStorage::linear_token_losses(&params, views.0, views.1, views.2, &mut our_losses).unwrap();
    CpuStorage::linear_token_losses_backward(
        &params,
        cpu.0,
        cpu.1,
        cpu.2,
        (&upstream, &one_each),
        Some(&mut dhidden),
        Some((&mut dweight, Write::Accumulate)),
    )
    .unwrap();
    TpuStorage::linear_token_losses_backward(
        &params,
        views.0,
        views.1,
        views.2,
        (&upload(device, &upstream), &one_each),
        Some(&mut our_dhidden),
        Some((&mut our_dweight, Write::Accumulate)),
    )
    .unwrap();
    for (name, ours, truth) in [
        ("losses", &our_losses, &losses),
        ("dhidden of each", &our_dhidden, &dhidden),
        ("dweight with that of each", &our_dweight, &dweight),
    ] {
        let error = error(ours, truth);
        assert!(error < tolerance, "{what}: {name} is off by {error:.1e}");
    }
    assert_eq!(fallbacks(device, "linear_cross_entropy"), 0);
    assert!(launches(device, "cross_entropy") > 1);
}

const PLAIN: CrossEntropyParams = CrossEntropyParams {
    ignore_index: -100,
    label_smoothing: 0.0,
    z_loss: 0.0,
};

#[test]
fn loss_and_gradients_are_the_cpus() {
    for (rows, dim, vocab) in [(1, 1, 2), (7, 16, 33), (70, 32, 1009), (130, 24, 4096)] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            check(rows, dim, vocab, PLAIN, dtype);
        }
    }
}

#[test]
fn label_smoothing_and_z_loss_are_the_cpus() {
    let params = CrossEntropyParams {
        label_smoothing: 0.1,
        z_loss: 1e-3,
        ..PLAIN
    };
    for dtype in [DType::F32, DType::BF16] {
        check(70, 32, 1009, params, dtype);
    }
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn a_vocabulary_beyond_a_lanes_memory_passes_in_pieces() {
    check(70, 8, 20_011, PLAIN, DType::F32);
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn rows_beyond_a_chunk_are_added_up() {
    // Chunks are of 1024 rows here.
    check(1100, 2, 4_100, PLAIN, DType::F32);
}
