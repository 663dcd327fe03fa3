//! Rows and elements by index, against candle's and ours on the CPU.

use crate::common::{
    device, fallbacks, launches, numbers, stored, unit_roundoff, upload, values, widened,
};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::FusedOps;
use tt_tpu::TpuStorage;

fn close(ours: &[f32], truth: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), truth.len());
    for (i, (a, b)) in ours.iter().zip(truth).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * (1.0 + b.abs()),
            "[{i}]: {a} instead of {b}"
        );
    }
}

/// Indices below `size`, some of them twice, in each type that is one.
fn indices(count: usize, size: usize) -> [CpuStorage; 3] {
    let of = |i: usize| (i * 7 + i / 3) % size;
    [
        CpuStorage::U32((0..count).map(|i| of(i) as u32).collect()),
        CpuStorage::I64((0..count).map(|i| of(i) as i64).collect()),
        CpuStorage::U8((0..count).map(|i| (of(i) % 256) as u8).collect()),
    ]
}

#[test]
fn rows_of_any_dim_are_selected_and_added() {
    let Some(device) = device() else { return };
    let dims = [3, 19, 35];
    let layout = Layout::contiguous(&dims[..]);
    for dim in 0..3 {
        let count = 25;
        let at = Layout::contiguous(count);
        let mut source_dims = dims;
        source_dims[dim] = count;
        let source_layout = Layout::contiguous(&source_dims[..]);
        for dtype in [DType::F32, DType::BF16] {
            let x = stored(dtype, numbers(3 * 19 * 35, 0));
            let source = stored(dtype, numbers(source_dims.iter().product(), 0));
            for index in indices(count, dims[dim]) {
                let (ours, there) = (upload(device, &x), upload(device, &index));
                let selected = ours.index_select(&there, &layout, &at, dim).unwrap();
                let truth = x.index_select(&index, &layout, &at, dim).unwrap();
                assert_eq!(values(&selected), widened(&truth));

                let from = upload(device, &source);
                let sum = ours
                    .index_add(&layout, &there, &at, &from, &source_layout, dim)
                    .unwrap();
                let truth = x
                    .index_add(&layout, &index, &at, &source, &source_layout, dim)
                    .unwrap();
                // Each of up to ten additions is rounded.
                let tolerance = if dtype == DType::F32 {
                    1e-6
                } else {
                    10.0 * unit_roundoff(dtype) as f32
                };
                close(&values(&sum), &widened(&truth), tolerance);
            }
        }
    }
    assert!(launches(device, "select_rows") > 0 && launches(device, "add_rows") > 0);
    assert_eq!(
        fallbacks(device, "index_select") + fallbacks(device, "index_add"),
        0
    );
}

#[test]
fn rows_of_a_view_are_selected_by_a_view() {
    let Some(device) = device() else { return };
    let (x, index) = (
        CpuStorage::F32(numbers(37 * 67, 0)),
        CpuStorage::U32((0..20).collect()),
    );
    let layout = Layout::contiguous((37, 67)).transpose(0, 1).unwrap();
    let at = Layout::contiguous((10, 2))
        .transpose(0, 1)
        .unwrap()
        .narrow(0, 1, 1)
        .unwrap();
    let ours = upload(device, &x)
        .index_select(&upload(device, &index), &layout, &at, 0)
        .unwrap();
    let odd: Vec<u32> = (0..10).map(|i| 2 * i + 1).collect();
    let mut in_order = CpuStorage::F32(vec![0.0; 37 * 67]);
    x.copy_strided_src(&mut in_order, 0, &layout).unwrap();
    let layout = Layout::contiguous((67, 37));
    let truth = in_order
        .index_select(&CpuStorage::U32(odd), &layout, &Layout::contiguous(10), 0)
        .unwrap();
    assert_eq!(values(&ours), widened(&truth));
}

#[test]
fn elements_are_gathered_and_scattered_along_any_dim() {
    let Some(device) = device() else { return };
    let dims = [3, 17, 11];
    let layout = Layout::contiguous(&dims[..]);
    for dim in 0..3 {
        let mut of_indices = dims;
        of_indices[dim] = 6;
        let count = of_indices.iter().product();
        let at = Layout::contiguous(&of_indices[..]);
        for dtype in [DType::F32, DType::BF16] {
            let x = stored(dtype, numbers(3 * 17 * 11, 0));
            let source = stored(dtype, numbers(count, 0));
            for index in indices(count, dims[dim]) {
                let (ours, there) = (upload(device, &x), upload(device, &index));
                let gathered = ours.gather(&layout, &there, &at, dim).unwrap();
                assert_eq!(
                    values(&gathered),
                    widened(&x.gather(&layout, &index, &at, dim).unwrap())
                );

                let from = upload(device, &source);
                let (mut ours, mut truth) = (ours, x.try_clone(&layout).unwrap());
                ours.scatter_add_set(&layout, &there, &at, &from, &at, dim)
                    .unwrap();
                truth
                    .scatter_add_set(&layout, &index, &at, &source, &at, dim)
                    .unwrap();
                assert_eq!(values(&ours), widened(&truth), "added in the same order");
                ours.scatter_set(&layout, &there, &at, &from, &at, dim)
                    .unwrap();
                truth
                    .scatter_set(&layout, &index, &at, &source, &at, dim)
                    .unwrap();
                assert_eq!(values(&ours), widened(&truth));
            }
        }
    }
    assert!(launches(device, "by_element") > 0);
}

#[test]
fn a_choice_from_nothing_is_refused() {
    let Some(device) = device() else { return };
    let x = upload(device, &CpuStorage::F32(vec![]));
    let index = upload(device, &CpuStorage::U32(vec![0]));
    let (layout, at) = (Layout::contiguous((0, 3)), Layout::contiguous(1));
    assert!(x.index_select(&index, &layout, &at, 0).is_err());
    let (layout, at) = (Layout::contiguous((0, 1)), Layout::contiguous((1, 1)));
    assert!(x.gather(&layout, &index, &at, 0).is_err());
}

#[test]
fn an_embedding_and_its_gradient_are_the_cpus() {
    let Some(device) = device() else { return };
    // The last is taller than the dims of a DMA.
    for (size, width, count) in [
        (50, 10, 13),
        (1000, 384, 777),
        (3, 5000, 9),
        (151_936, 8, 600),
    ] {
        let ids = CpuStorage::U32((0..count).map(|i| (i * i % size) as u32).collect());
        let at = Layout::contiguous(count);
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let table = stored(dtype, numbers(size * width, 0));
            let layout = Layout::contiguous((size, width));
            let mut truth = CpuStorage::F32(vec![0.0; count * width]);
            let mut ours = upload(device, &truth);
            CpuStorage::embedding((&table, &layout), (&ids, &at), &mut truth).unwrap();
            let (table, there) = (upload(device, &table), upload(device, &ids));
            TpuStorage::embedding((&table, &layout), (&there, &at), &mut ours).unwrap();
            assert_eq!(values(&ours), widened(&truth));

            let dy = CpuStorage::F32(numbers(count * width, 0));
            let rows = Layout::contiguous((count, width));
            let mut truth = CpuStorage::F32(numbers(size * width, 0));
            let mut ours = upload(device, &truth);
            CpuStorage::embedding_backward((&ids, &at), (&dy, &rows), &mut truth).unwrap();
            let dy = upload(device, &dy);
            TpuStorage::embedding_backward((&there, &at), (&dy, &rows), &mut ours).unwrap();
            assert_eq!(values(&ours), widened(&truth), "added in the same order");
        }
    }
    assert_eq!(
        fallbacks(device, "embedding") + fallbacks(device, "embedding_backward"),
        0
    );
}
