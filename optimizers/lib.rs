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
//! let config = AdamWConfig { lr: 0.1, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.0 };
//! let mut optimizer = AdamW::new(config, &params)?;
//! let tape = Tape::new();
//! tape.backward(&tape.watch(params.get("w")?).sqr()?.sum_all()?)?;
//! optimizer.step(&StepContext { lr: 0.1, grad_scale: Tensor::ones(1, Device::Cpu)? })?;
//! let w = params.get("w")?.value().to_vec::<f32>()?;
//! assert!((w[0] - 0.9).abs() < 1e-6);
//! # Ok(())
//! # }
//! ```

mod adamw;
mod error;
mod schedule;

use tt_config::{Diagnostics, Entry, Section, Table};
use tt_nn::ParamTree;
use tt_tensor::Tensor;

pub use adamw::{AdamW, AdamWConfig};
pub use error::{Error, Result};
pub use schedule::{Schedule, ScheduleConfig, ScheduleKind, ScheduleOptions};

/// What a step needs besides parameters and gradients.
pub struct StepContext {
    /// Rate of this step, after the schedule.
    pub lr: f64,
    /// f32 `[1]`, multiplies every gradient: the clip factor over the divisor of the loss. Stays on the device.
    pub grad_scale: Tensor,
}

/// One named tensor of an optimizer's state.
pub struct Slot {
    /// Path of the parameter it belongs to.
    pub parameter: String,
    pub name: &'static str,
    pub value: Tensor,
}

/// Changes parameters by their gradients.
pub trait Optimizer: Send {
    /// Peak learning rate, which the schedule multiplies.
    fn lr(&self) -> f64;

    /// One step on every parameter that has a gradient; the gradients are taken.
    fn step(&mut self, context: &StepContext) -> Result<()>;

    /// Steps made so far.
    fn steps(&self) -> u64;

    /// The state, keyed by (parameter path, slot), sharing memory with the optimizer.
    fn slots(&self) -> Vec<Slot>;

    /// Takes up a saved state.
    fn restore(&mut self, steps: u64, load: &mut LoadSlot) -> Result<()>;
}

/// Gives the saved value of a slot by parameter path and slot name, of the parameter's shape.
pub type LoadSlot<'a> = dyn FnMut(&str, &'static str) -> Result<Tensor> + 'a;

/// Reads `trainer.optimizer.kwargs`; the optimizer is made once there are parameters.
pub type BuildOptimizer = fn(&Section<'_>) -> std::result::Result<MakeOptimizer, Diagnostics>;

/// Makes an optimizer for these parameters.
pub type MakeOptimizer = Box<dyn FnOnce(&ParamTree) -> Result<Box<dyn Optimizer>> + Send>;

/// What `trainer.optimizer.type` may name.
pub const TABLE: Table<BuildOptimizer> = Table::new(
    "optimizer",
    &[Entry::new::<AdamWConfig>(
        "adamw.AdamW",
        "Adam with decoupled weight decay",
        |kwargs| {
            let config: AdamWConfig = kwargs.extract()?;
            Ok(Box::new(|params| Ok(Box::new(AdamW::new(config, params)?))))
        },
    )],
);
