//! Normalisation by mean and deviation, and its gradients, against the plain definition in f64.

use crate::common::*;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::{FusedOps, Write, reference};
use tt_tpu::{TpuDevice, TpuStorage};

const KERNELS: [&str; 2] = ["layer_norm", "layer_norm_backward"];
const EPS: f32 = 1e-5;

fn host(storage: &TpuStorage) -> CpuStorage {
    storage.to_cpu_storage().expect("the device answers")
}

/// Rounded once, of terms of order 1: a gradient is a difference of these, and may be small.
fn assert_near(what: &str, got: &CpuStorage, want: &[f64]) {
    let u = unit_roundoff(got.dtype());
    for (i, (got, want)) in widened(got).iter().zip(want).enumerate() {
        let allowed = u * want.abs() + 6e-6;
        let error = (f64::from(*got) - want).abs();
        assert!(error <= allowed, "{what}[{i}]: {got} instead of {want}");
    }
}

fn check(device: TpuDevice, rows: usize, dim: usize, x_dtype: DType, y_dtype: DType) {
    let what = |name: &str| format!("{name} {rows}x{dim} {x_dtype:?} {y_dtype:?}");
    let around_2 = |x: &f32| 2.0 * x + 2.0;
    let x: Vec<f32> = random(rows * dim, 1).iter().map(around_2).collect();
    let x = Operand::of(x_dtype, x, (rows, dim));
    let [weight, bias] = [2, 3].map(|seed| Operand::f32(random(dim, seed), dim));
    let dy = Operand::of(y_dtype, random(rows * dim, 4), (rows, dim));
    let (y, mean, inv) =
        reference::layer_norm(&x.wide(), &weight.wide(), &bias.wide(), f64::from(EPS));
    let (dx, mut dweight, dbias) =
        reference::layer_norm_backward(&x.wide(), &weight.wide(), &mean, &inv, &dy.wide());

    let on = |x: &Operand| TpuOperand::new(device, x);
    let (x, weight, bias, dy) = (on(&x), on(&weight), on(&bias), on(&dy));
    let unset = |dtype, len| upload(device, &stored(dtype, vec![f32::NAN; len]));
    let mut our_y = unset(y_dtype, rows * dim);
    let [mut our_mean, mut our_inv] = [(); 2].map(|()| unset(DType::F32, rows));
    let (w, b) = (weight.view(), bias.view());
    TpuStorage::layer_norm(x.view(), w, b, EPS, &mut our_y, &mut our_mean, &mut our_inv).unwrap();
    assert_near(&what("y"), &host(&our_y), &y);
    assert_close(&what("mean"), f32s(&host(&our_mean)), &mean, 1e-6);
    assert_close(&what("inv_std"), f32s(&host(&our_inv)), &inv, 4e-6);

    let mut our_dx = unset(x_dtype, rows * dim);
    let mut our_dweight = upload(device, &CpuStorage::F32(vec![1.0; dim]));
    let mut our_dbias = unset(DType::F32, dim);
    let of_rows = Layout::contiguous(rows);
    TpuStorage::layer_norm_backward(
        x.view(),
        w,
        (&our_mean, &of_rows),
        (&our_inv, &of_rows),
        dy.view(),
        Some(&mut our_dx),
        Some((&mut our_dweight, Write::Accumulate)),
        Some((&mut our_dbias, Write::Assign)),
    )
    .unwrap();
    dweight.iter_mut().for_each(|x| *x += 1.0);
    assert_near(&what("dx"), &host(&our_dx), &dx);
    assert_close_from(
        &what("dweight"),
        1.0,
        f32s(&host(&our_dweight)),
        &dweight,
        6e-6,
    );
    assert_close_from(&what("dbias"), 1.0, f32s(&host(&our_dbias)), &dbias, 4e-6);
}

#[test]
fn rows_are_normalised_and_their_gradients_are_those_of_the_definition() {
    let Some(device) = device() else { return };
    let before = KERNELS.map(|kernel| launches(device, kernel));
    // Around the lanes, several rows a lane, and rows in pieces.
    for (rows, dim) in [(7, 5), (65, 64), (300, 63), (9, 4096), (3, 10_001)] {
        for (x_dtype, y_dtype) in [
            (DType::F32, DType::F32),
            (DType::F32, DType::BF16),
            (DType::BF16, DType::BF16),
            (DType::F16, DType::F16),
            (DType::BF16, DType::F32),
        ] {
            check(device, rows, dim, x_dtype, y_dtype);
        }
    }
    for (kernel, before) in KERNELS.into_iter().zip(before) {
        assert!(launches(device, kernel) > before);
        assert_eq!(fallbacks(device, kernel), 0);
    }
}

#[test]
fn no_rows_have_gradients_of_zero() {
    let Some(device) = device() else { return };
    let none = upload(device, &CpuStorage::F32(vec![]));
    let weight = upload(device, &CpuStorage::F32(vec![1.0; 3]));
    let (no_rows, of_weight) = (Layout::contiguous((0, 3)), Layout::contiguous(3));
    let (nothing, of_rows) = ((&none, &no_rows), Layout::contiguous(0));
    let [mut dweight, mut dbias] = [(); 2].map(|()| upload(device, &CpuStorage::F32(vec![5.0; 3])));
    TpuStorage::layer_norm_backward(
        nothing,
        (&weight, &of_weight),
        (&none, &of_rows),
        (&none, &of_rows),
        nothing,
        None,
        Some((&mut dweight, Write::Assign)),
        Some((&mut dbias, Write::Accumulate)),
    )
    .unwrap();
    assert_eq!(f32s(&host(&dweight)), [0.0; 3]);
    assert_eq!(f32s(&host(&dbias)), [5.0; 3]);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let Some(device) = device() else { return };
    let x = TpuOperand::new(device, &Operand::f32(vec![0.0; 8], (2, 4)));
    let (four, three) = (
        TpuOperand::new(device, &Operand::f32(vec![0.0; 4], 4)),
        TpuOperand::new(device, &Operand::f32(vec![0.0; 3], 3)),
    );
    let [mut y, mut mean, mut inv] = [8, 2, 2].map(|len| upload(device, &zeros(len)));
    let (w, b) = (four.view(), three.view());
    let refused = TpuStorage::layer_norm(x.view(), w, b, EPS, &mut y, &mut mean, &mut inv);
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("layer_norm: bias has 3 elements"), "{why}");
}
