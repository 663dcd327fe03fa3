//! Matrix products against the plain definition: shapes around the tile sizes, all stride patterns, batches.

use candle_core::{CpuStorage, DType, Layout, Result, Shape};
use tt_cpu::{FusedOps, Write, reference};

use crate::common::{self, *};

#[derive(Clone, Copy, Debug)]
enum Stored {
    Rows,
    Columns,
    /// Every second element of every second row.
    Apart,
}

/// A `[rows, cols]` matrix of `dtype` stored in the given way, and its dense f64 copy, as a product in `product` takes it.
fn matrix(
    rows: usize,
    cols: usize,
    stored: Stored,
    [dtype, product]: [DType; 2],
    seed: u64,
) -> (Operand, Vec<f64>) {
    let (strides, len) = match stored {
        Stored::Rows => ([cols, 1], rows * cols),
        Stored::Columns => ([1, rows], rows * cols),
        Stored::Apart => ([4 * cols, 2], 4 * rows * cols),
    };
    let offset = 3;
    let storage = common::stored(dtype, random(len + offset, seed));
    let data = widened(&common::stored(product, widened(&storage)));
    let dense = (0..rows * cols)
        .map(|i| data[offset + i / cols * strides[0] + i % cols * strides[1]] as f64)
        .collect();
    let layout = Layout::new(Shape::from((rows, cols)), strides.to_vec(), offset);
    (Operand { storage, layout }, dense)
}

fn check(m: usize, k: usize, n: usize, a_stored: Stored, b_stored: Stored) -> Result<()> {
    check_types([DType::F32; 3], (m, k, n), a_stored, b_stored)
}

/// For `a`, `b` and output of `types`: the product of the rounded operands, its sums in f32, rounded once.
fn check_types(
    types: [DType; 3],
    (m, k, n): (usize, usize, usize),
    a_stored: Stored,
    b_stored: Stored,
) -> Result<()> {
    let [a_type, b_type, out_type] = types;
    let what = format!("{types:?} {m}x{k}x{n} {a_stored:?} {b_stored:?}");
    let (a, a_dense) = matrix(m, k, a_stored, [a_type, a_type], 1);
    let (b, b_dense) = matrix(k, n, b_stored, [b_type, a_type], 2);
    let mut want = reference::matmul(&a_dense, &b_dense, m, k, n);
    let mut out = common::stored(out_type, vec![f32::NAN; m * n]);
    CpuStorage::matmul_into(a.view(), b.view(), &mut out, Write::Assign)?;
    let u = if out_type == DType::F32 {
        0.0
    } else {
        unit_roundoff(out_type)
    };
    assert_close(&what, &widened(&out), &want, u + 2e-6);
    CpuStorage::matmul_into(a.view(), b.view(), &mut out, Write::Accumulate)?;
    want.iter_mut().for_each(|x| *x *= 2.0);
    // Half of the sum was rounded before, then all of it.
    let allowed = 1.5 * u + 2e-6;
    assert_close(
        &format!("{what} accumulated"),
        &widened(&out),
        &want,
        allowed,
    );
    Ok(())
}

const STORED: [Stored; 3] = [Stored::Rows, Stored::Columns, Stored::Apart];

#[test]
fn products_of_odd_sizes_and_all_strides_match_the_reference() -> Result<()> {
    for a in STORED {
        for b in STORED {
            for (m, k, n) in [
                (1, 1, 1),
                (1, 17, 65),
                (3, 63, 17),
                (5, 3, 129),
                (17, 65, 1),
            ] {
                check(m, k, n, a, b)?;
            }
            for (m, k, n) in [
                (63, 129, 65),
                (65, 1, 33),
                (129, 2, 3),
                (4, 300, 16),
                (64, 64, 64),
                // Several tiles both ways and two blocks along `k`: operands are packed as a whole.
                (101, 401, 131),
            ] {
                check(m, k, n, a, b)?;
            }
        }
    }
    Ok(())
}

/// 16-bit activations with f32 or frozen weights, f32 activations with frozen weights; outputs wide or not.
const MIXED: [[DType; 3]; 10] = {
    use DType::{BF16, F16, F32};
    [
        [BF16, BF16, BF16],
        [BF16, BF16, F32],
        [BF16, F32, BF16],
        [BF16, F32, F32],
        [F16, F16, F16],
        [F16, F16, F32],
        [F16, F32, F16],
        [F16, F32, F32],
        [F32, BF16, F32],
        [F32, F16, F32],
    ]
};

#[test]
fn products_of_16_bit_operands_round_them_and_nothing_else() -> Result<()> {
    for types in MIXED {
        for a in STORED {
            for b in STORED {
                for shape in [
                    (1, 17, 65),
                    (3, 64, 17),
                    (17, 65, 1),
                    (65, 1, 33),
                    (130, 66, 129),
                    (101, 401, 131),
                ] {
                    check_types(types, shape, a, b)?;
                }
            }
        }
        check_types(types, (401, 130, 300), Stored::Rows, Stored::Columns)?;
        check_types(types, (401, 130, 300), Stored::Columns, Stored::Rows)?;
    }
    Ok(())
}

#[test]
fn bf16_and_f16_do_not_mix() {
    let a = Operand::of(DType::BF16, vec![0.0; 6], (2, 3));
    let b = Operand::of(DType::F16, vec![0.0; 6], (3, 2));
    let error = CpuStorage::matmul_into(a.view(), b.view(), &mut zeros(4), Write::Assign);
    assert!(error.unwrap_err().to_string().contains("not BF16 and F16"));
}

#[test]
fn products_larger_than_a_tile_match_the_reference() -> Result<()> {
    for a in STORED {
        for b in STORED {
            check(401, 520, 300, a, b)?;
            check(200, 16, 288, a, b)?;
        }
    }
    Ok(())
}

/// The numbers along `k` are summed in the order that their count alone decides: a library that cuts them by the sizes of
/// the caches (as `gemm` does) has other bits on another machine, on some of the shapes here on any.
#[test]
fn products_have_the_bits_of_sums_cut_by_the_shape_alone() -> Result<()> {
    let is_fused = !cfg!(target_arch = "x86_64") || tt_cpu::isa::isa() != "generic";
    let add = |x: f32, y: f32, sum: f32| {
        if is_fused {
            x.mul_add(y, sum)
        } else {
            x * y + sum
        }
    };
    for (m, k, n) in [(1, 1000, 17), (7, 384, 70), (40, 385, 33), (64, 1300, 130)] {
        let (a, b) = (random(m * k, 1), random(k * n, 2));
        let len = usize::div_ceil(k, k.div_ceil(384));
        let want = (0..m * n).map(|at| {
            let (row, col) = (at / n, at % n);
            let blocks = (0..k).step_by(len).map(|first| {
                let block = first..k.min(first + len);
                block.fold(0.0, |sum, p| add(a[row * k + p], b[p * n + col], sum))
            });
            blocks.reduce(|out, block| out + block).expect("a block")
        });
        let want: Vec<u32> = want.map(f32::to_bits).collect();
        let mut out = zeros(m * n);
        let (a, b) = (
            Operand::f32(a.clone(), (m, k)),
            Operand::f32(b.clone(), (k, n)),
        );
        CpuStorage::matmul_into(a.view(), b.view(), &mut out, Write::Assign)?;
        let got = f32s(&out).iter().map(|x| x.to_bits());
        assert!(got.eq(want), "{m}x{k}x{n}");
    }
    Ok(())
}

#[test]
fn empty_products_are_empty_or_zero() -> Result<()> {
    for (m, k, n) in [(0, 3, 4), (3, 4, 0)] {
        check(m, k, n, Stored::Rows, Stored::Columns)?;
    }
    let (a, b) = (Operand::f32(vec![], (17, 0)), Operand::f32(vec![], (0, 20)));
    let mut out = garbage(17 * 20);
    CpuStorage::matmul_into(a.view(), b.view(), &mut out, Write::Assign)?;
    assert!(f32s(&out).iter().all(|x| *x == 0.0));
    Ok(())
}

#[test]
fn an_empty_batch_is_empty() -> Result<()> {
    let (a, b) = (
        Operand::f32(vec![], (0, 2, 3)),
        Operand::f32(vec![], (0, 3, 4)),
    );
    CpuStorage::matmul_into(a.view(), b.view(), &mut garbage(0), Write::Assign)
}

#[test]
fn batches_may_be_permuted_and_expanded() -> Result<()> {
    // a is [2, 3, 5, 7] seen through a transposition of its batch dims; b [7, 9] is shared by all.
    let (m, k, n) = (5, 7, 9);
    let (a_data, b_data) = (random(2 * 3 * m * k, 1), random(k * n, 2));
    let a = CpuStorage::F32(a_data.clone());
    let a_layout = Layout::contiguous((3, 2, m, k)).transpose(0, 1)?;
    let b = CpuStorage::F32(b_data.clone());
    let b_layout = Layout::contiguous((k, n)).broadcast_as((2, 3, k, n))?;
    let mut out = garbage(6 * m * n);
    CpuStorage::matmul_into((&a, &a_layout), (&b, &b_layout), &mut out, Write::Assign)?;
    let mut want = Vec::new();
    for i in 0..2 {
        for j in 0..3 {
            let a = wide(&a_data[(j * 2 + i) * m * k..][..m * k]);
            want.extend(reference::matmul(&a, &wide(&b_data), m, k, n));
        }
    }
    assert_close("batched", f32s(&out), &want, 2e-6);
    Ok(())
}

#[test]
fn shapes_that_do_not_multiply_are_an_error() {
    let a = Operand::f32(vec![0.0; 6], (2, 3));
    let b = Operand::f32(vec![0.0; 8], (4, 2));
    let mut out = zeros(4);
    let error = CpuStorage::matmul_into(a.view(), b.view(), &mut out, Write::Assign).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("[2, 3] and [4, 2] do not multiply"),
        "{error}"
    );

    let b = Operand::f32(vec![0.0; 6], (3, 2));
    let mut small = zeros(3);
    let error = CpuStorage::matmul_into(a.view(), b.view(), &mut small, Write::Assign).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("room for 3 elements instead of 4"),
        "{error}"
    );

    let b = Operand::u32(vec![0; 6], (3, 2));
    let error = CpuStorage::matmul_into(a.view(), b.view(), &mut out, Write::Assign).unwrap_err();
    assert!(
        error.to_string().contains(
            "matmul: a and b must be F32, or F32 and 16-bit floats of one type, not F32 and U32"
        ),
        "{error}"
    );
}
