//! Optimizers: the trait, one file per optimizer, and learning-rate schedules.
//!
//! ```
//! use tt_nn::{Init, ParamKind, ParamSpec, ParamTree};
//! use tt_optimizers::{AdamW, AdamWConfig, Optimizer, StepContext};
//! use tt_tensor::{Device, Seed, Tape, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let spec = ParamSpec { path: "w".into(), shape: vec![2], init: Init::Ones, kind: ParamKind::Linear };
//! let params = ParamTree::init(&[spec], Seed::new(0), Device::Cpu)?;
//! let mut optimizer = AdamW::new(AdamWConfig::new(0.1), &params)?;
//! let tape = Tape::new();
//! tape.backward(&tape.watch(params.get("w")?).sqr()?.sum_all()?)?;
//! let grad_scale = Tensor::ones(1, Device::Cpu)?;
//! optimizer.step(&StepContext { lr: 0.1, grad_scale, wants_metrics: false, counted: None })?;
//! let w = params.get("w")?.value().to_vec::<f32>()?;
//! assert!((w[0] - 0.9).abs() < 1e-6);
//! # Ok(())
//! # }
//! ```
//!
//! An optimizer that treats every weight alike is a [`Rule`]: its config says which formula of the kernel it is.

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod adafactor;
mod adagrad;
mod adam;
mod adamw;
mod elementwise;
mod error;
mod groups;
mod lion;
mod metrics;
mod muon;
mod rmsprop;
mod schedule;
mod schedule_shapes;
mod sgd;
mod state;

use std::collections::HashSet;
use std::sync::Arc;

use tt_config::{Diagnostics, Entry, Section, Table};
use tt_nn::{ParamSpec, ParamTree};
use tt_tensor::{Parameter, Shard, Tensor};

pub use adafactor::{Adafactor, AdafactorConfig, TorchAdafactorConfig};
pub use adagrad::{Adagrad, AdagradConfig};
pub use adam::{Adam, AdamConfig};
pub use adamw::{AdamW, AdamWConfig};
pub use elementwise::{Elementwise, Rule};
pub use error::{Error, Result};
pub use groups::{Assignment, MAIN, Optimizers, Scheduled};
pub use lion::{Lion, LionConfig};
pub use metrics::Metric;
pub use muon::{AdjustLr, Muon, MuonAdamWConfig, MuonConfig, NewtonSchulzDtype};
pub use rmsprop::{RmsProp, RmsPropConfig};
pub use schedule::{Schedule, ScheduleConfig, ScheduleError, SchedulePlan, Warmup};
pub use schedule_shapes::{
    CosineOptions, Curve, InverseSqrtOptions, MinLrOptions, PolynomialOptions, ReadShape,
    RestartsOptions, SCHEDULES, Shape, StableOptions, WarmupMinLrOptions,
};
pub use sgd::{Sgd, SgdConfig};
pub use state::StateDtype;

/// What a step needs besides parameters and gradients.
#[derive(Clone)]
pub struct StepContext {
    /// Rate of this step, after the schedule.
    pub lr: f64,
    /// f32 `[1]`, multiplies every gradient: the clip factor over the divisor of the loss. Stays on the device.
    pub grad_scale: Tensor,
    /// Whether [`Optimizer::metrics`] will be asked for after this step.
    pub wants_metrics: bool,
    /// Of several ranks, the parameters that this one counts in metrics, by path: over all of them each element is counted
    /// once. `None`: all.
    pub counted: Option<Arc<HashSet<String>>>,
}

impl StepContext {
    /// Whether the parameter's part is to be in the sums of [`Optimizer::metrics`].
    pub fn counts(&self, parameter: &Parameter) -> bool {
        let counted = self.counted.as_deref();
        self.wants_metrics && counted.is_none_or(|counted| counted.contains(parameter.path()))
    }
}

/// One named tensor of an optimizer's state.
pub struct Slot {
    /// Path of the parameter it belongs to.
    pub parameter: String,
    /// Which of the parameter's tensors of state it is.
    pub name: &'static str,
    /// Which part of the state this is: usually as the parameter's.
    pub shard: Shard,
    /// In the shard's local shape.
    pub value: Tensor,
}

/// Changes parameters by their gradients.
pub trait Optimizer: Send {
    /// Peak learning rate of the next step, which the schedule multiplies.
    fn lr(&self) -> f64;

    /// One step on every parameter that has a gradient; the gradients are taken, and [`Optimizer::steps`] counts it.
    fn step(&mut self, context: &StepContext) -> Result<()>;

    /// Numbers about the last step, still on the device. Asked for only after a step whose context wants them, and logged
    /// beside the loss.
    fn metrics(&self) -> Result<Vec<Metric>> {
        Ok(Vec::new())
    }

    /// Steps made so far.
    fn steps(&self) -> u64;

    /// The state, keyed by (parameter path, slot), sharing memory with the optimizer. f32 or bf16.
    fn slots(&self) -> Vec<Slot>;

    /// Takes up a saved state: all that [`Optimizer::slots`] gives.
    fn restore(&mut self, steps: u64, load: &mut LoadSlot) -> Result<()>;
}

/// Gives the saved value of a slot by parameter path and slot name, as f32: that part of it which is held here.
pub type LoadSlot<'a> = dyn FnMut(&str, &'static str, &Shard) -> Result<Tensor> + 'a;

/// Whether the optimizer of the type `kind` must have the parameter whole: whether its update of one element depends on
/// others. Of one that is not known here it is taken to.
pub fn needs_whole(kind: &str, spec: &ParamSpec) -> bool {
    match kind {
        "adamw.AdamW" | "adam.Adam" | "sgd.SGD" | "lion.Lion" | "adagrad.Adagrad"
        | "rmsprop.RMSprop" => false,
        "muon.Muon" => muon::is_matrix(spec),
        _ => true,
    }
}

/// Reads an optimizer's `kwargs`; it is made once there are parameters.
pub type BuildOptimizer = fn(&Section<'_>) -> std::result::Result<MakeOptimizer, Diagnostics>;

/// Makes an optimizer for the trainable ones of these parameters.
pub type MakeOptimizer = Box<dyn FnOnce(&ParamTree) -> Result<Box<dyn Optimizer>> + Send>;

/// What `trainer.optimizer.type` may name.
pub const TABLE: Table<BuildOptimizer> = Table::new(
    "optimizer",
    &[
        Entry::new::<AdamWConfig>(
            "adamw.AdamW",
            "Adam with decoupled weight decay",
            elementwise::build::<AdamWConfig>,
        ),
        Entry::new::<AdamConfig>(
            "adam.Adam",
            "Adam with L2 regularisation",
            elementwise::build::<AdamConfig>,
        ),
        Entry::new::<SgdConfig>(
            "sgd.SGD",
            "gradient descent with momentum",
            elementwise::build::<SgdConfig>,
        ),
        Entry::new::<LionConfig>(
            "lion.Lion",
            "signs of a momentum",
            elementwise::build::<LionConfig>,
        ),
        Entry::new::<AdafactorConfig>(
            "adafactor.Adafactor",
            "second moments by row and column, as in transformers",
            |kwargs| {
                let config: AdafactorConfig = kwargs.extract()?;
                config.check().map_err(|why| kwargs.error(why))?;
                Ok(Box::new(|params| {
                    Ok(Box::new(Adafactor::new(config, params)?))
                }))
            },
        ),
        Entry::new::<TorchAdafactorConfig>(
            "adafactor.TorchAdafactor",
            "second moments by row and column, as in PyTorch",
            |kwargs| {
                let config: TorchAdafactorConfig = kwargs.extract()?;
                Ok(Box::new(|params| {
                    Ok(Box::new(Adafactor::torch(config, params)?))
                }))
            },
        ),
        Entry::new::<MuonConfig>(
            "muon.Muon",
            "orthogonalised momentum for linear layers, AdamW for the rest",
            |kwargs| {
                let config: MuonConfig = kwargs.extract()?;
                config.check().map_err(|why| kwargs.error(why))?;
                Ok(Box::new(|params| Ok(Box::new(Muon::new(config, params)?))))
            },
        ),
        Entry::new::<AdagradConfig>(
            "adagrad.Adagrad",
            "rates that fall with all squared gradients so far",
            elementwise::build::<AdagradConfig>,
        ),
        Entry::new::<RmsPropConfig>(
            "rmsprop.RMSprop",
            "gradients over their root mean square",
            elementwise::build::<RmsPropConfig>,
        ),
    ],
);
