//! Every schedule against transformers': all rates of all cases.

use serde::Deserialize;
use serde_json::{Value, json};
use tt_config::{Composer, Diagnostics};
use tt_optimizers::SchedulePlan;
use tt_testkit::Golden;

#[derive(Deserialize)]
struct Schedules {
    tolerance_rel: f64,
    schedules: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    function: String,
    base_lr: f64,
    options: serde_json::Map<String, Value>,
    lr: Vec<f64>,
}

/// transformers' `lr_scheduler_type` of a function.
fn kind(function: &str) -> &'static str {
    match function {
        "get_constant_schedule" => "constant",
        "get_constant_schedule_with_warmup" => "constant_with_warmup",
        "get_linear_schedule_with_warmup" => "linear",
        "get_cosine_schedule_with_warmup" => "cosine",
        "get_cosine_with_hard_restarts_schedule_with_warmup" => "cosine_with_restarts",
        "get_cosine_with_min_lr_schedule_with_warmup" => "cosine_with_min_lr",
        "get_polynomial_decay_schedule_with_warmup" => "polynomial",
        "get_inverse_sqrt_schedule" => "inverse_sqrt",
        "get_wsd_schedule" => "warmup_stable_decay",
        other => panic!("{other} is not known"),
    }
}

/// The case as a user writes it.
fn plan(case: &Case) -> SchedulePlan {
    let mut options = case.options.clone();
    let mut config = json!({ "type": kind(&case.function) });
    for key in ["num_warmup_steps", "num_training_steps"] {
        config[key] = options.remove(key).unwrap_or(Value::Null);
    }
    config["kwargs"] = options.into();
    read(&config).unwrap()
}

fn read(config: &Value) -> Result<SchedulePlan, Diagnostics> {
    let yaml = format!("lr_scheduler: {config}\n");
    let files: &[(&str, &str)] = Box::leak(Box::new([("root.yaml", &*yaml.leak())]));
    let composer = Composer::new("root").embedded("test", files);
    let composition = composer.compose::<&str>(&[]).unwrap();
    SchedulePlan::read(&composition.section("lr_scheduler"))
}

#[test]
fn golden_schedulers() {
    let golden: Schedules = Golden::open("schedulers").json("schedulers.json");
    assert!(golden.schedules.len() >= 20);
    for case in &golden.schedules {
        assert_eq!(case.lr.len(), 100);
        let schedule = plan(case).build(None, case.base_lr).unwrap();
        for (step, truth) in (0..).zip(&case.lr) {
            let ours = case.base_lr * schedule.factor(step);
            let error = (ours - truth).abs();
            assert!(
                error <= golden.tolerance_rel * truth.abs(),
                "{} at step {step}: {ours} instead of {truth}",
                case.name
            );
        }
    }
}

#[test]
fn a_least_rate_is_given_in_one_way() {
    for kind in ["cosine_with_min_lr", "cosine_warmup_with_min_lr"] {
        let read = |kwargs: Value| read(&json!({"type": kind, "kwargs": kwargs}));
        assert!(read(json!({"min_lr": 1e-4})).is_ok());
        assert!(read(json!({"min_lr_rate": 0.1})).is_ok());
        let both = read(json!({"min_lr": 1e-4, "min_lr_rate": 0.1})).unwrap_err();
        assert!(both.to_string().contains("both given"), "{both}");
        let neither = read(json!({})).unwrap_err();
        assert!(neither.to_string().contains("must be given"), "{neither}");
    }
}
