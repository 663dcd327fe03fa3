//! GELU in both forms, and its gradient, against the plain definition in f64.

use crate::common::*;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType};
use tt_cpu::{FusedOps, Gelu, reference};
use tt_tpu::TpuStorage;

const FORMS: [Gelu; 2] = [Gelu::Erf, Gelu::Tanh];
const KERNELS: [&str; 2] = ["gelu", "gelu_backward"];
/// Around the lanes' number, and more than a tile of all lanes of two cores.
const SIZES: [usize; 5] = [1, 63, 65, 4099, 300_001];

fn host(storage: &TpuStorage) -> CpuStorage {
    storage.to_cpu_storage().expect("the device answers")
}

#[test]
fn values_and_gradients_match_their_definition() {
    let Some(device) = device() else { return };
    let before = KERNELS.map(|kernel| launches(device, kernel));
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for len in SIZES {
            // Denser around 0, out to 12.
            let x = random(len, 1).iter().map(|x| 12.0 * x * x * x).collect();
            let (x, dy) = (
                Operand::of(dtype, x, len),
                Operand::of(dtype, random(len, 2), len),
            );
            let (there, dy_there) = (TpuOperand::new(device, &x), TpuOperand::new(device, &dy));
            for form in FORMS {
                let [mut y, mut dx] =
                    [(); 2].map(|()| upload(device, &stored(dtype, vec![f32::NAN; len])));
                TpuStorage::gelu(form, there.view(), &mut y).unwrap();
                TpuStorage::gelu_backward(form, there.view(), dy_there.view(), &mut dx).unwrap();
                let what = format!("{form:?} {dtype:?} {len}");
                let want = reference::gelu(form, &x.wide());
                assert_rounded(&what, &host(&y), &want);
                let want = reference::gelu_backward(form, &x.wide(), &dy.wide());
                assert_rounded(&format!("{what} dx"), &host(&dx), &want);
            }
        }
    }
    for (kernel, before) in KERNELS.into_iter().zip(before) {
        assert!(launches(device, kernel) > before);
        assert_eq!(fallbacks(device, kernel), 0);
    }
}

/// Where the error function has no digits left below 1, PyTorch's form has none either.
#[test]
fn the_erf_form_keeps_its_digits_where_it_is_small() {
    let Some(device) = device() else { return };
    let x: Vec<f32> = (0..1000).map(|i| -12.0 * i as f32 / 1000.0).collect();
    let x = Operand::f32(x, 1000);
    let want = reference::gelu(Gelu::Erf, &x.wide());
    let mut y = upload(device, &garbage(1000));
    TpuStorage::gelu(Gelu::Erf, TpuOperand::new(device, &x).view(), &mut y).unwrap();
    for ((y, want), x) in f32s(&host(&y)).iter().zip(&want).zip(x.wide()) {
        let error = (f64::from(*y) - want).abs();
        // The exponent is rounded when it is made, and by the engine when it takes it apart.
        let allowed = 1e-6 + 2.0 * unit_roundoff(DType::F32) * 0.5 * x * x;
        assert!(
            error <= allowed * want.abs(),
            "gelu({x}): {y} instead of {want}"
        );
    }
}

#[test]
fn far_from_0_it_is_0_or_the_number_itself_and_no_number_stays_none() {
    let Some(device) = device() else { return };
    let minus = f32::NEG_INFINITY;
    let x = [minus, -1e30, -200.0, 0.0, 90.0, 200.0, 1e30, f32::NAN];
    let x = TpuOperand::new(device, &Operand::f32(x.to_vec(), x.len()));
    let dy = TpuOperand::new(device, &Operand::f32(vec![1.0; 8], 8));
    for form in FORMS {
        let [mut y, mut dx] = [(); 2].map(|()| upload(device, &garbage(8)));
        TpuStorage::gelu(form, x.view(), &mut y).unwrap();
        TpuStorage::gelu_backward(form, x.view(), dy.view(), &mut dx).unwrap();
        let [y, dx] = [y, dx].map(|it| f32s(&host(&it)).to_vec());
        for (y, want) in y.iter().zip([0.0, 0.0, 0.0, 0.0, 90.0, 200.0, 1e30]) {
            let allowed = 1e-6 * f32::max(want, 1e-20);
            assert!(
                (y - want).abs() <= allowed,
                "{form:?}: {y} instead of {want}"
            );
        }
        assert_close("dx", &dx[..7], &[0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0], 1e-6);
        assert!(
            y[7].is_nan() && dx[7].is_nan(),
            "{form:?}: {} {}",
            y[7],
            dx[7]
        );
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let Some(device) = device() else { return };
    let x = TpuOperand::new(device, &Operand::f32(vec![0.0; 4], 4));
    let mut y = upload(device, &zeros(3));
    assert!(TpuStorage::gelu(Gelu::Erf, x.view(), &mut y).is_err());
    let mut y = upload(device, &zeros_of(DType::BF16, 4));
    assert!(TpuStorage::gelu(Gelu::Erf, x.view(), &mut y).is_err());
    let short = TpuOperand::new(device, &Operand::f32(vec![0.0; 3], 3));
    let mut dx = upload(device, &zeros(4));
    assert!(TpuStorage::gelu_backward(Gelu::Tanh, x.view(), short.view(), &mut dx).is_err());
}
