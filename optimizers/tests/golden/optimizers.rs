//! Every optimizer against PyTorch's and transformers' for ten steps: weights after each step, state after the last.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tt_nn::{Init, ParamKind, ParamSpec, ParamTree};
use tt_optimizers::{
    Adafactor, AdafactorConfig, Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, AdamWConfig, Lion,
    LionConfig, Muon, Optimizer, RmsProp, RmsPropConfig, Sgd, SgdConfig, StepContext,
    TorchAdafactorConfig,
};
use tt_tensor::{Device, Shard, Tape, Tensor, fused};
use tt_testkit::{Golden, Tensors, on_each_device, relative_l2};

#[derive(Deserialize)]
struct Cases {
    steps: u64,
    cases: BTreeMap<String, Case>,
    clipping: Vec<Clipping>,
}

#[derive(Deserialize)]
struct Case {
    class: String,
    options: Value,
    params: Vec<String>,
    tolerance: Tolerance,
}

#[derive(Deserialize)]
struct Tolerance {
    update_rel_l2: f64,
    max_abs: Option<f64>,
}

#[derive(Deserialize)]
struct Clipping {
    grad_step: u64,
    max_norm: Option<f64>,
    norm_before: Option<f64>,
    coefficient: Option<f64>,
    clip_value: Option<f64>,
    first_clipped: BTreeMap<String, Vec<f32>>,
}

fn values(tensor: &candle_core::Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn options<T: DeserializeOwned>(options: &Value) -> T {
    serde_json::from_value(options.clone()).unwrap()
}

/// The optimizer of a case; `f32` cases of Muon iterate in f32.
fn make(name: &str, case: &Case, params: &ParamTree) -> Box<dyn Optimizer> {
    let given = &case.options;
    match case.class.as_str() {
        "torch.optim.adamw.AdamW" => {
            Box::new(AdamW::new(options::<AdamWConfig>(given), params).unwrap())
        }
        "torch.optim.adam.Adam" => {
            Box::new(Adam::new(options::<AdamConfig>(given), params).unwrap())
        }
        "torch.optim.sgd.SGD" => Box::new(Sgd::new(options::<SgdConfig>(given), params).unwrap()),
        "torch.optim.rmsprop.RMSprop" => {
            Box::new(RmsProp::new(options::<RmsPropConfig>(given), params).unwrap())
        }
        "torch.optim.adagrad.Adagrad" => {
            Box::new(Adagrad::new(options::<AdagradConfig>(given), params).unwrap())
        }
        "torch.optim.Adafactor" => {
            let config = options::<TorchAdafactorConfig>(given);
            Box::new(Adafactor::torch(config, params).unwrap())
        }
        "transformers.optimization.Adafactor" => {
            Box::new(Adafactor::new(options::<AdafactorConfig>(given), params).unwrap())
        }
        _ if name == "lion" => Box::new(Lion::new(options::<LionConfig>(given), params).unwrap()),
        _ => {
            let mut given = given.clone();
            given["adamw"] = json!({ "lr": 0.0 });
            if name.starts_with("muon_f32") {
                given["ns_dtype"] = "f32".into();
            }
            Box::new(Muon::new(options(&given), params).unwrap())
        }
    }
}

struct Run {
    inputs: Tensors,
    names: Vec<String>,
    params: ParamTree,
    device: Device,
}

impl Run {
    fn new(golden: &Golden, names: &[String], device: Device) -> Self {
        let inputs = golden.tensors("inputs");
        let specs: Vec<ParamSpec> = names
            .iter()
            .map(|name| ParamSpec {
                path: name.clone(),
                shape: inputs[&format!("param.{name}")].dims().to_vec(),
                init: Init::Zeros,
                // The references decay every parameter.
                kind: ParamKind::Linear,
            })
            .collect();
        let params = ParamTree::build(&specs, |spec| {
            let start = &inputs[&format!("param.{}", spec.path)];
            Ok(Tensor::from_candle(start, device)?)
        });
        Self {
            params: params.unwrap(),
            inputs,
            names: names.to_vec(),
            device,
        }
    }

    /// Puts the saved gradients of a step on the parameters, `by` times as large.
    fn backward(&self, step: u64, by: f64) {
        for name in &self.names {
            let grad = &self.inputs[&format!("grad.{step}.{name}")];
            let grad = Tensor::from_candle(grad, self.device).unwrap();
            let tape = Tape::new();
            let weight = tape.watch(self.params.get(name).unwrap());
            let loss = weight.mul(&grad.affine(by, 0.0).unwrap()).unwrap();
            tape.backward(&loss.sum_all().unwrap()).unwrap();
        }
    }

    fn weights(&self, name: &str) -> Vec<f32> {
        self.params.get(name).unwrap().value().to_vec().unwrap()
    }
}

fn check(name: &str, device: Device) {
    let golden = Golden::open("optim");
    let cases: Cases = golden.json("cases.json");
    let case = &cases.cases[name];
    let reference = golden.tensors(name);
    let run = Run::new(&golden, &case.params, device);
    let mut optimizer = make(name, case, &run.params);
    let Tolerance {
        update_rel_l2,
        max_abs,
    } = case.tolerance;
    for step in 0..cases.steps {
        // As a trainer hands them over: gradients of a sum, and what makes a mean of it.
        run.backward(step, 4.0);
        let context = StepContext {
            lr: optimizer.lr(),
            grad_scale: Tensor::full(0.25, 1, device).unwrap(),
            wants_metrics: step % 2 == 1,
            counted: None,
        };
        let before: Vec<f32> = case.params.iter().flat_map(|it| run.weights(it)).collect();
        let wants_metrics = context.wants_metrics;
        optimizer.step(&context).unwrap();
        let after = case.params.iter().flat_map(|it| run.weights(it));
        let steps: Vec<f32> = before.iter().zip(after).map(|(a, b)| a - b).collect();
        check_metrics(name, &*optimizer, wants_metrics.then_some(&steps));
        for parameter in &case.params {
            let (ours, truth) = (
                run.weights(parameter),
                values(&reference[&format!("param.{}.{parameter}", step + 1)]),
            );
            let worst = ours
                .iter()
                .zip(&truth)
                .map(|(a, b)| f64::from((a - b).abs()));
            let worst = worst.fold(0.0, f64::max);
            let allowed = max_abs.unwrap_or(f64::INFINITY);
            assert!(
                worst <= allowed,
                "{name}, {parameter} after step {}: off by {worst:.1e}",
                step + 1
            );
        }
    }
    for parameter in &case.params {
        let start = values(&run.inputs[&format!("param.{parameter}")]);
        let moved = |after: &[f32]| -> Vec<f32> {
            after
                .iter()
                .zip(&start)
                .map(|(after, before)| after - before)
                .collect()
        };
        let truth = values(&reference[&format!("param.{}.{parameter}", cases.steps)]);
        let error = relative_l2(&moved(&run.weights(parameter)), &moved(&truth));
        assert!(
            error <= update_rel_l2,
            "{name}, update of {parameter}: {error:.1e}, allowed {update_rel_l2:.1e}"
        );
        println!("{name} {parameter}: {error:.1e} of {update_rel_l2:.1e}");
    }
    check_state(name, &*optimizer, &reference);
    assert_eq!(optimizer.steps(), cases.steps);

    // One that takes up the state makes the same step.
    let resumed = Run::new(&golden, &case.params, device);
    let mut restored = make(name, case, &resumed.params);
    for parameter in &case.params {
        let value = run.params.get(parameter).unwrap().value();
        let value = Tensor::from_slice(&value.to_vec::<f32>().unwrap(), value.dims(), device);
        let own = resumed.params.get(parameter).unwrap();
        own.set(value.unwrap()).unwrap();
    }
    let slots = optimizer.slots();
    let mut load = |parameter: &str, slot: &'static str, _: &Shard| {
        let saved = slots
            .iter()
            .find(|it| it.parameter == parameter && it.name == slot);
        let saved = &saved.expect("one of the slots").value;
        let values = saved.to_vec::<f32>()?;
        Ok(Tensor::from_slice(&values, saved.dims(), device)?)
    };
    restored.restore(cases.steps, &mut load).unwrap();
    for (run, optimizer) in [(&run, &mut optimizer), (&resumed, &mut restored)] {
        run.backward(0, 4.0);
        let context = StepContext {
            lr: optimizer.lr(),
            grad_scale: Tensor::full(0.25, 1, device).unwrap(),
            wants_metrics: false,
            counted: None,
        };
        optimizer.step(&context).unwrap();
        assert_eq!(optimizer.steps(), cases.steps + 1);
    }
    for parameter in &case.params {
        assert_eq!(resumed.weights(parameter), run.weights(parameter), "{name}");
    }
}

/// The metrics of a step that took `step` off the weights, or of one that was not asked for any.
fn check_metrics(name: &str, optimizer: &dyn Optimizer, step: Option<&Vec<f32>>) {
    let metrics = optimizer.metrics().unwrap().into_iter();
    let metrics: BTreeMap<_, _> = metrics
        .map(|it| (it.name.clone(), it.read().unwrap()))
        .collect();
    let Some(step) = step else {
        assert!(metrics.is_empty(), "{name}");
        return;
    };
    let mut expected = vec!["update_ratio", "update_rms"];
    match name.split('_').next() {
        Some("adafactor") => expected.insert(0, "clip_divisor"),
        Some("lion") => expected.insert(0, "sign_agreement"),
        Some("muon") => expected.insert(0, "singular_value_rms"),
        _ => {}
    }
    assert!(metrics.keys().eq(&expected), "{name}: {:?}", metrics.keys());
    for (metric, &value) in &metrics {
        let is_right = match metric.as_str() {
            "update_rms" => {
                let squares: f64 = step.iter().map(|x| f64::from(*x).powi(2)).sum();
                let rms = (squares / step.len() as f64).sqrt();
                (f64::from(value) / rms - 1.0).abs() < 0.01
            }
            "singular_value_rms" => (0.6..1.3).contains(&value),
            "clip_divisor" => value >= 1.0,
            _ => value.is_finite() && value > 0.0,
        };
        assert!(is_right, "{name}: {metric} is {value}");
    }
}

/// The slots are those of the reference: names, shapes (rows and columns may keep a dim of size 1), values.
fn check_state(name: &str, optimizer: &dyn Optimizer, reference: &Tensors) {
    let slots = optimizer.slots();
    let expected = reference
        .keys()
        .filter(|key| key.starts_with("state."))
        .count();
    assert_eq!(slots.len(), expected, "{name}: number of slots");
    for slot in slots {
        let key = format!("state.{}.{}", slot.parameter, slot.name);
        let truth = &reference[&key];
        let of_size = |dims: &[usize]| -> Vec<usize> {
            dims.iter().copied().filter(|dim| *dim != 1).collect()
        };
        assert_eq!(
            of_size(slot.value.dims()),
            of_size(truth.dims()),
            "{name}: {key}"
        );
        assert_eq!(slot.shard.local_shape(), slot.value.dims(), "{name}: {key}");
        let error = relative_l2(&slot.value.to_vec().unwrap(), &values(truth));
        assert!(error < 1e-5, "{name}: {key} is off by {error:.1e}");
    }
}

macro_rules! golden_optim {
    ($($test:ident: $case:literal;)*) => {
        $(on_each_device! { #[full_on_tpu] fn $test(device) { check($case, device); } })*

        #[test]
        fn golden_optim_has_a_test_for_every_case() {
            let cases: Cases = Golden::open("optim").json("cases.json");
            let mut tested = vec![$($case),*];
            tested.sort_unstable();
            assert!(cases.cases.keys().map(String::as_str).eq(tested));
        }
    };
}

golden_optim! {
    golden_optim_adafactor_hf_beta1: "adafactor_hf_beta1";
    golden_optim_adafactor_hf_fixed_lr: "adafactor_hf_fixed_lr";
    golden_optim_adafactor_hf_relative: "adafactor_hf_relative";
    golden_optim_adafactor_hf_relative_warmup: "adafactor_hf_relative_warmup";
    golden_optim_adafactor_torch: "adafactor_torch";
    golden_optim_adagrad: "adagrad";
    golden_optim_adam: "adam";
    golden_optim_adam_l2: "adam_l2";
    golden_optim_adamw: "adamw";
    golden_optim_adamw_amsgrad: "adamw_amsgrad";
    golden_optim_adamw_highwd: "adamw_highwd";
    golden_optim_lion: "lion";
    golden_optim_muon_f32: "muon_f32";
    golden_optim_muon_f32_match_rms_adamw: "muon_f32_match_rms_adamw";
    golden_optim_muon_f32_no_nesterov: "muon_f32_no_nesterov";
    golden_optim_muon_f32_spectral_unclamped: "muon_f32_spectral_unclamped";
    golden_optim_muon_torch: "muon_torch";
    golden_optim_muon_torch_match_rms_adamw: "muon_torch_match_rms_adamw";
    golden_optim_muon_torch_no_nesterov: "muon_torch_no_nesterov";
    golden_optim_rmsprop: "rmsprop";
    golden_optim_sgd: "sgd";
    golden_optim_sgd_momentum: "sgd_momentum";
    golden_optim_sgd_momentum_wd_dampening: "sgd_momentum_wd_dampening";
    golden_optim_sgd_nesterov: "sgd_nesterov";
}

on_each_device! {
    fn golden_optim_clipping_by_norm_and_by_value(device) {
        let golden = Golden::open("optim");
        let cases: Cases = golden.json("cases.json");
        assert!(cases.clipping.len() >= 6);
        for example in &cases.clipping {
            let names: Vec<String> = example.first_clipped.keys().cloned().collect();
            let run = Run::new(&golden, &names, device);
            // Gradients of a sum over 4, which clipping sees as those of the mean.
            run.backward(example.grad_step, 4.0);
            let grads = || {
                run.params
                    .iter()
                    .filter_map(|(_, parameter)| parameter.grad())
            };
            let squares = fused::sum_squares(device, names.len(), grads()).unwrap();
            let weight = Tensor::scalar(4f32, device).unwrap();
            let (scale, norm) = fused::clip_scale(&squares, &weight, example.max_norm).unwrap();
            if let (Some(before), Some(coefficient)) = (example.norm_before, example.coefficient) {
                let norm = f64::from(norm.to_scalar::<f32>().unwrap());
                assert!((norm / before - 1.0).abs() < 1e-6, "{norm} {before}");
                let scale = f64::from(scale.to_scalar::<f32>().unwrap()) * 4.0;
                assert!(
                    (scale / coefficient - 1.0).abs() < 1e-6,
                    "{scale} {coefficient}"
                );
            }
            let max = example.clip_value.unwrap_or(f64::INFINITY);
            for (name, first) in &example.first_clipped {
                let grad = run.params.get(name).unwrap().grad().unwrap();
                let clipped = fused::clip_value(grad, &scale, max).unwrap();
                let clipped = clipped.to_vec::<f32>().unwrap();
                for (ours, truth) in clipped.iter().zip(first) {
                    assert!((ours - truth).abs() <= 1e-6 * truth.abs(), "{ours} {truth}");
                }
            }
        }
    }
}
