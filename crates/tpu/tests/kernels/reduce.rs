//! Reductions against candle's and ours on the CPU.

use crate::common::{device, fallbacks, launches, numbers, stored, unit_roundoff, upload, widened};
use candle_core::backend::BackendStorage;
use candle_core::op::ReduceOp;
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::{FusedOps, Write};

fn close(ours: &[f32], truth: &[f32], scale: f32, tolerance: f32, what: &str) {
    assert_eq!(ours.len(), truth.len(), "{what}");
    for (i, (a, b)) in ours.iter().zip(truth).enumerate() {
        let error = (a - b).abs() / (b.abs() + scale);
        assert!(
            error <= tolerance,
            "{what} [{i}]: {a} instead of {b}, {error:.1e}"
        );
    }
}

fn check(dims: &[usize], permutation: &[usize], axes: &[usize]) {
    let Some(device) = device() else { return };
    let len = dims.iter().product();
    let layout = Layout::contiguous(dims).permute(permutation).unwrap();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let host = stored(dtype, numbers(len, 0));
        let ours = upload(device, &host);
        // The truth is f64 on the rounded numbers.
        let wide = widened(&host).into_iter().map(f64::from).collect();
        let wide = CpuStorage::F64(wide);
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
            if axes.len() > 1 && !matches!(op, ReduceOp::Sum) {
                continue; // candle has none
            }
            let what = format!("{dtype:?} {dims:?} {permutation:?} {axes:?}");
            let ours = ours
                .reduce_op(op, &layout, axes)
                .unwrap()
                .to_cpu_storage()
                .unwrap();
            let truth = wide.reduce_op(op, &layout, axes).unwrap();
            let truth = truth.as_slice::<f64>().unwrap();
            let truth: Vec<f32> = truth.iter().map(|x| *x as f32).collect();
            let count = len / truth.len().max(1);
            let scale = if matches!(op, ReduceOp::Sum) {
                (count as f32).sqrt()
            } else {
                0.0
            };
            let tolerance = if dtype == DType::F32 {
                1e-6
            } else {
                1.01 * unit_roundoff(dtype) as f32
            };
            close(&widened(&ours), &truth, scale, tolerance, &what);
        }
        if let [axis] = axes {
            for op in [ReduceOp::ArgMax, ReduceOp::ArgMin] {
                let ours = ours
                    .reduce_op(op, &layout, &[*axis])
                    .unwrap()
                    .to_cpu_storage()
                    .unwrap();
                let truth = host.reduce_op(op, &layout, &[*axis]).unwrap();
                let what = format!("{dtype:?} {dims:?} {permutation:?} {axes:?}");
                assert_eq!(
                    ours.as_slice::<u32>().unwrap(),
                    truth.as_slice::<u32>().unwrap(),
                    "{what}"
                );
            }
        }
    }
    assert_eq!(fallbacks(device, "reduce"), 0);
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn any_dims_of_any_layout_are_reduced() {
    for axes in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2], &[0, 1, 2]] {
        check(&[5, 37, 67], &[0, 1, 2], axes);
        check(&[5, 37, 67], &[2, 0, 1], axes);
    }
    let Some(device) = device() else { return };
    assert!(launches(device, "reduce_rows") > 0 && launches(device, "sum_columns") > 0);
}

#[test]
fn rows_of_any_length_are_reduced() {
    for len in [1, 15, 16, 17, 63, 64, 65, 4095, 4097, 20_001] {
        check(&[3, len], &[0, 1], &[1]);
    }
    check(&[3001, 7], &[0, 1], &[1]);
    check(&[3001, 7], &[0, 1], &[0]);
    check(&[1, 300_007], &[0, 1], &[0, 1]);
}

#[test]
fn the_first_of_equal_elements_is_found() {
    let Some(device) = device() else { return };
    let mut row = vec![0.5f32; 9000];
    row[4500] = 2.0;
    row[8000] = 2.0;
    let x = upload(device, &CpuStorage::F32(row));
    let layout = Layout::contiguous((1, 9000));
    for (op, at) in [(ReduceOp::ArgMax, 4500), (ReduceOp::ArgMin, 0)] {
        let found = x
            .reduce_op(op, &layout, &[1])
            .unwrap()
            .to_cpu_storage()
            .unwrap();
        assert_eq!(found.as_slice::<u32>().unwrap(), [at]);
    }
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn infinities_are_extrema_like_any_number() {
    let Some(device) = device() else { return };
    for len in [1, 3, 16, 17, 5000] {
        let cases = [f32::INFINITY, -f32::INFINITY];
        for (most, last) in cases.iter().flat_map(|&x| [(x, x), (x, 1.0), (x, -x)]) {
            let mut row = vec![most; len];
            row[len - 1] = last;
            let what = format!("{len} of {most}, then {last}");
            let host = CpuStorage::F32(row);
            let layout = Layout::contiguous((1, len));
            let x = upload(device, &host);
            for op in [ReduceOp::Max, ReduceOp::Min] {
                let ours = x.reduce_op(op, &layout, &[1]).unwrap();
                let truth = host.reduce_op(op, &layout, &[1]).unwrap();
                let ours = widened(&ours.to_cpu_storage().unwrap());
                assert_eq!(ours, widened(&truth), "{what}");
            }
            for op in [ReduceOp::ArgMax, ReduceOp::ArgMin] {
                let ours = x.reduce_op(op, &layout, &[1]).unwrap();
                let ours = ours.to_cpu_storage().unwrap();
                let truth = host.reduce_op(op, &layout, &[1]).unwrap();
                let truth = truth.as_slice::<u32>().unwrap();
                assert_eq!(ours.as_slice::<u32>().unwrap(), truth, "{what}");
            }
        }
    }
}

#[test]
fn extrema_pass_over_nan_and_their_positions_are_in_the_row() {
    let Some(device) = device() else { return };
    let nan = f32::NAN;
    for (row, [max, min], at) in [
        ([1.0, nan, 2.0], [2.0, 1.0], [2, 0]),
        ([nan, 2.0, 1.0], [2.0, 1.0], [1, 2]),
        ([2.0, 1.0, nan], [2.0, 1.0], [0, 1]),
        ([nan; 3], [-f32::INFINITY, f32::INFINITY], [0, 0]),
    ] {
        let x = upload(device, &CpuStorage::F32(row.to_vec()));
        let reduced = |op| {
            let y = x.reduce_op(op, &Layout::contiguous((1, 3)), &[1]).unwrap();
            y.to_cpu_storage().unwrap()
        };
        assert_eq!(widened(&reduced(ReduceOp::Max)), [max], "{row:?}");
        assert_eq!(widened(&reduced(ReduceOp::Min)), [min], "{row:?}");
        for (op, at) in [ReduceOp::ArgMax, ReduceOp::ArgMin].into_iter().zip(at) {
            assert_eq!(reduced(op).as_slice::<u32>().unwrap(), [at], "{row:?}");
        }
    }
}

#[test]
fn the_sum_of_nothing_is_zero_and_of_nan_nan() {
    let Some(device) = device() else { return };
    let x = upload(device, &CpuStorage::F32(vec![1.0, f32::NAN, 2.0, 3.0]));
    let empty = Layout::contiguous((2, 2)).narrow(1, 0, 0).unwrap();
    let sum = |layout: &Layout| {
        let sum = x.reduce_op(ReduceOp::Sum, layout, &[1]).unwrap();
        widened(&sum.to_cpu_storage().unwrap())
    };
    assert_eq!(sum(&empty), [0.0, 0.0]);
    let sums = sum(&Layout::contiguous((2, 2)));
    assert!(sums[0].is_nan() && sums[1] == 5.0);
}

#[test]
fn columns_are_summed_onto_what_is_there() {
    let Some(device) = device() else { return };
    for (rows, cols) in [(1, 1), (7, 65), (1030, 1039), (3000, 16)] {
        for dtype in [DType::F32, DType::BF16] {
            let host = stored(dtype, numbers(rows * cols, 0));
            let layout = Layout::contiguous((rows, cols));
            let mut truth = CpuStorage::F32(numbers(cols, 0));
            let mut ours = upload(device, &truth);
            for write in [Write::Accumulate, Write::Assign] {
                CpuStorage::sum_rows_into((&host, &layout), rows, &mut truth, write).unwrap();
                let x = upload(device, &host);
                FusedOps::sum_rows_into((&x, &layout), rows, &mut ours, write).unwrap();
                let ours = widened(&ours.to_cpu_storage().unwrap());
                close(
                    &ours,
                    &widened(&truth),
                    (rows as f32).sqrt(),
                    1e-6,
                    "sum_rows",
                );
            }
        }
    }
    assert_eq!(fallbacks(device, "sum_rows"), 0);
}

#[test]
fn sums_of_squares_are_those_of_double_precision() {
    let Some(device) = device() else { return };
    for len in [1, 100, 8191, 8192, 1_000_003, 10_000_000] {
        let x = numbers(len, 0);
        let truth: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let storage = upload(device, &CpuStorage::F32(x));
        let mut out = upload(device, &CpuStorage::F32(vec![-1.0; 3]));
        let layout = Layout::contiguous(len);
        FusedOps::sum_squares_into((&storage, &layout), &mut out, 1).unwrap();
        let out = widened(&out.to_cpu_storage().unwrap());
        assert_eq!([out[0], out[2]], [-1.0; 2]);
        let error = (f64::from(out[1]) / truth - 1.0).abs();
        assert!(error < 1e-6, "{len}: {error:.1e}");
    }
    assert_eq!(fallbacks(device, "sum_squares"), 0);
}

#[test]
fn a_row_is_repeated() {
    let Some(device) = device() else { return };
    for dtype in [DType::F32, DType::BF16] {
        let row = CpuStorage::F32(numbers(65, 0));
        let layout = Layout::contiguous(65);
        let mut truth = stored(dtype, vec![0.0; 65 * 9]);
        let mut ours = upload(device, &truth);
        CpuStorage::broadcast_row_into((&row, &layout), 9, &mut truth).unwrap();
        FusedOps::broadcast_row_into((&upload(device, &row), &layout), 9, &mut ours).unwrap();
        assert_eq!(widened(&ours.to_cpu_storage().unwrap()), widened(&truth));
    }
    assert_eq!(fallbacks(device, "broadcast_row"), 0);
}
