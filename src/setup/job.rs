//! From a run's setup, its data and the checkpoint it goes on from to the job that trains it.

use std::sync::Arc;

use tt_checkpoint::Checkpoint;
use tt_collators::Pipeline;
use tt_config::Composition;
use tt_dist::Communicator;
use tt_nn::{ParamSpec, ParamTree};
use tt_sharding::Sharded;
use tt_train::{StopFlag, TokenIds, TrainJob, TrainerConfig};

use crate::failure::Failure;
use crate::out;
use crate::setup::Setup;
use crate::setup::parameters::Sources;

/// Makes parameters and optimizers. `run_length` is the number of steps, for schedules that depend on it. Nothing is
/// written.
pub(crate) fn assemble(
    setup: Setup,
    composition: &Composition,
    data: Pipeline,
    checkpoint: Option<Checkpoint>,
    run_length: Option<u64>,
    stop: StopFlag,
    world: Option<Arc<dyn Communicator>>,
) -> Result<TrainJob, Failure> {
    let device = setup.config.device.device().map_err(Failure::Request)?;
    let utilization = setup.utilization(composition, &data, device)?;
    let Setup {
        config,
        model,
        recompute,
        pretrained,
        adapter,
        layout,
        trainer_config,
        trainer,
        optimizers,
        ..
    } = setup;
    let sources = Sources {
        pretrained: pretrained.as_ref(),
        checkpoint: checkpoint.as_ref(),
        seed: config.seed,
    };
    let rank = world.as_ref().map_or(0, |world| world.rank());
    let shard = |spec: &ParamSpec| layout.shard(spec, rank);
    let shared = |params: ParamTree| match &world {
        None => Ok((params, None)),
        Some(world) => {
            let ranks = Sharded::new(
                layout.clone(),
                &params,
                &model.blocks(),
                config.precision.into(),
                world.clone(),
            );
            let ranks = ranks.map_err(Failure::run)?;
            Ok((params.with_hooks(ranks.clone()), Some(ranks)))
        }
    };
    let of_adapter = adapter.as_ref().map(|adapter| adapter.lora.config());
    let initial = trainer
        .initial_model(of_adapter)
        .map_err(Failure::request)?;
    let initial = initial
        .map(|dtype| sources.initial(adapter.as_ref(), &*model, dtype, device, &shard, shared));
    let initial = initial.transpose()?;
    let (params, adapter) = match adapter {
        Some(adapter) => {
            let gather = |base| shared(base).map(|(base, _)| base);
            let (params, adapted) = sources.adapted(adapter, &*model, device, &shard, gather)?;
            (params, Some(adapted))
        }
        None => (sources.parts(&*model, device, &shard)?, None),
    };
    let (params, ranks) = shared(params)?;
    let token_ids = match &pretrained {
        Some(pretrained) => pretrained
            .token_ids(data.tokenizer())
            .map_err(|why| Failure::Request(anyhow::anyhow!(why)))?,
        None => TokenIds::default(),
    };
    let optimizers = optimizers.build(&params, run_length, composition)?;
    Ok(TrainJob {
        model,
        params,
        trainer,
        optimizers,
        config: trainer_config,
        data,
        device,
        precision: config.precision.into(),
        seed: config.seed,
        recompute,
        adapter,
        initial,
        token_ids,
        resume: checkpoint,
        stop,
        ranks,
        utilization,
        profile: config.profile,
    })
}

/// Steps of the run, if they are known or a schedule depends on them.
pub(crate) fn run_length(setup: &Setup, data: &Pipeline) -> Result<Option<u64>, Failure> {
    let config = &setup.trainer_config;
    if config.num_epochs.is_none() || !setup.optimizers.needs_run_length() {
        return Ok(config.max_steps);
    }
    out::line("counting the steps of the run, for the schedule of the learning rate");
    count_steps(config, data)
}

/// Steps until the epochs are over, or `max_steps` are made; `None` of data without an end. Packed rows can only be counted
/// by encoding the data, as far as the run may go.
pub(crate) fn count_steps(config: &TrainerConfig, data: &Pipeline) -> Result<Option<u64>, Failure> {
    let per_step = (config.global_batch_size / config.micro_batch_size) as u64;
    let at_most = config.max_steps.map(|steps| steps.saturating_mul(per_step));
    let micro_batches = data.num_batches(at_most).map_err(Failure::run)?;
    Ok(micro_batches.map(|count| count.div_ceil(per_step)))
}
