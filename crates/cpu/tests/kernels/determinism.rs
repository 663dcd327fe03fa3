//! The bits of every result are the same for any number of threads.

use candle_core::{CpuStorage, DType, Layout, Result};
use tt_cpu::{AttentionParams, CrossEntropyParams, FusedOps, Gelu, RngKey, Write};

use crate::common::*;

/// The results of one call to each kernel with activations of `dtype`, on sizes that give every thread several tasks.
fn everything(dtype: DType) -> Result<Vec<Vec<u32>>> {
    let mut results = Vec::new();
    let mut keep = |storage: CpuStorage| {
        results.push(widened(&storage).iter().map(|x| x.to_bits()).collect());
    };

    // The three products of a linear layer: forward, by input, by weight.
    let (m, k, n) = (300, 260, 330);
    let x = Operand::of(dtype, random(m * k, 1), (m, k));
    let w = Operand::f32(random(n * k, 2), (n, k));
    let dy = Operand::of(dtype, random(m * n, 3), (m, n));
    let w_t = w.layout.transpose(0, 1)?;
    let dy_t = dy.layout.transpose(0, 1)?;
    let mut out = zeros_of(dtype, m * n);
    CpuStorage::matmul_into(x.view(), (&w.storage, &w_t), &mut out, Write::Assign)?;
    keep(out);
    let mut out = zeros_of(dtype, m * k);
    CpuStorage::matmul_into(dy.view(), w.view(), &mut out, Write::Accumulate)?;
    keep(out);
    let mut out = zeros(n * k);
    CpuStorage::matmul_into((&dy.storage, &dy_t), x.view(), &mut out, Write::Accumulate)?;
    keep(out);

    let (mut y, mut inv) = (zeros_of(dtype, m * k), zeros(m));
    let weight = Operand::f32(random(k, 4), k);
    CpuStorage::rms_norm(x.view(), weight.view(), 1e-6, &mut y, &mut inv)?;
    let inv = Operand {
        storage: inv,
        layout: Layout::contiguous(m),
    };
    let y = Operand {
        storage: y,
        layout: Layout::contiguous((m, k)),
    };
    let (mut dx, mut dw) = (zeros_of(dtype, m * k), zeros(k));
    CpuStorage::rms_norm_backward(
        x.view(),
        weight.view(),
        inv.view(),
        y.view(),
        Some(&mut dx),
        Some((&mut dw, Write::Assign)),
    )?;
    let _ = [y.storage, dx, dw].map(&mut keep);

    let (mut y, mut mean, mut inv) = (zeros_of(dtype, m * k), zeros(m), zeros(m));
    let (w_view, b_view) = (weight.view(), weight.view());
    CpuStorage::layer_norm(x.view(), w_view, b_view, 1e-5, &mut y, &mut mean, &mut inv)?;
    let (mut dx, mut dw, mut db) = (zeros_of(dtype, m * k), zeros(k), zeros(k));
    let (of_rows, all) = (Layout::contiguous(m), Layout::contiguous((m, k)));
    CpuStorage::layer_norm_backward(
        x.view(),
        weight.view(),
        (&mean, &of_rows),
        (&inv, &of_rows),
        (&y, &all),
        Some(&mut dx),
        Some((&mut dw, Write::Assign)),
        Some((&mut db, Write::Assign)),
    )?;
    let _ = [y, mean, inv, dx, dw, db].map(&mut keep);
    for form in [Gelu::Erf, Gelu::Tanh] {
        let [mut y, mut dx] = [(); 2].map(|()| zeros_of(dtype, m * k));
        CpuStorage::gelu(form, x.view(), &mut y)?;
        CpuStorage::gelu_backward(form, x.view(), x.view(), &mut dx)?;
        let _ = [y, dx].map(&mut keep);
    }

    let mut sums = zeros(n);
    CpuStorage::sum_rows_into(dy.view(), m, &mut sums, Write::Assign)?;
    keep(sums);
    let mut squares = zeros(1);
    CpuStorage::sum_squares_into(w.view(), &mut squares, 0)?;
    keep(squares);

    let p = AttentionParams {
        batch: 2,
        queries: 330,
        keys: 350,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        scale: 0.2,
        causal: true,
        window: Some(150),
    };
    let dims = |tokens: usize, heads: usize| (p.batch, tokens, heads, p.head_dim);
    let q = Operand::of(dtype, random(2 * 330 * 128, 5), dims(330, 4));
    let key = Operand::of(dtype, random(2 * 350 * 64, 6), dims(350, 2));
    let value = Operand::of(dtype, random(2 * 350 * 64, 7), dims(350, 2));
    let (mut out, mut lse) = (zeros_of(dtype, 2 * 330 * 128), zeros(2 * 4 * 330));
    CpuStorage::attention(
        &p,
        q.view(),
        key.view(),
        value.view(),
        None,
        &mut out,
        &mut lse,
    )?;
    let out = Operand {
        storage: out,
        layout: Layout::contiguous(dims(330, 4)),
    };
    let lse = Operand {
        storage: lse,
        layout: Layout::contiguous(2 * 4 * 330),
    };
    let [mut dq, mut dk, mut dv] =
        [2 * 330 * 128, 2 * 350 * 64, 2 * 350 * 64].map(|len| zeros_of(dtype, len));
    CpuStorage::attention_backward(
        &p,
        q.view(),
        key.view(),
        value.view(),
        None,
        out.view(),
        lse.view(),
        q.view(),
        &mut dq,
        &mut dk,
        &mut dv,
    )?;
    let _ = [out.storage, lse.storage, dq, dk, dv].map(&mut keep);

    let labels = Operand::i64((0..m as i64).collect(), m);
    let params = CrossEntropyParams {
        ignore_index: 5,
        label_smoothing: 0.1,
        z_loss: 1e-3,
    };
    let [mut totals, mut dw] = [3, n * k].map(zeros);
    let mut dh = zeros_of(dtype, m * k);
    CpuStorage::linear_cross_entropy(
        &params,
        1.0,
        x.view(),
        w.view(),
        labels.view(),
        &mut totals,
        Some(&mut dh),
        Some(&mut dw),
    )?;
    let _ = [totals, dh, dw].map(&mut keep);

    let ids = Operand::u32((0..n as u32).map(|i| i * i % 90).collect(), n);
    let mut dw = zeros(100 * k);
    CpuStorage::embedding_backward(ids.view(), w.view(), &mut dw)?;
    keep(dw);

    let rng = RngKey { key: 1, stream: 2 };
    let (mut normal, mut dropped) = (zeros(100_000), zeros_of(dtype, m * k));
    normal.fill_normal(100_000, 0.0, 1.0, rng)?;
    CpuStorage::dropout(x.view(), 0.3, rng, &mut dropped)?;
    let _ = [normal, dropped].map(&mut keep);
    Ok(results)
}

const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

#[test]
fn results_do_not_depend_on_the_number_of_threads() -> Result<()> {
    for dtype in TYPES {
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let pool = pool.map_err(candle_core::Error::wrap)?;
            pool.install(|| everything(dtype))
        };
        let one = on(1)?;
        for threads in [2, 3, 8] {
            for (i, (got, want)) in on(threads)?.iter().zip(&one).enumerate() {
                assert!(
                    got == want,
                    "{dtype:?} result {i} differs on {threads} threads"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn results_do_not_depend_on_the_run() -> Result<()> {
    for dtype in TYPES {
        assert!(everything(dtype)? == everything(dtype)?);
    }
    Ok(())
}
