//! Products against f64.

use std::hash::{Hash, Hasher};

use crate::common::{
    chip, device, fallbacks, launches, numbers, stored, unit_roundoff, upload, widened,
};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::{FusedOps, Write, reference};
use tt_tpu::{Chip, TpuStorage};

fn wide(storage: &CpuStorage) -> Vec<f64> {
    widened(storage).into_iter().map(f64::from).collect()
}

/// `a . b` of one matrix, either stored transposed, in the types given; the worst error relative to `|a| |b|`.
fn error(m: usize, k: usize, n: usize, trans: [bool; 2], dtypes: [DType; 3], write: Write) -> f64 {
    let device = device().expect("checked by the caller");
    let [a_dtype, b_dtype, out_dtype] = dtypes;
    let (a, b) = (
        stored(a_dtype, numbers(m * k, 1)),
        stored(b_dtype, numbers(k * n, 2)),
    );
    let layout = |rows, cols, is_transposed| {
        if is_transposed {
            Layout::contiguous((cols, rows)).transpose(0, 1).unwrap()
        } else {
            Layout::contiguous((rows, cols))
        }
    };
    let (a_layout, b_layout) = (layout(m, k, trans[0]), layout(k, n, trans[1]));
    let before = stored(out_dtype, numbers(m * n, 3));
    let mut out = upload(device, &before);
    let (x, y) = (upload(device, &a), upload(device, &b));
    TpuStorage::matmul_into((&x, &a_layout), (&y, &b_layout), &mut out, write).unwrap();

    let in_order = |storage: &CpuStorage, layout: &Layout, len| {
        let mut ordered = CpuStorage::F32(vec![0.0; len]);
        let rounded = CpuStorage::F32(widened(storage));
        rounded.copy_strided_src(&mut ordered, 0, layout).unwrap();
        ordered
    };
    let a = in_order(&a, &a_layout, m * k);
    // The second operand is rounded to the type of the first.
    let b = stored(a_dtype, widened(&in_order(&b, &b_layout, k * n)));
    let (a, b) = (wide(&a), wide(&b));
    let mut truth = reference::matmul(&a, &b, m, k, n);
    let size = |x: &[f64]| x.iter().map(|x| x.abs()).collect::<Vec<_>>();
    let scale = reference::matmul(&size(&a), &size(&b), m, k, n);
    if write == Write::Accumulate {
        truth
            .iter_mut()
            .zip(wide(&before))
            .for_each(|(t, b)| *t += b);
    }
    let ours = wide(&out.to_cpu_storage().unwrap());
    let rounding = if out_dtype == DType::F32 {
        0.0
    } else {
        unit_roundoff(out_dtype)
    };
    ours.iter()
        .zip(&truth)
        .zip(scale)
        .map(|((ours, truth), scale)| {
            ((ours - truth).abs() - rounding * truth.abs()).max(0.0) / (scale + 1.0)
        })
        .fold(0.0, f64::max)
}

/// Of a sum of f32 over the longest inner dim here; the emulator adds up products of f16 less exactly than those of bf16.
fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F16 { 4e-6 } else { 1e-6 }
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn products_of_odd_sizes_and_all_transposes_are_exact_to_a_rounding_of_f32() {
    if device().is_none() {
        return;
    }
    let before = launches(device().unwrap(), "matmul");
    let sizes = [
        (1, 1, 1),
        (7, 5, 3),
        (65, 63, 129),
        (130, 1100, 77),
        (1, 700, 300),
        (513, 17, 1030),
    ];
    for (m, k, n) in sizes {
        for trans in [[false, false], [true, false], [false, true], [true, true]] {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                for (out, write) in [
                    (DType::F32, Write::Assign),
                    (DType::F32, Write::Accumulate),
                    (dtype, Write::Assign),
                ] {
                    let error = error(m, k, n, trans, [dtype, dtype, out], write);
                    assert!(
                        error < tolerance(dtype),
                        "{dtype:?} {m}x{k}x{n} {trans:?} {out:?} {write:?}: {error:.1e}"
                    );
                }
            }
        }
    }
    assert!(launches(device().unwrap(), "matmul") > before);
    assert_eq!(fallbacks(device().unwrap(), "matmul"), 0);
}

#[test]
fn the_second_operand_takes_the_type_of_the_first() {
    if device().is_none() {
        return;
    }
    for (a, b) in [
        (DType::BF16, DType::F32),
        (DType::F32, DType::BF16),
        (DType::F16, DType::F32),
        (DType::BF16, DType::F16),
    ] {
        for trans in [[false, false], [true, true]] {
            let error = error(70, 300, 90, trans, [a, b, DType::F32], Write::Assign);
            assert!(error < 1e-6, "{a:?} {b:?}: {error:.1e}");
        }
    }
}

#[test]
fn long_sums_stay_exact() {
    if device().is_none() {
        return;
    }
    let error = error(9, 20_000, 11, [false, true], [DType::F32; 3], Write::Assign);
    // A BM1690 adds many numbers up before it rounds, a BM1684X a few.
    let tolerance = match chip() {
        Chip::Bm1690 => 1e-6,
        Chip::Bm1684x => 2e-6,
    };
    assert!(error < tolerance, "{error:.1e}");
}

#[test]
fn batches_of_any_strides_are_multiplied() {
    let Some(device) = device() else { return };
    let (heads, batch, m, k, n) = (3, 2, 10, 16, 12);
    let a = CpuStorage::F32(numbers(batch * m * heads * k, 1));
    let b = CpuStorage::F32(numbers(n * k, 2));
    // [B, T, H, D] seen as [B, H, T, D], and one matrix for all.
    let a_layout = Layout::contiguous((batch, m, heads, k))
        .transpose(1, 2)
        .unwrap();
    let b_layout = Layout::contiguous((1, 1, n, k)).transpose(2, 3).unwrap();
    let b_layout = b_layout.broadcast_as((batch, heads, k, n)).unwrap();
    let mut truth = CpuStorage::F32(vec![0.0; batch * heads * m * n]);
    let mut ours = upload(device, &truth);
    CpuStorage::matmul_into((&a, &a_layout), (&b, &b_layout), &mut truth, Write::Assign).unwrap();
    let (x, y) = (upload(device, &a), upload(device, &b));
    TpuStorage::matmul_into((&x, &a_layout), (&y, &b_layout), &mut ours, Write::Assign).unwrap();
    let ours = widened(&ours.to_cpu_storage().unwrap());
    for (a, b) in ours.iter().zip(widened(&truth)) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    let Some(device) = device() else { return };
    for dtype in [DType::F32, DType::BF16] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut a = numbers(4 * 5, 1);
            a[7] = bad;
            let (a, b) = (stored(dtype, a), stored(dtype, numbers(5 * 3, 2)));
            let (x, y) = (upload(device, &a), upload(device, &b));
            let mut out = upload(device, &CpuStorage::F32(vec![0.0; 12]));
            let layouts = (Layout::contiguous((4, 5)), Layout::contiguous((5, 3)));
            TpuStorage::matmul_into((&x, &layouts.0), (&y, &layouts.1), &mut out, Write::Assign)
                .unwrap();
            let out = widened(&out.to_cpu_storage().unwrap());
            for (i, x) in out.iter().enumerate() {
                assert_eq!(x.is_finite(), i / 3 != 1, "{dtype:?} {bad} [{i}]: {x}");
            }
        }
    }
}

/// `cargo test -p tt-tpu --test kernels matmul::speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn speed() {
    let Some(device) = device() else { return };
    for dtype in [DType::F32, DType::BF16] {
        for n in [256, 512, 1024] {
            let layout = Layout::contiguous((n, n));
            let x = upload(device, &stored(dtype, numbers(n * n, 1)));
            let mut out = upload(device, &CpuStorage::F32(vec![0.0; n * n]));
            device.synchronize().unwrap();
            let started = std::time::Instant::now();
            TpuStorage::matmul_into((&x, &layout), (&x, &layout), &mut out, Write::Assign).unwrap();
            device.synchronize().unwrap();
            let seconds = started.elapsed().as_secs_f64();
            println!(
                "{dtype:?} {n}^3: {seconds:.2} s, {:.2} GMAC/s",
                (n * n * n) as f64 / seconds / 1e9
            );
        }
    }
}

/// A process has one device with one number of cores, so this test starts itself again for each.
#[test]
#[ignore = "for cargo xtask check --full"]
fn products_do_not_depend_on_the_number_of_cores() {
    const MARK: &str = "the products are ";
    let Some(device) = device() else { return };
    if std::env::var_os("MATMUL_CHECKSUM").is_some() {
        let mut hasher = std::hash::DefaultHasher::new();
        let (m, k, n) = (130, 1100, 600);
        let layouts = (Layout::contiguous((m, k)), Layout::contiguous((k, n)));
        for dtype in [DType::F32, DType::BF16] {
            let [x, y] = [(m * k, 1), (k * n, 2)]
                .map(|(len, seed)| upload(device, &stored(dtype, numbers(len, seed))));
            let mut out = upload(device, &CpuStorage::F32(vec![0.0; m * n]));
            TpuStorage::matmul_into((&x, &layouts.0), (&y, &layouts.1), &mut out, Write::Assign)
                .unwrap();
            for x in widened(&out.to_cpu_storage().unwrap()) {
                x.to_bits().hash(&mut hasher);
            }
        }
        println!("\n{MARK}{:016x}", hasher.finish());
        return;
    }
    let checksum = |cores: &str| {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "matmul::products_do_not_depend_on_the_number_of_cores",
                "--include-ignored",
            ])
            .arg("--nocapture")
            .env("MATMUL_CHECKSUM", "")
            .env("TPU_RT_CORE_NUM", cores)
            // This process's own, set when it opened the device.
            .env_remove("TPU_SCALAER_EMULATOR_WORKDIR")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = said.lines().find_map(|line| line.strip_prefix(MARK));
        line.unwrap_or_else(|| panic!("{output:?}")).to_owned()
    };
    let one = checksum("1");
    for cores in ["2", "8"] {
        assert_eq!(checksum(cores), one, "{cores} cores");
    }
}
