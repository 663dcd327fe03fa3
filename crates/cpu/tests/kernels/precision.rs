//! Kernels on 16-bit activations against the plain definition in f64 on the same rounded operands.
//!
//! With `u` the unit roundoff of the type: what is rounded once, on its way out, is within `u` of the exact value, element
//! by element. Results that go through rounded intermediates (probabilities, gradients of scores and logits) are held
//! to a relative distance of `u` a rounding over the whole, roundings being independent.

use candle_core::{CpuStorage, DType, Layout, Result};
use tt_cpu::{AttentionParams, CrossEntropyParams, FusedOps, Gelu, RngKey, Write, reference};

use crate::common::*;

const HALVES: [DType; 2] = [DType::BF16, DType::F16];

#[test]
fn element_wise_kernels_round_once() -> Result<()> {
    let len = 40_003;
    for dtype in HALVES {
        let [a, b, dy] = [1, 2, 3].map(|seed| Operand::of(dtype, random(len, seed), len));
        let stream = Operand::f32(random(len, 4), len);
        let (a64, b64, stream64) = (a.wide(), b.wide(), stream.wide());
        let sum = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x + y).collect::<Vec<_>>();

        let mut out = zeros_of(dtype, len);
        CpuStorage::cast_into(stream.view(), &mut out)?;
        assert_rounded("cast", &out, &stream64);
        CpuStorage::add_into(a.view(), b.view(), &mut out)?;
        assert_rounded("add", &out, &sum(&a64, &b64));
        let mut wide_out = zeros(len);
        CpuStorage::add_into(stream.view(), b.view(), &mut wide_out)?;
        assert_rounded("add to the stream", &wide_out, &sum(&stream64, &b64));
        let mut accumulated = a.storage.clone();
        accumulated.axpy(1.0, b.view())?;
        assert_rounded("axpy", &accumulated, &sum(&a64, &b64));

        let mut y = zeros_of(dtype, len);
        CpuStorage::swiglu(a.view(), b.view(), &mut y)?;
        assert_rounded("swiglu", &y, &reference::swiglu(&a64, &b64));
        let (want_dgate, want_dup) = reference::swiglu_backward(&a64, &b64, &dy.wide());
        let [mut dgate, mut dup] = [(); 2].map(|()| zeros_of(dtype, len));
        CpuStorage::swiglu_backward(a.view(), b.view(), dy.view(), &mut dgate, &mut dup)?;
        assert_rounded("dgate", &dgate, &want_dgate);
        assert_rounded("dup", &dup, &want_dup);

        for form in [Gelu::Erf, Gelu::Tanh] {
            CpuStorage::gelu(form, a.view(), &mut y)?;
            assert_rounded("gelu", &y, &reference::gelu(form, &a64));
            let want_dx = reference::gelu_backward(form, &a64, &dy.wide());
            CpuStorage::gelu_backward(form, a.view(), dy.view(), &mut dup)?;
            assert_rounded("gelu dx", &dup, &want_dx);
        }

        let rng = RngKey { key: 3, stream: 4 };
        let ones = Operand::f32(vec![1.0; len], len);
        let mut mask = zeros(len);
        CpuStorage::dropout(ones.view(), 0.3, rng, &mut mask)?;
        CpuStorage::dropout(a.view(), 0.3, rng, &mut y)?;
        let want: Vec<f64> = a64
            .iter()
            .zip(f32s(&mask))
            .map(|(a, m)| a * *m as f64)
            .collect();
        assert_rounded("dropout", &y, &want);
    }
    Ok(())
}

#[test]
fn a_norm_turns_the_f32_stream_into_16_bit_operands() -> Result<()> {
    let (rows, dim) = (70, 83);
    for dtype in HALVES {
        for stream_type in [DType::F32, dtype] {
            let x = Operand::of(stream_type, random(rows * dim, 1), (rows, dim));
            let weight = Operand::f32(random(dim, 2), dim);
            let dy = Operand::of(dtype, random(rows * dim, 3), (rows, dim));
            let (want, want_inv) = reference::rms_norm(&x.wide(), &weight.wide(), 1e-6);
            let (mut y, mut inv) = (zeros_of(dtype, rows * dim), zeros(rows));
            CpuStorage::rms_norm(x.view(), weight.view(), 1e-6, &mut y, &mut inv)?;
            assert_rounded("y", &y, &want);
            let (want_dx, want_dw) =
                reference::rms_norm_backward(&x.wide(), &weight.wide(), &want_inv, &dy.wide());
            let (mut dx, mut dw) = (zeros_of(stream_type, rows * dim), zeros(dim));
            CpuStorage::rms_norm_backward(
                x.view(),
                weight.view(),
                (&inv, &Layout::contiguous(rows)),
                dy.view(),
                Some(&mut dx),
                Some((&mut dw, Write::Assign)),
            )?;
            assert_rounded("dx", &dx, &want_dx);
            assert_rounded("dweight", &dw, &want_dw);

            let bias = Operand::f32(random(dim, 4), dim);
            let (x64, weight64) = (x.wide(), weight.wide());
            let (want, want_mean, want_inv) =
                reference::layer_norm(&x64, &weight64, &bias.wide(), 1e-5);
            let mut mean = zeros(rows);
            let (w, b) = (weight.view(), bias.view());
            CpuStorage::layer_norm(x.view(), w, b, 1e-5, &mut y, &mut mean, &mut inv)?;
            assert_rounded("layer_norm y", &y, &want);
            let (want_dx, want_dw, want_db) =
                reference::layer_norm_backward(&x64, &weight64, &want_mean, &want_inv, &dy.wide());
            let mut db = zeros(dim);
            let of_rows = Layout::contiguous(rows);
            CpuStorage::layer_norm_backward(
                x.view(),
                weight.view(),
                (&mean, &of_rows),
                (&inv, &of_rows),
                dy.view(),
                Some(&mut dx),
                Some((&mut dw, Write::Assign)),
                Some((&mut db, Write::Assign)),
            )?;
            assert_rounded("layer_norm dx", &dx, &want_dx);
            assert_rounded("layer_norm dweight", &dw, &want_dw);
            assert_rounded("dbias", &db, &want_db);
        }
    }
    Ok(())
}

#[test]
fn rope_embedding_and_row_sums_take_16_bit_operands() -> Result<()> {
    let (tokens, heads, dim) = (9, 3, 10);
    for dtype in HALVES {
        let x = Operand::of(
            dtype,
            random(tokens * heads * dim, 1),
            (1, tokens, heads, dim),
        );
        let [cos, sin] = [2, 3].map(|seed| Operand::f32(random(40 * dim / 2, seed), (40, dim / 2)));
        let ids: Vec<u32> = (0..tokens as u32).map(|t| t * 4).collect();
        let positions = Operand::u32(ids.clone(), (1, tokens));
        for inverse in [false, true] {
            let mut y = zeros_of(dtype, tokens * heads * dim);
            let (x_view, tables) = (x.view(), (cos.view(), sin.view()));
            CpuStorage::rope(
                x_view,
                tables.0,
                tables.1,
                positions.view(),
                inverse,
                &mut y,
            )?;
            let (cos, sin) = (cos.wide(), sin.wide());
            let want = reference::rope(&x.wide(), &cos, &sin, &ids, heads, dim, inverse);
            assert_rounded("rope", &y, &want);
        }
        let table = Operand::of(dtype, random(40 * dim, 5), (40, dim));
        let mut y = zeros(tokens * dim);
        CpuStorage::embedding(table.view(), positions.view(), &mut y)?;
        assert_rounded(
            "embedding",
            &y,
            &reference::embedding(&table.wide(), &ids, dim),
        );

        let cols = heads * dim;
        let mut sums = zeros(cols);
        CpuStorage::sum_rows_into(x.view(), tokens, &mut sums, Write::Assign)?;
        let x = x.wide();
        let want: Vec<f64> = (0..cols)
            .map(|c| x.iter().skip(c).step_by(cols).sum())
            .collect();
        assert_rounded("sum_rows", &sums, &want);

        let row = Operand::f32(random(cols, 6), cols);
        let mut rows = zeros_of(dtype, 3 * cols);
        CpuStorage::broadcast_row_into(row.view(), 3, &mut rows)?;
        assert_rounded("broadcast_row", &rows, &row.wide().repeat(3));
    }
    Ok(())
}

#[test]
fn attention_of_16_bit_operands_rounds_probabilities_and_results() -> Result<()> {
    for dtype in HALVES {
        let u = unit_roundoff(dtype);
        for (tokens, heads, kv_heads, head_dim) in [(70, 2, 1, 32), (200, 4, 2, 24), (65, 1, 1, 7)]
        {
            let p = AttentionParams {
                batch: 2,
                queries: tokens,
                keys: tokens,
                heads,
                kv_heads,
                head_dim,
                scale: 1.0 / (head_dim as f32).sqrt(),
                causal: true,
                window: Some(150),
            };
            let dims = |heads: usize| (2, tokens, heads, head_dim);
            let of = |heads: usize, seed| {
                Operand::of(
                    dtype,
                    random(2 * tokens * heads * head_dim, seed),
                    dims(heads),
                )
            };
            let (q, k, v, dout) = (of(heads, 1), of(kv_heads, 2), of(kv_heads, 3), of(heads, 4));
            let (want, want_lse) = reference::attention(&p, &q.wide(), &k.wide(), &v.wide(), None);
            let (mut out, mut lse) = (zeros_of(dtype, want.len()), garbage(want_lse.len()));
            let (views, nothing) = ((q.view(), k.view(), v.view()), None);
            CpuStorage::attention(&p, views.0, views.1, views.2, nothing, &mut out, &mut lse)?;
            let what = format!("{dtype:?} {tokens} x {heads} x {head_dim}");
            assert_close(&format!("lse {what}"), f32s(&lse), &want_lse, 2e-6);
            let error = relative_l2(&out, &want);
            assert!(error <= 2.0 * u, "out {what}: {error:e}");

            let (want_dq, want_dk, want_dv) = reference::attention_backward(
                &p,
                &q.wide(),
                &k.wide(),
                &v.wide(),
                None,
                &dout.wide(),
            );
            let [mut dq, mut dk, mut dv] =
                [&want_dq, &want_dk, &want_dv].map(|want| zeros_of(dtype, want.len()));
            CpuStorage::attention_backward(
                &p,
                q.view(),
                k.view(),
                v.view(),
                None,
                (&out, &q.layout),
                (&lse, &Layout::contiguous(want_lse.len())),
                dout.view(),
                &mut dq,
                &mut dk,
                &mut dv,
            )?;
            // dq and dk: through delta (of the rounded output), gradients of scores, and their own rounding.
            let of_scores = 3.0 * u;
            for (name, got, want, allowed) in [
                ("dq", dq, want_dq, of_scores),
                ("dk", dk, want_dk, of_scores),
                ("dv", dv, want_dv, 2.0 * u),
            ] {
                let error = relative_l2(&got, &want);
                assert!(
                    error <= allowed,
                    "{name} {what}: {error:e}, allowed {allowed:e}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn cross_entropy_of_16_bit_operands_has_f32_logits() -> Result<()> {
    let params = CrossEntropyParams {
        ignore_index: -100,
        label_smoothing: 0.1,
        z_loss: 1e-3,
    };
    let (rows, dim, vocab) = (150, 40, 333);
    let labels: Vec<i64> = (0..rows as i64)
        .map(|r| {
            if r % 5 == 3 {
                -100
            } else {
                r * 7 % vocab as i64
            }
        })
        .collect();
    let targets = Operand::i64(labels.clone(), rows);
    for [hidden_type, weight_type] in [
        [DType::BF16, DType::F32],
        [DType::BF16, DType::BF16],
        [DType::F16, DType::F32],
        [DType::F32, DType::BF16],
    ] {
        let hidden = Operand::of(hidden_type, random(rows * dim, 1), (rows, dim));
        let weight = Operand::of(weight_type, random(vocab * dim, 2), (vocab, dim));
        let rounded = wide(&widened(&stored(hidden_type, widened(&weight.storage))));
        let (want, want_dh, want_dw) =
            reference::linear_cross_entropy(&params, &hidden.wide(), &rounded, &labels, dim);
        let [mut totals, mut dw] = [3, vocab * dim].map(garbage);
        let mut dh = zeros_of(hidden_type, rows * dim);
        CpuStorage::linear_cross_entropy(
            &params,
            1.0,
            hidden.view(),
            weight.view(),
            targets.view(),
            &mut totals,
            Some(&mut dh),
            Some(&mut dw),
        )?;
        let what = format!("{hidden_type:?} {weight_type:?}");
        for i in 0..3 {
            assert_close(&what, &f32s(&totals)[i..][..1], &want[i..][..1], 2e-6);
        }
        // Gradients of logits are rounded, and those of hidden states once more.
        let u = unit_roundoff(hidden_type);
        let (of_dh, of_dw) = (relative_l2(&dh, &want_dh), relative_l2(&dw, &want_dw));
        assert!(of_dh <= 2.0 * u + 2e-6, "dhidden {what}: {of_dh:e}");
        assert!(of_dw <= u + 2e-6, "dweight {what}: {of_dw:e}");
    }
    Ok(())
}

/// Each of 150,000 gradients of logits is 6.7e-6, a subnormal f16 with seven bits; scaled first, it has all of them.
#[test]
fn small_gradients_of_a_large_vocabulary_keep_their_digits_if_they_are_scaled_first() -> Result<()>
{
    let params = CrossEntropyParams {
        ignore_index: -100,
        label_smoothing: 0.0,
        z_loss: 0.0,
    };
    let (rows, dim, vocab) = (4, 8, 150_000);
    let labels: Vec<i64> = (0..rows as i64).map(|r| r * 31).collect();
    let targets = Operand::i64(labels.clone(), rows);
    let hidden = Operand::of(DType::F16, random(rows * dim, 1), (rows, dim));
    let weight = Operand::of(DType::F32, random(vocab * dim, 2), (vocab, dim));
    let rounded = wide(&widened(&stored(DType::F16, widened(&weight.storage))));
    let (_, want_dh, want_dw) =
        reference::linear_cross_entropy(&params, &hidden.wide(), &rounded, &labels, dim);
    let errors = [1.0, 16384.0f32].map(|scale| -> Result<_> {
        let [mut totals, mut dw] = [3, vocab * dim].map(garbage);
        let mut dh = zeros_of(DType::F16, rows * dim);
        CpuStorage::linear_cross_entropy(
            &params,
            scale,
            hidden.view(),
            weight.view(),
            targets.view(),
            &mut totals,
            Some(&mut dh),
            Some(&mut dw),
        )?;
        // Those of the labels, which are near -1, would hide the others.
        let of_others = |all: &[f64]| all[dim * 1000..].to_vec();
        let unscaled = |x: &CpuStorage| -> Vec<f64> {
            wide(&widened(x))
                .iter()
                .map(|x| x / f64::from(scale))
                .collect()
        };
        let error = |found: Vec<f64>, want: &[f64]| {
            let square = |x: f64| x * x;
            let off: f64 = found.iter().zip(want).map(|(a, b)| square(a - b)).sum();
            (off / want.iter().copied().map(square).sum::<f64>()).sqrt()
        };
        Ok((
            error(of_others(&unscaled(&dw)), &of_others(&want_dw)),
            error(unscaled(&dh), &want_dh),
        ))
    });
    let [plain, scaled] = errors;
    let ((plain, _), (of_dw, of_dh)) = (plain?, scaled?);
    let u = unit_roundoff(DType::F16);
    assert!(plain > 2.0 * u, "nothing to gain: {plain:e}");
    assert!(of_dw <= u + 2e-6, "dweight: {of_dw:e}");
    assert!(of_dh <= 2.0 * u + 2e-6, "dhidden: {of_dh:e}");
    Ok(())
}
