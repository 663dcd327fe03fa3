//! Copies between layouts, against candle's on the CPU.

use crate::common::{device, fallbacks, launches, upload};
use candle_core::backend::BackendStorage;
use candle_core::scalar::Scalar;
use candle_core::{CpuStorage, DType, Layout};

/// Numbers that tell elements apart in any dtype.
fn numbers(dtype: DType, len: usize) -> CpuStorage {
    let values = CpuStorage::U32((0..len as u32).map(|i| i % 251).collect());
    values.to_dtype(&Layout::contiguous(len), dtype).unwrap()
}

fn as_f64(storage: &CpuStorage) -> Vec<f64> {
    let len = match storage {
        CpuStorage::U8(x) => x.len(),
        CpuStorage::U32(x) => x.len(),
        CpuStorage::I64(x) => x.len(),
        CpuStorage::BF16(x) => x.len(),
        CpuStorage::F16(x) => x.len(),
        CpuStorage::F32(x) => x.len(),
        _ => unreachable!("no such test"),
    };
    let wide = storage
        .to_dtype(&Layout::contiguous(len), DType::F64)
        .unwrap();
    wide.as_slice::<f64>().unwrap().to_vec()
}

/// Copies the view `layout` of a storage of `len` elements.
fn check(len: usize, layout: &Layout) {
    let Some(device) = device() else { return };
    for dtype in [
        DType::F32,
        DType::BF16,
        DType::F16,
        DType::U32,
        DType::I64,
        DType::U8,
    ] {
        let host = numbers(dtype, len);
        let count = layout.shape().elem_count();
        let mut expected = numbers(dtype, count + 3);
        let mut ours = upload(device, &expected);
        host.copy_strided_src(&mut expected, 2, layout).unwrap();
        let before = launches(device, "strided_copy");
        upload(device, &host)
            .copy_strided_src(&mut ours, 2, layout)
            .unwrap();
        let ours = ours.to_cpu_storage().unwrap();
        assert_eq!(as_f64(&ours), as_f64(&expected), "{dtype:?} {layout:?}");
        assert!(count == 0 || launches(device, "strided_copy") > before);
    }
    assert_eq!(fallbacks(device, "copy"), 0);
}

#[test]
fn any_permutation_of_four_dims_is_laid_in_order() {
    let dims = [3, 5, 7, 4];
    for permutation in [
        [0, 1, 2, 3],
        [3, 2, 1, 0],
        [0, 2, 1, 3],
        [1, 0, 3, 2],
        [2, 3, 0, 1],
    ] {
        let layout = Layout::contiguous(&dims[..]).permute(&permutation).unwrap();
        check(3 * 5 * 7 * 4, &layout);
    }
}

#[test]
fn slices_and_expansions_are_laid_in_order() {
    let layout = Layout::contiguous((9, 70)).narrow(1, 3, 60).unwrap();
    check(9 * 70, &layout);
    check(
        9 * 70,
        &layout.transpose(0, 1).unwrap().narrow(0, 1, 58).unwrap(),
    );
    check(
        5 * 70,
        &Layout::contiguous((5, 1, 70))
            .broadcast_as((5, 4, 70))
            .unwrap(),
    );
    check(1, &Layout::contiguous(1).broadcast_as((3, 70)).unwrap());
    check(
        70,
        &Layout::contiguous((70, 1)).broadcast_as((70, 65)).unwrap(),
    );
}

#[test]
fn six_dims_that_cannot_be_joined_are_laid_in_order() {
    let layout = Layout::contiguous(&[2, 3, 2, 3, 2, 3][..]);
    check(216, &layout.permute(&[5, 3, 1, 4, 2, 0]).unwrap());
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn sizes_beyond_a_command_and_beyond_16_bits_are_copied() {
    for len in [1, 63, 65, 65_537, 1_000_003] {
        check(len, &Layout::contiguous(len));
    }
    let tall = Layout::contiguous((70_000, 3));
    check(210_000, &tall.transpose(0, 1).unwrap());
    check(210_000, &tall.narrow(1, 1, 2).unwrap());
}

#[test]
fn nothing_is_copied_of_an_empty_view() {
    check(10, &Layout::contiguous((2, 5)).narrow(1, 5, 0).unwrap());
}

#[test]
fn rows_are_joined_side_by_side() {
    let Some(device) = device() else { return };
    let (left, right) = (numbers(DType::F32, 6 * 5), numbers(DType::F32, 6 * 70));
    let mut expected = CpuStorage::F32(vec![0.0; 6 * 75]);
    let mut ours = upload(device, &expected);
    for (part, width, at) in [(&left, 5, 0), (&right, 70, 5)] {
        part.copy2d(&mut expected, 6, width, width, 75, 0, at)
            .unwrap();
        upload(device, part)
            .copy2d(&mut ours, 6, width, width, 75, 0, at)
            .unwrap();
    }
    assert_eq!(as_f64(&ours.to_cpu_storage().unwrap()), as_f64(&expected));
    assert_eq!(fallbacks(device, "copy2d"), 0);
}

#[test]
fn a_view_is_set_and_nothing_beside_it() {
    let Some(device) = device() else { return };
    let whole = Layout::contiguous((9, 70));
    let columns = whole.narrow(1, 3, 60).unwrap();
    let one_column = whole.narrow(1, 69, 1).unwrap();
    for layout in [
        &whole,
        &columns,
        &columns.transpose(0, 1).unwrap(),
        &one_column,
    ] {
        for (dtype, value) in [
            (DType::F32, Scalar::F32(-1.5)),
            (DType::BF16, Scalar::BF16(half::bf16::from_f32(-1.5))),
            (DType::I64, Scalar::I64(-7)),
            (DType::U8, Scalar::U8(255)),
        ] {
            let mut expected = numbers(dtype, 9 * 70);
            let mut ours = upload(device, &expected);
            expected.const_set(value, layout).unwrap();
            ours.const_set(value, layout).unwrap();
            let ours = ours.to_cpu_storage().unwrap();
            assert_eq!(as_f64(&ours), as_f64(&expected), "{dtype:?} {layout:?}");
        }
    }
    assert_eq!(fallbacks(device, "const_set"), 0);
    let mut wide = upload(device, &CpuStorage::I64(vec![0]));
    let beyond = Scalar::I64(i64::from(i32::MAX) + 1);
    assert!(wide.const_set(beyond, &Layout::contiguous(1)).is_err());
}

#[test]
fn a_wide_integer_that_does_not_fit_is_refused_at_upload() {
    let Some(device) = device() else { return };
    for value in [i64::from(i32::MAX) + 1, i64::from(i32::MIN) - 1] {
        let error = tt_tpu::TpuStorage::upload(device, &CpuStorage::I64(vec![1, value])).err();
        let text = error.expect("it does not fit").to_string();
        assert!(text.contains(&value.to_string()), "{text}");
    }
    let fits = CpuStorage::I64(vec![i64::from(i32::MAX), -100, i64::from(i32::MIN)]);
    let back = upload(device, &fits).to_cpu_storage().unwrap();
    assert_eq!(as_f64(&back), as_f64(&fits));
}
