//! Operations of a user's own, without kernels: the tape, the device without memory, and what is said of mistakes.

#[path = "../common/cube.rs"]
mod cube;

use cube::{Cube, Mistake, parameters, run};
use tt_tensor::{Device, Error, MetaDevice, Result, Tape, apply};
use tt_testkit::{check_gradients, on_tpu};

#[test]
fn the_gradient_is_the_one_that_is_given() {
    let x: Vec<f32> = (0..6).map(|i| i as f32 / 2.0 - 1.2).collect();
    let inputs = [("x", vec![2, 3], x.clone()), ("w", vec![2, 3], x)];
    check_gradients(Device::Cpu, &inputs, 1e-2, 2e-3, |inputs| {
        apply(Cube::default(), &[&inputs[0], &inputs[1]])
    });
}

#[test]
fn operands_that_are_no_view_of_a_whole_are_handed_over_contiguous() -> Result<()> {
    let [x, w] = parameters(Device::Cpu).map(|it| it.value());
    let (x, w) = (x.t()?, w.t()?);
    let y = apply(Cube::default(), &[&x, &w])?;
    assert_eq!(y.to_vec::<f32>()?, x.powf(3.0)?.mul(&w)?.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn what_is_run_again_gives_the_same_gradients() -> Result<()> {
    let [_, dx, dw] = run(Cube::default(), Device::Cpu)?;
    let [x, w] = parameters(Device::Cpu);
    let (tape, again) = (Tape::new(), w.clone());
    let y = apply(Cube::default(), &[&x.value(), &w.value()])?;
    let y = tape.recompute(
        &tape.watch(&x),
        std::slice::from_ref(&w),
        y,
        move |tape, x| apply(Cube::default(), &[x, &tape.watch(&again)]),
    )?;
    tape.backward(&y.sum_all()?)?;
    for (parameter, expected) in [(x, dx), (w, dw)] {
        assert_eq!(parameter.take_grad().unwrap().to_vec::<f32>()?, expected);
    }
    Ok(())
}

#[test]
fn without_memory_it_takes_the_bytes_of_its_result_and_computes_nothing() -> Result<()> {
    let meta = MetaDevice::new();
    let device = Device::Meta(meta);
    // A reference that would be wrong is not run.
    let cube = Cube {
        mistake: Some(Mistake::Shape),
    };
    let [y, dx, dw] = run(cube, device)?;
    assert_eq!([y, dx, dw], [vec![0.0; 6], vec![0.0; 6], vec![0.0; 6]]);
    assert_eq!(meta.usage().live_bytes, 0, "all is gone");
    let x = parameters(device)[0].value();
    let before = meta.usage().live_bytes;
    let _y = apply(Cube::default(), &[&x, &x])?;
    assert_eq!(meta.usage().live_bytes - before, 24);
    Ok(())
}

#[test]
fn a_frozen_operand_asks_for_no_gradient() -> Result<()> {
    let [x, w] = parameters(Device::Cpu);
    w.set_trainable(false);
    let tape = Tape::new();
    let cube = Cube {
        mistake: Some(Mistake::NoGradient),
    };
    let y = apply(cube, &[&tape.watch(&x), &tape.watch(&w)])?;
    tape.backward(&y.sum_all()?)?;
    assert!(x.grad().is_some() && w.grad().is_none());
    Ok(())
}

#[test]
fn mistakes_are_told_with_the_operation_and_what_was_expected() {
    for (mistake, told) in [
        (
            Mistake::Shape,
            "the result is [] of F32 instead of [2, 3] of F32",
        ),
        (
            Mistake::NoGradient,
            "the gradient of operand 1 is wanted and missing",
        ),
        (
            Mistake::GradientsShape,
            "the gradient of operand 0 is [] of F32 instead of [2, 3] of F32",
        ),
        (Mistake::TooFew, "1 gradients of 2 operands"),
    ] {
        let cube = Cube {
            mistake: Some(mistake),
        };
        let error = run(cube, Device::Cpu).unwrap_err().to_string();
        assert_eq!(error, format!("cube: {told}"));
    }
}

#[test]
fn on_a_tpu_that_may_not_fall_back_it_is_refused_by_name() {
    on_tpu(|device| {
        let [x, _] = parameters(device);
        x.value().sqr().unwrap(); // which has a kernel
        let error = run(Cube::default(), device).unwrap_err();
        let is_named = matches!(&error, Error::Tpu(tt_tpu::Error::NoKernel { op: "cube" }));
        assert!(is_named, "{error}");
    });
}
