//! What is evaluated: a trained model, and what the run that made it has recorded, if there was one.

use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use tt_config::Composition;
use tt_run::RecordedRun;
use tt_tensor::{Device, Precision};

use super::config::EvalConfig;
use crate::config::AppConfig;
use crate::defaults;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::migration;
use crate::plugins::Plugins;
use crate::rerun;
use crate::setup::stored::Stored;

/// Rows in memory at once where nobody says how many.
const ROWS: usize = 4;

/// A run's config, composed as it was recorded.
pub(super) struct Recorded {
    pub(super) composition: Composition,
    pub(super) config: AppConfig,
}

impl Recorded {
    /// Of the run that `checkpoint` is, or is of; `None` if no run folder is around it.
    pub(super) fn of(checkpoint: &str, plugins: &Plugins) -> Result<Option<Self>, Failure> {
        // RUN, RUN/checkpoints or RUN/checkpoints/step-00000100.
        let around = Path::new(checkpoint).ancestors().take(3);
        let Some(run) = around
            .filter(|folder| folder.is_dir() && !folder.as_os_str().is_empty())
            .map(RecordedRun::at)
            .find(|run| run.config_folder().is_some())
        else {
            return Ok(None);
        };
        let mut composition = rerun::recorded(&run)?.compose::<&str>(&[])?;
        migration::apply(&mut composition, plugins);
        defaults::apply(&mut composition);
        let config = composition.extract("")?;
        Ok(Some(Self {
            composition,
            config,
        }))
    }
}

/// A model to be looked at.
pub(super) struct Subject {
    pub(super) stored: Arc<Stored>,
    pub(super) device: Device,
    pub(super) precision: Precision,
    pub(super) micro_batch_size: usize,
}

impl Subject {
    pub(super) fn open(
        config: &EvalConfig,
        recorded: Option<&Recorded>,
        invocation: &Invocation,
    ) -> Result<Self, Failure> {
        let device = config.device.device().map_err(Failure::Request)?;
        let (checkpoint, base) = (&config.checkpoint, config.base.as_deref());
        let stored = Stored::open(checkpoint, base, &invocation.plugins, device);
        let of_run = recorded.map(|it| &it.config);
        let precision = config.precision.or(of_run.map(|it| it.precision));
        let trainers = [
            config.trainer.as_ref(),
            of_run.and_then(|it| it.trainer.as_ref()),
        ];
        let mut rows = trainers.into_iter().flatten().map(|it| it.micro_batch_size);
        Ok(Self {
            stored: Arc::new(stored.map_err(Failure::Request)?),
            device,
            precision: precision.unwrap_or_default().into(),
            micro_batch_size: config.micro_batch_size.or(rows.next()).unwrap_or(ROWS),
        })
    }
}

/// Nothing has been asked for that could be done.
pub(super) fn nothing_to_do(checkpoint: &str) -> Failure {
    Failure::Request(anyhow!(
        "{checkpoint} is no run, so nothing says what to evaluate it on: choose data=NAME (as data=text data.path=FILE), or tasks=[FILE.jsonl]"
    ))
}
