//! The root config of `eval`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_collators::Split;
use tt_data::DataConfig;
use tt_train::TrainerConfig;

use crate::config::Precision;
use crate::device::DeviceConfig;

/// What is evaluated, and on what.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EvalConfig {
    /// A run folder, whose newest checkpoint is taken, any folder in Hugging Face or peft layout, a GGUF file, or
    /// `user/name@revision` on the Hub.
    pub(super) checkpoint: String,
    /// The model that an adapter is on, named in the same way, if it is not where the adapter says.
    pub(super) base: Option<String>,
    /// What the loss is over; null: what the run was trained on, if no tasks are given.
    #[serde(default)]
    pub(super) data: Option<DataConfig>,
    /// Whose objective it is; null: the run's, or that of predicting the next token.
    #[serde(default)]
    pub(super) trainer: Option<TrainerConfig>,
    /// Which splits of the data.
    pub(super) splits: Vec<SplitName>,
    /// Blocks of a validation; null: as `data.num_val_blocks` says.
    #[schemars(range(min = 1, max = 100_000))]
    pub(super) num_val_blocks: Option<usize>,
    /// Batches of each split, and of a mixture of each source, at most.
    #[schemars(range(min = 1))]
    pub(super) max_batches: Option<u64>,
    /// Files of multiple-choice questions, an object a line.
    pub(super) tasks: Vec<String>,
    /// The first questions of each file, this many; null: all.
    #[schemars(range(min = 1))]
    pub(super) max_questions: Option<usize>,
    /// What is asked, with `{context}` or another column's name in braces in the place of its text, and `{{` for a brace;
    /// null: the context.
    pub(super) prompt: Option<String>,
    /// What stands between that and a choice.
    pub(super) delimiter: String,
    /// Whether what is asked begins with what the tokenizer puts before a text (`<s>` of Llama 2), as documents do in
    /// training. `lm-evaluation-harness` leaves it out unless it is told otherwise.
    pub(super) add_special_tokens: bool,
    /// A file to write, over what is there, with an object for each question: the log-likelihood of each choice, and which is
    /// right.
    pub(super) details: Option<PathBuf>,
    /// Number format of matrix products and attention; null: the run's, or f32.
    pub(super) precision: Option<Precision>,
    /// Rows in memory at once; null: the run's, or 4. Losses differ by rounding.
    #[schemars(range(min = 1))]
    pub(super) micro_batch_size: Option<usize>,
    /// What a trainer may draw from.
    pub(super) seed: u64,
    /// Trainers' configs refer to it.
    #[expect(dead_code, reason = "read through the interpolation ${lr}")]
    lr: f64,
    /// What it runs on.
    pub(super) device: DeviceConfig,
}

/// A split of the data.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum SplitName {
    /// What is trained on, once, in an order of its own.
    Train,
    /// What is validated on, as in training.
    Validation,
}

impl SplitName {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "validation",
        }
    }
}

impl From<SplitName> for Split {
    fn from(name: SplitName) -> Self {
        match name {
            SplitName::Train => Self::Train,
            SplitName::Validation => Self::Validation,
        }
    }
}
