//! The gated activation and its gradients against the plain definition in f64.

use crate::common::*;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::{FusedOps, reference};
use tt_tpu::TpuStorage;

/// Around the lanes' number, and more than a tile of all lanes of two cores.
const SIZES: [usize; 7] = [1, 7, 63, 64, 65, 4099, 600_001];

fn host(storage: &TpuStorage) -> CpuStorage {
    storage.to_cpu_storage().expect("the device answers")
}

#[test]
fn the_gate_and_its_gradients_match_their_definition() {
    let Some(device) = device() else { return };
    let before = ["swiglu", "swiglu_backward"].map(|kernel| launches(device, kernel));
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for len in SIZES {
            let of = |seed, scale: f32| {
                let data = random(len, seed).iter().map(|x| x * scale).collect();
                Operand::of(dtype, data, len)
            };
            let (gate, up, dy) = (of(1, 12.0), of(2, 2.0), of(3, 1.0));
            let there = [&gate, &up, &dy].map(|x| TpuOperand::new(device, x));
            let [mut y, mut dgate, mut dup] =
                [(); 3].map(|()| upload(device, &stored(dtype, vec![f32::NAN; len])));
            TpuStorage::swiglu(there[0].view(), there[1].view(), &mut y).unwrap();
            let [a, b, c] = &there;
            TpuStorage::swiglu_backward(a.view(), b.view(), c.view(), &mut dgate, &mut dup)
                .unwrap();
            let (gate, up, dy) = (gate.wide(), up.wide(), dy.wide());
            let what = format!("{dtype:?} {len}");
            assert_rounded(&what, &host(&y), &reference::swiglu(&gate, &up));
            let (true_dgate, true_dup) = reference::swiglu_backward(&gate, &up, &dy);
            assert_rounded(&what, &host(&dgate), &true_dgate);
            assert_rounded(&what, &host(&dup), &true_dup);
        }
    }
    for (kernel, before) in ["swiglu", "swiglu_backward"].into_iter().zip(before) {
        assert!(launches(device, kernel) > before);
        assert_eq!(fallbacks(device, kernel), 0);
    }
}

#[test]
fn a_closed_gate_lets_nothing_through_and_an_open_one_everything() {
    let Some(device) = device() else { return };
    let x = |data: &[f32]| TpuOperand::new(device, &Operand::f32(data.to_vec(), data.len()));
    let (gate, up) = (x(&[-200.0, -90.0, 0.0, 90.0, 200.0]), x(&[3.0; 5]));
    let mut y = upload(device, &garbage(5));
    TpuStorage::swiglu(gate.view(), up.view(), &mut y).unwrap();
    assert_close(
        "swiglu",
        f32s(&host(&y)),
        &[0.0, 0.0, 0.0, 270.0, 600.0],
        5e-7,
    );
    let [mut dgate, mut dup] = [(); 2].map(|()| upload(device, &garbage(5)));
    TpuStorage::swiglu_backward(gate.view(), up.view(), up.view(), &mut dgate, &mut dup).unwrap();
    assert_close(
        "dgate",
        f32s(&host(&dgate)),
        &[0.0, 0.0, 4.5, 9.0, 9.0],
        5e-7,
    );
    assert_close(
        "dup",
        f32s(&host(&dup)),
        &[0.0, 0.0, 0.0, 270.0, 600.0],
        5e-7,
    );
}

/// Halves of one projection, as a model has them.
#[test]
fn slices_are_operands() {
    let Some(device) = device() else { return };
    let (rows, dim) = (5, 33);
    let both = Operand::f32(random(rows * 2 * dim, 4), (rows, 2 * dim));
    let half = |first| both.layout.narrow(1, first, dim).unwrap();
    let (left, right) = (half(0), half(dim));
    let there = TpuOperand::new(device, &both);
    let mut y = upload(device, &garbage(rows * dim));
    TpuStorage::swiglu((&there.storage, &left), (&there.storage, &right), &mut y).unwrap();
    let pick = |first: usize| -> Vec<f64> {
        let rows = both.wide();
        let rows = rows.chunks(2 * dim);
        rows.flat_map(|row| row[first..first + dim].to_vec())
            .collect()
    };
    assert_rounded(
        "halves",
        &host(&y),
        &reference::swiglu(&pick(0), &pick(dim)),
    );
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let Some(device) = device() else { return };
    let (four, three) = (upload(device, &zeros(4)), upload(device, &zeros(3)));
    let (l4, l3) = (Layout::contiguous(4), Layout::contiguous(3));
    let mut y = upload(device, &zeros(4));
    assert!(TpuStorage::swiglu((&four, &l4), (&three, &l3), &mut y).is_err());
    let narrow = upload(device, &zeros_of(DType::BF16, 4));
    assert!(TpuStorage::swiglu((&four, &l4), (&narrow, &l4), &mut y).is_err());
}
