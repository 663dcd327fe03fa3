//! What a trace tells of launches: the bytes are those of the tensors that an operation is given and gives.

use crate::common::{Operand, TpuOperand, device, random, stored, upload};
use candle_core::{DType, Layout};
use tt_cpu::{AdamParams, AttentionParams, FusedOps, Gelu, UpdateRule, Write};
use tt_tpu::trace::{TracedLaunch, Work};
use tt_tpu::{TpuDevice, TpuStorage};

/// What this thread has launched, uploads and downloads left out.
fn traced(device: TpuDevice, body: impl FnOnce()) -> Vec<TracedLaunch> {
    device.begin_trace().unwrap();
    body();
    let own = std::thread::current().id();
    let events = device.end_trace().into_iter();
    let launches = events
        .filter(|event| event.thread == own)
        .filter_map(|event| {
            assert!(event.queued <= event.length);
            match event.work {
                Work::Launch(launch) => Some(launch),
                _ => None,
            }
        });
    launches.collect()
}

/// `(kernel, bytes read, bytes written)` of each launch.
fn moved(launches: &[TracedLaunch]) -> Vec<(&'static str, u64, u64)> {
    let of = |it: &TracedLaunch| (it.kernel, it.read_bytes(), it.written_bytes());
    launches.iter().map(of).collect()
}

fn floats(device: TpuDevice, dtype: DType, dims: &[usize]) -> TpuOperand {
    let len = dims.iter().product();
    TpuOperand::new(device, &Operand::of(dtype, random(len, 7), dims))
}

fn room(device: TpuDevice, dtype: DType, len: usize) -> TpuStorage {
    upload(device, &stored(dtype, vec![0.0; len]))
}

/// One test, as a trace is the device's and there is one of it.
#[test]
fn a_launch_reads_its_operands_and_writes_its_results() {
    let Some(device) = device() else { return };
    let f32s = |dims: &[usize]| floats(device, DType::F32, dims);

    // Products, of which one side is shared by the batch; 2 bytes in bf16, 4 bytes of the sum.
    let (a, b) = (
        floats(device, DType::BF16, &[3, 4, 6]),
        floats(device, DType::BF16, &[6, 5]),
    );
    let shared = b.layout.broadcast_as((3, 6, 5)).unwrap();
    let mut out = room(device, DType::F32, 3 * 4 * 5);
    let launches = traced(device, || {
        for write in [Write::Assign, Write::Accumulate] {
            TpuStorage::matmul_into(a.view(), (&b.storage, &shared), &mut out, write).unwrap();
        }
    });
    let (read, written) = (2 * (72 + 30), 4 * 60);
    assert_eq!(
        moved(&launches),
        [
            ("matmul", read, written),
            ("matmul", read + written, written)
        ]
    );
    assert_eq!(launches[0].operands[0].shape, [3, 4, 6]);
    assert_eq!(launches[0].operands[0].dtype, "bf16");
    // Numbers are the process's: another test may launch in between.
    assert!(launches[1].sequence > launches[0].sequence);

    // Norms: the weight, and a number for each row.
    let (x, weight) = (f32s(&[6, 8]), f32s(&[8]));
    let (mut y, mut inv_rms) = (room(device, DType::F32, 48), room(device, DType::F32, 6));
    let rows = Layout::contiguous(6);
    let launches = traced(device, || {
        TpuStorage::rms_norm(x.view(), weight.view(), 1e-6, &mut y, &mut inv_rms).unwrap();
        let mut dx = room(device, DType::F32, 48);
        let (inv_rms, dy) = ((&inv_rms, &rows), x.view());
        TpuStorage::rms_norm_backward(x.view(), weight.view(), inv_rms, dy, Some(&mut dx), None)
            .unwrap();
    });
    let (of_x, of_weight, of_rows) = (4 * 48, 4 * 8, 4 * 6);
    let forward = ("rms_norm", of_x + of_weight, of_x + of_rows);
    let backward = ("rms_norm_backward", 2 * of_x + of_weight + of_rows, of_x);
    assert_eq!(moved(&launches), [forward, backward]);

    let mut mean = room(device, DType::F32, 6);
    let launches = traced(device, || {
        let (w, b) = (weight.view(), weight.view());
        TpuStorage::layer_norm(x.view(), w, b, 1e-5, &mut y, &mut mean, &mut inv_rms).unwrap();
        let [mut dx, mut dw, mut db] = [48, 8, 8].map(|len| room(device, DType::F32, len));
        let (mean, inv_std) = ((&mean, &rows), (&inv_rms, &rows));
        let (dw, db) = (
            Some((&mut dw, Write::Assign)),
            Some((&mut db, Write::Assign)),
        );
        TpuStorage::layer_norm_backward(
            x.view(),
            w,
            mean,
            inv_std,
            x.view(),
            Some(&mut dx),
            dw,
            db,
        )
        .unwrap();
    });
    let sums = ("sum_columns", of_x, of_weight);
    assert_eq!(
        moved(&launches),
        [
            ("layer_norm", of_x + 2 * of_weight, of_x + 2 * of_rows),
            (
                "layer_norm_backward",
                2 * of_x + of_weight + 2 * of_rows,
                2 * of_x
            ),
            sums,
            sums
        ]
    );

    // Of two key heads that four query heads share.
    let p = AttentionParams {
        batch: 2,
        queries: 5,
        keys: 5,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        scale: 0.3,
        causal: true,
        window: None,
    };
    let (q, k, v) = (
        f32s(&[2, 5, 4, 8]),
        f32s(&[2, 5, 2, 8]),
        f32s(&[2, 5, 2, 8]),
    );
    let (mut out, mut lse) = (room(device, DType::F32, 320), room(device, DType::F32, 40));
    let launches = traced(device, || {
        TpuStorage::attention(&p, q.view(), k.view(), v.view(), None, &mut out, &mut lse).unwrap();
        let [mut dq, mut dk, mut dv] = [320, 160, 160].map(|len| room(device, DType::F32, len));
        let (all, rows) = (Layout::contiguous(320), Layout::contiguous(40));
        TpuStorage::attention_backward(
            &p,
            q.view(),
            k.view(),
            v.view(),
            None,
            (&out, &all),
            (&lse, &rows),
            q.view(),
            &mut dq,
            &mut dk,
            &mut dv,
        )
        .unwrap();
    });
    let (of_q, of_k, of_row) = (4 * 320, 4 * 160, 4 * 40);
    let qkv = of_q + 2 * of_k;
    assert_eq!(
        moved(&launches),
        [
            ("attention", qkv, of_q + of_row),
            ("attention_dq", qkv + 2 * of_q + of_row, of_q + of_row),
            ("attention_dkv", qkv + of_q + 2 * of_row, 2 * of_k),
        ]
    );

    // Weights and both states are read and written; the gradient and the factor are read.
    let rule = UpdateRule::Adam(AdamParams {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        decoupled: true,
        amsgrad: false,
        step: 1,
    });
    let (grad, scale) = (f32s(&[100]), f32s(&[1]));
    let mut param = room(device, DType::F32, 100);
    let (mut m, mut v) = (
        room(device, DType::F32, 100),
        room(device, DType::BF16, 100),
    );
    let launches = traced(device, || {
        let states = &mut [&mut m, &mut v];
        TpuStorage::optimizer_step(&rule, &mut param, grad.view(), scale.view(), states, None)
            .unwrap();
    });
    let (weights, states) = (400, 400 + 200);
    assert_eq!(
        moved(&launches),
        [(
            "optimizer_step",
            weights + states + 400 + 4,
            weights + states
        )]
    );

    // Rows by index: those that are asked for, not the table.
    let table = f32s(&[50, 8]);
    let ids = TpuOperand::new(device, &Operand::i64(vec![3, 3, 49], 3));
    let mut y = room(device, DType::F32, 24);
    let launches = traced(device, || {
        TpuStorage::embedding(table.view(), ids.view(), &mut y).unwrap();
        let mut dtable = room(device, DType::F32, 400);
        let rows = Layout::contiguous((3, 8));
        TpuStorage::embedding_backward(ids.view(), (&y, &rows), &mut dtable).unwrap();
    });
    let (rows, index) = (4 * 24, 4 * 3);
    assert_eq!(
        moved(&launches),
        [
            ("select_rows", rows + index, rows),
            ("add_rows", 2 * rows + index, rows)
        ]
    );

    let narrow_x = floats(device, DType::BF16, &[6, 8]);
    let (mut y, mut dx) = (room(device, DType::BF16, 48), room(device, DType::BF16, 48));
    let launches = traced(device, || {
        TpuStorage::gelu(Gelu::Tanh, narrow_x.view(), &mut y).unwrap();
        let (x, dy) = (narrow_x.view(), narrow_x.view());
        TpuStorage::gelu_backward(Gelu::Tanh, x, dy, &mut dx).unwrap();
    });
    assert_eq!(
        moved(&launches),
        [("gelu", 96, 96), ("gelu_backward", 192, 96)]
    );

    // Element by element, with a cast; a row that is repeated is there once.
    let x = f32s(&[6, 8]);
    let mut narrow = room(device, DType::BF16, 48);
    let (mut repeated, mut sums) = (room(device, DType::F32, 48), room(device, DType::F32, 8));
    let launches = traced(device, || {
        TpuStorage::cast_into(x.view(), &mut narrow).unwrap();
        TpuStorage::broadcast_row_into(weight.view(), 6, &mut repeated).unwrap();
        TpuStorage::sum_rows_into(x.view(), 6, &mut sums, Write::Accumulate).unwrap();
    });
    assert_eq!(
        moved(&launches),
        [
            ("unary", 192, 96),
            ("strided_copy", 32, 192),
            ("sum_columns", 192 + 32, 32)
        ]
    );
}
