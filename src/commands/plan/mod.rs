//! `tpu-train plan`: what the run that the same command line would train takes, without allocating it.
//!
//! The run is rehearsed on a device without memory ([`tt_train::Rehearsal`]), so everything that shapes it is in the
//! figures. The data set is not opened: rows count as full, of `data.sequence_length` tokens.

mod fit;
mod report;

use std::process::ExitCode;

use tt_config::Composition;
use tt_nn::ParamTree;
use tt_tensor::{Device, MetaDevice, Seed};
use tt_train::{Footprint, Rehearsal, TrainerConfig};

use crate::commands::Invocation;
use crate::failure::Failure;
use crate::out;
use crate::setup::Setup;

pub(crate) use report::parse_bytes;

/// What a process holds besides tensors: the program, its threads, a tokenizer, prefetched batches. Measured on runs of
/// a model of 0.1 M parameters with the embedded stories; data that is held in memory comes on top.
const PROCESS_BYTES: u64 = 24 << 20;

/// A run and what it takes.
struct Plan {
    model: String,
    trainer: TrainerConfig,
    sequence_length: usize,
    footprint: Footprint,
    /// Activations of the same run without remat, if it has any.
    activations_without_remat: Option<u64>,
}

pub(crate) fn run(invocation: Invocation) -> Result<ExitCode, Failure> {
    // Kernels take scratch for each thread.
    let device = Setup::read(&invocation)?.config.device;
    device.start_threads()?;
    let plan = Plan::of(&invocation)?;
    let options = &invocation.options;
    let own = options.memory_bytes.or(device.memory_bytes());
    let memory = own.or_else(tt_metrics::memory_bytes);
    let fit = memory.map(|memory| fit::check(&invocation, &plan, memory));
    out::text(match options.json {
        true => report::json(&plan, fit.as_ref()),
        false => report::table(&plan, fit.as_ref()),
    });
    Ok(ExitCode::SUCCESS)
}

impl Plan {
    fn of(invocation: &Invocation) -> Result<Self, Failure> {
        let composition = &invocation.composition;
        let setup = Setup::read(invocation)?;
        setup.check(composition)?;
        let remats = setup.recompute.is_some();
        let model = composition.section("model").section("type").text()?;
        let trainer = setup.trainer_config.clone();
        let sequence_length = setup.config.data.sequence_length;
        let footprint = rehearse(setup, &invocation.composition, true)?;
        let activations_without_remat = match remats {
            true => Some(
                rehearse(Setup::read(invocation)?, &invocation.composition, false)?.activations,
            ),
            false => None,
        };
        Ok(Self {
            model,
            trainer,
            sequence_length,
            footprint,
            activations_without_remat,
        })
    }

    fn peak_bytes(&self) -> u64 {
        self.footprint.peak + PROCESS_BYTES
    }
}

fn rehearse(
    setup: Setup,
    composition: &Composition,
    with_remat: bool,
) -> Result<Footprint, Failure> {
    let batch = setup.batch_spec().map_err(Failure::request)?;
    let Setup {
        config,
        model,
        recompute,
        adapter,
        trainer,
        trainer_config,
        optimizers,
        ..
    } = setup;
    let meta = MetaDevice::new();
    // Weights to start from would have the same shapes, so there is no need to read them.
    let device = Device::Meta(meta);
    let params = match &adapter {
        Some(adapter) => adapter.on_new_weights(&*model, device),
        None => ParamTree::init(&model.params(), Seed::new(0), device).map_err(Into::into),
    };
    let params = params.map_err(Failure::run)?;
    // The length changes rates alone, and may only be known with the data.
    let run_length = Some(trainer_config.max_steps.unwrap_or(u64::MAX));
    let optimizers = optimizers.build(&params, run_length, composition)?;
    let rehearsal = Rehearsal {
        device: meta,
        model,
        params,
        trainer,
        optimizers,
        config: trainer_config,
        recompute: recompute.filter(|_| with_remat),
        precision: config.precision.into(),
        sequence_length: config.data.sequence_length,
        batch,
    };
    rehearsal.run().map_err(Failure::run)
}
