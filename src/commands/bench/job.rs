//! What a run makes steps of, without its data: the model, its trainer and optimizers as configured.

use std::sync::Arc;

use tt_collators::{Batch, BatchSpec};
use tt_config::Composition;
use tt_nn::{ParamSpec, ParamTree};
use tt_tensor::{Device, MetaDevice, Seed};
use tt_train::{Adapted, Initial, Trainer, Training, random_batches};

use crate::failure::Failure;
use crate::setup::Setup;
use crate::setup::parameters::Sources;

/// Ready for its first step.
pub(super) struct Job {
    pub(super) training: Training,
    pub(super) trainer: Box<dyn Trainer>,
    /// The micro-batches of a step.
    pub(super) batches: Vec<Batch>,
}

impl Job {
    /// On the device of the run, from the weights that it would begin with.
    pub(super) fn new(
        mut setup: Setup,
        composition: &Composition,
        device: Device,
    ) -> Result<Self, Failure> {
        let adapter = setup.adapter.take();
        let (pretrained, model) = (setup.pretrained.take(), setup.model.clone());
        let sources = Sources {
            pretrained: pretrained.as_ref(),
            checkpoint: None,
            seed: setup.config.seed,
        };
        let of_adapter = adapter.as_ref().map(|it| it.lora.config());
        let dtype = setup.trainer.initial_model(of_adapter)?;
        let initial = dtype.map(|dtype| {
            let (adapter, whole) = (adapter.as_ref(), &ParamSpec::whole);
            sources.initial(adapter, &*model, dtype, device, whole, |params| {
                Ok((params, None))
            })
        });
        let initial = initial.transpose()?;
        let (params, adapted) = match adapter {
            Some(adapter) => {
                let whole = &ParamSpec::whole;
                let (params, adapted) = sources.adapted(adapter, &*model, device, whole, Ok)?;
                (params, Some(adapted))
            }
            None => (sources.parts(&*model, device, &ParamSpec::whole)?, None),
        };
        Self::of(setup, composition, params, adapted, initial, device)
    }

    /// The same on a device that counts and has no memory.
    pub(super) fn without_memory(setup: Setup, composition: &Composition) -> Result<Self, Failure> {
        let meta = MetaDevice::new();
        let params = setup.unallocated_params(meta, &ParamSpec::whole);
        let params = params.map_err(Failure::run)?;
        let initial = setup.unallocated_initial(meta, &ParamSpec::whole);
        let initial = initial.map_err(Failure::run)?;
        let initial = initial.map(|params| Initial::without_memory(params, None));
        Self::of(
            setup,
            composition,
            params,
            None,
            initial,
            Device::Meta(meta),
        )
    }

    fn of(
        setup: Setup,
        composition: &Composition,
        params: ParamTree,
        adapter: Option<Adapted>,
        initial: Option<Initial>,
        device: Device,
    ) -> Result<Self, Failure> {
        let spec = setup.batch_spec().map_err(Failure::request)?;
        let batches = batches(&setup, &spec);
        let Setup {
            config,
            model,
            recompute,
            trainer_config,
            mut trainer,
            optimizers,
            ..
        } = setup;
        // The length changes rates alone, and may only be known with the data.
        let run_length = Some(trainer_config.max_steps.unwrap_or(u64::MAX));
        let optimizers = optimizers.build(&params, run_length, composition)?;
        let seed = Seed::new(config.seed);
        let mut training = Training::new(Arc::clone(&model), params, optimizers, seed, device);
        training.configure(&trainer_config, config.precision.into());
        training.recompute = recompute;
        training.adapter = adapter;
        training.initial = initial;
        trainer.post_init(&mut training)?;
        Ok(Self {
            training,
            trainer,
            batches,
        })
    }

    /// Tokens of a step.
    pub(super) fn tokens(&self) -> usize {
        self.batches.iter().map(|batch| batch.input_ids.len()).sum()
    }
}

fn batches(setup: &Setup, spec: &BatchSpec) -> Vec<Batch> {
    let config = &setup.trainer_config;
    random_batches(
        config.global_batch_size / config.micro_batch_size,
        config.micro_batch_size,
        setup.config.data.sequence_length,
        spec,
        setup.model.vocab_size(),
    )
}
