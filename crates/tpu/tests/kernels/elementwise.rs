//! Element-wise operations against candle's and ours on the CPU.

use crate::common::{device, fallbacks, launches, stored, upload, values, widened};
use candle_core::backend::BackendStorage;
use candle_core::op::{self, CmpOp, UnaryOpT};
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::FusedOps;
use tt_tpu::{TpuDevice, TpuStorage};

/// -max ..= max, denser around 0, and some of the places where functions go wrong.
fn arguments(len: usize, max: f32) -> Vec<f32> {
    let spread = |i: usize| {
        let x = 2.0 * i as f32 / (len.max(2) - 1) as f32 - 1.0;
        max * x * x * x
    };
    (0..len).map(spread).collect()
}

/// The largest error relative to `max(|truth|, floor)`; two NaN are equal, and two equal infinities.
fn worst(ours: &[f32], truth: &[f32], floor: f32) -> (f32, usize) {
    assert_eq!(ours.len(), truth.len());
    let error = |(&a, &b): (&f32, &f32)| {
        if a.to_bits() == b.to_bits() || a == b || (a.is_nan() && b.is_nan()) {
            0.0
        } else if a.is_finite() && b.is_finite() {
            (a - b).abs() / b.abs().max(floor)
        } else {
            f32::INFINITY
        }
    };
    let errors = ours.iter().zip(truth).map(error);
    let worst = errors.enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    worst.map_or((0.0, 0), |(i, error)| (error, i))
}

/// `floor` as for [`worst`].
fn unary_from<B: UnaryOpT>(device: TpuDevice, x: &[f32], tolerance: f32, floor: f32) {
    let layout = Layout::contiguous(x.len());
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let rounded = widened(&stored(dtype, x.to_vec()));
        let exact = CpuStorage::F32(rounded.clone())
            .unary_impl::<B>(&layout)
            .unwrap();
        let truth = widened(&stored(dtype, widened(&exact)));
        let ours = upload(device, &stored(dtype, x.to_vec()));
        let ours = values(&ours.unary_impl::<B>(&layout).unwrap());
        let roundoff = crate::common::unit_roundoff(dtype) as f32;
        let tolerance = if dtype == DType::F32 {
            tolerance
        } else {
            2.1 * roundoff
        };
        // What overflows a 16-bit type is NaN on the device.
        let ours: Vec<f32> = ours
            .iter()
            .zip(&truth)
            .map(|(ours, truth)| {
                if truth.is_infinite() && ours.is_nan() {
                    *truth
                } else {
                    *ours
                }
            })
            .collect();
        let (error, i) = worst(&ours, &truth, floor);
        assert!(
            error <= tolerance,
            "{} in {dtype:?} of {}: {} instead of {}, {error:.1e}",
            B::NAME,
            rounded[i],
            ours[i],
            truth[i]
        );
    }
    assert_eq!(fallbacks(device, B::NAME), 0);
}

fn unary<B: UnaryOpT>(device: TpuDevice, x: &[f32], tolerance: f32) {
    unary_from::<B>(device, x, tolerance, 1e-3);
}

#[test]
fn functions_of_one_operand_are_the_cpus() {
    let Some(device) = device() else { return };
    let before = launches(device, "unary");
    let x = arguments(1003, 20.0);
    let positive: Vec<f32> = x.iter().map(|x| x.abs() + 1e-4).collect();
    unary::<op::Exp>(device, &x, 3e-6);
    unary::<op::Log>(device, &positive, 3e-6);
    unary::<op::Sin>(device, &x, 3e-4);
    unary::<op::Cos>(device, &x, 3e-4);
    unary::<op::Tanh>(device, &x, 6e-7);
    unary::<op::Abs>(device, &x, 0.0);
    unary::<op::Neg>(device, &x, 0.0);
    unary::<op::Recip>(device, &positive, 5e-7);
    unary::<op::Sqr>(device, &x, 0.0);
    unary::<op::Sqrt>(device, &positive, 3e-7);
    unary::<op::Relu>(device, &x, 0.0);
    unary::<op::Silu>(device, &x, 3e-6);
    // Near 0 on the negative side they are differences of large numbers.
    unary_from::<op::Gelu>(device, &arguments(1003, 8.0), 2e-6, 1.0);
    unary_from::<op::GeluErf>(device, &arguments(1003, 8.0), 2e-6, 1.0);
    unary_from::<op::Erf>(device, &arguments(1003, 4.0), 1e-6, 1.0);
    unary::<op::Sign>(device, &x, 0.0);
    unary::<op::Floor>(device, &x, 0.0);
    unary::<op::Ceil>(device, &x, 0.0);
    unary::<op::Round>(device, &x, 0.0);
    assert!(launches(device, "unary") > before);
}

#[test]
fn functions_have_the_cpus_limits() {
    let Some(device) = device() else { return };
    let ends = [
        0.0,
        -0.0,
        1e-30,
        87.0,
        88.0,
        89.0,
        200.0,
        1e30,
        f32::INFINITY,
        f32::NAN,
    ];
    let both: Vec<f32> = ends.iter().chain(&ends.map(|x| -x)).copied().collect();
    // Where the truth would be a difference of infinities, or their product with 0.
    let not_infinite: Vec<f32> = both.iter().filter(|x| !x.is_infinite()).copied().collect();
    macro_rules! check {
        ($x:ident, $floor:literal; $($op:ty),*) => {
            let layout = Layout::contiguous($x.len());
            let host = CpuStorage::F32($x.clone());
            let x = upload(device, &host);
            $(
                let ours = values(&x.unary_impl::<$op>(&layout).unwrap());
                let truth = widened(&host.unary_impl::<$op>(&layout).unwrap());
                let (error, i) = worst(&ours, &truth, $floor);
                assert!(error < 1e-5, "{} of {}: {} instead of {}", <$op>::NAME, $x[i], ours[i], truth[i]);
            )*
        };
    }
    check!(both, 1e-3; op::Exp, op::Log, op::Recip, op::Abs, op::Relu, op::Sqr, op::Silu);
    check!(both, 1e-3; op::Tanh, op::Neg, op::Sign, op::Floor, op::Ceil, op::Round);
    check!(not_infinite, 1.0; op::Gelu, op::GeluErf, op::Erf);
}

#[test]
fn functions_with_a_parameter_are_the_cpus_in_their_limits_too() {
    let Some(device) = device() else { return };
    let mut x = arguments(1003, 3.0);
    x.extend([0.0, 1e-10, f32::NAN, f32::INFINITY]);
    let layout = Layout::contiguous(x.len());
    let host = CpuStorage::F32(x.clone());
    let ours = upload(device, &host);
    let check = |what: &str, ours: TpuStorage, truth: CpuStorage, tolerance| {
        let (ours, truth) = (values(&ours), widened(&truth));
        let (error, i) = worst(&ours, &truth, 1e-3);
        let (ours, truth) = (ours[i], truth[i]);
        assert!(
            error < tolerance,
            "{what} of {}: {ours} instead of {truth}",
            x[i]
        );
    };
    for alpha in [1.0, 0.3] {
        let truth = host.elu(&layout, alpha).unwrap();
        check("elu", ours.elu(&layout, alpha).unwrap(), truth, 3e-4);
    }
    for exponent in [0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, 1.5, -0.5] {
        let truth = host.powf(&layout, exponent).unwrap();
        let ours = ours.powf(&layout, exponent).unwrap();
        check(&format!("x^{exponent}"), ours, truth, 1e-5);
    }
}

#[test]
fn what_f16_does_not_hold_is_nan_and_the_number_before_it_is_kept() {
    let Some(device) = device() else { return };
    let x = vec![65504.0, 65519.0, 65520.0, 65535.0, 1e30, -65519.0, -65520.0];
    let layout = Layout::contiguous(x.len());
    let x = upload(device, &CpuStorage::F32(x));
    let narrow = values(&x.to_dtype(&layout, DType::F16).unwrap());
    let kept: Vec<_> = narrow.iter().map(|x| x.is_finite().then_some(*x)).collect();
    let [largest, least] = [Some(65504.0), Some(-65504.0)];
    assert_eq!(kept, [largest, largest, None, None, None, least, None]);
    assert!(narrow[2].is_nan());
}

#[test]
fn two_operands_are_combined_and_compared_as_on_the_cpu() {
    let Some(device) = device() else { return };
    for len in [1, 7, 63, 64, 65, 4099, 600_001] {
        let layout = Layout::contiguous(len);
        let a = arguments(len, 3.0);
        // Not 0, by which the device's quotient is NaN.
        let b: Vec<f32> = (0..len)
            .map(|i| ((i * 7919) % 613) as f32 / 100.0 - 3.005)
            .collect();
        // Some are equal.
        let b: Vec<f32> = a
            .iter()
            .zip(b)
            .enumerate()
            .map(|(i, (a, b))| if i % 3 == 0 { *a } else { b })
            .collect();
        for dtype in [DType::F32, DType::BF16] {
            let (a, b) = (stored(dtype, a.clone()), stored(dtype, b.clone()));
            let (x, y) = (upload(device, &a), upload(device, &b));
            macro_rules! check {
                ($($op:ty),*) => {
                    $(
                        let ours = values(&x.binary_impl::<$op>(&y, &layout, &layout).unwrap());
                        let truth = widened(&a.binary_impl::<$op>(&b, &layout, &layout).unwrap());
                        // The quotient is good to a few units in the last place.
                        let tolerance = if dtype == DType::F32 { 5e-7 } else { 2f32.powi(-7) };
                        let (error, i) = worst(&ours, &truth, 1e-6);
                        assert!(error <= tolerance, "{} {i} of {len}: {} {}", stringify!($op), ours[i], truth[i]);
                    )*
                };
            }
            check!(op::Add, op::Sub, op::Mul, op::Div, op::Maximum, op::Minimum);
            for compare in [
                CmpOp::Eq,
                CmpOp::Ne,
                CmpOp::Lt,
                CmpOp::Le,
                CmpOp::Gt,
                CmpOp::Ge,
            ] {
                let ours = x.cmp(compare, &y, &layout, &layout).unwrap();
                let ours = ours.to_cpu_storage().unwrap();
                let truth = a.cmp(compare, &b, &layout, &layout).unwrap();
                assert_eq!(
                    ours.as_slice::<u8>().unwrap(),
                    truth.as_slice::<u8>().unwrap()
                );
            }
        }
    }
    assert_eq!(fallbacks(device, "compare"), 0);
}

#[test]
fn comparisons_with_nan_are_false() {
    let Some(device) = device() else { return };
    let (a, b) = (
        vec![f32::NAN, 1.0, f32::NAN, f32::INFINITY],
        vec![1.0, f32::NAN, f32::NAN, f32::INFINITY],
    );
    let layout = Layout::contiguous(4);
    let (a, b) = (CpuStorage::F32(a), CpuStorage::F32(b));
    let (x, y) = (upload(device, &a), upload(device, &b));
    for compare in [
        CmpOp::Eq,
        CmpOp::Ne,
        CmpOp::Lt,
        CmpOp::Le,
        CmpOp::Gt,
        CmpOp::Ge,
    ] {
        let ours = x
            .cmp(compare, &y, &layout, &layout)
            .unwrap()
            .to_cpu_storage()
            .unwrap();
        let truth = a.cmp(compare, &b, &layout, &layout).unwrap();
        assert_eq!(
            ours.as_slice::<u8>().unwrap(),
            truth.as_slice::<u8>().unwrap()
        );
    }
}

#[test]
fn casts_between_all_types_are_the_cpus() {
    let Some(device) = device() else { return };
    let numbers: Vec<f32> = (0..777)
        .map(|i| (i % 250) as f32 + 0.3 * (i % 3) as f32)
        .collect();
    let layout = Layout::contiguous(numbers.len());
    let types = [
        DType::F32,
        DType::BF16,
        DType::F16,
        DType::U32,
        DType::I64,
        DType::U8,
    ];
    for from in types {
        let host = CpuStorage::F32(numbers.clone())
            .to_dtype(&layout, from)
            .unwrap();
        for to in types {
            let ours = upload(device, &host)
                .to_dtype(&layout, to)
                .unwrap()
                .to_cpu_storage()
                .unwrap();
            let truth = host.to_dtype(&layout, to).unwrap();
            let wide = |x: &CpuStorage| x.to_dtype(&layout, DType::F64).unwrap();
            let (ours, truth) = (wide(&ours), wide(&truth));
            assert_eq!(
                ours.as_slice::<f64>().unwrap(),
                truth.as_slice::<f64>().unwrap(),
                "{from:?} to {to:?}"
            );
        }
    }
    let signed = vec![-3.7f32, -0.5, 0.5, 3.7, -100.0];
    let layout = Layout::contiguous(5);
    let ours = upload(device, &CpuStorage::F32(signed))
        .to_dtype(&layout, DType::I64)
        .unwrap();
    let ours = ours.to_cpu_storage().unwrap();
    assert_eq!(ours.as_slice::<i64>().unwrap(), [-3, 0, 0, 3, -100]);
}

#[test]
fn a_choice_keeps_every_bit() {
    let Some(device) = device() else { return };
    let len = 5000;
    let layout = Layout::contiguous(len);
    let condition = CpuStorage::U8((0..len).map(|i| (i % 3) as u8).collect());
    for dtype in [
        DType::F32,
        DType::BF16,
        DType::F16,
        DType::U32,
        DType::I64,
        DType::U8,
    ] {
        let make = |k: u32| {
            let numbers = CpuStorage::U32((0..len as u32).map(|i| i * k % 200).collect());
            numbers.to_dtype(&layout, dtype).unwrap()
        };
        let (a, b) = (make(7), make(11));
        let ours = upload(device, &condition)
            .where_cond(
                &layout,
                &upload(device, &a),
                &layout,
                &upload(device, &b),
                &layout,
            )
            .unwrap();
        let truth = condition
            .where_cond(&layout, &a, &layout, &b, &layout)
            .unwrap();
        let wide = |x: &CpuStorage| x.to_dtype(&layout, DType::F64).unwrap();
        let (ours, truth) = (wide(&ours.to_cpu_storage().unwrap()), wide(&truth));
        assert_eq!(
            ours.as_slice::<f64>().unwrap(),
            truth.as_slice::<f64>().unwrap(),
            "{dtype:?}"
        );
    }
    assert_eq!(fallbacks(device, "where"), 0);
}

#[test]
fn views_of_any_strides_and_single_elements_are_operands() {
    let Some(device) = device() else { return };
    let (a, b) = (
        CpuStorage::F32(arguments(12, 3.0)),
        CpuStorage::F32(arguments(4, 2.0)),
    );
    let (x, y) = (upload(device, &a), upload(device, &b));
    let transposed = Layout::contiguous((3, 4)).transpose(0, 1).unwrap();
    let column = Layout::contiguous((4, 1)).broadcast_as((4, 3)).unwrap();
    let one = Layout::contiguous(4)
        .narrow(0, 2, 1)
        .unwrap()
        .broadcast_as((4, 3))
        .unwrap();
    for right in [&column, &one] {
        for (l, r) in [(&transposed, right), (right, &transposed)] {
            let (p, q, s, t) = if std::ptr::eq(l, right) {
                (&b, &a, &y, &x)
            } else {
                (&a, &b, &x, &y)
            };
            let ours = values(&s.binary_impl::<op::Sub>(t, l, r).unwrap());
            let truth = widened(&p.binary_impl::<op::Sub>(q, l, r).unwrap());
            assert_eq!(ours, truth);
        }
    }
}

#[test]
fn updates_in_place_are_the_cpus() {
    let Some(device) = device() else { return };
    for dtype in [DType::F32, DType::BF16] {
        let len = 3001;
        let (a, b) = (arguments(len, 2.0), arguments(len, 3.0));
        let layout = Layout::contiguous(len);
        let factor = CpuStorage::F32(vec![0.37]);
        let one = Layout::contiguous(1);
        let (mut host, x) = (stored(dtype, a), stored(dtype, b));
        let mut ours = upload(device, &host);
        let (on_device, factor_there) = (upload(device, &x), upload(device, &factor));
        host.axpy(-0.7, (&x, &layout)).unwrap();
        ours.axpy(-0.7, (&on_device, &layout)).unwrap();
        host.scale(len, 1.3, Some((&factor, &one))).unwrap();
        ours.scale(len, 1.3, Some((&factor_there, &one))).unwrap();
        host.scale(len, 0.9, None).unwrap();
        ours.scale(len, 0.9, None).unwrap();
        let (error, i) = worst(&values(&ours), &widened(&host), 1.0);
        let tolerance = if dtype == DType::F32 {
            1e-6
        } else {
            2f32.powi(-6)
        };
        assert!(error <= tolerance, "{dtype:?} {i}: {error:.1e}");
    }
    let mut host = CpuStorage::F32(arguments(999, 3.0));
    let mut ours = upload(device, &host);
    let scale = CpuStorage::F32(vec![0.5]);
    let one = Layout::contiguous(1);
    host.clip_value(999, (&scale, &one), 0.25).unwrap();
    ours.clip_value(999, (&upload(device, &scale), &one), 0.25)
        .unwrap();
    assert_eq!(values(&ours), widened(&host));
    for op in ["axpy", "scale", "clip_value"] {
        assert_eq!(fallbacks(device, op), 0);
    }
}

#[test]
fn combinations_are_rounded_to_bf16_where_asked() {
    let Some(device) = device() else { return };
    let len = 70_001;
    let (start, x) = (arguments(len, 2.0), CpuStorage::F32(arguments(len, 3.0)));
    let (there, layout) = (upload(device, &x), Layout::contiguous(len - 1));
    for to_bf16 in [false, true] {
        for has_x in [false, true] {
            let mut truth = CpuStorage::F32(start.clone());
            let mut ours = upload(device, &truth);
            let operand = has_x.then_some((-3.0, (&x, &layout)));
            truth.combine(len - 1, 0.5, operand, to_bf16).unwrap();
            let operand = has_x.then_some((-3.0, (&there, &layout)));
            ours.combine(len - 1, 0.5, operand, to_bf16).unwrap();
            assert_eq!(values(&ours), widened(&truth));
        }
    }
    assert_eq!(fallbacks(device, "combine"), 0);
}
