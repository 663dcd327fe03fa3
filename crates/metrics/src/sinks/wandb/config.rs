//! What a user may say of it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::timing::Timing;

/// What a run steps by, for the site.
pub(super) const STEP_METRIC: &str = "trainer/step";

/// `kwargs` of `wandb.Wandb`. What is null is for the environment (WANDB_PROJECT and so on) to say.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WandbConfig {
    /// Whether rows are sent: `online`, `offline` (a log that `tpu-train sync` sends later) or `disabled`.
    pub mode: Option<Mode>,
    /// The project; null: WANDB_PROJECT, else `project` of the config.
    pub project: Option<String>,
    /// The user or team; null: that of the key.
    pub entity: Option<String>,
    /// What the run is called; null: `name` of the config, else the server finds one.
    pub name: Option<String>,
    /// What the run is known by; null: that of the run folder, the same each time the run goes on.
    pub id: Option<String>,
    /// What belongs together, such as the jobs of a sweep.
    pub group: Option<String>,
    /// Which part of a group this is.
    pub job_type: Option<String>,
    /// Words to find the run by.
    pub tags: Option<Vec<String>>,
    /// A longer description; null: `notes` of the config.
    pub notes: Option<String>,
    /// Where the server answers; null: WANDB_BASE_URL, else W&B's own.
    pub base_url: Option<String>,
    /// The folder in which a folder `wandb` is made; null: WANDB_DIR, else the run folder.
    pub dir: Option<PathBuf>,
    /// Whether the server must, or must not, know the run already.
    pub resume: Option<ResumeRule>,
    /// What the curves are drawn over: `trainer/step`, `tokens`, or another metric.
    pub x_axis: String,
    /// What the summary says of a metric instead of its last value.
    pub summary: BTreeMap<String, Vec<SummaryRule>>,
    /// Sends what the run prints.
    pub console: bool,
    /// Sends what the processor, memory, disk and network do.
    pub system_metrics: bool,
    /// Sends what differs from the git commit, as a file `diff.patch`.
    pub save_patch: bool,
    /// Names each checkpoint to the site, with sizes and digests of its files, which stay where they are. All of it is read
    /// once more for that.
    pub log_checkpoints: bool,
    /// For tests: how long things take.
    #[schemars(skip)]
    pub timing: Timing,
}

impl Default for WandbConfig {
    fn default() -> Self {
        Self {
            mode: None,
            project: None,
            entity: None,
            name: None,
            id: None,
            group: None,
            job_type: None,
            tags: None,
            notes: None,
            base_url: None,
            dir: None,
            resume: None,
            x_axis: STEP_METRIC.to_owned(),
            summary: BTreeMap::from([(
                "val_loss".to_owned(),
                vec![SummaryRule::Min, SummaryRule::Last],
            )]),
            console: true,
            system_metrics: true,
            save_patch: true,
            log_checkpoints: false,
            timing: Timing::default(),
        }
    }
}

/// Whether rows are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// As they come.
    #[serde(alias = "run")]
    Online,
    /// Not now: a log is written.
    #[serde(alias = "dryrun")]
    Offline,
    /// Nothing is done at all.
    Disabled,
}

impl Mode {
    pub(super) fn named(text: &str) -> Option<Self> {
        match text.trim().to_lowercase().as_str() {
            "online" | "run" => Some(Self::Online),
            "offline" | "dryrun" => Some(Self::Offline),
            "disabled" => Some(Self::Disabled),
            _ => None,
        }
    }
}

/// What is done about a run that the server knows already, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResumeRule {
    /// It goes on, or is made.
    #[serde(alias = "auto")]
    Allow,
    /// It must be there.
    Must,
    /// It must not be there.
    Never,
}

impl ResumeRule {
    pub(super) fn named(text: &str) -> Option<Self> {
        match text.trim().to_lowercase().as_str() {
            "allow" | "auto" => Some(Self::Allow),
            "must" => Some(Self::Must),
            "never" => Some(Self::Never),
            _ => None,
        }
    }
}

/// What a summary says of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SummaryRule {
    /// Its least value.
    Min,
    /// Its greatest value.
    Max,
    /// The mean of its values.
    Mean,
    /// Its first value.
    First,
    /// Its last value.
    Last,
}

impl SummaryRule {
    /// Its number, in configs and logs alike.
    pub(super) fn field(self) -> u32 {
        match self {
            Self::Min => 1,
            Self::Max => 2,
            Self::Mean => 3,
            Self::Last => 5,
            Self::First => 8,
        }
    }

    pub(super) fn of_field(field: u32) -> Option<Self> {
        let rules = [Self::Min, Self::Max, Self::Mean, Self::Last, Self::First];
        rules.into_iter().find(|rule| rule.field() == field)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Max => "max",
            Self::Mean => "mean",
            Self::First => "first",
            Self::Last => "last",
        }
    }
}
