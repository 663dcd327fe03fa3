//! What a run takes.
//!
//! The run is rehearsed on a device without memory ([`tt_train::Rehearsal`]), so everything that shapes it is in the
//! figures. Rows count as full, of `data.sequence_length` tokens; the data set is opened only to count the steps of
//! `trainer.num_epochs`.

use std::sync::Arc;

use tt_config::Composition;
use tt_dist::{Alone, Axis, Mesh};
use tt_nn::{ParamSpec, ParamTree};
use tt_sharding::Sharded;
use tt_tensor::MetaDevice;
use tt_train::{Footprint, Initial, Rehearsal, TrainerConfig};

use super::time::{Hardware, StepTime};
use crate::device::DeviceKind;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::setup::{Setup, job, sharding};

/// What a process holds besides tensors: the program, its threads, a tokenizer, prefetched batches. Measured on runs of
/// a model of 0.1 M parameters with the embedded stories; data that is held in memory comes on top.
pub(super) const PROCESS_BYTES: u64 = 24 << 20;

/// A run and what it takes.
pub(in crate::commands) struct Estimate {
    pub(super) model: String,
    pub(super) trainer: TrainerConfig,
    pub(super) sequence_length: usize,
    /// Of the run; `None` where its epochs decide, see [`steps`].
    pub(super) steps: Option<u64>,
    pub(in crate::commands) footprint: Footprint,
    /// How its ranks are arranged.
    pub(super) mesh: Mesh,
    /// What a user of several ranks may not expect.
    pub(super) warnings: Vec<String>,
    /// Ranks that are threads of one process here.
    pub(super) threads: usize,
    /// Activations of the same run without remat, if it has any.
    pub(super) activations_without_remat: Option<u64>,
    /// `None` where the configuration does not say how fast the device is. Error: the key of a bandwidth that is missing.
    pub(super) time: Option<Result<StepTime, &'static str>>,
}

impl Estimate {
    pub(in crate::commands) fn of(invocation: &Invocation) -> Result<Self, Failure> {
        let composition = &invocation.composition;
        let setup = Setup::read_to_plan(invocation)?;
        setup.check(composition)?;
        let remats = setup.recompute.is_some();
        let model = composition.section("model").section("type").text()?;
        let trainer = setup.trainer_config.clone();
        let sequence_length = setup.config.data.sequence_length;
        let mesh = setup.layout.mesh().clone();
        let warnings = sharding::warnings(&setup.trainer_config, &setup.layout);
        let threads = match setup.config.device.kind {
            DeviceKind::Cpu => setup.config.device.ranks.unwrap_or(1),
            DeviceKind::Tpu => 1, // each is a process, with a chip
        };
        let hardware = Hardware::read(&setup.config, composition)?;
        let footprint = rehearse(setup, composition, true)?;
        let time = hardware.map(|it| it.step_time(&footprint, &trainer, &mesh));
        let activations_without_remat = if remats {
            let without = rehearse(Setup::read_to_plan(invocation)?, composition, false)?;
            Some(without.activations)
        } else {
            None
        };
        Ok(Self {
            model,
            steps: trainer.max_steps.filter(|_| trainer.num_epochs.is_none()),
            trainer,
            sequence_length,
            footprint,
            mesh,
            warnings,
            threads,
            activations_without_remat,
            time,
        })
    }

    /// Number and arrangement: `8: data 2, fsdp 4`.
    pub(in crate::commands) fn ranks(&self) -> String {
        match self.mesh.num_ranks() {
            1 => "1".to_owned(),
            ranks => format!("{ranks}: {}", self.axes()),
        }
    }

    /// Those along which there are several ranks.
    pub(super) fn axes(&self) -> String {
        let size = |axis| self.mesh.size(axis);
        let axes = Axis::ALL.into_iter().filter(|&axis| size(axis) > 1);
        let axes = axes.map(|axis| format!("{axis} {}", size(axis)));
        axes.collect::<Vec<_>>().join(", ")
    }

    /// Of a rank.
    pub(in crate::commands) fn peak_bytes(&self) -> u64 {
        self.footprint.peak + PROCESS_BYTES
    }

    /// Of a process, in which `device.ranks` are; of ranks that the meshes alone ask for each may have its own.
    pub(super) fn process_bytes(&self) -> u64 {
        self.footprint.peak * self.threads as u64 + PROCESS_BYTES
    }
}

/// Steps of the run, counted in its data where epochs decide; `None` of data without an end.
pub(super) fn steps(invocation: &Invocation) -> Result<Option<u64>, Failure> {
    let setup = Setup::read_to_plan(invocation)?;
    let config = &setup.trainer_config;
    if config.num_epochs.is_none() {
        return Ok(config.max_steps);
    }
    let data = setup.open_data(&invocation.composition, None)?;
    job::count_steps(config, &data)
}

fn rehearse(
    setup: Setup,
    composition: &Composition,
    with_remat: bool,
) -> Result<Footprint, Failure> {
    let batch = setup.batch_spec().map_err(Failure::request)?;
    let meta = MetaDevice::new();
    // Where a dim is not a multiple of the ranks, or a parameter is not cut, some hold more than others.
    let fullest = setup.layout.fullest_rank();
    let of_fullest = |spec: &ParamSpec| setup.layout.shard(spec, fullest);
    let params = setup.unallocated_params(meta, &of_fullest);
    let params = params.map_err(Failure::run)?;
    let layout = setup.layout.clone();
    let is_shared = layout.mesh().num_ranks() > 1;
    let (blocks, precision) = (setup.model.blocks(), setup.config.precision.into());
    let shared = |params: ParamTree| -> Result<_, Failure> {
        if !is_shared {
            return Ok((params, None));
        }
        let ranks = Sharded::new(layout.clone(), &params, &blocks, precision, Arc::new(Alone));
        let ranks = ranks.map_err(Failure::run)?;
        Ok((params.with_hooks(ranks.clone()), Some(ranks)))
    };
    let (params, ranks) = shared(params)?;
    let initial = setup.unallocated_initial(meta, &of_fullest);
    let initial = initial.map_err(Failure::run)?.map(shared).transpose()?;
    let initial = initial.map(|(params, ranks)| Initial::without_memory(params, ranks));
    let Setup {
        config,
        model,
        recompute,
        trainer,
        trainer_config,
        optimizers,
        ..
    } = setup;
    // The length changes rates alone, and may only be known with the data.
    let run_length = Some(trainer_config.max_steps.unwrap_or(u64::MAX));
    let optimizers = optimizers.build(&params, run_length, composition)?;
    let rehearsal = Rehearsal {
        device: meta,
        model,
        params,
        initial,
        trainer,
        optimizers,
        config: trainer_config,
        recompute: recompute.filter(|_| with_remat),
        precision: config.precision.into(),
        sequence_length: config.data.sequence_length,
        batch,
        ranks,
    };
    rehearsal.run().map_err(Failure::run)
}
