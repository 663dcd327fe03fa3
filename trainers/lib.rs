//! Trainers: what is learned, one file each.
//!
//! To add one: a file here (or in a crate of yours, registered through the app) with an implementation of
//! [`Trainer`](tt_train::Trainer), a line in [`TABLE`], a YAML under `configs/trainer/`.

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod cross_entropy;
mod lm_trainer;
mod masked_lm_trainer;
mod preference;
mod seq_to_seq_lm_trainer;

use tt_config::{Entry, Table};
use tt_train::BuildTrainer;

pub use lm_trainer::{LMTrainer, LMTrainerOptions};
pub use masked_lm_trainer::{MaskedLMTrainer, MaskedLMTrainerOptions};
pub use preference::{PreferenceTrainer, PreferenceTrainerOptions};
pub use seq_to_seq_lm_trainer::SeqToSeqLMTrainer;

/// What `trainer.type` may name.
pub const TABLE: Table<BuildTrainer> = Table::new(
    "trainer",
    &[
        Entry::new::<LMTrainerOptions>(
            "lm_trainer.LMTrainer",
            "causal language modelling",
            |kwargs| {
                let options: LMTrainerOptions = kwargs.extract()?;
                let trainer = LMTrainer::new(options.label_smoothing, options.z_loss);
                Ok(Box::new(trainer))
            },
        ),
        Entry::new::<MaskedLMTrainerOptions>(
            "masked_lm.MaskedLMTrainer",
            "masked language modelling: hidden tokens from those around them",
            |kwargs| Ok(Box::new(MaskedLMTrainer::new(&kwargs.extract()?))),
        ),
        Entry::new::<LMTrainerOptions>(
            "seq_to_seq_lm_trainer.SeqToSeqLMTrainer",
            "an output after its input, by a decoder",
            |kwargs| Ok(Box::new(SeqToSeqLMTrainer::new(&kwargs.extract()?))),
        ),
        Entry::new::<PreferenceTrainerOptions>(
            "preference.PreferenceTrainer",
            "the better of two answers: DPO, IPO, SimPO, ORPO",
            PreferenceTrainer::build,
        ),
    ],
);
