//! The vendor's kernels for what they are admitted for: they, ours and the CPU's agree. What is outside, ours compute.

use std::sync::MutexGuard;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::{AttentionParams, FusedOps, Write, reference};
use tt_tpu::trace::Work;
use tt_tpu::{Chip, Provider, TpuDevice, TpuStorage};

use crate::common::*;
use crate::{alone, passes_in_batches};

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
            (
                upload(on.device, &storage),
                layout,
                wide(&widened(&ordered)),
            )
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
        let f16_or_not: f64 = if self.dtypes[0] == DType::F16 {
            4e-6
        } else {
            1e-6
        };
        // The vendor's adds f32 up one by one: so many roundings, of which as many are up as down.
        let in_turn = unit_roundoff(DType::F32) * (self.dims[2] as f64).sqrt();
        let results = [("the vendor's", &vendors, in_turn), ("ours", &own, 0.0)];
        for (name, out, in_turn) in results {
            let tolerance = f16_or_not.max(in_turn);
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

fn check_products(on: &Vendors, sizes: &[[usize; 4]]) {
    for &dims in sizes {
        for trans in [[false, false], [true, false], [false, true], [true, true]] {
            for dtype in FLOATS {
                if dtype != DType::F32 && trans == [true, true] {
                    continue;
                }
                for out in [DType::F32, dtype] {
                    let dtypes = [dtype, out];
                    let product = Product {
                        dims,
                        trans,
                        dtypes,
                    };
                    product.check(on);
                }
            }
        }
    }
}

#[test]
fn products_of_odd_sizes_and_all_that_is_admitted_agree() {
    let Some(on) = Vendors::begin() else { return };
    let sizes = [[1, 1, 1, 1], [1, 65, 63, 129], [3, 33, 17, 65]];
    check_products(&on, &sizes);
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn larger_and_longer_products_agree_too() {
    let Some(on) = Vendors::begin() else { return };
    let sizes = [
        [1, 7, 5, 3],
        [1, 130, 1100, 77],
        [1, 1, 700, 300],
        [1, 513, 17, 1030],
        [1, 9, 20_000, 11],
        [2, 100, 300, 5],
    ];
    check_products(&on, &sizes);
}

/// Each once, and told.
#[test]
fn a_product_outside_of_that_is_ours_and_counted_with_the_reason() {
    let Some(on) = Vendors::begin() else { return };
    let (rows, turned) = (Layout::contiguous((4, 4)), Layout::contiguous((4, 4)));
    let turned = turned.transpose(0, 1).unwrap();
    let gaps = Layout::new((4, 4).into(), vec![6, 1], 0);
    let (f32, bf16) = (DType::F32, DType::BF16);
    let operand = |dtype| upload(on.device, &stored(dtype, numbers(24, 1)));
    for (dtypes, layouts, write, why) in [
        ([f32, f32], [&rows, &rows], Write::Accumulate, "added to"),
        ([bf16, f32], [&rows, &rows], Write::Assign, "two types"),
        ([f32, f32], [&gaps, &rows], Write::Assign, "gaps"),
        (
            [bf16, bf16],
            [&turned, &turned],
            Write::Assign,
            "transposed",
        ),
    ] {
        let (x, y) = (operand(dtypes[0]), operand(dtypes[1]));
        let told = |on: &Vendors| {
            let declined = on.device.stats().declined.into_iter();
            let mut of_why = declined.filter(|((op, it), _)| *op == "matmul" && it.contains(why));
            of_why.next().map_or(0, |(_, count)| count)
        };
        let before = (told(&on), launches(on.device, "matmul"));
        let (asked, own, count) = on.both("matmul_multi_core", || {
            let mut out = upload(on.device, &CpuStorage::F32(numbers(16, 3)));
            TpuStorage::matmul_into((&x, layouts[0]), (&y, layouts[1]), &mut out, write).unwrap();
            values(&out)
        });
        assert_eq!((count, told(&on)), (0, before.0 + 1), "{why}");
        assert_eq!(launches(on.device, "matmul"), before.1 + 2);
        assert_eq!(asked, own);
    }
}

#[test]
fn a_kernel_of_the_vendors_is_traced_with_its_operands() {
    let Some(on) = Vendors::begin() else { return };
    let x = upload(on.device, &CpuStorage::F32(numbers(6, 1)));
    let mut out = upload(on.device, &CpuStorage::F32(vec![0.0; 4]));
    let (a, b) = (Layout::contiguous((2, 3)), Layout::contiguous((3, 2)));
    on.device.begin_trace().unwrap();
    TpuStorage::matmul_into((&x, &a), (&x, &b), &mut out, Write::Assign).unwrap();
    let events = on.device.end_trace();
    let launch = events.iter().find_map(|event| match &event.work {
        Work::Launch(launch) => Some(launch),
        _ => None,
    });
    let launch = launch.unwrap();
    assert_eq!(launch.kernel, "matmul_multi_core");
    assert_eq!((launch.read_bytes(), launch.written_bytes()), (48, 16));
    assert!(
        launch.arguments.contains("in_dtype=0"),
        "{}",
        launch.arguments
    );
}

/// `[out, lse, dq, dk, dv]`.
fn attention(
    device: TpuDevice,
    p: &AttentionParams,
    x: [&Operand; 4],
    ids: Option<&Operand>,
) -> [Vec<f32>; 5] {
    let ids = ids.map(|ids| TpuOperand::new(device, ids));
    let segments = ids.as_ref().map(|ids| (ids.view(), ids.view()));
    let dtype = x[0].storage.dtype();
    let [q, k, v, dout] = x.map(|x| TpuOperand::new(device, x));
    let (q, k, v, dout) = (q.view(), k.view(), v.view(), dout.view());
    let rows = p.batch * p.queries * p.heads;
    let kv_len = p.batch * p.keys * p.kv_heads * p.head_dim;
    let q_len = rows * p.head_dim;
    let unset = |dtype, len| upload(device, &stored(dtype, vec![f32::NAN; len]));
    let (mut out, mut lse) = (unset(dtype, q_len), unset(DType::F32, rows));
    TpuStorage::attention(p, q, k, v, segments, &mut out, &mut lse).unwrap();
    let [mut dq, mut dk, mut dv] = [q_len, kv_len, kv_len].map(|len| unset(dtype, len));
    let (dense, of_rows) = (Layout::contiguous(q_len), Layout::contiguous(rows));
    let (y, stats) = ((&out, &dense), (&lse, &of_rows));
    TpuStorage::attention_backward(
        p, q, k, v, segments, y, stats, dout, &mut dq, &mut dk, &mut dv,
    )
    .unwrap();
    [&out, &lse, &dq, &dk, &dv].map(values)
}

fn attention_on_cpu(p: &AttentionParams, x: [&Operand; 4], ids: Option<&Operand>) -> [Vec<f32>; 5] {
    let segments = ids.map(|ids| (ids.view(), ids.view()));
    let dtype = x[0].storage.dtype();
    let [q, k, v, dout] = x.map(Operand::view);
    let rows = p.batch * p.queries * p.heads;
    let kv_len = p.batch * p.keys * p.kv_heads * p.head_dim;
    let q_len = rows * p.head_dim;
    let (mut out, mut lse) = (zeros_of(dtype, q_len), zeros(rows));
    CpuStorage::attention(p, q, k, v, segments, &mut out, &mut lse).unwrap();
    let [mut dq, mut dk, mut dv] = [q_len, kv_len, kv_len].map(|len| zeros_of(dtype, len));
    let (dense, of_rows) = (Layout::contiguous(q_len), Layout::contiguous(rows));
    let (y, stats) = ((&out, &dense), (&lse, &of_rows));
    CpuStorage::attention_backward(
        p, q, k, v, segments, y, stats, dout, &mut dq, &mut dk, &mut dv,
    )
    .unwrap();
    [&out, &lse, &dq, &dk, &dv].map(widened)
}

/// Operands `[B, T, H, D]`; the keys lie as `[B, H, T, D]`.
fn operands(p: &AttentionParams, dtype: DType) -> [Operand; 4] {
    let of = |tokens: usize, heads: usize, seed| {
        let dims = (p.batch, tokens, heads, p.head_dim);
        Operand::of(
            dtype,
            random(p.batch * tokens * heads * p.head_dim, seed),
            dims,
        )
    };
    let mut k = of(p.keys, p.kv_heads, 2);
    let as_stored = (p.batch, p.kv_heads, p.keys, p.head_dim);
    k.layout = Layout::contiguous(as_stored).transpose(1, 2).unwrap();
    [
        of(p.queries, p.heads, 1),
        k,
        of(p.keys, p.kv_heads, 3),
        of(p.queries, p.heads, 4),
    ]
}

/// Each is as close to the definition as its roundings allow: of the numbers themselves, and, by the vendor's kernel, of what
/// the query heads of a group give their key.
fn check_attention(on: &Vendors, sizes: &[[usize; 5]], segment: Option<usize>) {
    const FORWARD: &str = "llama_attention_forward_multi_core";
    const BACKWARD: &str = "llama_attention_backward_multi_core";
    for &[batch, tokens, heads, kv_heads, head_dim] in sizes {
        for dtype in [DType::BF16, DType::F16] {
            let p = attention_params((batch, tokens, tokens), (heads, kv_heads, head_dim));
            let x = operands(&p, dtype);
            let [q, k, v, dout] = x.each_ref().map(ordered);
            let numbered = |len| {
                (0..batch * tokens)
                    .map(|i| u32::MAX - (i / len) as u32)
                    .collect()
            };
            let numbers: Option<Vec<u32>> = segment.map(numbered);
            let pair = numbers.as_deref().map(|ids| (ids, ids));
            let ids = numbers.as_ref();
            let ids = ids.map(|ids| Operand::u32(ids.clone(), (batch, tokens)));
            let (out, lse) = reference::attention(&p, &q, &k, &v, pair);
            let (dq, dk, dv) = reference::attention_backward(&p, &q, &k, &v, pair, &dout);
            let before = launches(on.device, BACKWARD);
            let (vendors, own, count) = on.both(FORWARD, || {
                attention(on.device, &p, x.each_ref(), ids.as_ref())
            });
            let both = (count, launches(on.device, BACKWARD) - before);
            assert_eq!(both, (1, 1), "{p:?}");
            let cpu = attention_on_cpu(&p, x.each_ref(), ids.as_ref());
            for (name, results) in [("the vendor's", vendors), ("ours", own), ("the CPU's", cpu)] {
                for (i, want) in [&out, &lse, &dq, &dk, &dv].into_iter().enumerate() {
                    let largest = want.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
                    let allowed = match i {
                        1 => 2e-6 * largest,
                        _ => 2.0 * unit_roundoff(dtype) * largest,
                    };
                    for (at, (got, want)) in results[i].iter().zip(want).enumerate() {
                        assert!(
                            (f64::from(*got) - want).abs() <= allowed,
                            "{name} [{i}] {dtype:?} {p:?} [{at}]: {got} instead of {want}"
                        );
                    }
                }
            }
        }
    }
}

/// The content of an operand in the order of its dims.
fn ordered(x: &Operand) -> Vec<f64> {
    let mut ordered = zeros(x.layout.shape().elem_count());
    let numbers = CpuStorage::F32(widened(&x.storage));
    numbers
        .copy_strided_src(&mut ordered, 0, &x.layout)
        .unwrap();
    wide(&widened(&ordered))
}

#[test]
fn attention_of_odd_lengths_and_groups_agrees_with_its_gradients() {
    let Some(on) = Vendors::begin() else { return };
    check_attention(&on, &[[1, 1, 2, 2, 32], [2, 67, 6, 2, 64]], None);
    check_attention(&on, &[[2, 67, 3, 1, 32]], Some(20));
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn longer_and_wider_attention_agrees_too() {
    let Some(on) = Vendors::begin() else { return };
    let sizes = [
        [3, 33, 4, 1, 40],
        [1, 128, 3, 1, 80],
        [2, 320, 3, 1, 64],
        [1, 512, 2, 1, 128],
        [1, 256, 14, 2, 64],
    ];
    check_attention(&on, &sizes, None);
    check_attention(&on, &sizes, Some(50));
}

#[test]
fn attention_outside_of_that_is_ours_and_counted_with_the_reason() {
    let Some(on) = Vendors::begin() else { return };
    let p = attention_params((1, 9, 9), (2, 1, 32));
    let narrow = attention_params((1, 9, 9), (2, 1, 16));
    let odd = attention_params((1, 270, 270), (1, 1, 64));
    let uneven = attention_params((1, 192, 192), (1, 1, 80));
    let windowed = AttentionParams {
        window: Some(3),
        ..p
    };
    let full = AttentionParams { causal: false, ..p };
    let fewer = AttentionParams { queries: 5, ..p };
    for (p, dtype, why) in [
        (p, DType::F32, "in f32"),
        (narrow, DType::BF16, "of a head dim"),
        (odd, DType::BF16, "not a multiple of 64"),
        (uneven, DType::BF16, "another head dim than 64"),
        (windowed, DType::BF16, "window"),
        (full, DType::F16, "not causal"),
        (fewer, DType::BF16, "fewer queries"),
    ] {
        let told = |op: &str| {
            let declined = on.device.stats().declined.into_iter();
            let mut of_why = declined.filter(|((it, reason), _)| *it == op && reason.contains(why));
            of_why.next().map_or(0, |(_, count)| count)
        };
        let both = || ["attention", "attention_backward"].map(told);
        let (before, x) = (both(), operands(&p, dtype));
        let (asked, own, count) = on.both("llama_attention_forward_multi_core", || {
            attention(on.device, &p, x.each_ref(), None)
        });
        assert_eq!((count, both()), (0, before.map(|it| it + 1)), "{why}");
        assert_eq!(asked, own);
    }
}

#[test]
fn so_they_do_where_ours_are_batched() {
    let _alone = alone();
    if device().is_none() || chip() != Chip::Bm1690 {
        return;
    }
    passes_in_batches("vendor::attention_of_odd_lengths_and_groups_agrees_with_its_gradients");
}
