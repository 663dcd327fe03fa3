//! RMSNorm, LayerNorm, RoPE, SwiGLU, GELU, embedding, reductions and elementwise operations against their plain definitions,
//! and gradients against finite differences of these.

use candle_core::{CpuStorage, Layout, Result};
use tt_cpu::{FusedOps, Gelu, Write, reference};

use crate::common::*;

const EPS: f32 = 1e-6;

#[test]
fn rms_norm_matches_the_reference() -> Result<()> {
    for rows in [1, 3, 65, 700] {
        for dim in ODD_SIZES {
            let (x, w) = (random(rows * dim, 1), random(dim, 2));
            let (want, want_inv) = reference::rms_norm(&wide(&x), &wide(&w), EPS as f64);
            let (x, w) = (Operand::f32(x, (rows, dim)), Operand::f32(w, dim));
            let (mut y, mut inv) = (garbage(rows * dim), garbage(rows));
            CpuStorage::rms_norm(x.view(), w.view(), EPS, &mut y, &mut inv)?;
            assert_close("y", f32s(&y), &want, 1e-6);
            assert_close("inv_rms", f32s(&inv), &want_inv, 1e-6);
        }
    }
    Ok(())
}

#[test]
fn rms_norm_backward_matches_the_reference() -> Result<()> {
    for rows in [1, 3, 65, 2100] {
        for dim in ODD_SIZES {
            let (x, w, dy) = (random(rows * dim, 1), random(dim, 2), random(rows * dim, 3));
            let (_, inv) = reference::rms_norm(&wide(&x), &wide(&w), EPS as f64);
            let terms = inv.iter().fold(0.0f64, |m, x| m.max(*x));
            let (want_dx, mut want_dw) =
                reference::rms_norm_backward(&wide(&x), &wide(&w), &inv, &wide(&dy));
            let inv = inv.iter().map(|x| *x as f32).collect();
            let (x, w) = (Operand::f32(x, (rows, dim)), Operand::f32(w, dim));
            let (inv, dy) = (Operand::f32(inv, rows), Operand::f32(dy, (rows, dim)));
            let (mut dx, mut dw) = (garbage(rows * dim), CpuStorage::F32(vec![1.0; dim]));
            CpuStorage::rms_norm_backward(
                x.view(),
                w.view(),
                inv.view(),
                dy.view(),
                Some(&mut dx),
                Some((&mut dw, Write::Accumulate)),
            )?;
            want_dw.iter_mut().for_each(|x| *x += 1.0);
            assert_close_from("dx", terms, f32s(&dx), &want_dx, 1e-6);
            assert_close("dweight", f32s(&dw), &want_dw, 3e-6);
        }
    }
    Ok(())
}

#[test]
fn rms_norm_backward_is_the_derivative() {
    let (rows, dim) = (3, 5);
    let (x, w) = (wide(&random(rows * dim, 1)), wide(&random(dim, 2)));
    let dy = wide(&random(rows * dim, 3));
    let (_, inv) = reference::rms_norm(&x, &w, 1e-3);
    let (dx, dw) = reference::rms_norm_backward(&x, &w, &inv, &dy);
    let by_x = numeric_gradient(&x, |x| dot(&reference::rms_norm(x, &w, 1e-3).0, &dy));
    let by_w = numeric_gradient(&w, |w| dot(&reference::rms_norm(&x, w, 1e-3).0, &dy));
    assert_close(
        "dx",
        &dx.iter().map(|x| *x as f32).collect::<Vec<_>>(),
        &by_x,
        1e-6,
    );
    assert_close(
        "dweight",
        &dw.iter().map(|x| *x as f32).collect::<Vec<_>>(),
        &by_w,
        1e-6,
    );
}

/// `rows` of `dim` around 3: a mean that a kernel must take out.
fn off_centre(rows: usize, dim: usize) -> Vec<f32> {
    random(rows * dim, 1).iter().map(|x| x + 3.0).collect()
}

#[test]
fn layer_norm_matches_the_reference() -> Result<()> {
    for rows in [1, 3, 65, 700] {
        for dim in ODD_SIZES {
            let (x, w, b) = (off_centre(rows, dim), random(dim, 2), random(dim, 3));
            let (want, want_mean, want_inv) =
                reference::layer_norm(&wide(&x), &wide(&w), &wide(&b), 1e-5);
            let x = Operand::f32(x, (rows, dim));
            let (w, b) = (Operand::f32(w, dim), Operand::f32(b, dim));
            let (mut y, mut mean, mut inv) = (garbage(rows * dim), garbage(rows), garbage(rows));
            let (weights, eps) = ((w.view(), b.view()), 1e-5);
            CpuStorage::layer_norm(
                x.view(),
                weights.0,
                weights.1,
                eps,
                &mut y,
                &mut mean,
                &mut inv,
            )?;
            // The distance of an element from the mean is known to the rounding of the mean, 3 at most half a unit of which
            // is 1.2e-7, times what makes the deviation 1.
            let terms = want_inv.iter().fold(0.0f64, |m, x| m.max(*x));
            assert_close_from("y", terms, f32s(&y), &want, 1e-6);
            assert_close("mean", f32s(&mean), &want_mean, 1e-7);
            assert_close("inv_std", f32s(&inv), &want_inv, 1e-6);
        }
    }
    Ok(())
}

/// Ten thousand deviations from 0, elements keep the digits that f32 has left them.
#[test]
fn layer_norm_of_rows_far_from_0_is_that_of_their_distances() -> Result<()> {
    let (rows, dim) = (3, 769);
    let far = |x: &f32| x + 10_000.0;
    let x: Vec<f32> = random(rows * dim, 1).iter().map(far).collect();
    let [w, b] = [1.0, 0.0].map(|value| Operand::f32(vec![value; dim], dim));
    let (want, want_mean, want_inv) = reference::layer_norm(&wide(&x), &w.wide(), &b.wide(), 0.0);
    let x = Operand::f32(x, (rows, dim));
    let (mut y, mut mean, mut inv) = (garbage(rows * dim), garbage(rows), garbage(rows));
    let (w, b) = (w.view(), b.view());
    CpuStorage::layer_norm(x.view(), w, b, 0.0, &mut y, &mut mean, &mut inv)?;
    // The mean is rounded to a unit of 9.8e-4, all of a row are off by the same.
    assert_close_from("y", 1.0, f32s(&y), &want, 1e-3);
    assert_close("mean", f32s(&mean), &want_mean, 6e-8);
    assert_close("inv_std", f32s(&inv), &want_inv, 1e-6);
    Ok(())
}

/// A variance of 0, which must not come out below 0, and a mean that is no sum's.
#[test]
fn layer_norm_of_equal_elements_is_its_bias() -> Result<()> {
    for dim in [1, 257, 769] {
        let x = [1234.1, -0.3, 14.0, 1e30, 0.0];
        let rows = x.len();
        let x: Vec<f32> = x.iter().flat_map(|x| vec![*x; dim]).collect();
        let (x, w) = (
            Operand::f32(x, (rows, dim)),
            Operand::f32(random(dim, 1), dim),
        );
        let b = Operand::f32(random(dim, 2), dim);
        let (mut y, mut mean, mut inv) = (garbage(rows * dim), garbage(rows), garbage(rows));
        let (w, bias) = (w.view(), b.view());
        CpuStorage::layer_norm(x.view(), w, bias, 1e-6, &mut y, &mut mean, &mut inv)?;
        let expected = f32s(&b.storage).repeat(rows);
        assert_eq!(f32s(&y), expected, "{dim}");
    }
    Ok(())
}

#[test]
fn layer_norm_backward_matches_the_reference() -> Result<()> {
    for rows in [1, 3, 65, 2100] {
        for dim in ODD_SIZES {
            let (x, w, dy) = (off_centre(rows, dim), random(dim, 2), random(rows * dim, 3));
            let (_, mean, inv) = reference::layer_norm(&wide(&x), &wide(&w), &wide(&w), 1e-5);
            let terms = inv.iter().fold(0.0f64, |m, x| m.max(*x));
            let (want_dx, mut want_dw, want_db) =
                reference::layer_norm_backward(&wide(&x), &wide(&w), &mean, &inv, &wide(&dy));
            let narrow = |x: Vec<f64>| x.iter().map(|x| *x as f32).collect();
            let (mean, inv) = (
                Operand::f32(narrow(mean), rows),
                Operand::f32(narrow(inv), rows),
            );
            let (x, w) = (Operand::f32(x, (rows, dim)), Operand::f32(w, dim));
            let dy = Operand::f32(dy, (rows, dim));
            let (mut dx, mut db) = (garbage(rows * dim), garbage(dim));
            let mut dw = CpuStorage::F32(vec![1.0; dim]);
            CpuStorage::layer_norm_backward(
                x.view(),
                w.view(),
                mean.view(),
                inv.view(),
                dy.view(),
                Some(&mut dx),
                Some((&mut dw, Write::Accumulate)),
                Some((&mut db, Write::Assign)),
            )?;
            want_dw.iter_mut().for_each(|x| *x += 1.0);
            // Of a row of one element nothing is left but rounding.
            assert_close_from("dx", terms, f32s(&dx), &want_dx, 2e-6);
            assert_close_from("dweight", terms, f32s(&dw), &want_dw, 3e-6);
            assert_close("dbias", f32s(&db), &want_db, 3e-6);

            // Each by itself is what it is with the others.
            let (mut dx2, mut db2) = (garbage(rows * dim), garbage(dim));
            let mut dw2 = CpuStorage::F32(vec![1.0; dim]);
            for alone in 0..3 {
                CpuStorage::layer_norm_backward(
                    x.view(),
                    w.view(),
                    mean.view(),
                    inv.view(),
                    dy.view(),
                    (alone == 0).then_some(&mut dx2),
                    (alone == 1).then_some((&mut dw2, Write::Accumulate)),
                    (alone == 2).then_some((&mut db2, Write::Assign)),
                )?;
            }
            for (alone, together) in [(&dx2, &dx), (&dw2, &dw), (&db2, &db)] {
                assert_eq!(f32s(alone), f32s(together));
            }
        }
    }
    Ok(())
}

#[test]
fn layer_norm_backward_is_the_derivative() {
    let (rows, dim) = (3, 5);
    let (x, w) = (wide(&random(rows * dim, 1)), wide(&random(dim, 2)));
    let (b, dy) = (wide(&random(dim, 4)), wide(&random(rows * dim, 3)));
    let (_, mean, inv) = reference::layer_norm(&x, &w, &b, 1e-3);
    let (dx, dw, db) = reference::layer_norm_backward(&x, &w, &mean, &inv, &dy);
    let loss = |x: &[f64], w: &[f64], b: &[f64]| dot(&reference::layer_norm(x, w, b, 1e-3).0, &dy);
    let narrow = |x: Vec<f64>| x.iter().map(|x| *x as f32).collect::<Vec<_>>();
    let by_x = numeric_gradient(&x, |x| loss(x, &w, &b));
    let by_w = numeric_gradient(&w, |w| loss(&x, w, &b));
    let by_b = numeric_gradient(&b, |b| loss(&x, &w, b));
    assert_close("dx", &narrow(dx), &by_x, 1e-6);
    assert_close("dweight", &narrow(dw), &by_w, 1e-6);
    assert_close("dbias", &narrow(db), &by_b, 1e-6);
}

#[test]
fn no_rows_leave_gradients_of_zero() -> Result<()> {
    let (x, w) = (Operand::f32(vec![], (0, 3)), Operand::f32(random(3, 1), 3));
    let none = Operand::f32(vec![], 0);
    let (mut dw, mut db) = (garbage(3), CpuStorage::F32(vec![5.0; 3]));
    CpuStorage::layer_norm_backward(
        x.view(),
        w.view(),
        none.view(),
        none.view(),
        x.view(),
        None,
        Some((&mut dw, Write::Assign)),
        Some((&mut db, Write::Accumulate)),
    )?;
    assert_eq!((f32s(&dw), f32s(&db)), (&[0.0; 3][..], &[5.0; 3][..]));
    Ok(())
}

#[test]
fn gelu_matches_the_reference_forward_and_backward() -> Result<()> {
    for form in [Gelu::Erf, Gelu::Tanh] {
        for len in [0, 1, 17, 65, 40_001] {
            let x: Vec<f32> = random(len, 1).iter().map(|x| x * 8.0).collect();
            let dy = random(len, 2);
            let want = reference::gelu(form, &wide(&x));
            let want_dx = reference::gelu_backward(form, &wide(&x), &wide(&dy));
            let (x, dy) = (Operand::f32(x, len), Operand::f32(dy, len));
            let (mut y, mut dx) = (garbage(len), garbage(len));
            CpuStorage::gelu(form, x.view(), &mut y)?;
            CpuStorage::gelu_backward(form, x.view(), dy.view(), &mut dx)?;
            assert_close("y", f32s(&y), &want, 3e-7);
            assert_close("dx", f32s(&dx), &want_dx, 8e-7);
        }
    }
    Ok(())
}

#[test]
fn gelu_backward_is_the_derivative() {
    for form in [Gelu::Erf, Gelu::Tanh] {
        let x: Vec<f64> = (-12..=12).map(|i| f64::from(i) / 3.0).collect();
        let dy = wide(&random(x.len(), 2));
        let dx = reference::gelu_backward(form, &x, &dy);
        let by_x = numeric_gradient(&x, |x| dot(&reference::gelu(form, x), &dy));
        let dx: Vec<f32> = dx.iter().map(|x| *x as f32).collect();
        assert_close("dx", &dx, &by_x, 1e-6);
    }
}

/// Tables of `rows` positions for head dim `dim`.
fn rope_tables(rows: usize, dim: usize) -> (Vec<f32>, Vec<f32>) {
    let angle = |i: usize| {
        let frequency = 10_000f64.powf(-2.0 * (i % (dim / 2)) as f64 / dim as f64);
        (i / (dim / 2)) as f64 * frequency
    };
    (0..rows * dim / 2)
        .map(|i| (angle(i).cos() as f32, angle(i).sin() as f32))
        .unzip()
}

#[test]
fn rope_matches_the_reference_on_slices_of_a_fused_projection() -> Result<()> {
    for (batch, tokens, heads, dim) in [
        (1, 1, 1, 2),
        (2, 17, 3, 6),
        (2, 65, 4, 32),
        (1, 300, 2, 128),
    ] {
        // x is the middle part of rows [before | x | after].
        let (row, width) = (heads * dim, heads * dim + 11 + 5);
        let data = random(batch * tokens * width, 1);
        let dense: Vec<f32> = data
            .chunks(width)
            .flat_map(|row_| &row_[11..11 + row])
            .copied()
            .collect();
        let layout = Layout::new(
            (batch, tokens, heads, dim).into(),
            vec![tokens * width, width, dim, 1],
            11,
        );
        let x = Operand {
            storage: CpuStorage::F32(data),
            layout,
        };
        let (cos, sin) = rope_tables(400, dim);
        let positions: Vec<u32> = (0..batch * tokens).map(|i| (i * 7 % 400) as u32).collect();
        for inverse in [false, true] {
            let want = reference::rope(
                &wide(&dense),
                &wide(&cos),
                &wide(&sin),
                &positions,
                heads,
                dim,
                inverse,
            );
            let cos = Operand::f32(cos.clone(), (400, dim / 2));
            let sin = Operand::f32(sin.clone(), (400, dim / 2));
            let positions = Operand::u32(positions.clone(), (batch, tokens));
            let mut y = garbage(batch * tokens * row);
            CpuStorage::rope(
                x.view(),
                cos.view(),
                sin.view(),
                positions.view(),
                inverse,
                &mut y,
            )?;
            assert_close("rope", f32s(&y), &want, 2e-7);
        }
    }
    Ok(())
}

#[test]
fn rope_inverse_undoes_rope() {
    let (cos, sin) = rope_tables(9, 8);
    let (cos, sin) = (wide(&cos), wide(&sin));
    let x = wide(&random(9 * 2 * 8, 1));
    let positions: Vec<u32> = (0..9).collect();
    let y = reference::rope(&x, &cos, &sin, &positions, 2, 8, false);
    let back = reference::rope(&y, &cos, &sin, &positions, 2, 8, true);
    let back: Vec<f32> = back.iter().map(|x| *x as f32).collect();
    assert_close("back", &back, &x, 1e-6);
}

#[test]
fn swiglu_matches_the_reference_forward_and_backward() -> Result<()> {
    for len in [0, 1, 17, 65, 40_001] {
        let spread = |x: Vec<f32>| -> Vec<f32> { x.iter().map(|x| x * 30.0).collect() };
        let (gate, up, dy) = (spread(random(len, 1)), random(len, 2), random(len, 3));
        let want = reference::swiglu(&wide(&gate), &wide(&up));
        let (want_dgate, want_dup) =
            reference::swiglu_backward(&wide(&gate), &wide(&up), &wide(&dy));
        let (gate, up, dy) = (
            Operand::f32(gate, len),
            Operand::f32(up, len),
            Operand::f32(dy, len),
        );
        let (mut y, mut dgate, mut dup) = (garbage(len), garbage(len), garbage(len));
        CpuStorage::swiglu(gate.view(), up.view(), &mut y)?;
        CpuStorage::swiglu_backward(gate.view(), up.view(), dy.view(), &mut dgate, &mut dup)?;
        assert_close("y", f32s(&y), &want, 1e-6);
        assert_close("dgate", f32s(&dgate), &want_dgate, 1e-6);
        assert_close("dup", f32s(&dup), &want_dup, 1e-6);
    }
    Ok(())
}

#[test]
fn swiglu_at_extreme_gates_saturates() -> Result<()> {
    let gate = Operand::f32(vec![-1e4, -100.0, 0.0, 100.0, 1e4], 5);
    let up = Operand::f32(vec![1.0; 5], 5);
    let mut y = garbage(5);
    CpuStorage::swiglu(gate.view(), up.view(), &mut y)?;
    assert_eq!(f32s(&y), [0.0, 0.0, 0.0, 100.0, 1e4]);
    Ok(())
}

#[test]
fn swiglu_backward_is_the_derivative() {
    let (gate, up, dy) = (
        wide(&random(9, 1)),
        wide(&random(9, 2)),
        wide(&random(9, 3)),
    );
    let (dgate, dup) = reference::swiglu_backward(&gate, &up, &dy);
    let by_gate = numeric_gradient(&gate, |gate| dot(&reference::swiglu(gate, &up), &dy));
    let by_up = numeric_gradient(&up, |up| dot(&reference::swiglu(&gate, up), &dy));
    assert_close(
        "dgate",
        &dgate.iter().map(|x| *x as f32).collect::<Vec<_>>(),
        &by_gate,
        1e-6,
    );
    assert_close(
        "dup",
        &dup.iter().map(|x| *x as f32).collect::<Vec<_>>(),
        &by_up,
        1e-6,
    );
}

#[test]
fn embedding_matches_the_reference_forward_and_backward() -> Result<()> {
    for (vocab, dim, rows) in [(1, 1, 3), (7, 17, 1), (300, 65, 2000), (5, 3, 0)] {
        let weight = random(vocab * dim, 1);
        let dy = random(rows * dim, 2);
        // Few distinct ids, so that rows collide.
        let ids: Vec<u32> = (0..rows).map(|r| (r * r % vocab.min(11)) as u32).collect();
        let want = reference::embedding(&wide(&weight), &ids, dim);
        let mut want_dw = reference::embedding_backward(&ids, &wide(&dy), vocab, dim);
        want_dw.iter_mut().for_each(|x| *x += 0.5);
        let weight = Operand::f32(weight, (vocab, dim));
        let (ids, dy) = (Operand::u32(ids, rows), Operand::f32(dy, (rows, dim)));
        let (mut y, mut dw) = (garbage(rows * dim), CpuStorage::F32(vec![0.5; vocab * dim]));
        CpuStorage::embedding(weight.view(), ids.view(), &mut y)?;
        CpuStorage::embedding_backward(ids.view(), dy.view(), &mut dw)?;
        assert_close("y", f32s(&y), &want, 0.0);
        assert_close("dweight", f32s(&dw), &want_dw, 1e-5);
    }
    Ok(())
}

#[test]
fn sums_match_f64_sums() -> Result<()> {
    for rows in [1, 3, 65, 4099] {
        for cols in ODD_SIZES {
            let x = random(rows * cols, 1);
            let mut want = vec![2.0; cols];
            x.iter()
                .enumerate()
                .for_each(|(i, x)| want[i % cols] += *x as f64);
            let squares: f64 = x.iter().map(|x| (*x as f64).powi(2)).sum();
            let x = Operand::f32(x, (rows, cols));
            let mut sums = CpuStorage::F32(vec![2.0; cols]);
            CpuStorage::sum_rows_into(x.view(), rows, &mut sums, Write::Accumulate)?;
            assert_close("sum_rows", f32s(&sums), &want, 2e-6);
            CpuStorage::sum_rows_into(x.view(), rows, &mut sums, Write::Assign)?;
            want.iter_mut().for_each(|x| *x -= 2.0);
            // Sums of numbers of both signs: the error is relative to what was added.
            let bound = 2e-7 * (rows as f64).sqrt();
            for (got, want) in f32s(&sums).iter().zip(&want) {
                assert!(
                    (*got as f64 - want).abs() <= bound.max(1e-7) * 4.0,
                    "{got} {want}"
                );
            }
            let mut slots = garbage(3);
            CpuStorage::sum_squares_into(x.view(), &mut slots, 1)?;
            assert_close("sum_squares", &f32s(&slots)[1..2], &[squares], 1e-7);
            assert!(
                f32s(&slots)[0].is_nan() && f32s(&slots)[2].is_nan(),
                "other slots untouched"
            );
        }
    }
    Ok(())
}

#[test]
fn elementwise_operations_write_exactly_their_elements() -> Result<()> {
    for len in [0, 1, 17, 70_001] {
        let (a, b) = (random(len, 1), random(len, 2));
        let (a_op, b_op) = (Operand::f32(a.clone(), len), Operand::f32(b.clone(), len));
        let mut out = CpuStorage::F32(vec![9.0; len + 2]);
        CpuStorage::add_into(a_op.view(), b_op.view(), &mut out)?;
        out.axpy(0.25, a_op.view())?;
        let half = Operand::f32(vec![0.5], 1);
        out.scale(len, 3.0, Some(half.view()))?;
        for i in 0..len {
            let want = 0.25f32.mul_add(a[i], a[i] + b[i]) * 1.5;
            assert_eq!(f32s(&out)[i], want);
        }
        assert_eq!(f32s(&out)[len..], [9.0, 9.0]);
        out.fill(len, 4.0)?;
        assert!(f32s(&out)[..len].iter().all(|x| *x == 4.0));
        assert_eq!(f32s(&out)[len..], [9.0, 9.0]);
    }
    let row = Operand::f32(random(300, 1), 300);
    let mut out = garbage(300 * 501);
    CpuStorage::broadcast_row_into(row.view(), 501, &mut out)?;
    assert!(f32s(&out).chunks(300).all(|r| r == f32s(&row.storage)));
    Ok(())
}

#[test]
fn wrong_operands_are_errors_that_name_them() {
    let x = Operand::f32(vec![0.0; 6], (2, 3));
    let w = Operand::f32(vec![0.0; 2], 2);
    let ids = Operand::u32(vec![0, 9], 2);
    let bad_layout = Operand {
        layout: Layout::contiguous((2, 4)),
        ..Operand::f32(vec![0.0; 6], 6)
    };
    let cos = Operand::f32(vec![1.0; 4], (2, 2));
    let x4 = Operand::f32(vec![0.0; 8], (1, 2, 1, 4));
    let x3 = Operand::f32(vec![0.0; 6], (1, 2, 1, 3));
    let late = Operand::u32(vec![0, 2], (1, 2));
    let x3_row = Operand::f32(vec![0.0; 3], 3);
    let [mut out, mut inv, mut mean] = [8, 2, 2].map(zeros);
    let mut ints = CpuStorage::U32(vec![0; 8]);
    let cases = [
        (
            CpuStorage::rms_norm(x.view(), w.view(), EPS, &mut out, &mut inv),
            "weight has 2 elements",
        ),
        (
            CpuStorage::layer_norm(
                x.view(),
                x3_row.view(),
                w.view(),
                EPS,
                &mut out,
                &mut inv,
                &mut mean,
            ),
            "layer_norm: bias has 2 elements instead of 3",
        ),
        (
            CpuStorage::gelu_backward(Gelu::Erf, x.view(), w.view(), &mut out),
            "gelu_backward: dy has 2 elements instead of 6",
        ),
        (
            CpuStorage::embedding(x.view(), ids.view(), &mut out),
            "id 9 is not below",
        ),
        (
            CpuStorage::embedding_backward(ids.view(), x.view(), &mut out),
            "id 9 is not below",
        ),
        (
            CpuStorage::embedding(x.view(), x.view(), &mut out),
            "ids must be U32, not F32",
        ),
        (
            CpuStorage::add_into(bad_layout.view(), x.view(), &mut out),
            "0..8 of a storage of 6",
        ),
        (
            CpuStorage::add_into(x.view(), w.view(), &mut out),
            "b has 2 elements instead of 6",
        ),
        (
            CpuStorage::add_into(x.view(), x.view(), &mut ints),
            "out must be F32, not U32",
        ),
        (
            CpuStorage::sum_rows_into(x.view(), 4, &mut out, Write::Assign),
            "not 4 rows",
        ),
        (
            CpuStorage::rope(
                x4.view(),
                cos.view(),
                cos.view(),
                late.view(),
                false,
                &mut out,
            ),
            "position 2 is beyond the table of 2",
        ),
        (
            CpuStorage::rope(
                x3.view(),
                cos.view(),
                cos.view(),
                late.view(),
                false,
                &mut out,
            ),
            "head dim 3 is odd",
        ),
        (out.fill(9, 0.0), "room for 8 elements instead of 9"),
    ];
    for (result, expected) in cases {
        let error = result.expect_err(expected).to_string();
        assert!(
            error.contains(expected),
            "{error:?} does not say {expected:?}"
        );
    }
}
