//! A run rehearsed on a device without memory: what it will hold and compute, before anything is allocated.
//!
//! The run's own model, trainer and optimizer make their steps, on [`Device::Meta`]. So whatever decides how much a step
//! takes (remat, adapters, precision, accumulation, a plug-in's own operations) is in the figures without being
//! modelled a second time here.

use std::cell::Cell;
use std::sync::Arc;

use tt_checkpoint::write_window_bytes;
use tt_collators::{Batch, BatchSpec};
use tt_engine::{Limits, Sampler, Sampling, generate};
use tt_models::{Generation, Model};
use tt_nn::{ParamTree, Recompute};
use tt_optimizers::Optimizers;
use tt_sharding::{Sharded, Traffic};
use tt_tensor::{Device, MetaDevice, Precision, Seed, Shard, Tensor};

use crate::Trainer;
use crate::config::TrainerConfig;
use crate::error::Result;
use crate::initial::Initial;
use crate::stop::StopFlag;
use crate::training::Training;
use crate::validation::validate;

/// What a run is made of, its data left out; tensors are on `device`.
pub struct Rehearsal {
    /// Counts memory and operations.
    pub device: MetaDevice,
    /// What is trained.
    pub model: Arc<dyn Model>,
    /// Its parameters, without memory.
    pub params: ParamTree,
    /// The model before the first step, if the trainer asks for it.
    pub initial: Option<Initial>,
    /// What is learned.
    pub trainer: Box<dyn Trainer>,
    /// What changes the weights.
    pub optimizers: Optimizers,
    /// The group `trainer`.
    pub config: TrainerConfig,
    /// Modules that are run again in the backward pass.
    pub recompute: Option<Arc<dyn Recompute>>,
    /// What products are computed in.
    pub precision: Precision,
    /// Tokens of a row.
    pub sequence_length: usize,
    /// What the collator declares of its batches.
    pub batch: BatchSpec,
    /// Those that share `params`, of which this is one, if there are several; they are rehearsed too, and say nothing.
    pub ranks: Option<Arc<Sharded>>,
}

/// What a run takes, of several ranks each. Bytes, unless a name says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Each parameter.
    pub parameters: Vec<ParameterCount>,
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the model before the first step, if it is held beside the one that is trained.
    pub reference: u64,
    /// The weights that a checkpoint holds, of all ranks: those that are trained.
    pub saved_weights: u64,
    /// The optimizers' state that it holds, of all ranks.
    pub saved_optimizer: u64,
    /// Of all trainable parameters, held from the first micro-batch to the optimizer's step.
    pub gradients: u64,
    /// Bytes of the optimizers' state.
    pub optimizer: u64,
    /// What the forward pass of a micro-batch keeps for its backward pass, the batch included.
    pub activations: u64,
    /// The most that tensors take at once, with kernels' scratch and buffers kept for reuse.
    pub tensors: u64,
    /// The most of a checkpoint that is held in memory on its way to the disk, while training goes on.
    pub snapshot: u64,
    /// The most of tensors and snapshot together.
    pub peak: u64,
    /// Matrix products and attention of an optimizer step, recomputation included.
    pub flops_per_step: u64,
    /// Those of a step's forward passes.
    pub forward_flops_per_step: u64,
    /// What the rank exchanges with others in a step.
    pub traffic: Traffic,
}

/// One parameter's path and number of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterCount {
    /// Where the model has it.
    pub path: String,
    /// How many numbers it is.
    pub elements: u64,
    /// Whether it is trained.
    pub is_trainable: bool,
}

impl Rehearsal {
    /// Makes a step without memory, and counts what it would take.
    pub fn run(self) -> Result<Footprint> {
        let Self {
            device,
            mut trainer,
            config,
            sequence_length,
            batch,
            ..
        } = self;
        let live = || device.usage().live_bytes;
        let mut training = Training::new(
            self.model,
            self.params,
            self.optimizers,
            Seed::new(0),
            Device::Meta(device),
        );
        training.clipping = config.clipping();
        training.recompute = self.recompute;
        training.precision = self.precision;
        let ranks = self.ranks.clone();
        let num_ranks = ranks
            .as_ref()
            .map_or(1, |it| it.layout().mesh().num_ranks());
        if let Some(ranks) = self.ranks {
            training.share_with(ranks);
        }
        training.initial = self.initial;
        let of_initial = training.initial.iter().flat_map(|it| it.params.iter());
        let reference: u64 = of_initial.map(|(_, p)| bytes(&p.local())).sum();
        let before = live();
        trainer.post_init(&mut training)?;
        // A trainer that needs it only ahead of the first step has let it go.
        let reference = reference.saturating_sub(before.saturating_sub(live()));

        // A step taken apart: what there is between the two passes, and what the passes leave.
        let batch = Batch::full(config.micro_batch_size, sequence_length, &batch);
        let (before, computed) = (live(), device.usage().flops);
        let (activations, forward_flops) = (Cell::new(0), Cell::new(0));
        training.count(std::slice::from_ref(&batch), |batch| trainer.counts(batch))?;
        let mut totals =
            training.accumulate(std::slice::from_ref(&batch), |fwd, model, batch| {
                let loss = trainer.loss(fwd, model, batch)?;
                activations.set(live() - before);
                forward_flops.set(device.usage().flops - computed);
                Ok(loss)
            })?;
        let gradients = training.params.iter().filter_map(|(_, p)| p.grad());
        let gradients: u64 = gradients.map(|grad| bytes(&grad)).sum();
        let summed = ranks.as_ref().map_or(0, |ranks| ranks.summed_bytes());
        let gradients = gradients + summed as u64;
        training.reduce(&mut totals)?;
        let judgement = training.judge(&totals)?;
        training.take_step(judgement)?;

        // The second micro-batch adds to the gradients of the first, and so do all after it.
        let micro_batches = config.global_batch_size / config.micro_batch_size;
        let micro_batches = micro_batches.div_ceil(num_ranks) as u64;
        let used = || {
            let traffic = ranks.as_ref().map(|ranks| ranks.traffic());
            (device.usage().flops, traffic.unwrap_or_default())
        };
        let mut of_step = |count: usize| -> Result<(u64, Traffic)> {
            let (batches, before) = (vec![batch.clone(); count], used());
            trainer.train_step(&mut training, &batches)?;
            let after = used();
            let traffic = after.1.zip(before.1, |after, before| after - before);
            Ok((after.0 - before.0, traffic))
        };
        let (mut flops_per_step, mut traffic) = of_step(1)?;
        if micro_batches > 1 {
            let of_two = of_step(2)?;
            let of_all = |one: u64, two: u64| one + (two - one) * (micro_batches - 1);
            traffic = traffic.zip(of_two.1, of_all);
            flops_per_step = of_all(flops_per_step, of_two.0);
        }

        validate(
            &training,
            &*trainer,
            std::slice::from_ref(&batch),
            &StopFlag::default(),
        )?;
        let while_training = device.usage().peak_bytes;
        let params = training.params.iter();
        let weights = params.map(|(_, p)| bytes(&p.local())).sum();
        let trained = training.params.iter().filter(|(_, p)| p.is_trainable());
        let saved_weights = trained.map(|(_, p)| saved_bytes(p.shard(), &p.local()));
        let saved_weights: u64 = saved_weights.sum();
        let (mut optimizer, mut saved_optimizer) = (0, 0);
        for (_, slot) in training.optimizers.slots() {
            optimizer += bytes(&slot.value);
            saved_optimizer += saved_bytes(&slot.shard, &slot.value);
        }
        let snapshot = write_window_bytes(saved_weights + saved_optimizer);
        if config.sample.count > 0 && training.model.generation() != Generation::Unable {
            sample(&training, &config)?;
        }
        let tensors = device.usage().peak_bytes;
        Ok(Footprint {
            parameters: count(&training.params),
            weights,
            reference,
            saved_weights,
            saved_optimizer,
            gradients,
            optimizer,
            activations: activations.get(),
            tensors,
            snapshot,
            // The last checkpoint is complete before the first continuation is made.
            peak: tensors.max(while_training + snapshot),
            flops_per_step,
            forward_flops_per_step: forward_flops.get() * micro_batches,
            traffic,
        })
    }
}

fn bytes(tensor: &Tensor) -> u64 {
    (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64
}

/// Of the whole of which `part` is held here.
fn saved_bytes(shard: &Shard, part: &Tensor) -> u64 {
    let elements: usize = shard.shape().iter().product();
    (elements * part.dtype().size_in_bytes()) as u64
}

fn sample(training: &Training, config: &TrainerConfig) -> Result<()> {
    let mut sampler = Sampler::new(Sampling::Greedy, Seed::new(0));
    let limits = Limits {
        max_new_tokens: config.sample.max_new_tokens,
        ends: Vec::new(),
    };
    let longest = training.model.max_positions();
    let prompt = vec![0; config.sample.prompt_tokens.min(longest)];
    let (model, params) = (&*training.model, &training.params);
    generate(model, params, &prompt, &mut sampler, &limits)?;
    Ok(())
}

fn count(params: &ParamTree) -> Vec<ParameterCount> {
    let count = params.iter().map(|(spec, parameter)| ParameterCount {
        path: spec.path.clone(),
        elements: spec.shape.iter().product::<usize>() as u64,
        is_trainable: parameter.is_trainable(),
    });
    count.collect()
}
