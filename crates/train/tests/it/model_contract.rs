//! What a model gives is held to its promises before a loss is made of it, and the model named.

use std::sync::Arc;

use serde_json::Value;
use tt_models::{Input, Model};
use tt_nn::{Forward, Init, ModulePath, ParamKind, ParamSpec, ParamTree};
use tt_tensor::{DType, Device, Seed, Tensor};
use tt_train::{DeviceBatch, Loss, Outcome, Result, StopFlag, Trainer};

use crate::common::{self, plain_loss};

struct Plain;

impl Trainer for Plain {
    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        plain_loss(fwd, model, batch)
    }
}

type Change = fn(Tensor) -> tt_tensor::Result<Tensor>;

/// A model whose outputs are changed, and which may have a parameter that it does not use.
struct Odd {
    inner: Arc<dyn Model>,
    hidden: Change,
    head: Change,
    unused: Option<Init>,
}

impl Odd {
    fn new() -> Self {
        Self {
            inner: common::model(0.0),
            hidden: Ok,
            head: Ok,
            unused: None,
        }
    }
}

impl Model for Odd {
    fn params(&self) -> Vec<ParamSpec> {
        let unused = self.unused.map(|init| ParamSpec {
            path: "forgotten.weight".to_owned(),
            shape: vec![4],
            init,
            kind: ParamKind::Vector,
        });
        self.inner.params().into_iter().chain(unused).collect()
    }

    fn hidden_states(&self, fwd: &Forward, input: &Input) -> tt_models::Result<Tensor> {
        Ok((self.hidden)(self.inner.hidden_states(fwd, input)?)?)
    }

    fn head(&self, fwd: &Forward) -> tt_models::Result<Tensor> {
        Ok((self.head)(self.inner.head(fwd)?)?)
    }

    fn blocks(&self) -> Vec<ModulePath> {
        self.inner.blocks()
    }

    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn max_positions(&self) -> usize {
        self.inner.max_positions()
    }

    fn hf_config(&self) -> Value {
        self.inner.hf_config()
    }
}

/// What a run of one step says, and what came of it.
fn run(model: Odd) -> (String, Result<Outcome>) {
    let dir = tempfile::tempdir().unwrap();
    let mut job = common::job(1, Plain, StopFlag::default());
    job.params = ParamTree::init(&model.params(), Seed::new(1), Device::Cpu).unwrap();
    job.optimizers = common::optimizers(&job.params, 1);
    job.model = Arc::new(model);
    let (metrics, said) = common::listened(dir.path());
    let outcome = job.prepare().and_then(|it| it.run(dir.path(), metrics));
    (said.take().join("\n"), outcome)
}

#[track_caller]
fn refused(model: Odd) -> String {
    run(model).1.unwrap_err().to_string()
}

#[test]
fn hidden_states_and_a_head_of_another_shape_or_dtype_are_the_models_fault() {
    let flat: Change = |hidden| hidden.reshape((64, 32));
    let whole: Change = |tensor| tensor.to_dtype(DType::U32);
    let turned: Change = |head| head.transpose(0, 1);
    let with = |hidden: Change, head: Change| Odd {
        hidden,
        head,
        ..Odd::new()
    };
    assert_eq!(
        refused(with(flat, Ok)),
        "the model: `hidden_states` is [64, 32] of F32 where [2, 32, hidden]: one vector for each token is due"
    );
    assert_eq!(
        refused(with(whole, Ok)),
        "the model: `hidden_states` is [2, 32, 32] of U32 where f32, bf16 or f16 is due"
    );
    assert_eq!(
        refused(with(Ok, turned)),
        "the model: `head` is [32, 512] of F32 where [512, hidden] is due"
    );
}

#[test]
fn a_parameter_that_is_not_used_is_named_once() {
    let model = Odd {
        unused: Some(Init::Ones),
        ..Odd::new()
    };
    let (said, outcome) = run(model);
    outcome.unwrap();
    assert_eq!(said.matches("`forgotten.weight`").count(), 1, "{said}");
    assert!(said.contains("step 1: no gradient for"), "{said}");
    assert!(!run(Odd::new()).0.contains("no gradient"));
}

#[test]
fn initial_values_that_are_not_finite_are_refused_by_the_parameters_name() {
    for (init, says) in [
        (Init::Normal { std: f32::NAN }, "standard deviation is NaN"),
        (
            Init::Uniform {
                bound: f32::INFINITY,
            },
            "bound is inf",
        ),
    ] {
        let model = Odd {
            unused: Some(init),
            ..Odd::new()
        };
        let error = ParamTree::init(&model.params(), Seed::new(1), Device::Cpu).err();
        let error = error.unwrap().to_string();
        assert_eq!(
            error,
            format!("`forgotten.weight` cannot be drawn: its {says}")
        );
    }
}
