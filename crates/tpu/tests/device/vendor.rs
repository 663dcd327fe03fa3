//! The vendor's kernels for what they are admitted for: they, ours and the CPU's agree. What is outside, ours compute.

use std::process::Command;
use std::sync::MutexGuard;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::{FusedOps, Write, reference};
use tt_tpu::{Chip, EMULATOR_FOLDER, Provider, TpuDevice, TpuStorage};

use crate::alone;
use crate::common::*;

const FLOATS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// The device while the vendor's kernels are asked for, and after that ours again.
struct Vendors {
    device: TpuDevice,
    _alone: MutexGuard<'static, ()>,
}

impl Vendors {
    /// `None`: no emulator of a BM1690 is here.
    fn begin() -> Option<Self> {
        let _alone = alone();
        let device = device().filter(|_| chip() == Chip::Bm1690)?;
        device.set_kernels(Provider::Vendor).unwrap();
        Some(Self { device, _alone })
    }

    /// By the vendor's kernels, by ours, and how often `kernel` of the vendor's was launched for the first.
    fn both<T>(&self, kernel: &str, compute: impl Fn() -> T) -> (T, T, u64) {
        let before = launches(self.device, kernel);
        let vendors = compute();
        let count = launches(self.device, kernel) - before;
        self.device.set_kernels(Provider::Own).unwrap();
        let own = compute();
        self.device.set_kernels(Provider::Vendor).unwrap();
        assert_eq!(launches(self.device, kernel), before + count);
        (vendors, own, count)
    }

    fn declined(&self, op: &'static str) -> Vec<(&'static str, u64)> {
        let declined = self.device.stats().declined.into_iter();
        let of_op = declined.filter(|((it, _), _)| *it == op);
        of_op.map(|((_, why), count)| (why, count)).collect()
    }
}

impl Drop for Vendors {
    fn drop(&mut self) {
        let _ = self.device.set_kernels(Provider::Own);
    }
}

/// A product of `[batch, m, k]` and `[batch, k, n]`, either stored transposed.
struct Product {
    dims: [usize; 4],
    trans: [bool; 2],
    dtypes: [DType; 2],
}

impl Product {
    fn layout(&self, rows: usize, cols: usize, is_transposed: bool) -> Layout {
        let batch = self.dims[0];
        let layout = |rows, cols| match batch {
            1 => Layout::contiguous((rows, cols)),
            _ => Layout::contiguous((batch, rows, cols)),
        };
        if !is_transposed {
            return layout(rows, cols);
        }
        let stored = layout(cols, rows);
        let last = stored.dims().len() - 1;
        stored.transpose(last - 1, last).unwrap()
    }

    /// The vendor's result, ours, and that of f64 with the sums of the terms' magnitudes.
    fn compute(&self, on: &Vendors) -> (Vec<f32>, Vec<f32>, Vec<(f64, f64)>) {
        let [batch, m, k, n] = self.dims;
        let [dtype, out_dtype] = self.dtypes;
        let operand = |rows, cols, trans, seed| {
            let layout = self.layout(rows, cols, trans);
            let storage = stored(dtype, numbers(batch * rows * cols, seed));
            let mut ordered = CpuStorage::F32(vec![0.0; batch * rows * cols]);
            CpuStorage::F32(widened(&storage))
                .copy_strided_src(&mut ordered, 0, &layout)
                .unwrap();
            (upload(on.device, &storage), layout, wide(&widened(&ordered)))
        };
        let (x, x_layout, a) = operand(m, k, self.trans[0], 1);
        let (y, y_layout, b) = operand(k, n, self.trans[1], 2);
        let size = |x: &[f64]| x.iter().map(|x| x.abs()).collect::<Vec<_>>();
        let truth = (0..batch).flat_map(|i| {
            let (a, b) = (&a[i * m * k..][..m * k], &b[i * k * n..][..k * n]);
            let products = reference::matmul(a, b, m, k, n);
            products
                .into_iter()
                .zip(reference::matmul(&size(a), &size(b), m, k, n))
        });
        let (vendors, own, count) = on.both("matmul_multi_core", || {
            let unset = stored(out_dtype, vec![f32::NAN; batch * m * n]);
            let mut out = upload(on.device, &unset);
            let (x, y) = ((&x, &x_layout), (&y, &y_layout));
            TpuStorage::matmul_into(x, y, &mut out, Write::Assign).unwrap();
            values(&out)
        });
        assert_eq!(count, 1, "{:?} {:?}", self.dims, self.trans);
        (vendors, own, truth.collect())
    }

    fn check(&self, on: &Vendors) {
        let (vendors, own, truth) = self.compute(on);
        let rounding = match self.dtypes[1] {
            DType::F32 => 0.0,
            dtype => unit_roundoff(dtype),
        };
        // As in the tests of our kernel: the emulator adds up products of f16 less exactly.
        let tolerance = if self.dtypes[0] == DType::F16 { 4e-6 } else { 1e-6 };
        if std::env::var_os("WORST").is_some() {
            for (name, out) in [("the vendor's", &vendors), ("ours", &own)] {
                let worst = out.iter().zip(&truth).map(|(o, (t, s))| ((f64::from(*o) - t).abs() - rounding * t.abs()).max(0.0) / (s + 1.0)).fold(0f64, |m, x| if x.is_nan() { f64::INFINITY } else { m.max(x) });
                println!("WORST {name} {:?} {:?} {:?} {worst:.1e}", self.dims, self.trans, self.dtypes);
            }
            return;
        }
        for (name, out) in [("the vendor's", &vendors), ("ours", &own)] {
            for (i, (out, (truth, scale))) in out.iter().zip(&truth).enumerate() {
                let error = (f64::from(*out) - truth).abs() - rounding * truth.abs();
                assert!(
                    error <= tolerance * (scale + 1.0),
                    "{name} {:?} {:?} {:?} [{i}]: {out} instead of {truth}",
                    self.dims,
                    self.trans,
                    self.dtypes
                );
            }
        }
    }
}

#[test]
fn products_agree_in_all_that_is_admitted() {
    let Some(on) = Vendors::begin() else { return };
    let sizes = [
        [1, 1, 1, 1],
        [1, 7, 5, 3],
        [1, 65, 63, 129],
        [1, 130, 1100, 77],
        [1, 1, 700, 300],
        [3, 33, 17, 65], [1, 9, 20000, 11], [1, 513, 17, 1030], [2, 100, 300, 5],
    ];
    for dims in sizes {
        for trans in [[false, false], [true, false], [false, true], [true, true]] {
            for dtype in FLOATS {
                if dtype != DType::F32 && trans == [true, true] {
                    continue;
                }
                for out in [DType::F32, dtype] {
                    Product { dims, trans, dtypes: [dtype, out] }.check(&on);
                }
            }
        }
    }
}

#[test]
fn attention_probe() {
    let Some(on) = Vendors::begin() else { return };
    let list = std::env::var("ATT").unwrap();
    for one in list.split(';') {
        let n: Vec<usize> = one.split(',').map(|x| x.parse().unwrap()).collect();
        let &[batch, tokens, heads, kv_heads, dim] = &n[..] else { panic!() };
        for dtype in [DType::BF16, DType::F16] {
            let p = attention_params((batch, tokens, tokens), (heads, kv_heads, dim));
            let q = Operand::of(dtype, random(batch * tokens * heads * dim, 1), (batch, tokens, heads, dim));
            let k = Operand::of(dtype, random(batch * tokens * kv_heads * dim, 2), (batch, tokens, kv_heads, dim));
            let v = Operand::of(dtype, random(batch * tokens * kv_heads * dim, 3), (batch, tokens, kv_heads, dim));
            let dout = Operand::of(dtype, random(batch * tokens * heads * dim, 4), (batch, tokens, heads, dim));
            let (qd, kd, vd, dod) = (q.wide(), k.wide(), v.wide(), dout.wide());
            let (out, lse) = reference::attention(&p, &qd, &kd, &vd, None);
            let (dq, dk, dv) = reference::attention_backward(&p, &qd, &kd, &vd, None, &dod);
            let want = [out, lse, dq, dk, dv];
            let (a, b, count) = on.both("llama_attention_forward_multi_core", || run(on.device, &p, [&q, &k, &v, &dout]));
            println!("PROBE {one} {dtype:?} {count}");
            for (i, name) in ["out", "lse", "dq", "dk", "dv"].iter().enumerate() {
                let err = |x: &Vec<f32>| x.iter().zip(&want[i]).fold(0f64, |m, (x, w)| if x.is_nan() { f64::INFINITY } else { m.max((f64::from(*x) - w).abs()) });
                let big = want[i].iter().fold(0f64, |m, x| m.max(x.abs()));
                println!("PROBE   {name} vendor {:.2e} own {:.2e} of {big:.1e}", err(&a[i]), err(&b[i]));
            }
        }
    }
}

fn run(device: TpuDevice, p: &tt_cpu::AttentionParams, x: [&Operand; 4]) -> [Vec<f32>; 5] {
    let dtype = x[0].storage.dtype();
    let [q, k, v, dout] = x.map(|x| TpuOperand::new(device, x));
    let rows = p.batch * p.queries * p.heads;
    let (q_len, kv_len) = (rows * p.head_dim, p.batch * p.keys * p.kv_heads * p.head_dim);
    let unset = |dtype, len| upload(device, &stored(dtype, vec![f32::NAN; len]));
    let (mut out, mut lse) = (unset(dtype, q_len), unset(DType::F32, rows));
    TpuStorage::attention(p, q.view(), k.view(), v.view(), None, &mut out, &mut lse).unwrap();
    let [mut dq, mut dk, mut dv] = [q_len, kv_len, kv_len].map(|len| unset(dtype, len));
    let (out_layout, lse_layout) = (Layout::contiguous(q_len), Layout::contiguous(rows));
    TpuStorage::attention_backward(
        p, q.view(), k.view(), v.view(), None,
        (&out, &out_layout), (&lse, &lse_layout), dout.view(),
        &mut dq, &mut dk, &mut dv,
    ).unwrap();
    [values(&out), values(&lse), values(&dq), values(&dk), values(&dv)]
}
