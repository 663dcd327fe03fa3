//! The tape: who gets a gradient, when memory goes, what hooks hear.

use std::sync::{Arc, Mutex};

use tt_tensor::{Device, Parameter, Tape, Tensor, fused};

fn parameter(name: &str, values: &[f32]) -> Arc<Parameter> {
    let tensor = Tensor::from_slice(values, values.len(), Device::Cpu).unwrap();
    Parameter::new(name, tensor)
}

fn grad(parameter: &Parameter) -> Vec<f32> {
    parameter.grad().expect("has a gradient").to_vec().unwrap()
}

#[test]
fn gradients_of_two_backward_passes_add_up() {
    let w = parameter("w", &[1.0, 2.0]);
    let tape = Tape::new();
    for _ in 0..2 {
        let loss = tape.watch(&w).sqr().unwrap().sum_all().unwrap();
        tape.backward(&loss).unwrap();
        assert!(tape.is_empty());
    }
    assert_eq!(grad(&w), [4.0, 8.0]);
    assert!(w.take_grad().is_some() && w.grad().is_none());
}

#[test]
fn a_tape_that_is_reset_forgets_what_it_recorded() {
    let w = parameter("w", &[1.0, 2.0]);
    let tape = Tape::new();
    let pair = tape.watch(&w).sqr().unwrap();
    assert_eq!((tape.len(), tape.is_empty()), (1, false));
    tape.reset();
    assert!(tape.is_empty());
    drop(pair);
    // So does a backward pass that fails.
    let pair = tape.watch(&w).sqr().unwrap();
    tape.backward(&pair).unwrap_err();
    assert!(tape.is_empty());
}

#[test]
fn a_weight_used_twice_gets_the_sum_of_both_uses() {
    let w = parameter("w", &[3.0]);
    let tape = Tape::new();
    let (a, b) = (tape.watch(&w), tape.watch(&w));
    let loss = a.mul(&b).unwrap().add(&a).unwrap().sum_all().unwrap();
    tape.backward(&loss).unwrap();
    assert_eq!(grad(&w), [7.0]);
}

#[test]
fn frozen_parameters_are_not_recorded_and_get_no_gradient() {
    let (w, frozen) = (parameter("w", &[2.0]), parameter("frozen", &[5.0]));
    frozen.set_trainable(false);
    let tape = Tape::new();
    let still = tape.watch(&frozen).exp().unwrap();
    assert!(!still.is_tracked() && tape.is_empty());
    let loss = tape
        .watch(&w)
        .mul(&tape.watch(&frozen))
        .unwrap()
        .sum_all()
        .unwrap();
    tape.backward(&loss).unwrap();
    assert_eq!(grad(&w), [5.0]);
    assert!(frozen.grad().is_none());
}

#[test]
fn detach_cuts_the_gradient() {
    let w = parameter("w", &[2.0]);
    let tape = Tape::new();
    let x = tape.watch(&w);
    let loss = x.mul(&x.detach()).unwrap().sum_all().unwrap();
    tape.backward(&loss).unwrap();
    assert_eq!(grad(&w), [2.0]);
}

#[test]
fn backward_uses_the_weight_as_it_is_then() {
    // A weight that was replaced in between, as sharding does: the tape holds the parameter, not the tensor.
    let (x, w) = (parameter("x", &[1.0]), parameter("w", &[0.0]));
    let (x_row, w_row) = (
        x.value().reshape((1, 1)).unwrap(),
        w.value().reshape((1, 1)).unwrap(),
    );
    let (x, w) = (Parameter::new("x", x_row), Parameter::new("w", w_row));
    let tape = Tape::new();
    let y = tt_tensor::fused::linear(&tape.watch(&x), &tape.watch(&w), None).unwrap();
    w.set(Tensor::full(4.0, (1, 1), Device::Cpu).unwrap())
        .unwrap();
    tape.backward(&y.sum_all().unwrap()).unwrap();
    assert_eq!(grad(&x), [4.0]);
}

#[test]
fn hook_hears_each_parameter_once_when_its_gradient_is_complete() {
    let (w, v) = (parameter("w", &[1.0]), parameter("v", &[2.0]));
    let tape = Tape::new();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let log = heard.clone();
    tape.on_gradient(Arc::new(move |parameter| {
        let complete = parameter.grad().unwrap().to_vec::<f32>()?;
        log.lock()
            .unwrap()
            .push((parameter.path().to_owned(), complete));
        Ok(())
    }));
    let first = tape.watch(&w).sqr().unwrap();
    let loss = first
        .mul(&tape.watch(&v))
        .unwrap()
        .add(&tape.watch(&w))
        .unwrap();
    tape.backward(&loss.sum_all().unwrap()).unwrap();
    let expected = [("v".to_owned(), vec![1.0]), ("w".to_owned(), vec![5.0])];
    assert_eq!(*heard.lock().unwrap(), expected);
}

#[test]
fn a_mark_sees_what_gradient_was_gathered_for_a_tensor_by_uses_after_it() {
    let w = parameter("w", &[3.0]);
    let tape = Tape::new();
    let x = tape.watch(&w).affine(1.0, 0.0).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mark = |name: &'static str, of: &Tensor| {
        let seen = seen.clone();
        tape.mark_gradient(of, move |grad| {
            let grad = grad.map(|grad| grad.to_vec::<f32>()).transpose()?;
            seen.lock().unwrap().push((name, grad));
            Ok(())
        });
    };
    mark("before both uses", &x);
    let y = x.sqr().unwrap();
    mark("between", &x);
    let y = y.add(&x).unwrap();
    mark("of the sum", &y);
    mark("untracked", &x.detach());
    tape.backward(&y.sum_all().unwrap()).unwrap();
    let expected = [
        ("untracked", None),
        ("of the sum", Some(vec![1.0])),
        ("between", Some(vec![1.0])),
        ("before both uses", Some(vec![7.0])),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn marks_fire_in_reverse_order_between_the_operations_they_were_set_between() {
    let w = parameter("w", &[1.0]);
    let tape = Tape::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mark = |name: &'static str| {
        let order = order.clone();
        tape.mark(move || {
            order.lock().unwrap().push(name);
            Ok(())
        });
    };
    mark("exit");
    let y = tape.watch(&w).exp().unwrap();
    mark("enter");
    tape.backward(&y.sum_all().unwrap()).unwrap();
    assert_eq!(*order.lock().unwrap(), ["enter", "exit"]);
}

#[test]
fn loss_that_depends_on_nothing_is_an_error() {
    let tape = Tape::new();
    let loss = Tensor::zeros((), Device::Cpu).unwrap();
    let message = tape.backward(&loss).unwrap_err().to_string();
    assert!(message.contains("no watched parameter"), "{message}");
    let w = parameter("w", &[1.0, 2.0]);
    let message = tape
        .backward(&tape.watch(&w).exp().unwrap())
        .unwrap_err()
        .to_string();
    assert!(message.contains("one element"), "{message}");
}

#[test]
fn operands_of_two_tapes_do_not_mix() {
    let w = parameter("w", &[1.0]);
    let (a, b) = (Tape::new(), Tape::new());
    let message = a.watch(&w).add(&b.watch(&w)).unwrap_err().to_string();
    assert!(message.contains("different tapes"), "{message}");
}

/// `x` squared, then through two layers with a shared weight; the input is also used around them.
fn layers(x: &Tensor, w: &Tensor) -> tt_tensor::Result<Tensor> {
    let y = fused::linear(x, w, None)?.silu()?;
    fused::linear(&y, w, None)?.mul(x)
}

#[test]
fn recomputation_gives_the_same_bits_of_every_gradient() {
    let values: Vec<f32> = (0..16).map(|i| (i as f32 * 0.7).sin()).collect();
    let gradients = |recompute: bool| {
        let x = Parameter::new(
            "x",
            Tensor::from_slice(&values, (4, 4), Device::Cpu).unwrap(),
        );
        let w = Parameter::new(
            "w",
            Tensor::from_slice(&values, (4, 4), Device::Cpu).unwrap(),
        );
        let tape = Tape::new();
        let completed = Arc::new(Mutex::new(Vec::new()));
        let log = completed.clone();
        tape.on_gradient(Arc::new(move |parameter| {
            log.lock().unwrap().push(parameter.path().to_owned());
            Ok(())
        }));
        let h = tape.watch(&x).exp().unwrap();
        let y = match recompute {
            false => layers(&h, &tape.watch(&w)).unwrap(),
            true => {
                let output = layers(&h.detach(), &w.value()).unwrap();
                let weight = w.clone();
                let again = move |tape: &Tape, x: &Tensor| layers(x, &tape.watch(&weight));
                let nodes = tape.len();
                let y = tape
                    .recompute(&h, std::slice::from_ref(&w), output, again)
                    .unwrap();
                assert_eq!(tape.len(), nodes + 1, "only the input is kept");
                y
            }
        };
        // A later use of the same input: its gradient is there before the recomputed part adds its own.
        let y = y.mul(&h).unwrap();
        tape.backward(&y.sum_all().unwrap()).unwrap();
        let of = |p: &Arc<Parameter>| p.grad().unwrap().to_vec::<f32>().unwrap();
        let completed = std::mem::take(&mut *completed.lock().unwrap());
        (of(&x), of(&w), completed)
    };
    let (kept, again) = (gradients(false), gradients(true));
    assert_eq!(kept, again);
    assert_eq!(kept.2, ["w", "x"]);
}

#[test]
fn recomputation_without_anything_to_learn_leaves_no_node() {
    let w = parameter("w", &[1.0, 2.0]);
    w.set_trainable(false);
    let tape = Tape::new();
    let x = Tensor::ones(2, Device::Cpu).unwrap();
    let output = x.mul(&w.value()).unwrap();
    let y = tape
        .recompute(&x, &[w], output, |_, _| unreachable!("nothing to undo"))
        .unwrap();
    assert!(!y.is_tracked() && tape.is_empty());
}
