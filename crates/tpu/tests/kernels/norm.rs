//! RMS normalisation and rotary embedding against the CPU's.

use crate::common::{device, fallbacks, launches, numbers, stored, unit_roundoff, upload, widened};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::{FusedOps, Write};
use tt_tpu::TpuStorage;

/// The worst difference over the root mean square of the truth.
fn error(ours: &TpuStorage, truth: &CpuStorage) -> f64 {
    let (ours, truth) = (widened(&ours.to_cpu_storage().unwrap()), widened(truth));
    assert_eq!(ours.len(), truth.len());
    let square = |x: &f32| f64::from(*x) * f64::from(*x);
    let rms = (truth.iter().map(square).sum::<f64>() / truth.len().max(1) as f64).sqrt();
    let worst = ours
        .iter()
        .zip(&truth)
        .map(|(a, b)| f64::from((a - b).abs()))
        .fold(0.0, f64::max);
    worst / rms.max(1e-30)
}

#[test]
fn rows_are_normalised_and_their_gradients_are_the_cpus() {
    let Some(device) = device() else { return };
    for (rows, dim) in [(1, 1), (7, 5), (65, 64), (300, 63), (9, 4096), (3, 10_001)] {
        let weight = CpuStorage::F32(numbers(dim, 1));
        let of_weight = Layout::contiguous(dim);
        let layout = Layout::contiguous((rows, dim));
        for (x_dtype, y_dtype) in [
            (DType::F32, DType::F32),
            (DType::F32, DType::BF16),
            (DType::BF16, DType::BF16),
            (DType::F16, DType::F16),
        ] {
            let x = stored(x_dtype, numbers(rows * dim, 2));
            let (mut y, mut inv) = (
                stored(y_dtype, vec![0.0; rows * dim]),
                CpuStorage::F32(vec![0.0; rows]),
            );
            let (mut our_y, mut our_inv) = (upload(device, &y), upload(device, &inv));
            CpuStorage::rms_norm((&x, &layout), (&weight, &of_weight), 1e-6, &mut y, &mut inv)
                .unwrap();
            let (our_x, our_weight) = (upload(device, &x), upload(device, &weight));
            let (a, w) = ((&our_x, &layout), (&our_weight, &of_weight));
            TpuStorage::rms_norm(a, w, 1e-6, &mut our_y, &mut our_inv).unwrap();
            let tolerance = |dtype| {
                if dtype == DType::F32 {
                    4e-6
                } else {
                    4.0 * unit_roundoff(dtype)
                }
            };
            assert!(
                error(&our_y, &y) < tolerance(y_dtype),
                "y {rows}x{dim} {x_dtype:?}: {:.1e}",
                error(&our_y, &y)
            );
            assert!(error(&our_inv, &inv) < 2e-6, "inv_rms {rows}x{dim}");

            let dy = stored(y_dtype, numbers(rows * dim, 3));
            let (mut dx, mut dw) = (
                stored(x_dtype, vec![0.0; rows * dim]),
                CpuStorage::F32(numbers(dim, 4)),
            );
            let (mut our_dx, mut our_dw) = (upload(device, &dx), upload(device, &dw));
            let of_rows = Layout::contiguous(rows);
            CpuStorage::rms_norm_backward(
                (&x, &layout),
                (&weight, &of_weight),
                (&inv, &of_rows),
                (&dy, &layout),
                Some(&mut dx),
                Some((&mut dw, Write::Accumulate)),
            )
            .unwrap();
            let our_dy = upload(device, &dy);
            TpuStorage::rms_norm_backward(
                a,
                w,
                (&our_inv, &of_rows),
                (&our_dy, &layout),
                Some(&mut our_dx),
                Some((&mut our_dw, Write::Accumulate)),
            )
            .unwrap();
            // Of a single element nothing is left but rounding: dx is a difference of two equal numbers.
            if dim > 1 {
                assert!(
                    error(&our_dx, &dx) < tolerance(x_dtype),
                    "dx {rows}x{dim} {x_dtype:?}: {:.1e}",
                    error(&our_dx, &dx)
                );
            }
            assert!(
                error(&our_dw, &dw) < 4e-6,
                "dweight {rows}x{dim}: {:.1e}",
                error(&our_dw, &dw)
            );
        }
    }
    assert!(launches(device, "rms_norm") > 0 && launches(device, "rms_norm_backward") > 0);
    assert_eq!(
        fallbacks(device, "rms_norm") + fallbacks(device, "rms_norm_backward"),
        0
    );
}

#[test]
fn no_rows_have_a_gradient_of_zero() {
    let Some(device) = device() else { return };
    let none = upload(device, &CpuStorage::F32(vec![]));
    let weight = upload(device, &CpuStorage::F32(vec![1.0; 3]));
    let (no_rows, of_weight) = (Layout::contiguous((0, 3)), Layout::contiguous(3));
    for (write, expected) in [(Write::Accumulate, 5.0), (Write::Assign, 0.0)] {
        let mut dweight = upload(device, &CpuStorage::F32(vec![5.0; 3]));
        TpuStorage::rms_norm_backward(
            (&none, &no_rows),
            (&weight, &of_weight),
            (&none, &Layout::contiguous(0)),
            (&none, &no_rows),
            None,
            Some((&mut dweight, write)),
        )
        .unwrap();
        let dweight = widened(&dweight.to_cpu_storage().unwrap());
        assert_eq!(dweight, [expected; 3], "{write:?}");
    }
}

#[test]
fn pairs_are_rotated_and_turned_back() {
    let Some(device) = device() else { return };
    for (batch, tokens, heads, dim) in [
        (1, 1, 1, 2),
        (2, 35, 3, 16),
        (1, 130, 40, 128),
        (3, 65, 1, 6),
    ] {
        let half = dim / 2;
        let len = batch * tokens * heads * dim;
        let angles: Vec<f32> = (0..64 * half).map(|i| i as f32 * 0.37).collect();
        let table = |f: fn(f32) -> f32| CpuStorage::F32(angles.iter().map(|x| f(*x)).collect());
        let (cos, sin) = (table(f32::cos), table(f32::sin));
        let of_table = Layout::contiguous((64, half));
        let positions = CpuStorage::U32((0..batch * tokens).map(|i| (i * 7 % 64) as u32).collect());
        let of_positions = Layout::contiguous((batch, tokens));
        // A slice of a projection that holds more: the last dim is contiguous, the others stride further.
        let wide = Layout::contiguous((batch, tokens, heads + 2, dim))
            .narrow(2, 1, heads)
            .unwrap();
        let wide_len = batch * tokens * (heads + 2) * dim;
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let x = stored(dtype, numbers(wide_len, 1));
            for inverse in [false, true] {
                let mut truth = stored(dtype, vec![0.0; len]);
                let mut ours = upload(device, &truth);
                CpuStorage::rope(
                    (&x, &wide),
                    (&cos, &of_table),
                    (&sin, &of_table),
                    (&positions, &of_positions),
                    inverse,
                    &mut truth,
                )
                .unwrap();
                let [a, c, s, p] = [&x, &cos, &sin, &positions].map(|host| upload(device, host));
                TpuStorage::rope(
                    (&a, &wide),
                    (&c, &of_table),
                    (&s, &of_table),
                    (&p, &of_positions),
                    inverse,
                    &mut ours,
                )
                .unwrap();
                let tolerance = if dtype == DType::F32 {
                    1e-6
                } else {
                    4.0 * unit_roundoff(dtype)
                };
                let error = error(&ours, &truth);
                assert!(
                    error < tolerance,
                    "{dtype:?} {batch} {tokens} {heads} {dim}: {error:.1e}"
                );
            }
        }
    }
    assert!(launches(device, "rope") > 0);
    assert_eq!(fallbacks(device, "rope"), 0);
}
