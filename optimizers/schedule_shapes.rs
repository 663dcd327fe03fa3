//! The kinds of schedules, their options, and their names.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_config::{Diagnostics, Entry, Section, Table};

use crate::schedule::{above, cosine};

/// What the rate does after the warmup; see [`SCHEDULES`].
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Always 1, without a warmup.
    Constant,
    /// 1 after the warmup.
    ConstantWithWarmup,
    /// Straight down to 0.
    Linear,
    /// Down along a cosine.
    Cosine(CosineOptions),
    /// Down along a cosine, and up again at once, several times.
    CosineWithRestarts {
        /// How often.
        num_cycles: u64,
    },
    /// Down along a cosine to a least rate.
    CosineWithMinLr(MinLrOptions),
    /// The same, after a warmup that begins above 0.
    CosineWarmupWithMinLr {
        /// The least rate.
        options: MinLrOptions,
        /// The factor that the warmup begins with.
        warmup_lr_rate: Option<f64>,
    },
    /// Down along a power of what is left.
    Polynomial {
        /// The rate at the end.
        lr_end: f64,
        /// The power: 1 is straight.
        power: f64,
    },
    /// Down with the root of the steps made.
    InverseSqrt {
        /// Steps that count as one; `None`: those of the warmup.
        timescale: Option<u64>,
    },
    /// Up, level, and down at the end.
    WarmupStableDecay(StableOptions),
}

impl Shape {
    /// Whether it depends on when it ends.
    pub(crate) fn needs_length(&self) -> bool {
        match self {
            Self::Constant | Self::ConstantWithWarmup | Self::InverseSqrt { .. } => false,
            Self::WarmupStableDecay(wsd) => wsd.num_stable_steps.is_none(),
            _ => true,
        }
    }
}

/// A schedule without options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoOptions {}

/// `cosine`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CosineOptions {
    /// Waves of the cosine: a half falls once.
    #[schemars(range(min = 0.0))]
    pub num_cycles: f64,
    /// Share of the peak rate that it falls to.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_lr_ratio: f64,
}

impl Default for CosineOptions {
    fn default() -> Self {
        Self {
            num_cycles: 0.5,
            min_lr_ratio: 0.0,
        }
    }
}

/// `cosine_with_restarts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RestartsOptions {
    /// How often it falls from the peak.
    #[schemars(range(min = 1))]
    pub num_cycles: u64,
}

impl Default for RestartsOptions {
    fn default() -> Self {
        Self { num_cycles: 1 }
    }
}

/// `cosine_with_min_lr`. One of the minima must be given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MinLrOptions {
    /// Waves of the cosine: a half falls once.
    #[serde(default = "half")]
    #[schemars(range(min = 0.0))]
    pub num_cycles: f64,
    /// The rate that it falls to.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub min_lr: Option<f64>,
    /// The same as a share of the peak rate, instead of `min_lr`.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_lr_rate: Option<f64>,
}

/// `cosine_warmup_with_min_lr`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmupMinLrOptions {
    /// Waves of the cosine: a half falls once.
    #[serde(default = "half")]
    #[schemars(range(min = 0.0))]
    pub num_cycles: f64,
    /// The rate that it falls to.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub min_lr: Option<f64>,
    /// The same as a share of the peak rate, instead of `min_lr`.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_lr_rate: Option<f64>,
    /// Share of the peak rate that the warmup begins at; null: one over its steps.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub warmup_lr_rate: Option<f64>,
}

/// `polynomial`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PolynomialOptions {
    /// The rate that it falls to; less than the peak.
    #[schemars(range(min = 0.0))]
    pub lr_end: f64,
    /// Power of what is left of the schedule.
    #[schemars(range(min = 0.0))]
    pub power: f64,
}

impl Default for PolynomialOptions {
    fn default() -> Self {
        Self {
            lr_end: 1e-7,
            power: 1.0,
        }
    }
}

/// `inverse_sqrt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InverseSqrtOptions {
    /// Steps until the rate has fallen by the root of two; null: as many as the warmup, or 10000.
    #[schemars(range(min = 1))]
    pub timescale: Option<u64>,
}

/// `warmup_stable_decay`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StableOptions {
    /// Steps at the peak rate; null: what warmup and decay leave of the length.
    #[serde(default)]
    pub num_stable_steps: Option<u64>,
    /// Steps of the fall.
    pub num_decay_steps: u64,
    /// How it rises.
    #[serde(default)]
    pub warmup_type: Curve,
    /// How it falls.
    #[serde(default = "Curve::cosine")]
    pub decay_type: Curve,
    /// Share of the peak rate that it rises from and falls to.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_lr_ratio: f64,
    /// Waves of a cosine decay: a half falls once.
    #[serde(default = "half")]
    #[schemars(range(min = 0.0))]
    pub num_cycles: f64,
}

/// A way from one rate to another.
#[expect(
    missing_docs,
    reason = "named as in the configuration, whose reference says it"
)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Curve {
    #[default]
    #[serde(rename = "linear")]
    Linear,
    #[serde(rename = "cosine")]
    Cosine,
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
}

impl Curve {
    fn cosine() -> Self {
        Self::Cosine
    }
}

fn half() -> f64 {
    0.5
}

impl StableOptions {
    pub(crate) fn factor(&self, step: u64, warmup: u64) -> f64 {
        let floor = self.min_lr_ratio;
        let stable = self.num_stable_steps.unwrap_or(u64::MAX);
        if step < warmup {
            let progress = step as f64 / warmup as f64;
            let factor = match self.warmup_type {
                Curve::Linear => progress,
                Curve::Cosine => 1.0 - cosine(0.5, progress),
                Curve::OneMinusSqrt => 1.0 - (1.0 - progress).sqrt(),
            };
            return above(floor, factor).max(0.0);
        }
        let into_decay = step.saturating_sub(warmup.saturating_add(stable));
        if step < warmup.saturating_add(stable) {
            return 1.0;
        }
        if into_decay >= self.num_decay_steps {
            return floor;
        }
        let progress = into_decay as f64 / self.num_decay_steps as f64;
        let factor = match self.decay_type {
            Curve::Linear => 1.0 - progress,
            Curve::Cosine => cosine(self.num_cycles, progress),
            Curve::OneMinusSqrt => 1.0 - progress.sqrt(),
        };
        above(floor, factor).max(0.0)
    }
}

/// Reads `trainer.lr_scheduler.kwargs`.
pub type ReadShape = fn(&Section<'_>) -> Result<Shape, Diagnostics>;

/// What `trainer.lr_scheduler.type` may name.
pub const SCHEDULES: Table<ReadShape> = Table::new(
    "schedule",
    &[
        Entry::new::<NoOptions>("constant", "the peak rate throughout", |kwargs| {
            kwargs.extract::<NoOptions>().map(|_| Shape::Constant)
        }),
        Entry::new::<NoOptions>(
            "constant_with_warmup",
            "the peak rate after the warmup",
            |kwargs| {
                kwargs
                    .extract::<NoOptions>()
                    .map(|_| Shape::ConstantWithWarmup)
            },
        ),
        Entry::new::<NoOptions>("linear", "falls to 0 in a straight line", |kwargs| {
            kwargs.extract::<NoOptions>().map(|_| Shape::Linear)
        }),
        Entry::new::<CosineOptions>("cosine", "falls along a cosine", |kwargs| {
            kwargs.extract().map(Shape::Cosine)
        }),
        Entry::new::<RestartsOptions>(
            "cosine_with_restarts",
            "falls to 0 along a cosine, several times from the peak",
            |kwargs| {
                let RestartsOptions { num_cycles } = kwargs.extract()?;
                Ok(Shape::CosineWithRestarts { num_cycles })
            },
        ),
        Entry::new::<MinLrOptions>(
            "cosine_with_min_lr",
            "falls along a cosine to a rate above 0",
            |kwargs| {
                let options: MinLrOptions = kwargs.extract()?;
                check_minima(kwargs, &options)?;
                Ok(Shape::CosineWithMinLr(options))
            },
        ),
        Entry::new::<WarmupMinLrOptions>(
            "cosine_warmup_with_min_lr",
            "the same, with a warmup that does not begin at 0",
            |kwargs| {
                let given: WarmupMinLrOptions = kwargs.extract()?;
                let options = MinLrOptions {
                    num_cycles: given.num_cycles,
                    min_lr: given.min_lr,
                    min_lr_rate: given.min_lr_rate,
                };
                check_minima(kwargs, &options)?;
                Ok(Shape::CosineWarmupWithMinLr {
                    options,
                    warmup_lr_rate: given.warmup_lr_rate,
                })
            },
        ),
        Entry::new::<PolynomialOptions>(
            "polynomial",
            "falls with a power of what is left",
            |kwargs| {
                let PolynomialOptions { lr_end, power } = kwargs.extract()?;
                Ok(Shape::Polynomial { lr_end, power })
            },
        ),
        Entry::new::<InverseSqrtOptions>(
            "inverse_sqrt",
            "falls with the inverse root of the step, without an end",
            |kwargs| {
                let InverseSqrtOptions { timescale } = kwargs.extract()?;
                Ok(Shape::InverseSqrt { timescale })
            },
        ),
        Entry::new::<StableOptions>(
            "warmup_stable_decay",
            "rises, stays at the peak, and falls at the end",
            |kwargs| kwargs.extract().map(Shape::WarmupStableDecay),
        ),
    ],
);

fn check_minima(kwargs: &Section<'_>, options: &MinLrOptions) -> Result<(), Diagnostics> {
    match (options.min_lr, options.min_lr_rate) {
        (Some(_), Some(_)) => Err(kwargs
            .section("min_lr_rate")
            .error("`min_lr` and `min_lr_rate` are both given: set one of them to null")
            .into()),
        (None, None) => Err(kwargs
            .error("one of `min_lr` and `min_lr_rate` must be given")
            .into()),
        _ => Ok(()),
    }
}
