//! Operands, comparison and finite differences for the kernel tests.
#![allow(dead_code)] // every test binary uses its own part

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout, Shape};
use half::{bf16, f16};
use tt_cpu::{AttentionParams, View};

/// Sizes around the kernels' vector, tile and block widths.
pub const ODD_SIZES: [usize; 7] = [1, 3, 17, 63, 65, 129, 200];

/// A storage and its layout, so that views of it can be passed around.
pub struct Operand {
    pub storage: CpuStorage,
    pub layout: Layout,
}

impl Operand {
    pub fn f32(data: Vec<f32>, dims: impl Into<Shape>) -> Self {
        Self {
            storage: CpuStorage::F32(data),
            layout: Layout::contiguous(dims),
        }
    }

    /// Rounded to a float type.
    pub fn of(dtype: DType, data: Vec<f32>, dims: impl Into<Shape>) -> Self {
        Self {
            storage: stored(dtype, data),
            layout: Layout::contiguous(dims),
        }
    }

    /// The elements of the storage.
    pub fn wide(&self) -> Vec<f64> {
        wide(&widened(&self.storage))
    }

    pub fn u32(data: Vec<u32>, dims: impl Into<Shape>) -> Self {
        Self {
            storage: CpuStorage::U32(data),
            layout: Layout::contiguous(dims),
        }
    }

    pub fn i64(data: Vec<i64>, dims: impl Into<Shape>) -> Self {
        Self {
            storage: CpuStorage::I64(data),
            layout: Layout::contiguous(dims),
        }
    }

    pub fn view(&self) -> View<'_, CpuStorage> {
        (&self.storage, &self.layout)
    }
}

/// Numbers rounded to a float type.
pub fn stored(dtype: DType, data: Vec<f32>) -> CpuStorage {
    let data = data.into_iter();
    match dtype {
        DType::F32 => CpuStorage::F32(data.collect()),
        DType::BF16 => CpuStorage::BF16(data.map(bf16::from_f32).collect()),
        DType::F16 => CpuStorage::F16(data.map(f16::from_f32).collect()),
        other => panic!("{other:?} is no float type of the kernels"),
    }
}

/// The elements of a storage of any float type.
pub fn widened(storage: &CpuStorage) -> Vec<f32> {
    match storage {
        CpuStorage::F32(data) => data.clone(),
        CpuStorage::BF16(data) => data.iter().map(|x| x.to_f32()).collect(),
        CpuStorage::F16(data) => data.iter().map(|x| x.to_f32()).collect(),
        _ => panic!("a float storage"),
    }
}

/// Half the distance between neighbouring numbers around 1, the largest relative error of rounding.
pub fn unit_roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-24),
    }
}

/// Panics unless every element is the expected one rounded once, from a value that f32 arithmetic has got
/// wrong by up to 2e-6 of the largest.
pub fn assert_rounded(what: &str, got: &CpuStorage, want: &[f64]) {
    let (u, got) = (unit_roundoff(got.dtype()), widened(got));
    assert_eq!(got.len(), want.len(), "{what}: length");
    let largest = want.iter().fold(0f64, |m, w| m.max(w.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let allowed = u * want.abs() + 2e-6 * largest;
        let same = (*got as f64 - want).abs() <= allowed;
        assert!(
            same,
            "{what}[{i}]: {got} instead of {want}, allowed {allowed:e}"
        );
    }
}

/// `||got - want|| / ||want||`.
pub fn relative_l2(got: &CpuStorage, want: &[f64]) -> f64 {
    let got = wide(&widened(got));
    let difference: Vec<f64> = got.iter().zip(want).map(|(got, want)| got - want).collect();
    // Where nothing but 0 is wanted, 0 if it is there.
    (dot(&difference, &difference) / dot(want, want).max(f64::MIN_POSITIVE)).sqrt()
}

pub fn zeros_of(dtype: DType, len: usize) -> CpuStorage {
    stored(dtype, vec![0.0; len])
}

pub fn zeros(len: usize) -> CpuStorage {
    CpuStorage::F32(vec![0.0; len])
}

/// An output with content that a kernel must not let through.
pub fn garbage(len: usize) -> CpuStorage {
    CpuStorage::F32(vec![f32::NAN; len])
}

pub fn f32s(storage: &CpuStorage) -> &[f32] {
    storage.as_slice().expect("an f32 storage")
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| *x as f64).collect()
}

/// Numbers in -1..1 with few common factors (splitmix64).
pub fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    (0..len)
        .map(|_| (next() >> 40) as f32 / 8_388_608.0 - 1.0)
        .collect()
}

/// Panics unless every element is within `tolerance` times the largest expected magnitude.
pub fn assert_close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_close_from(what, 0.0, got, want, tolerance);
}

/// The same where results are differences of terms of magnitude `terms`, whose rounding remains however
/// small the results are.
pub fn assert_close_from(what: &str, terms: f64, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let largest = want
        .iter()
        .filter(|w| w.is_finite())
        .fold(terms, |m, w| m.max(w.abs()));
    let allowed = tolerance * largest;
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let got = *got as f64;
        let same = got == *want || (got - want).abs() <= allowed;
        assert!(
            same,
            "{what}[{i}]: {got} instead of {want}, allowed {allowed:e}"
        );
    }
}

/// The gradient of `f` at `x` by central differences.
pub fn numeric_gradient(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let mut x = x.to_vec();
    (0..x.len())
        .map(|i| {
            let at = x[i];
            x[i] = at + STEP;
            let above = f(&x);
            x[i] = at - STEP;
            let below = f(&x);
            x[i] = at;
            (above - below) / (2.0 * STEP)
        })
        .collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Causal, with the usual scale: `(batch, queries, keys)` and `(heads, kv_heads, head_dim)`.
pub fn attention_params(
    (batch, queries, keys): (usize, usize, usize),
    (heads, kv_heads, head_dim): (usize, usize, usize),
) -> AttentionParams {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionParams {
        batch,
        queries,
        keys,
        heads,
        kv_heads,
        head_dim,
        scale,
        causal: true,
        window: None,
    }
}
