//! What a training run is made of, and what it leaves behind.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tt_checkpoint::Checkpoint;
use tt_collators::{Loader, Pipeline};
use tt_metrics::{End, Metrics, Scalars};
use tt_models::Model;
use tt_nn::{ParamTree, Recompute};
use tt_optimizers::Optimizers;
use tt_sharding::Sharded;
use tt_tensor::{Device, Precision, Seed};

use crate::Trainer;
use crate::adapted::Adapted;
use crate::config::TrainerConfig;
use crate::error::{Error, Result};
use crate::initial::Initial;
use crate::mirror::Mirror;
use crate::run::Run;
use crate::snapshot;
use crate::stop::StopFlag;
use crate::token_ids::TokenIds;
use crate::trace::ProfileConfig;
use crate::training::Training;
use crate::utilization::Utilization;

/// All that a run needs, already lowered from configuration.
pub struct TrainJob {
    /// What is trained.
    pub model: Arc<dyn Model>,
    /// Initial parameters; replaced by the checkpoint's when resuming.
    pub params: ParamTree,
    /// What is learned.
    pub trainer: Box<dyn Trainer>,
    /// What changes the weights.
    pub optimizers: Optimizers,
    /// The group `trainer`.
    pub config: TrainerConfig,
    /// What it is trained on.
    pub data: Pipeline,
    /// Where it is trained.
    pub device: Device,
    /// What products are computed in.
    pub precision: Precision,
    /// Decides dropout and other random numbers.
    pub seed: u64,
    /// Modules that are run again in the backward pass.
    pub recompute: Option<Arc<dyn Recompute>>,
    /// The adapter in `params`, if one is trained.
    pub adapter: Option<Adapted>,
    /// The model before the first step, if the trainer asks for it.
    pub initial: Option<Initial>,
    /// What the model that it starts from says of its tokens.
    pub token_ids: TokenIds,
    /// Goes on from here. `params` must have been loaded from it.
    pub resume: Option<Checkpoint>,
    /// Asks the run to save and stop.
    pub stop: StopFlag,
    /// Those that share `params`, of which each has its part, if there are several.
    pub ranks: Option<Arc<Sharded>>,
    /// What steps are measured against, if against anything.
    pub utilization: Option<Utilization>,
    /// Which steps are traced, if any.
    pub profile: Option<ProfileConfig>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All steps are done.
    Finished,
    /// Saved and stopped on request; the same command goes on.
    Stopped,
}

impl From<Ending> for End {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Finished => Self::Finished,
            Ending::Stopped => Self::Stopped,
        }
    }
}

/// What a run leaves behind.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// Steps done.
    pub step: u64,
    /// The passes over the data that were to be made, and whether they were: or else `max_steps` came first.
    pub epochs: Option<(u64, bool)>,
    /// Mean nats per token on the validation split at the end; `None` if stopped early.
    pub final_val_loss: Option<f32>,
    /// What the trainer reports of that validation besides, by the names it is logged under; none if it was made before this
    /// process began.
    pub final_val_scalars: Scalars,
    /// Tokens of all steps.
    pub tokens: u64,
    /// Of the last step; `None` if this process has made none.
    pub train_loss: Option<f32>,
    /// From the start of training in this process.
    pub wall_time: Duration,
    /// Folder of the last checkpoint.
    pub checkpoint: PathBuf,
    /// Over this process's steps, without validation and checkpoints.
    pub tokens_per_second: f64,
}

impl TrainJob {
    /// Everything that may refuse the run: afterwards it is safe to touch its folder. Nothing is written.
    pub fn prepare(self) -> Result<Prepared> {
        let TrainJob {
            model,
            params,
            mut trainer,
            optimizers,
            config,
            mut data,
            device,
            precision,
            seed,
            recompute,
            adapter,
            initial,
            token_ids,
            resume,
            stop,
            ranks,
            utilization,
            profile,
        } = self;
        config.check()?;
        check_length(data.sequence_length(), &*model)?;
        check_vocabulary(data.tokenizer().vocab_size(), &*model)?;
        let mut training = Training::new(model, params, optimizers, Seed::new(seed), device);
        training.configure(&config, precision);
        training.recompute = recompute;
        training.adapter = adapter;
        training.initial = initial;
        training.stop = stop.clone();
        if let Some(ranks) = ranks {
            training.share_with(ranks);
        }
        let (mut tokens, mut cursor, mut validated) = (0, None, None);
        if let Some(checkpoint) = &resume {
            let state = snapshot::restore(
                &mut training,
                &mut *trainer,
                checkpoint,
                config.on_optimizer_change,
            )?;
            if state.seed != seed {
                let why = format!("made with seed {}, this run has {seed}", state.seed);
                return Err(Error::State(why));
            }
            (tokens, cursor) = (state.tokens, Some(state.cursor));
            validated = state.validated;
        }
        trainer.post_init(&mut training)?;
        let prepared_data = trainer.prepare_data(&mut training, &mut data)?;
        let cursor = match cursor {
            Some(cursor) => cursor,
            None => data.start()?,
        };
        let mut loader = data.train(Some(cursor))?;
        let asked = stop.clone();
        loader.interrupt_if(move || asked.is_requested());
        let token_ids = token_ids.with(data.tokenizer());
        Ok(Prepared {
            token_ids: match data.answer_end() {
                Some(end) => token_ids.and_end(end),
                None => token_ids,
            },
            loader,
            cursor,
            tokens,
            validated,
            training,
            trainer,
            config,
            data,
            stop,
            seed,
            resume,
            mirror: None,
            prepared_data,
            utilization,
            profile,
        })
    }
}

/// A run that nothing stands against any more.
pub struct Prepared {
    pub(crate) training: Training,
    pub(crate) trainer: Box<dyn Trainer>,
    pub(crate) config: TrainerConfig,
    pub(crate) data: Pipeline,
    pub(crate) loader: Loader,
    pub(crate) tokens: u64,
    pub(crate) cursor: tt_data::Cursor,
    pub(crate) validated: Option<(u64, f32)>,
    pub(crate) token_ids: TokenIds,
    pub(crate) stop: StopFlag,
    pub(crate) seed: u64,
    pub(crate) resume: Option<Checkpoint>,
    pub(crate) mirror: Option<Box<dyn Mirror>>,
    /// What the trainer has made of the data.
    pub(crate) prepared_data: Option<String>,
    pub(crate) utilization: Option<Utilization>,
    pub(crate) profile: Option<ProfileConfig>,
}

impl Prepared {
    /// Gives each checkpoint to `mirror` too.
    #[must_use]
    pub fn with_mirror(self, mirror: Option<Box<dyn Mirror>>) -> Self {
        Self { mirror, ..self }
    }

    /// Counts the elements of gradients and weights every `interval` steps.
    #[must_use]
    pub fn with_histograms(mut self, interval: Option<u64>) -> Self {
        self.training.histogram_interval = interval;
        self
    }

    /// Trains, keeping `checkpoints/` and `tokenizer/` in `run_dir`. Errors leave the checkpoints written so far.
    pub fn run(self, run_dir: &Path, metrics: Metrics) -> Result<Outcome> {
        self.run_with(run_dir, metrics, |_, _| {})
    }

    /// Like [`Prepared::run`]. What `closing` prints and hands on once the training is over still reaches the sinks.
    pub fn run_with(
        self,
        run_dir: &Path,
        metrics: Metrics,
        closing: impl FnOnce(&Result<Outcome>, &mut Metrics),
    ) -> Result<Outcome> {
        Run::start(self, run_dir, metrics)?.complete(closing)
    }

    /// Trains beside the first of the ranks that share the model, which keeps the folder and the records.
    pub fn follow(self) -> Result<()> {
        match Run::follow(self).complete(|_, _| {}) {
            // The first says it, with what it has kept: no rank has failed that others would have to be told of.
            Err(error) if error.is_of_all_ranks() => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}

/// Refuses rows of more tokens than the model has positions.
pub fn check_length(sequence_length: usize, model: &dyn Model) -> Result<()> {
    let longest = model.max_positions();
    if sequence_length <= longest {
        return Ok(());
    }
    let why =
        format!("{sequence_length} is more than the model's max_position_embeddings {longest}");
    let key = "data.sequence_length";
    Err(Error::Config { key, why })
}

/// Refuses more tokens than the model has embeddings.
pub fn check_vocabulary(num_tokens: usize, model: &dyn Model) -> Result<()> {
    let vocab_size = model.vocab_size();
    if num_tokens <= vocab_size {
        return Ok(());
    }
    let why = format!("{vocab_size} is less than the {num_tokens} tokens of the tokenizer");
    let key = "model.vocab_size";
    Err(Error::Config { key, why })
}
