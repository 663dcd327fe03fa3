//! What options do: those left out, those that shape the state, and those that do not go together.

use serde_json::{Value, json};
use tt_nn::{Init, ParamKind, ParamSpec, ParamTree};
use tt_optimizers::{
    Adafactor, AdafactorConfig, Adagrad, AdagradConfig, AdamConfig, AdamWConfig, Elementwise,
    LionConfig, MuonConfig, Optimizer, RmsPropConfig, Rule, Sgd, SgdConfig, StepContext,
    TorchAdafactorConfig,
};
use tt_tensor::{DType, Device, Seed, Tensor};

/// What `given` is with all that it leaves out.
fn filled<T: serde::de::DeserializeOwned + serde::Serialize>(given: Value) -> Value {
    serde_json::to_value(serde_json::from_value::<T>(given).unwrap()).unwrap()
}

fn config<T: serde::de::DeserializeOwned>(given: Value) -> T {
    serde_json::from_value(given).unwrap()
}

/// Those of PyTorch's and transformers' classes, but that no optimizer but Muon decays a weight unasked.
#[test]
fn options_left_out_have_their_usual_values() {
    let lr = || json!({"lr": 0.1});
    let adam = json!({
        "lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "amsgrad": false,
        "state_dtype": "f32",
    });
    assert_eq!(filled::<AdamWConfig>(lr()), adam);
    assert_eq!(filled::<AdamConfig>(lr()), adam);
    let new = serde_json::to_value(AdamWConfig::new(0.1)).unwrap();
    assert_eq!(new, adam);
    let expected = json!({
        "lr": 0.1, "momentum": 0.0, "dampening": 0.0, "nesterov": false, "weight_decay": 0.0,
        "state_dtype": "f32",
    });
    assert_eq!(filled::<SgdConfig>(lr()), expected);
    let expected =
        json!({"lr": 0.1, "betas": [0.9, 0.99], "weight_decay": 0.0, "state_dtype": "f32"});
    assert_eq!(filled::<LionConfig>(lr()), expected);
    let expected =
        json!({"lr": 0.1, "initial_accumulator_value": 0.0, "eps": 1e-10, "weight_decay": 0.0});
    assert_eq!(filled::<AdagradConfig>(lr()), expected);
    let expected = json!({"lr": 0.1, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0});
    assert_eq!(filled::<RmsPropConfig>(lr()), expected);
    let expected = json!({
        "lr": null, "eps": [1e-30, 1e-3], "clip_threshold": 1.0, "decay_rate": -0.8, "beta1": null,
        "weight_decay": 0.0, "scale_parameter": true, "relative_step": true, "warmup_init": false,
    });
    assert_eq!(filled::<AdafactorConfig>(json!({})), expected);
    let expected = json!({
        "lr": 0.1, "beta2_decay": -0.8, "eps": [null, 1e-3], "d": 1.0, "weight_decay": 0.0,
    });
    assert_eq!(filled::<TorchAdafactorConfig>(lr()), expected);
    let expected = json!({
        "lr": 0.1, "weight_decay": 0.1, "momentum": 0.95, "nesterov": true,
        "ns_coefficients": [3.4445, -4.775, 2.0315], "ns_steps": 5, "eps": 1e-7,
        "adjust_lr_fn": "original", "ns_dtype": "bf16", "adamw_parameters": [],
        "adamw": {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    });
    let given = json!({"lr": 0.1, "adamw": lr()});
    assert_eq!(filled::<MuonConfig>(given), expected);
}

/// A parameter of ones.
fn ones(shape: &[usize]) -> ParamTree {
    let spec = ParamSpec {
        path: "w".to_owned(),
        shape: shape.to_vec(),
        init: Init::Ones,
        kind: ParamKind::Linear,
    };
    ParamTree::init(&[spec], Seed::new(0), Device::Cpu).unwrap()
}

/// The one value of the parameter after steps with a gradient of `grad` everywhere.
fn stepped(mut optimizer: impl Optimizer, params: &ParamTree, grad: f32, steps: usize) -> f32 {
    let w = params.get("w").unwrap();
    for _ in 0..steps {
        let value = w.value();
        w.set_grad(Tensor::full(grad, value.shape().clone(), Device::Cpu).unwrap());
        let context = StepContext {
            lr: optimizer.lr(),
            grad_scale: Tensor::ones(1, Device::Cpu).unwrap(),
            wants_metrics: false,
            counted: None,
        };
        optimizer.step(&context).unwrap();
    }
    let values = w.value().to_vec::<f32>().unwrap();
    assert!(values.iter().all(|value| *value == values[0]));
    values[0]
}

fn close(found: f32, expected: f32) {
    assert!((found - expected).abs() < 1e-5, "{found} {expected}");
}

/// The state of a rule before its first step.
fn state(rule: impl Rule) -> Tensor {
    let optimizer = Elementwise::new(rule, &ones(&[2])).unwrap();
    optimizer.slots().remove(0).value
}

#[test]
fn the_number_format_of_the_state_is_the_one_asked_for() {
    let bf16 = |more: Value| {
        let mut given = json!({"lr": 0.1, "state_dtype": "bf16"});
        given
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        given
    };
    let betas = json!({"betas": [0.9, 0.99]});
    assert_eq!(
        state(config::<AdamWConfig>(bf16(betas.clone()))).dtype(),
        DType::BF16
    );
    assert_eq!(
        state(config::<AdamConfig>(bf16(betas.clone()))).dtype(),
        DType::BF16
    );
    assert_eq!(
        state(config::<LionConfig>(bf16(betas))).dtype(),
        DType::BF16
    );
    let momentum = json!({"momentum": 0.9});
    assert_eq!(
        state(config::<SgdConfig>(bf16(momentum))).dtype(),
        DType::BF16
    );
    assert_eq!(state(AdamWConfig::new(0.1)).dtype(), DType::F32);
}

#[test]
fn means_that_the_number_format_cannot_hold_are_refused() {
    let adam =
        |beta: f64, dtype: &str| json!({"lr": 0.1, "betas": [0.9, beta], "state_dtype": dtype});
    let refused = |given: Value| {
        let error = config::<AdamWConfig>(given.clone()).check().err();
        assert_eq!(config::<AdamConfig>(given).check().err(), error);
        error
    };
    assert!(refused(adam(0.999, "bf16")).unwrap().contains("0.999"));
    assert_eq!(refused(adam(0.995, "bf16")), None);
    assert_eq!(refused(adam(0.999, "f32")), None);
    assert!(config::<LionConfig>(adam(0.999, "bf16")).check().is_err());
    let sgd = |more: Value| {
        let mut given = json!({"lr": 0.1, "momentum": 0.9});
        given
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        config::<SgdConfig>(given).check()
    };
    assert!(sgd(json!({"momentum": 0.999, "state_dtype": "bf16"})).is_err());
    assert!(sgd(json!({"dampening": 0.1})).is_ok());
    assert!(sgd(json!({"nesterov": true})).is_ok());
    assert!(sgd(json!({"nesterov": true, "dampening": 0.1})).is_err());
    assert!(sgd(json!({"nesterov": true, "momentum": 0.0})).is_err());
}

#[test]
fn adagrads_sums_start_where_they_are_to() {
    let rule: AdagradConfig = config(json!({"lr": 0.1, "initial_accumulator_value": 16.0}));
    assert_eq!(state(rule.clone()).to_vec::<f32>().unwrap(), [16.0, 16.0]);
    // sqrt(16 + 3*3) = 5.
    let params = ones(&[2]);
    close(
        stepped(Adagrad::new(rule, &params).unwrap(), &params, 3.0, 1),
        1.0 - 0.1 * 3.0 / 5.0,
    );
}

#[test]
fn plain_gradient_descent_decays_weights_too() {
    let params = ones(&[2]);
    let rule = config(json!({"lr": 0.1, "weight_decay": 0.5}));
    close(
        stepped(Sgd::new(rule, &params).unwrap(), &params, 2.0, 1),
        1.0 - 0.05 - 0.2,
    );
}

#[test]
fn adafactor_bounds_updates_rates_and_second_moments() {
    for shape in [&[4][..], &[2, 2]] {
        // The first update is of size 1 everywhere.
        let params = ones(shape);
        let fixed = json!({
            "lr": 0.1, "relative_step": false, "scale_parameter": false, "clip_threshold": 0.5,
        });
        let adafactor = Adafactor::new(config(fixed), &params).unwrap();
        close(stepped(adafactor, &params, 3.0, 1), 1.0 - 0.1 * 0.5);

        let torch = |given: Value, grad, steps| {
            let params = ones(shape);
            let adafactor = Adafactor::torch(config(given), &params).unwrap();
            stepped(adafactor, &params, grad, steps)
        };
        // Of updates up to 2 nothing is taken.
        close(torch(json!({"lr": 0.1, "d": 2.0}), 3.0, 1), 1.0 - 0.1);
        // The least second moment is 0.5*0.5: the update is 0.1/0.5.
        let floor = json!({"lr": 0.1, "eps": [0.5, 1e-3]});
        close(torch(floor, 0.1, 1), 1.0 - 0.1 * 0.2);
        // A rate of 0.8 is under 1/sqrt(1) and over 1/sqrt(2), and times the root mean square of the parameter.
        let expected = 0.2 - 0.2 * (1.0 / 2f32.sqrt());
        close(torch(json!({"lr": 0.8}), 3.0, 2), expected);
    }
}

#[test]
fn the_rate_of_adafactor_falls_with_the_root_of_the_steps() {
    let rate = |given: Value, steps: u64| {
        let params = ones(&[2]);
        let mut adafactor = Adafactor::new(config(given), &params).unwrap();
        let zeros = Tensor::zeros(2, Device::Cpu).unwrap();
        adafactor
            .restore(steps - 1, &mut |_, _, _| Ok(zeros.clone()))
            .unwrap();
        adafactor.lr()
    };
    for (given, steps, expected) in [
        (json!({}), 1, 0.01),
        (json!({}), 40_000, 0.005),
        (json!({"warmup_init": true}), 5, 5e-6),
        (json!({"warmup_init": true}), 1_000_000, 0.001),
    ] {
        let rate = rate(given, steps);
        assert!((rate - expected).abs() < 1e-12, "{rate} {expected}");
    }
}
