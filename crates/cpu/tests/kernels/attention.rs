//! Attention, forward and backward, against the plain definition, which is checked against finite differences.

use candle_core::{CpuStorage, Layout, Result};
use tt_cpu::{AttentionParams, FusedOps, reference};

use crate::common::*;

/// `parts` tensors `[B, T, heads, D]` side by side in the rows of one storage, as a fused projection leaves them, and
/// their dense copies.
fn fused(
    batch: usize,
    tokens: usize,
    heads: &[usize],
    dim: usize,
    seed: u64,
) -> Vec<(Operand, Vec<f32>)> {
    let width: usize = heads.iter().sum::<usize>() * dim;
    let data = random(batch * tokens * width, seed);
    let mut first = 0;
    let part = |heads: &usize| {
        let layout = Layout::new(
            (batch, tokens, *heads, dim).into(),
            vec![tokens * width, width, dim, 1],
            first,
        );
        let range = first..first + heads * dim;
        first = range.end;
        let dense = data
            .chunks(width.max(1))
            .flat_map(|row| &row[range.clone()])
            .copied()
            .collect();
        (
            Operand {
                storage: CpuStorage::F32(data.clone()),
                layout,
            },
            dense,
        )
    };
    heads.iter().map(part).collect()
}

fn check(p: AttentionParams, segments: Option<(Vec<u32>, Vec<u32>)>) -> Result<()> {
    let what = format!("{p:?} segments {}", segments.is_some());
    let mut q = fused(p.batch, p.queries, &[p.heads, 1], p.head_dim, 1);
    let mut kv = fused(p.batch, p.keys, &[p.kv_heads, p.kv_heads], p.head_dim, 2);
    let ((q, q_dense), (v, v_dense)) = (q.swap_remove(0), kv.pop().expect("two parts"));
    let (k, k_dense) = kv.pop().expect("two parts");
    let borrowed = segments.as_ref().map(|(q, k)| (&q[..], &k[..]));
    let (q64, k64, v64) = (wide(&q_dense), wide(&k_dense), wide(&v_dense));
    let (want, want_lse) = reference::attention(&p, &q64, &k64, &v64, borrowed);

    let operands = segments.as_ref().map(|(queries, keys)| {
        (
            Operand::u32(queries.clone(), (p.batch, p.queries)),
            Operand::u32(keys.clone(), (p.batch, p.keys)),
        )
    });
    let views = || operands.as_ref().map(|(q, k)| (q.view(), k.view()));
    let (mut out, mut lse) = (garbage(want.len()), garbage(want_lse.len()));
    CpuStorage::attention(
        &p,
        q.view(),
        k.view(),
        v.view(),
        views(),
        &mut out,
        &mut lse,
    )?;
    assert_close(&format!("out {what}"), f32s(&out), &want, 1e-6);
    assert_close(&format!("lse {what}"), f32s(&lse), &want_lse, 1e-6);

    let dout = random(want.len(), 3);
    let (want_dq, want_dk, want_dv) =
        reference::attention_backward(&p, &q64, &k64, &v64, borrowed, &wide(&dout));
    let q_dims = (p.batch, p.queries, p.heads, p.head_dim);
    let out = Operand {
        storage: out,
        layout: Layout::contiguous(q_dims),
    };
    let lse = Operand {
        storage: lse,
        layout: Layout::contiguous(want_lse.len()),
    };
    let dout = Operand::f32(dout, q_dims);
    let [mut dq, mut dk, mut dv] = [&want_dq, &want_dk, &want_dv].map(|x| garbage(x.len()));
    CpuStorage::attention_backward(
        &p,
        q.view(),
        k.view(),
        v.view(),
        views(),
        out.view(),
        lse.view(),
        dout.view(),
        &mut dq,
        &mut dk,
        &mut dv,
    )?;
    for (name, got, want) in [
        ("dq", dq, want_dq),
        ("dk", dk, want_dk),
        ("dv", dv, want_dv),
    ] {
        // A query that sees one key has a zero dq, the difference of products of order 1.
        assert_close_from(&format!("{name} {what}"), 1.0, f32s(&got), &want, 2e-6);
    }
    Ok(())
}

#[test]
fn causal_attention_of_odd_lengths_matches_the_reference() -> Result<()> {
    for tokens in ODD_SIZES {
        check(attention_params((2, tokens, tokens), (2, 2, 16)), None)?;
    }
    check(attention_params((1, 200, 200), (2, 1, 128)), None)
}

#[test]
fn query_groups_share_their_key_value_head() -> Result<()> {
    for (heads, kv_heads) in [(4, 2), (6, 1), (3, 3)] {
        check(attention_params((2, 70, 70), (heads, kv_heads, 32)), None)?;
    }
    Ok(())
}

#[test]
fn head_dims_need_not_fill_vectors() -> Result<()> {
    for head_dim in [1, 3, 8, 24, 80, 130] {
        check(attention_params((1, 67, 67), (2, 1, head_dim)), None)?;
    }
    Ok(())
}

#[test]
fn full_attention_matches_the_reference() -> Result<()> {
    for (queries, keys) in [(65, 65), (3, 129), (129, 3)] {
        check(
            AttentionParams {
                causal: false,
                ..attention_params((2, queries, keys), (2, 1, 16))
            },
            None,
        )?;
    }
    Ok(())
}

#[test]
fn later_queries_see_the_earlier_keys() -> Result<()> {
    for (queries, keys) in [(1, 200), (5, 129), (64, 65), (130, 200)] {
        check(attention_params((2, queries, keys), (4, 2, 16)), None)?;
    }
    Ok(())
}

#[test]
fn queries_before_the_first_key_give_zeros() -> Result<()> {
    // Positions of the first 100 queries are negative.
    check(attention_params((1, 165, 65), (2, 1, 16)), None)
}

#[test]
fn a_window_hides_what_is_far_back() -> Result<()> {
    for window in [1, 2, 63, 64, 65, 100, 1000] {
        for causal in [true, false] {
            let p = attention_params((1, 150, 200), (2, 1, 16));
            check(
                AttentionParams {
                    window: Some(window),
                    causal,
                    ..p
                },
                None,
            )?;
        }
    }
    Ok(())
}

#[test]
fn segments_do_not_see_each_other() -> Result<()> {
    // Documents of many lengths: some smaller, some larger than a block, aligned with none.
    let ids = |lengths: &[usize]| -> Vec<u32> {
        lengths
            .iter()
            .enumerate()
            .flat_map(|(i, n)| vec![i as u32 + 3; *n])
            .collect()
    };
    let mut segments = ids(&[1, 90, 5, 104]);
    segments.extend(ids(&[64, 64, 72]));
    for causal in [true, false] {
        let p = AttentionParams {
            causal,
            ..attention_params((2, 200, 200), (2, 1, 32))
        };
        check(p, Some((segments.clone(), segments.clone())))?;
        let p = AttentionParams {
            window: Some(70),
            ..p
        };
        check(p, Some((segments.clone(), segments.clone())))?;
    }
    Ok(())
}

/// Enough keys that the backward pass is cut into ranges of them, each with heads of its own.
#[test]
fn ranges_of_keys_add_up() -> Result<()> {
    for (queries, keys) in [(400, 400), (360, 500), (500, 330)] {
        for causal in [true, false] {
            for window in [None, Some(1), Some(100)] {
                let p = AttentionParams {
                    causal,
                    window,
                    ..attention_params((1, queries, keys), (3, 1, 20))
                };
                check(p, None)?;
            }
        }
    }
    let segments: Vec<u32> = (0..400).map(|i| i / 150).collect();
    check(
        attention_params((1, 400, 400), (4, 2, 32)),
        Some((segments.clone(), segments)),
    )
}

#[test]
fn queries_whose_segment_has_no_key_give_zeros() -> Result<()> {
    let queries: Vec<u32> = (0..130).map(|i| if i % 3 == 0 { 99 } else { 1 }).collect();
    check(
        attention_params((1, 130, 130), (2, 2, 16)),
        Some((queries, vec![1; 130])),
    )?;
    check(
        attention_params((1, 130, 130), (2, 2, 16)),
        Some((vec![5; 130], vec![6; 130])),
    )
}

/// As BERT has it: both ways, rows of several lengths, padding a segment of its own, which may be a whole row.
#[test]
fn both_ways_padding_is_left_to_itself() -> Result<()> {
    for keys in [65, 140, 400] {
        let lengths = [keys, keys - 11, 3, 0];
        let ids: Vec<u32> = lengths
            .iter()
            .flat_map(|n| (0..keys).map(move |i| u32::from(i < *n)))
            .collect();
        let p = AttentionParams {
            causal: false,
            ..attention_params((4, keys, keys), (2, 2, 16))
        };
        check(p, Some((ids.clone(), ids.clone())))?;
        // Queries whose segment has no key.
        let unseen = ids.iter().enumerate();
        let unseen = unseen.map(|(i, id)| if i % 7 == 5 { 9 } else { *id });
        check(p, Some((unseen.collect(), ids)))?;
    }
    Ok(())
}

#[test]
fn attention_over_nothing_is_empty_or_zero() -> Result<()> {
    check(attention_params((0, 3, 3), (2, 1, 16)), None)?;
    check(attention_params((1, 0, 3), (2, 1, 16)), None)?;
    check(attention_params((1, 3, 0), (2, 1, 16)), None)
}

#[test]
fn large_scores_do_not_overflow() -> Result<()> {
    let p = AttentionParams {
        scale: 500.0,
        ..attention_params((1, 100, 100), (1, 1, 16))
    };
    let mut parts = fused(1, 100, &[1, 1, 1], 16, 5);
    let (v, k, q) = (parts.pop(), parts.pop(), parts.pop());
    let (Some((q, _)), Some((k, _)), Some((v, _))) = (q, k, v) else {
        unreachable!("three parts")
    };
    let (mut out, mut lse) = (garbage(1600), garbage(100));
    CpuStorage::attention(&p, q.view(), k.view(), v.view(), None, &mut out, &mut lse)?;
    assert!(f32s(&out).iter().chain(f32s(&lse)).all(|x| x.is_finite()));
    Ok(())
}

#[test]
fn the_backward_pass_is_the_derivative() {
    let p = AttentionParams {
        window: Some(3),
        ..attention_params((1, 4, 5), (2, 1, 3))
    };
    let segments: (&[u32], &[u32]) = (&[1, 1, 2, 2], &[1, 1, 1, 2, 2]);
    let (q, k, v) = (
        wide(&random(24, 1)),
        wide(&random(15, 2)),
        wide(&random(15, 3)),
    );
    let dout = wide(&random(24, 4));
    let loss = |q: &[f64], k: &[f64], v: &[f64]| {
        dot(&reference::attention(&p, q, k, v, Some(segments)).0, &dout)
    };
    let (dq, dk, dv) = reference::attention_backward(&p, &q, &k, &v, Some(segments), &dout);
    let narrow = |x: Vec<f64>| x.iter().map(|x| *x as f32).collect::<Vec<_>>();
    assert_close(
        "dq",
        &narrow(dq),
        &numeric_gradient(&q, |q| loss(q, &k, &v)),
        1e-6,
    );
    assert_close(
        "dk",
        &narrow(dk),
        &numeric_gradient(&k, |k| loss(&q, k, &v)),
        1e-6,
    );
    assert_close(
        "dv",
        &narrow(dv),
        &numeric_gradient(&v, |v| loss(&q, &k, v)),
        1e-6,
    );
}

#[test]
fn wrong_shapes_are_errors() {
    let p = attention_params((1, 2, 2), (2, 1, 4));
    let q = Operand::f32(vec![0.0; 16], (1, 2, 2, 4));
    let kv = Operand::f32(vec![0.0; 8], (1, 2, 1, 4));
    let flat = Operand::f32(vec![0.0; 8], 8);
    let short = Operand::u32(vec![0; 1], (1, 1));
    let (mut out, mut lse) = (zeros(16), zeros(4));
    let mut call = |p: &AttentionParams, k: &Operand, segments: Option<&Operand>| {
        let segments = segments.map(|s| (s.view(), s.view()));
        CpuStorage::attention(
            p,
            q.view(),
            k.view(),
            kv.view(),
            segments,
            &mut out,
            &mut lse,
        )
        .map_err(|error| error.to_string())
    };
    assert_eq!(call(&p, &kv, None), Ok(()));
    assert!(
        call(&p, &flat, None)
            .unwrap_err()
            .contains("attention: k is [8] instead of")
    );
    assert!(
        call(&p, &kv, Some(&short))
            .unwrap_err()
            .contains("query segments has 1 elements")
    );
    let uneven = AttentionParams {
        heads: 3,
        kv_heads: 2,
        ..p
    };
    assert!(call(&uneven, &kv, None).unwrap_err().contains("evenly"));
}
