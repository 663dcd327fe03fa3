//! An optimizer that breaks its contract is named, with the parameter and the step, and no state is saved that it spoilt.

use std::path::Path;
use std::sync::Arc;

use tt_checkpoint::latest;
use tt_models::Model;
use tt_nn::{Forward, ParamTree};
use tt_optimizers::{
    LoadSlot, Optimizer, Optimizers, Result, Schedule, Scheduled, Slot, StepContext,
};
use tt_tensor::{DType, Device, Parameter, Tensor};
use tt_train::{DeviceBatch, Error, Loss, Outcome, StopFlag, TrainJob, Trainer, load_params};

use crate::common::{self, plain_loss};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Reshapes,
    Retypes,
    /// In its second step.
    MakesNan,
    LeavesOne,
    DoesNotCount,
    RateOfNan,
    /// Gives one state twice.
    SavesTwice,
    /// Asks for none of its states.
    ForgetsToRestore,
    /// Asks for a state that it has not saved.
    RestoresAnother,
}

/// Moves weights against their gradients and counts how often, with one fault. The parameter it is made on is the last.
struct Sgd {
    fault: Fault,
    parameters: Vec<Arc<Parameter>>,
    counts: Vec<Tensor>,
    steps: u64,
}

impl Sgd {
    fn new(fault: Fault, params: &ParamTree) -> Self {
        let parameters: Vec<_> = params.iter().map(|(_, it)| it.clone()).collect();
        let counts = parameters
            .iter()
            .map(|_| Tensor::zeros(1, Device::Cpu).unwrap());
        Self {
            fault,
            counts: counts.collect(),
            parameters,
            steps: 0,
        }
    }
}

impl Optimizer for Sgd {
    fn lr(&self) -> f64 {
        match self.fault {
            Fault::RateOfNan => f64::NAN,
            _ => 1e-2,
        }
    }

    fn step(&mut self, context: &StepContext) -> Result<()> {
        self.steps += u64::from(self.fault != Fault::DoesNotCount);
        let last = self.parameters.len() - 1;
        for (i, parameter) in self.parameters.iter().enumerate() {
            if i == last && self.fault == Fault::LeavesOne {
                continue;
            }
            let Some(grad) = parameter.take_grad() else {
                continue;
            };
            let scale = context.grad_scale.to_scalar::<f32>()?;
            let step = grad.affine(-context.lr * f64::from(scale), 0.0)?;
            let value = parameter.value().add(&step)?;
            parameter.set(match self.fault {
                Fault::Reshapes if i == last => value.reshape((1, 32))?,
                Fault::Retypes if i == last => value.to_dtype(DType::BF16)?,
                Fault::MakesNan if i == last && self.steps == 2 => value.affine(f64::NAN, 0.0)?,
                _ => value,
            })?;
        }
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn slots(&self) -> Vec<Slot> {
        let slots = self.parameters.iter().zip(&self.counts);
        let mut slots: Vec<_> = slots
            .map(|(parameter, value)| Slot {
                parameter: parameter.path().to_owned(),
                name: "count",
                shard: tt_tensor::Shard::whole([1].as_slice()),
                value: value.clone(),
            })
            .collect();
        if self.fault == Fault::SavesTwice {
            slots[1].parameter = slots[0].parameter.clone();
        }
        slots
    }

    fn restore(&mut self, steps: u64, load: &mut LoadSlot) -> Result<()> {
        self.steps = steps;
        let name = match self.fault {
            Fault::ForgetsToRestore => return Ok(()),
            Fault::RestoresAnother => "momentum",
            _ => "count",
        };
        for (parameter, count) in self.parameters.iter().zip(&mut self.counts) {
            let shard = tt_tensor::Shard::whole([1].as_slice());
            *count = load(parameter.path(), name, &shard)?;
        }
        Ok(())
    }
}

struct Plain;

impl Trainer for Plain {
    fn loss(
        &self,
        fwd: &Forward,
        model: &dyn Model,
        batch: &DeviceBatch,
    ) -> tt_train::Result<Loss> {
        plain_loss(fwd, model, batch)
    }
}

fn job(max_steps: u64, fault: Fault) -> TrainJob {
    let mut job = common::job(max_steps, Plain, StopFlag::default());
    job.optimizers = optimizers(fault, &job.params);
    job.config.checkpoint_interval = Some(1);
    job
}

fn optimizers(fault: Fault, params: &ParamTree) -> Optimizers {
    Optimizers::new(vec![Scheduled {
        name: tt_optimizers::MAIN.to_owned(),
        kind: "lab.Sgd".to_owned(),
        params: Some(params.clone()),
        optimizer: Box::new(Sgd::new(fault, params)),
        schedule: Schedule::constant(),
    }])
}

fn run(job: TrainJob, dir: &Path) -> tt_train::Result<Outcome> {
    job.prepare()?.run(dir, common::metrics(dir))
}

#[track_caller]
fn refused(fault: Fault) -> String {
    let dir = tempfile::tempdir().unwrap();
    run(job(4, fault), dir.path()).unwrap_err().to_string()
}

const LAST: &str = "`model.norm.weight`";

#[test]
fn what_an_optimizer_does_wrong_in_a_step_names_it_and_the_parameter() {
    let dir = tempfile::tempdir().unwrap();
    run(job(2, Fault::None), dir.path()).unwrap();
    for (fault, says) in [
        (
            Fault::Reshapes,
            format!("{LAST} is [32] of F32 and is to be set to [1, 32] of F32"),
        ),
        (
            Fault::Retypes,
            format!("{LAST} is [32] of F32 and is to be set to [32] of BF16"),
        ),
        (
            Fault::LeavesOne,
            format!(
                "it has not stepped {LAST}: the gradient is still there, which `step` is to take"
            ),
        ),
        (
            Fault::DoesNotCount,
            "its `steps` is 0 after a step and was 0 before it".to_owned(),
        ),
        (Fault::RateOfNan, "its learning rate is NaN".to_owned()),
        (
            Fault::SavesTwice,
            "it has two states `count` of `model.embed_tokens.weight`".to_owned(),
        ),
    ] {
        assert_eq!(
            refused(fault),
            format!("the optimizer lab.Sgd: {says}"),
            "{fault:?}"
        );
    }
}

#[test]
fn a_weight_made_nan_is_put_down_to_its_optimizer_and_not_saved_over_a_good_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(4, Fault::MakesNan);
    job.config.checkpoint_interval = None;
    let error = run(job, dir.path()).unwrap_err();
    let Error::BadStep { bad, checkpoint } = &error else {
        panic!("{error}")
    };
    let changed = bad.finding.as_ref().unwrap().changed_by.as_ref().unwrap();
    assert_eq!((changed.optimizer.as_str(), changed.step), ("lab.Sgd", 2));
    assert_eq!(*checkpoint, None);
    let said = error.to_string();
    assert!(said.starts_with("step 3: the loss is NaN"), "{said}");
    assert!(
        said.contains(&format!("the weight {LAST} was not finite")),
        "{said}"
    );
    assert!(said.contains("nothing was saved"), "{said}");
    let found = latest(&dir.path().join("checkpoints")).unwrap();
    assert!(found.checkpoint.is_none());
}

#[test]
fn a_state_that_is_not_there_or_not_taken_up_is_named_with_its_optimizer() {
    let dir = tempfile::tempdir().unwrap();
    run(job(1, Fault::None), dir.path()).unwrap();
    let resumed = |fault| {
        let mut job = job(2, fault);
        let found = latest(&dir.path().join("checkpoints")).unwrap();
        let checkpoint = found.checkpoint.unwrap();
        let weights = checkpoint.model().unwrap();
        job.params = load_params(&*job.model, &weights, Device::Cpu).unwrap();
        job.optimizers = optimizers(fault, &job.params);
        job.resume = Some(checkpoint);
        job.prepare().err().map(|error| error.to_string())
    };
    assert_eq!(resumed(Fault::None), None);
    let of = "`model.embed_tokens.weight`";
    assert_eq!(
        resumed(Fault::RestoresAnother).unwrap(),
        format!(
            "the optimizer lab.Sgd: optimizer state `momentum` of {of}: missing in the checkpoint"
        )
    );
    assert_eq!(
        resumed(Fault::ForgetsToRestore).unwrap(),
        format!(
            "the optimizer lab.Sgd: optimizer state `count` of {of}: its `restore` does not take it up from the checkpoint"
        )
    );
}
