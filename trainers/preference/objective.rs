//! What is learned of a pair, given `log p` of its answers, summed (`logp`) or averaged over tokens (`a`), under the model and
//! under the reference:
//!
//! | | loss of a pair | reward of an answer |
//! | --- | --- | --- |
//! | DPO | `-(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h)`, `h = (logp_w - logp_l) - (ref_w - ref_l)` | `beta (logp - ref)` |
//! | IPO | `(h - 1 / (2 beta))^2`, `h` of averages | `beta (a - ref)` |
//! | SimPO | `-log sigmoid(beta (a_w - a_l) - gamma)` | `beta a` |
//! | ORPO | `-beta log sigmoid(log odds_w - log odds_l)`, `odds = e^a / (1 - e^a)`; and the mean of `-log p` over the tokens of chosen answers | `beta a` |
//!
//! `w` is the chosen answer, `l` the rejected, `s` the label smoothing.
//! Sources: Rafailov et al. 2023, arXiv:2305.18290 (smoothing: Mitchell 2023); Azar et al. 2023, arXiv:2310.12036, averaged as
//! its authors had it in TRL; Meng et al. 2024, arXiv:2405.14734; Hong et al. 2024, arXiv:2403.07691.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_tensor::{DType, Tensor};
use tt_train::{Error, Result};

use super::PreferenceTrainerOptions;

/// `trainer.kwargs.loss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// Direct preference optimisation.
    Dpo,
    /// Identity preference optimisation.
    Ipo,
    /// Simple preference optimisation, without a reference.
    Simpo,
    /// Odds-ratio preference optimisation: fine-tuning on chosen answers at once, without a reference.
    Orpo,
}

impl Objective {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dpo => "DPO",
            Self::Ipo => "IPO",
            Self::Simpo => "SimPO",
            Self::Orpo => "ORPO",
        }
    }
}

/// SimPO's margin where none is given, as in TRL.
const GAMMA: f64 = 0.5;

/// A loss with its constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Formula {
    Dpo { beta: f64, smoothing: f64 },
    Ipo { beta: f64 },
    Simpo { beta: f64, gamma: f64 },
    Orpo { lambda: f64 },
}

/// A column `[P, 1]` of f32 for each answer of pairs.
pub(super) struct Pairs {
    /// Summed log-probabilities, tracked where a model's are learned.
    pub(super) chosen: Tensor,
    pub(super) rejected: Tensor,
    /// Tokens.
    pub(super) chosen_tokens: Tensor,
    pub(super) rejected_tokens: Tensor,
}

/// What a formula makes of pairs.
pub(super) struct Made {
    /// `[P, 1]`, tracked.
    pub(super) losses: Tensor,
    /// In the place of log-probabilities.
    pub(super) rewards: Pairs,
}

impl Formula {
    /// Error: an option that is another loss's, and its key.
    pub(super) fn new(
        options: &PreferenceTrainerOptions,
    ) -> std::result::Result<Self, (&'static str, String)> {
        let PreferenceTrainerOptions {
            loss,
            beta,
            label_smoothing: smoothing,
            gamma,
            ..
        } = *options;
        if smoothing != 0.0 && loss != Objective::Dpo {
            let why = format!("{} has no label smoothing; it is DPO's", loss.name());
            return Err(("label_smoothing", why));
        }
        if gamma.is_some() && loss != Objective::Simpo {
            let why = format!("{} has no margin gamma; it is SimPO's", loss.name());
            return Err(("gamma", why));
        }
        if beta == 0.0 && loss != Objective::Orpo {
            return Err(("beta", "0 leaves nothing to learn".to_owned()));
        }
        Ok(match loss {
            Objective::Dpo => Self::Dpo { beta, smoothing },
            Objective::Ipo => Self::Ipo { beta },
            Objective::Simpo => Self::Simpo {
                beta,
                gamma: gamma.unwrap_or(GAMMA),
            },
            Objective::Orpo => Self::Orpo { lambda: beta },
        })
    }

    pub(super) fn needs_reference(self) -> bool {
        matches!(self, Self::Dpo { .. } | Self::Ipo { .. })
    }

    /// Whether the chosen answers' tokens are learned too, and their mean is over all of them.
    pub(super) fn counts_tokens(self) -> bool {
        matches!(self, Self::Orpo { .. })
    }

    /// Error: a reference is missing.
    pub(super) fn of(self, policy: &Pairs, reference: Option<&Pairs>) -> Result<Made> {
        let reference = || {
            let missing = || Error::Trainer("no reference to compare with".to_owned());
            reference.ok_or_else(missing)
        };
        match self {
            Self::Dpo { beta, smoothing } => {
                let rewards = policy.minus(reference()?)?.times(beta)?;
                let [right, wrong] = log_sigmoids(&rewards.margin()?)?;
                let mut losses = right.affine(smoothing - 1.0, 0.0)?;
                if smoothing != 0.0 {
                    losses = losses.sub(&wrong.affine(smoothing, 0.0)?)?;
                }
                Ok(Made { losses, rewards })
            }
            Self::Ipo { beta } => {
                let gains = policy.averages()?.minus(&reference()?.averages()?)?;
                let losses = gains.margin()?.affine(1.0, -0.5 / beta)?.sqr()?;
                let rewards = gains.times(beta)?;
                Ok(Made { losses, rewards })
            }
            Self::Simpo { beta, gamma } => {
                let rewards = policy.averages()?.times(beta)?;
                let [right, _] = log_sigmoids(&rewards.margin()?.affine(1.0, -gamma)?)?;
                let losses = right.neg()?;
                Ok(Made { losses, rewards })
            }
            Self::Orpo { lambda } => {
                let averages = policy.averages()?;
                let [chosen, rejected] = [&averages.chosen, &averages.rejected].map(log_odds);
                let [right, _] = log_sigmoids(&chosen?.sub(&rejected?)?)?;
                let losses = right.affine(-lambda, 0.0)?;
                let rewards = averages.times(lambda)?;
                Ok(Made { losses, rewards })
            }
        }
    }
}

impl Pairs {
    /// Of rows `[2 P]`.
    pub(super) fn of(log_probs: &Tensor, tokens: &Tensor) -> Result<Self> {
        let pairs = log_probs.elem_count() / 2;
        let columns = |rows: &Tensor| -> Result<[Tensor; 2]> {
            let rows = rows.reshape((pairs, 2))?;
            Ok([rows.narrow(1, 0, 1)?, rows.narrow(1, 1, 1)?])
        };
        let [chosen, rejected] = columns(log_probs)?;
        let [chosen_tokens, rejected_tokens] = columns(tokens)?;
        Ok(Self {
            chosen,
            rejected,
            chosen_tokens,
            rejected_tokens,
        })
    }

    pub(super) fn detach(&self) -> Self {
        self.with(self.chosen.detach(), self.rejected.detach())
    }

    fn with(&self, chosen: Tensor, rejected: Tensor) -> Self {
        Self {
            chosen,
            rejected,
            chosen_tokens: self.chosen_tokens.clone(),
            rejected_tokens: self.rejected_tokens.clone(),
        }
    }

    /// 1 where both answers have tokens, else 0.
    pub(super) fn valid(&self) -> Result<Tensor> {
        let fewer = self.chosen_tokens.minimum(&self.rejected_tokens)?;
        let none = Tensor::scalar(0.0f32, fewer.device())?;
        Ok(fewer.gt(&none)?.to_dtype(DType::F32)?)
    }

    /// Over tokens; 0 where there are none.
    fn averages(&self) -> Result<Self> {
        let average = |sum: &Tensor, tokens: &Tensor| -> Result<Tensor> {
            let one = Tensor::scalar(1.0f32, tokens.device())?;
            Ok(sum.div(&tokens.maximum(&one)?)?)
        };
        let chosen = average(&self.chosen, &self.chosen_tokens)?;
        Ok(self.with(chosen, average(&self.rejected, &self.rejected_tokens)?))
    }

    fn minus(&self, other: &Self) -> Result<Self> {
        let chosen = self.chosen.sub(&other.chosen)?;
        Ok(self.with(chosen, self.rejected.sub(&other.rejected)?))
    }

    fn times(&self, factor: f64) -> Result<Self> {
        let chosen = self.chosen.affine(factor, 0.0)?;
        Ok(self.with(chosen, self.rejected.affine(factor, 0.0)?))
    }

    fn margin(&self) -> Result<Tensor> {
        Ok(self.chosen.sub(&self.rejected)?)
    }
}

/// `log sigmoid` of `x` and of `-x`, `[P, 1]`.
///
/// The value keeps its digits where a pair is learned and it is next to 0. Its slope is put in by hand: formulas with `|x|` have
/// none at 0, where the first step of every run is.
fn log_sigmoids(x: &Tensor) -> Result<[Tensor; 2]> {
    let at = x.detach();
    let zero = Tensor::scalar(0.0f32, at.device())?;
    let rest = log_1p(&at.abs()?.neg()?.exp()?)?;
    let value = |x: &Tensor| -> Result<Tensor> { Ok(x.minimum(&zero)?.sub(&rest)?) };
    let away = x.sub(&at)?; // 0, with the gradient of x
    let opposite = at.neg()?;
    let right = value(&at)?.add(&away.mul(&opposite.sigmoid()?)?)?;
    let wrong = value(&opposite)?.sub(&away.mul(&at.sigmoid()?)?)?;
    Ok([right, wrong])
}

/// `log(1 + y)` for `y` from 0 to 1, to the last digits also where `1 + y` has lost those of `y`.
fn log_1p(y: &Tensor) -> Result<Tensor> {
    // y (1 - y (1/2 - y (1/3 - y (1/4 - y / 5)))), whose next term is y^6 / 6.
    let mut series = y.affine(-0.2, 0.25)?;
    for term in [1.0 / 3.0, 0.5, 1.0] {
        series = series.mul(y)?.affine(-1.0, term)?;
    }
    let is_small = y.lt(&Tensor::scalar(0.05f32, y.device())?)?;
    let whole = y.affine(1.0, 1.0)?.log()?;
    Ok(is_small.where_cond(&series.mul(y)?, &whole)?)
}

/// `a - log(1 - e^a)` of an average log-probability.
///
/// `1 - e^a = 2 t / (1 + t)` with `t = tanh(-a / 2)`, which loses no digits where the answer is almost certain.
fn log_odds(a: &Tensor) -> Result<Tensor> {
    // An answer that is certain has no odds.
    let most = Tensor::scalar(-1e-6f32, a.device())?;
    let a = a.minimum(&most)?;
    let t = a.affine(-0.5, 0.0)?.tanh()?;
    let log_rest = t
        .affine(2.0, 0.0)?
        .log()?
        .sub(&t.affine(1.0, 1.0)?.log()?)?;
    Ok(a.sub(&log_rest)?)
}
