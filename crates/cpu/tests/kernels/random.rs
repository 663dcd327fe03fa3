//! Random numbers: reproducible, independent of how many are drawn, and distributed as promised.

use candle_core::{CpuStorage, Result};
use tt_cpu::{FusedOps, RngKey};

use crate::common::*;

const RNG: RngKey = RngKey { key: 42, stream: 7 };

fn normals(len: usize, rng: RngKey) -> Vec<f32> {
    let mut out = garbage(len);
    out.fill_normal(len, 0.0, 1.0, rng).expect("an f32 output");
    f32s(&out).to_vec()
}

#[test]
fn an_element_does_not_depend_on_how_many_are_drawn() {
    let all = normals(70_001, RNG);
    for len in [0, 1, 3, 63, 65, 16_384, 16_385, 40_000] {
        assert_eq!(normals(len, RNG), all[..len]);
    }
}

#[test]
fn keys_and_streams_give_other_numbers() {
    let base = normals(1000, RNG);
    for other in [RngKey { key: 43, ..RNG }, RngKey { stream: 8, ..RNG }] {
        let same = normals(1000, other)
            .iter()
            .zip(&base)
            .filter(|(a, b)| a == b)
            .count();
        assert!(same < 5, "{same} equal numbers");
    }
}

#[test]
fn normal_numbers_have_the_moments_of_a_normal() -> Result<()> {
    let len = 1 << 20;
    let mut out = garbage(len);
    out.fill_normal(len, 3.0, 2.0, RNG)?;
    let z: Vec<f64> = f32s(&out).iter().map(|x| (*x as f64 - 3.0) / 2.0).collect();
    let moment = |n: i32| z.iter().map(|z| z.powi(n)).sum::<f64>() / len as f64;
    // Five standard errors of each sample moment: sqrt(Var z^n / len).
    for (n, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
        let allowed = 5.0 * (variance / len as f64).sqrt();
        assert!(
            (moment(n) - expected).abs() < allowed,
            "moment {n} is {}",
            moment(n)
        );
    }
    let correlation = z.windows(2).map(|z| z[0] * z[1]).sum::<f64>() / len as f64;
    assert!(
        correlation.abs() < 5.0 / (len as f64).sqrt(),
        "neighbours correlate: {correlation}"
    );
    Ok(())
}

#[test]
fn uniform_numbers_fill_their_range_evenly() -> Result<()> {
    let len = 1 << 20;
    let mut out = garbage(len);
    out.fill_uniform(len, -1.0, 3.0, RNG)?;
    let mut bins = [0usize; 16];
    for x in f32s(&out) {
        assert!((-1.0..3.0).contains(x));
        bins[((x + 1.0) * 4.0) as usize] += 1;
    }
    let expected = len as f64 / 16.0;
    let chi_squared: f64 = bins
        .iter()
        .map(|n| (*n as f64 - expected).powi(2) / expected)
        .sum();
    assert!(
        chi_squared < 44.3,
        "15 degrees of freedom, p = 1e-4: {chi_squared}"
    );
    Ok(())
}

#[test]
fn a_uniform_range_excludes_its_end() -> Result<()> {
    // Here low + (high - low) * u would round to high for half of all u.
    let (low, high) = (1.0f32, 1.0f32.next_up());
    let mut out = garbage(1000);
    out.fill_uniform(1000, low, high, RNG)?;
    assert!(f32s(&out).iter().all(|x| *x == low));
    Ok(())
}

#[test]
fn dropout_keeps_its_share_and_the_backward_call_keeps_the_same() -> Result<()> {
    let len = 200_003;
    let x = Operand::f32(vec![2.0; len], len);
    let dy = Operand::f32(vec![1.0; len], len);
    let [mut y, mut dx] = [len, len].map(garbage);
    CpuStorage::dropout(x.view(), 0.25, RNG, &mut y)?;
    CpuStorage::dropout(dy.view(), 0.25, RNG, &mut dx)?;
    let kept = f32s(&y).iter().filter(|y| **y != 0.0).count() as f64 / len as f64;
    assert!(
        (kept - 0.75).abs() < 5.0 * (0.1875 / len as f64).sqrt(),
        "kept {kept}"
    );
    for (y, dx) in f32s(&y).iter().zip(f32s(&dx)) {
        assert!(*y == 2.0 * dx && (*y == 0.0 || *y == 2.0 * (1.0f32 / 0.75)));
    }
    Ok(())
}

#[test]
fn dropout_of_nothing_is_the_identity() -> Result<()> {
    let x = Operand::f32(random(1000, 1), 1000);
    let mut y = garbage(1000);
    CpuStorage::dropout(x.view(), 0.0, RNG, &mut y)?;
    assert_eq!(f32s(&y), f32s(&x.storage));
    Ok(())
}

#[test]
fn impossible_parameters_are_errors() {
    let x = Operand::f32(vec![0.0], 1);
    let mut y = zeros(1);
    for p in [-0.1, 1.0, f32::NAN] {
        assert!(CpuStorage::dropout(x.view(), p, RNG, &mut y).is_err());
    }
    assert!(y.fill_uniform(1, 1.0, 1.0, RNG).is_err());
    assert!(y.fill_uniform(1, f32::NAN, 1.0, RNG).is_err());
}
