//! `docs/tpu-support.md`: what runs on the TPU, how exactly, and what a training step costs there.
//!
//! The test measures every operation against the CPU's f32 result on the same operands and fails if an error is more than
//! twice what the page says, or if the page lists other operations. `TT_WRITE_DOCS=1` writes it.

mod ops;
mod step;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use ops::{OPS, Op, operand};
use tt_tensor::{DType, Device, Parameter, Precision, Result, Tape, Tensor, TpuDevice};
use tt_testkit::{Chip, relative_l2};

/// What is measured, and what the table calls it.
const TYPES: [(Precision, &str); 3] = [
    (Precision::F32, "f32"),
    (Precision::Bf16, "bf16"),
    (Precision::F16, "f16"),
];

/// The file of a chip, and the heading of what is written there by hand, after what is measured.
fn file(chip: Chip) -> (&'static str, &'static str) {
    match chip {
        Chip::Bm1690 => ("tpu-support.md", "## What the kernels cost"),
        Chip::Bm1684x => ("tpu-support-bm1684x.md", "## What its engines do otherwise"),
    }
}

/// The value of an operation and the gradients of a weighted sum of it, on the host.
fn run(op: &Op, precision: Precision, values: Precision, device: Device) -> Result<Vec<Vec<f32>>> {
    let tape = Tape::new();
    let mut seed = 0;
    let mut parameters = |shapes: &[&[usize]], rounded: Precision| -> Vec<_> {
        let make = |shape: &&[usize]| {
            seed += 1;
            Parameter::new("x", operand(op, shape, seed, rounded, device))
        };
        shapes.iter().map(make).collect()
    };
    let of_operands = parameters(op.operands, values);
    let of_weights = parameters(op.weights, Precision::F32);
    let typed = of_operands
        .iter()
        .map(|p| tape.watch(p).to_dtype(precision.dtype()));
    let weights: Vec<Tensor> = of_weights.iter().map(|p| tape.watch(p)).collect();
    let y = (op.body)(&typed.collect::<Result<Vec<_>>>()?, &weights)?.to_dtype(DType::F32)?;
    // Powers of two: the gradient that arrives is exact in every type.
    let signs: Vec<f32> = (0..y.elem_count())
        .map(|i| [1.0, -0.5, 0.25, 2.0, -1.0][i % 5])
        .collect();
    let signs = Tensor::from_slice(&signs, y.shape().clone(), device)?;
    tape.backward(&y.mul(&signs)?.sum_all()?)?;
    let mut results = vec![y.to_vec::<f32>()?];
    for parameter in of_operands.iter().chain(&of_weights) {
        let grad = parameter.grad().expect("every operand has a gradient");
        results.push(grad.to_vec::<f32>()?);
    }
    Ok(results)
}

/// Errors of value and gradients in one type, relative L2.
struct Measured {
    value: f64,
    gradient: f64,
}

fn measure(op: &Op, precision: Precision, tpu: TpuDevice) -> Result<Measured> {
    let truth = run(op, Precision::F32, precision, Device::Cpu)?;
    let ours = run(op, precision, precision, Device::Tpu(tpu))?;
    let errors: Vec<f64> = ours
        .iter()
        .zip(&truth)
        .map(|(ours, truth)| relative_l2(ours, truth))
        .collect();
    let gradient = errors[1..].iter().copied().fold(0.0, f64::max);
    Ok(Measured {
        value: errors[0],
        gradient,
    })
}

fn figure(error: f64) -> String {
    match error {
        0.0 => "0".to_owned(),
        error => format!("{error:.0e}"),
    }
}

/// The row of an operation.
fn row(op: &Op, tpu: TpuDevice) -> String {
    let before = tpu.stats().launches;
    let mut row = format!("| {} |", op.name);
    for (precision, name) in TYPES {
        let cells = match measure(op, precision, tpu) {
            Ok(measured) => [measured.value, measured.gradient].map(figure),
            // f16 is where it came free.
            Err(_) if precision == Precision::F16 => [(); 2].map(|()| "-".to_owned()),
            Err(error) => panic!("{} in {name}: {error}", op.name),
        };
        write!(row, " {} | {} |", cells[0], cells[1]).expect("a string");
    }
    let after = tpu.stats().launches;
    let launched: BTreeSet<&str> = after
        .into_iter()
        .filter(|(kernel, count)| before.get(kernel) != Some(count))
        .map(|(kernel, _)| kernel)
        .collect();
    let launched: Vec<String> = launched
        .iter()
        .map(|kernel| format!("`{kernel}`"))
        .collect();
    write!(row, " {} |", launched.join(" ")).expect("a string");
    row
}

fn page(chip: Chip, rows: &[String], step: &str) -> String {
    let (rows, name) = (rows.join("\n"), chip.name().to_uppercase());
    let variable = match chip {
        Chip::Bm1690 => String::new(),
        other => format!(" and `TT_TPU_CHIP={}`", other.name()),
    };
    let other = match chip {
        Chip::Bm1690 => "The other chip: [BM1684X](tpu-support-bm1684x.md).",
        Chip::Bm1684x => "The other chip: [BM1690](tpu-support.md).",
    };
    format!(
        "\
# What runs on a Sophgo {name}

Written by the test `the_page_on_support_is_current` with `TT_WRITE_DOCS=1`{variable}, from measurements on the vendor's emulator of it. {other}

## Operations

Errors are relative (the L2 norm of the difference over that of the result), of the value and of the worst gradient, \
against the CPU's f32 on the same operands, which are rounded to the type first. Arithmetic is f32 in every type and \
results are rounded once, so 16-bit errors are those of rounding: about 2e-3 in bf16 and 2e-4 in f16, several of them \
where an operation is made of others. The last column has every kernel that was launched, those of the casts and of the \
sum that gradients are taken of included. Nothing here falls back to the CPU; a dash is a type that an operation does \
not take.

| operation | f32 | gradient | bf16 | gradient | f16 | gradient | kernels |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

Ids and positions are u32, masks u8. i64 is held as i32, and a value that does not fit is an error when it is copied to \
the device. Operations of images (convolution, pooling, resampling) are refused. Initial weights are drawn on the host, \
once, so that they are the same bits on every device.

{step}"
    )
}

#[test]
fn the_page_on_support_is_current() {
    tt_testkit::on_tpu(|device| {
        let Device::Tpu(tpu) = device else {
            unreachable!("on_tpu gives a TPU");
        };
        let rows: Vec<String> = OPS.iter().map(|op| row(op, tpu)).collect();
        let chip = tt_testkit::chip();
        let (file, by_hand) = file(chip);
        let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let path = docs.join(file);
        let written = std::fs::read_to_string(&path).unwrap();
        let at = written.find(by_hand).expect("what is written by hand");
        let (written, rest) = written.split_at(at);
        if std::env::var_os("TT_WRITE_DOCS").is_some() {
            let page = page(chip, &rows, &step::section(tpu)) + "\n" + rest;
            std::fs::write(&path, page).unwrap();
            return;
        }
        let written: Vec<&str> = written
            .lines()
            .filter(|line| line.starts_with("| ") && line.matches('|').count() == 9)
            .skip(2)
            .collect();
        let advice = "`TT_WRITE_DOCS=1 cargo test -p tt-trainers --test training tpu_support` writes the page";
        assert_eq!(written.len(), rows.len(), "{advice}");
        for (written, measured) in written.iter().zip(&rows) {
            compare(written, measured).unwrap_or_else(|why| panic!("{why}; {advice}"));
        }
    });
}

/// The same operation and kernels, and no error more than twice as large.
fn compare(written: &str, measured: &str) -> std::result::Result<(), String> {
    let cells =
        |row: &str| -> Vec<String> { row.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let (was, is) = (cells(written), cells(measured));
    let differs = || format!("written: {written}\nmeasured: {measured}");
    if was[1] != is[1] || was[8] != is[8] {
        return Err(differs());
    }
    for (was, is) in was[2..8].iter().zip(&is[2..8]) {
        if was == is {
            continue;
        }
        let [Ok(was), Ok(is)] = [was, is].map(|cell| cell.parse::<f64>()) else {
            return Err(differs());
        };
        // Below a rounding of f32 there is nothing to tell apart.
        if is > (2.0 * was).max(1.2e-7) {
            return Err(differs());
        }
    }
    Ok(())
}
