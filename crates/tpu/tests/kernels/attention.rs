//! Attention on the device, forward and backward, against the plain definition in f64 and against the CPU's kernels.

use std::hash::{Hash, Hasher};

use crate::common::*;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout, Result};
use tt_cpu::{AttentionParams, FusedOps, reference};
use tt_tpu::{TpuDevice, TpuStorage};

const FLOATS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
/// Around the lanes (64) and the blocks (128 and 256).
const LENGTHS: [usize; 4] = [1, 63, 129, 270];

/// Tensors `[B, T, heads, D]` side by side in the rows of one storage, as a fused projection leaves them, with their
/// dense content.
fn fused(
    dtype: DType,
    (batch, tokens): (usize, usize),
    heads: &[usize],
    dim: usize,
    seed: u64,
) -> Vec<(Operand, Vec<f64>)> {
    let width = heads.iter().sum::<usize>() * dim;
    let storage = stored(dtype, random(batch * tokens * width, seed));
    let rounded = wide(&widened(&storage));
    let mut first = 0;
    let part = |heads: &usize| {
        let strides = vec![tokens * width, width, dim, 1];
        let layout = Layout::new((batch, tokens, *heads, dim).into(), strides, first);
        let range = first..first + heads * dim;
        first = range.end;
        let rows = rounded.chunks(width.max(1));
        let dense = rows.flat_map(|row| &row[range.clone()]).copied().collect();
        let storage = storage.clone();
        (Operand { storage, layout }, dense)
    };
    heads.iter().map(part).collect()
}

/// An output with content that a kernel must not let through.
fn unset(device: TpuDevice, dtype: DType, len: usize) -> TpuStorage {
    upload(device, &stored(dtype, vec![f32::NAN; len]))
}

struct Problem {
    p: AttentionParams,
    q: Operand,
    k: Operand,
    v: Operand,
    dout: Operand,
    segments: Option<(Operand, Operand)>,
}

/// `[out, lse, dq, dk, dv]`.
type Results = [CpuStorage; 5];

impl Problem {
    fn on_device(&self, device: TpuDevice) -> Result<Results> {
        let (p, dtype) = (&self.p, self.q.storage.dtype());
        let on = |x: &Operand| TpuOperand::new(device, x);
        let (q, k, v, dout) = (on(&self.q), on(&self.k), on(&self.v), on(&self.dout));
        let segments = self.segments.as_ref().map(|(q, k)| (on(q), on(k)));
        let views = || segments.as_ref().map(|(q, k)| (q.view(), k.view()));
        let rows = p.batch * p.queries * p.heads;
        let (q_len, kv_len) = (
            rows * p.head_dim,
            p.batch * p.keys * p.kv_heads * p.head_dim,
        );
        let mut out = unset(device, dtype, q_len);
        let mut lse = unset(device, DType::F32, rows);
        let (qkv, before) = ((q.view(), k.view(), v.view()), counts(device));
        TpuStorage::attention(p, qkv.0, qkv.1, qkv.2, views(), &mut out, &mut lse)?;
        let [mut dq, mut dk, mut dv] = [q_len, kv_len, kv_len].map(|len| unset(device, dtype, len));
        let (out_layout, lse_layout) = (Layout::contiguous(q_len), Layout::contiguous(rows));
        TpuStorage::attention_backward(
            p,
            qkv.0,
            qkv.1,
            qkv.2,
            views(),
            (&out, &out_layout),
            (&lse, &lse_layout),
            dout.view(),
            &mut dq,
            &mut dk,
            &mut dv,
        )?;
        let after = counts(device);
        assert_eq!(after[3], before[3], "nothing runs on the CPU");
        if q_len > 0 && kv_len > 0 {
            assert!((0..3).all(|i| after[i] > before[i]), "all kernels ran");
        }
        let host = |x: &TpuStorage, len| x.download(0, len);
        Ok([
            host(&out, q_len)?,
            host(&lse, rows)?,
            host(&dq, q_len)?,
            host(&dk, kv_len)?,
            host(&dv, kv_len)?,
        ])
    }

    fn on_cpu(&self) -> Result<Results> {
        let (p, dtype) = (&self.p, self.q.storage.dtype());
        let (q, k, v) = (self.q.view(), self.k.view(), self.v.view());
        let views = || self.segments.as_ref().map(|(q, k)| (q.view(), k.view()));
        let rows = p.batch * p.queries * p.heads;
        let (q_len, kv_len) = (
            rows * p.head_dim,
            p.batch * p.keys * p.kv_heads * p.head_dim,
        );
        let (mut out, mut lse) = (zeros_of(dtype, q_len), zeros(rows));
        CpuStorage::attention(p, q, k, v, views(), &mut out, &mut lse)?;
        let [mut dq, mut dk, mut dv] = [q_len, kv_len, kv_len].map(|len| zeros_of(dtype, len));
        let (out_layout, lse_layout) = (Layout::contiguous(q_len), Layout::contiguous(rows));
        CpuStorage::attention_backward(
            p,
            q,
            k,
            v,
            views(),
            (&out, &out_layout),
            (&lse, &lse_layout),
            self.dout.view(),
            &mut dq,
            &mut dk,
            &mut dv,
        )?;
        Ok([out, lse, dq, dk, dv])
    }
}

fn counts(device: TpuDevice) -> [u64; 4] {
    [
        launches(device, "attention"),
        launches(device, "attention_dq"),
        launches(device, "attention_dkv"),
        fallbacks(device, "attention") + fallbacks(device, "attention_backward"),
    ]
}

type Ids = Option<(Vec<u32>, Vec<u32>)>;

/// What the device and the CPU compute, `[out, lse, dq, dk, dv]`, and what the definition gives.
fn results(
    device: TpuDevice,
    p: AttentionParams,
    segments: Ids,
    dtype: DType,
) -> Result<(Results, Results, [Vec<f64>; 5])> {
    let mut q = fused(dtype, (p.batch, p.queries), &[p.heads, 1], p.head_dim, 1);
    let kv_heads = [p.kv_heads, p.kv_heads];
    let mut kv = fused(dtype, (p.batch, p.keys), &kv_heads, p.head_dim, 2);
    let ((q, q_dense), (v, v_dense)) = (q.swap_remove(0), kv.swap_remove(1));
    let (k, k_dense) = kv.swap_remove(0);
    let q_dims = (p.batch, p.queries, p.heads, p.head_dim);
    let dout = Operand::of(dtype, random(q_dense.len(), 3), q_dims);
    let borrowed = segments.as_ref().map(|(q, k)| (&q[..], &k[..]));
    let (out, lse) = reference::attention(&p, &q_dense, &k_dense, &v_dense, borrowed);
    let dout_dense = dout.wide();
    let (dq, dk, dv) =
        reference::attention_backward(&p, &q_dense, &k_dense, &v_dense, borrowed, &dout_dense);

    let ids = |ids: &[u32], tokens| Operand::u32(ids.to_vec(), (p.batch, tokens));
    let segments = borrowed.map(|(q, k)| (ids(q, p.queries), ids(k, p.keys)));
    let want = [out, lse, dq, dk, dv];
    let problem = Problem {
        p,
        q,
        k,
        v,
        dout,
        segments,
    };
    Ok((problem.on_device(device)?, problem.on_cpu()?, want))
}

/// In f32 the device is as close to the definition as the exponential allows. In 16 bits probabilities and their gradients
/// are rounded on the way, by both devices: the device may be as far from the definition as the CPU is, and a little.
fn check(device: TpuDevice, p: AttentionParams, segments: Ids, dtype: DType) -> Result<()> {
    let (got, cpu, want) = results(device, p, segments, dtype)?;
    let names = ["out", "lse", "dq", "dk", "dv"];
    for (i, want) in want.iter().enumerate() {
        let what = format!("{} {dtype:?} {p:?}", names[i]);
        let (got, cpu) = (widened(&got[i]), widened(&cpu[i]));
        assert_eq!(got.len(), want.len(), "{what}: length");
        let unseen = |x: f64| x == f64::NEG_INFINITY;
        let largest = want.iter().filter(|x| !unseen(**x));
        let largest = largest.fold(1f64, |m, x| m.max(x.abs()));
        let error = |x: &[f32]| {
            let pairs = x.iter().zip(want).filter(|(_, want)| !unseen(**want));
            pairs.fold(0f64, |m, (x, want)| {
                m.max((*x as f64 - want).abs())
                    .max(if x.is_nan() { f64::INFINITY } else { 0.0 })
            })
        };
        for (got, want) in got.iter().zip(want).filter(|(_, want)| unseen(**want)) {
            assert_eq!(*got as f64, *want, "{what}");
        }
        let allowed = match dtype {
            DType::F32 => 2e-6 * largest,
            _ => 1.5 * error(&cpu) + 2e-6 * largest,
        };
        assert!(
            error(&got) <= allowed,
            "{what}: {:e} from the definition, {allowed:e} allowed",
            error(&got)
        );
    }
    Ok(())
}

#[test]
fn causal_attention_of_odd_lengths_matches_the_reference() -> Result<()> {
    let Some(device) = device() else {
        return Ok(());
    };
    for dtype in FLOATS {
        for tokens in LENGTHS {
            check(
                device,
                attention_params((2, tokens, tokens), (2, 2, 16)),
                None,
                dtype,
            )?;
        }
    }
    Ok(())
}

#[test]
fn query_groups_share_their_key_value_head() -> Result<()> {
    let Some(device) = device() else {
        return Ok(());
    };
    for (heads, kv_heads) in [(4, 2), (6, 1)] {
        let p = attention_params((2, 140, 140), (heads, kv_heads, 32));
        check(device, p, None, DType::F32)?;
        check(device, p, None, DType::BF16)?;
    }
    Ok(())
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn head_dims_need_not_fill_vectors() -> Result<()> {
    let Some(device) = device() else {
        return Ok(());
    };
    for head_dim in [1, 3, 24, 80, 130] {
        for dtype in FLOATS {
            check(
                device,
                attention_params((1, 67, 67), (2, 1, head_dim)),
                None,
                dtype,
            )?;
        }
    }
    check(
        device,
        attention_params((1, 140, 300), (1, 1, 1024)),
        None,
        DType::F32,
    )
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn full_attention_and_unequal_lengths_match_the_reference() -> Result<()> {
    let Some(device) = device() else {
        return Ok(());
    };
    for (queries, keys) in [(3, 300), (300, 3), (130, 260)] {
        for causal in [true, false] {
            // Causal with fewer keys than queries: the first queries see nothing.
            let p = attention_params((2, queries, keys), (2, 1, 16));
            check(device, AttentionParams { causal, ..p }, None, DType::F32)?;
            check(device, AttentionParams { causal, ..p }, None, DType::BF16)?;
        }
    }
    Ok(())
}

#[test]
fn a_window_hides_what_is_far_back() -> Result<()> {
    let Some(device) = device() else {
        return Ok(());
    };
    for window in [0, 1, 100, 129, 1000] {
        for causal in [true, false] {
            let p = AttentionParams {
                window: Some(window),
                causal,
                ..attention_params((1, 140, 270), (2, 1, 16))
            };
            check(device, p, None, DType::F32)?;
        }
    }
    Ok(())
}

/// As BERT has it: both ways, rows of several lengths, padding a segment of its own.
#[test]
fn both_ways_padding_is_left_to_itself() -> Result<()> {
    let Some(device) = device() else {
        return Ok(());
    };
    let ids: Vec<u32> = [140, 129, 3]
        .iter()
        .flat_map(|n| (0..140).map(move |i| u32::from(i < *n)))
        .collect();
    let p = AttentionParams {
        causal: false,
        ..attention_params((3, 140, 140), (2, 2, 16))
    };
    for dtype in FLOATS {
        check(device, p, Some((ids.clone(), ids.clone())), dtype)?;
    }
    // Queries whose segment has no key.
    let queries = ids
        .iter()
        .enumerate()
        .map(|(i, id)| if i % 7 == 5 { 9 } else { *id });
    check(device, p, Some((queries.collect(), ids)), DType::F32)
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn segments_do_not_see_each_other() -> Result<()> {
    let Some(device) = device() else {
        return Ok(());
    };
    // Documents of many lengths: some smaller, some larger than a block, aligned with none. Ids of all magnitudes.
    let ids = |lengths: &[usize]| -> Vec<u32> {
        let id = |i: usize| u32::MAX - (1 << 30) * i as u32;
        let documents = lengths.iter().enumerate();
        documents.flat_map(|(i, n)| vec![id(i); *n]).collect()
    };
    let mut segments = ids(&[1, 90, 5, 204]);
    segments.extend(ids(&[128, 128, 44]));
    for (causal, window) in [(true, None), (false, None), (true, Some(70))] {
        let p = AttentionParams {
            causal,
            window,
            ..attention_params((2, 300, 300), (2, 1, 32))
        };
        for dtype in [DType::F32, DType::BF16] {
            check(device, p, Some((segments.clone(), segments.clone())), dtype)?;
        }
    }
    Ok(())
}

#[test]
fn queries_whose_segment_has_no_key_give_zeros() -> Result<()> {
    let Some(device) = device() else {
        return Ok(());
    };
    let queries: Vec<u32> = (0..130).map(|i| if i % 3 == 0 { 99 } else { 1 }).collect();
    let p = attention_params((1, 130, 130), (2, 2, 16));
    for dtype in FLOATS {
        check(device, p, Some((queries.clone(), vec![1; 130])), dtype)?;
        check(device, p, Some((vec![5; 130], vec![6; 130])), dtype)?;
    }
    Ok(())
}

#[test]
fn attention_over_nothing_is_empty_or_zero() -> Result<()> {
    let Some(device) = device() else {
        return Ok(());
    };
    for dtype in FLOATS {
        check(device, attention_params((0, 3, 3), (2, 1, 16)), None, dtype)?;
        check(device, attention_params((1, 0, 3), (2, 1, 16)), None, dtype)?;
        check(device, attention_params((1, 3, 0), (2, 1, 16)), None, dtype)?;
    }
    Ok(())
}

#[test]
fn large_scores_do_not_overflow() -> Result<()> {
    let Some(device) = device() else {
        return Ok(());
    };
    // Scores up to some 1e3, where exp needs the maximum taken off; rounding of the scores then dominates.
    let p = AttentionParams {
        scale: 500.0,
        ..attention_params((1, 100, 100), (1, 1, 16))
    };
    let parts = fused(DType::F32, (1, 100), &[1, 1, 1], 16, 5);
    let on = |i: usize| TpuOperand::new(device, &parts[i].0);
    let (q, k, v) = (on(0), on(1), on(2));
    let (mut out, mut lse) = (
        unset(device, DType::F32, 1600),
        unset(device, DType::F32, 100),
    );
    TpuStorage::attention(&p, q.view(), k.view(), v.view(), None, &mut out, &mut lse)?;
    let (out, lse) = (out.download(0, 1600)?, lse.download(0, 100)?);
    let (want, want_lse) = reference::attention(&p, &parts[0].1, &parts[1].1, &parts[2].1, None);
    assert_close("lse", f32s(&lse), &want_lse, 1e-6);
    assert_close("out", f32s(&out), &want, 2e-3);
    Ok(())
}

#[test]
fn nan_comes_out_as_nan() -> Result<()> {
    let Some(device) = device() else {
        return Ok(());
    };
    let p = attention_params((1, 70, 70), (1, 1, 16));
    for dtype in FLOATS {
        for spoilt in 0..3 {
            let x = |i: u64| {
                let mut data = random(70 * 16, i);
                if i == spoilt {
                    data[69 * 16 + 3] = f32::NAN;
                }
                TpuOperand::new(device, &Operand::of(dtype, data, (1, 70, 1, 16)))
            };
            let (q, k, v) = (x(0), x(1), x(2));
            let mut out = unset(device, dtype, 70 * 16);
            let mut lse = unset(device, DType::F32, 70);
            TpuStorage::attention(&p, q.view(), k.view(), v.view(), None, &mut out, &mut lse)?;
            let (out, lse) = (widened(&out.download(0, 70 * 16)?), lse.download(0, 70)?);
            assert!(out[69 * 16 + 3].is_nan(), "{dtype:?}, operand {spoilt}");
            assert!(f32s(&lse)[69].is_nan() || spoilt == 2);
        }
    }
    Ok(())
}

#[test]
fn wrong_operands_are_errors() {
    let Some(device) = device() else { return };
    let p = attention_params((1, 2, 2), (2, 1, 4));
    let on = |x: Operand| TpuOperand::new(device, &x);
    let q = on(Operand::f32(vec![0.0; 16], (1, 2, 2, 4)));
    let kv = on(Operand::f32(vec![0.0; 8], (1, 2, 1, 4)));
    let flat = on(Operand::f32(vec![0.0; 8], 8));
    let half = on(Operand::of(DType::BF16, vec![0.0; 8], (1, 2, 1, 4)));
    let short = on(Operand::u32(vec![0; 1], (1, 1)));
    let mut lse = unset(device, DType::F32, 4);
    let mut call = |p: &AttentionParams, k: &TpuOperand, ids: Option<&TpuOperand>, room| {
        let segments = ids.map(|ids| (ids.view(), ids.view()));
        let mut out = unset(device, DType::F32, room);
        let (q, k, v) = (q.view(), k.view(), kv.view());
        let result = TpuStorage::attention(p, q, k, v, segments, &mut out, &mut lse);
        result.map_err(|error| error.to_string())
    };
    assert_eq!(call(&p, &kv, None, 16), Ok(()));
    let uneven = AttentionParams { kv_heads: 3, ..p };
    let wide = AttentionParams {
        head_dim: 1025,
        ..p
    };
    for (result, message) in [
        (call(&p, &flat, None, 16), "k is [8] instead of"),
        (call(&p, &half, None, 16), "k must be F32, not BF16"),
        (
            call(&p, &kv, Some(&short), 16),
            "query segments has 1 elements",
        ),
        (call(&p, &kv, None, 15), "out has room for 15 elements"),
        (call(&uneven, &kv, None, 16), "evenly"),
        (call(&wide, &kv, None, 16), "head dim is 1025"),
    ] {
        let error = result.unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

/// A process has one device with one number of cores, so this test starts itself again for each.
#[test]
#[ignore = "for cargo xtask check --full"]
fn results_do_not_depend_on_the_number_of_cores() -> Result<()> {
    const CORES: &str = "TPU_RT_CORE_NUM";
    const MARK: &str = "the results are ";
    let name = "attention::results_do_not_depend_on_the_number_of_cores";
    let Some(device) = device() else {
        return Ok(());
    };
    if std::env::var_os("ATTENTION_CHECKSUM").is_some() {
        let mut hasher = std::hash::DefaultHasher::new();
        for dtype in [DType::F32, DType::BF16] {
            let p = attention_params((2, 270, 270), (2, 1, 16));
            let ids: Vec<u32> = (0..540).map(|i| i / 70).collect();
            let (got, ..) = results(device, p, Some((ids.clone(), ids)), dtype)?;
            for x in got {
                let bits: Vec<u32> = widened(&x).iter().map(|x| x.to_bits()).collect();
                bits.hash(&mut hasher);
            }
        }
        println!("\n{MARK}{:016x}", hasher.finish());
        return Ok(());
    }
    let checksum = |cores: &str| {
        let mut child = std::process::Command::new(std::env::current_exe()?);
        child.args(["--exact", name, "--nocapture", "--include-ignored"]);
        let output = child
            .env("ATTENTION_CHECKSUM", "")
            .env(CORES, cores)
            // This process's own, set when it opened the device.
            .env_remove("TPU_SCALAER_EMULATOR_WORKDIR")
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = said.lines().find_map(|line| line.strip_prefix(MARK));
        Ok::<_, std::io::Error>(line.unwrap_or_else(|| panic!("{output:?}")).to_owned())
    };
    let one = checksum("1")?;
    for cores in ["2", "8"] {
        assert_eq!(checksum(cores)?, one, "{cores} cores");
    }
    Ok(())
}
