//! Preference training: of two answers to a prompt, the chosen one becomes likelier beside the rejected one.
//!
//! Batches hold the answers to prompt `i` in rows `2i` (chosen) and `2i + 1` (rejected), labels on answers alone, as
//! `preference.PreferenceCollator` makes them. The loss is a mean over pairs; see [`objective`] for the formulas. Where a
//! reference model is part of them, [`mod@reference`] says which it is.
//!
//! Logged, in validation as `val_..`, are means over pairs: `rewards/{chosen,rejected,margins,accuracies}`,
//! `logps/{chosen,rejected}` (summed over an answer's tokens) and `lengths/{chosen,rejected}` (tokens of an answer); of ORPO
//! also `nll`, over the chosen answers' tokens.

mod log_probs;
mod log_probs_cache;
mod objective;
mod reference;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tt_adapters::{BaseDType, LoraConfig};
use tt_collators::{Batch, Layout, Pipeline};
use tt_config::{Diagnostics, Section};
use tt_models::Model;
use tt_nn::Forward;
use tt_tensor::Tensor;
use tt_train::{DeviceBatch, Error, IGNORE, Loss, Mean, Prediction, Result, Trainer, Training};

use log_probs::Answers;
use objective::{Formula, Objective, Pairs};
use reference::{Reference, ReferenceModel};

/// `trainer.kwargs` of `preference.PreferenceTrainer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PreferenceTrainerOptions {
    /// What is learned of a pair.
    pub loss: Objective,
    /// How sharply answers are told apart: the larger, the closer the model stays to the reference. Of ORPO the weight of the
    /// odds ratio beside the likelihood of the chosen answer (lambda).
    #[schemars(range(min = 0.0))]
    pub beta: f64,
    /// Of DPO: the share of pairs that are taken to be the wrong way round.
    #[schemars(range(min = 0.0, max = 0.5))]
    pub label_smoothing: f64,
    /// Of SimPO: the margin by which the chosen answer is to lead, after `beta`. 0.5, if null.
    #[schemars(range(min = 0.0))]
    pub gamma: Option<f64>,
    /// Of DPO and IPO: what the model is compared with.
    pub reference: ReferenceModel,
    /// What the matrices of a frozen copy are held in.
    pub reference_dtype: BaseDType,
}

impl Default for PreferenceTrainerOptions {
    fn default() -> Self {
        Self {
            loss: Objective::Dpo,
            beta: 0.1,
            label_smoothing: 0.0,
            gamma: None,
            reference: ReferenceModel::Auto,
            reference_dtype: BaseDType::F32,
        }
    }
}

/// `preference.PreferenceTrainer`.
pub struct PreferenceTrainer {
    formula: Formula,
    reference: Option<Reference>,
}

impl PreferenceTrainer {
    /// Error: an option that the loss has no place for, and its key.
    pub fn new(
        options: &PreferenceTrainerOptions,
    ) -> std::result::Result<Self, (&'static str, String)> {
        let formula = Formula::new(options)?;
        let with_reference = formula.needs_reference();
        if !with_reference && options.reference != ReferenceModel::Auto {
            let why = format!("{} compares with no reference model", options.loss.name());
            return Err(("reference", why));
        }
        let reference = Reference::new(options.reference, options.reference_dtype);
        Ok(Self {
            formula,
            reference: with_reference.then_some(reference),
        })
    }

    pub(crate) fn build(
        kwargs: &Section<'_>,
    ) -> std::result::Result<Box<dyn Trainer>, Diagnostics> {
        let made = Self::new(&kwargs.extract()?);
        let trainer = made.map_err(|(key, why)| {
            let section = kwargs.section(key);
            let message = format!("`{}`: {why}", section.path());
            Diagnostics::from(section.error(message))
        })?;
        Ok(Box::new(trainer))
    }

    /// Sums of what is logged of every pair, in one pass over them.
    fn scalars(&self, policy: &Pairs, rewards: &Pairs, valid: &Tensor) -> Result<Vec<Mean>> {
        let [chosen, rejected] = [rewards.chosen.detach(), rewards.rejected.detach()];
        let is_right = chosen.gt(&rejected)?.to_dtype(tt_tensor::DType::F32)?;
        let columns = [
            ("rewards/chosen", chosen.clone()),
            ("rewards/rejected", rejected.clone()),
            ("rewards/margins", chosen.sub(&rejected)?),
            ("rewards/accuracies", is_right),
            ("logps/chosen", policy.chosen.detach()),
            ("logps/rejected", policy.rejected.detach()),
            ("lengths/chosen", policy.chosen_tokens.clone()),
            ("lengths/rejected", policy.rejected_tokens.clone()),
        ];
        let names = columns.each_ref().map(|(name, _)| *name);
        let columns = columns.map(|(_, column)| column);
        let sums = Tensor::cat(&columns, 1)?.mul(valid)?.sum(&[0])?; // [8]
        let scalars = names.into_iter().enumerate();
        scalars
            .map(|(i, name)| Ok(Mean::new(name, sums.narrow(0, i, 1)?)))
            .collect()
    }
}

impl Trainer for PreferenceTrainer {
    /// Errors: a model that sees the token it is to predict; a reference that is not the one the run was begun with.
    fn post_init(&mut self, training: &mut Training) -> Result<()> {
        if !training.model.is_causal() {
            let why = "preference.PreferenceTrainer weighs answers by the probability of each next token, which this model's attention sees";
            return Err(Error::Config {
                key: "trainer.type",
                why: why.to_owned(),
            });
        }
        match &mut self.reference {
            Some(reference) => reference.take(training),
            None => Ok(()),
        }
    }

    fn initial_model(&self, adapter: Option<&LoraConfig>) -> Result<Option<BaseDType>> {
        match &self.reference {
            Some(reference) => reference.initial_model(adapter),
            None => Ok(None),
        }
    }

    fn prepare_data(
        &mut self,
        training: &mut Training,
        data: &mut Pipeline,
    ) -> Result<Option<String>> {
        if data.batch_spec()?.layout != Layout::Grouped(2) {
            let why = "its rows are no pairs, which preference.PreferenceTrainer learns from: preference.PreferenceCollator makes \
                       them (data=pairs, data=stories_pairs)";
            return Err(Error::Config {
                key: "data.collator.type",
                why: why.to_owned(),
            });
        }
        match &mut self.reference {
            Some(reference) => reference.compute_ahead(training, data),
            None => Ok(None),
        }
    }

    /// Pairs, and tokens of their chosen answers: ORPO divides by both.
    fn counts(&self, batch: &Batch) -> Vec<f32> {
        if !self.formula.counts_tokens() {
            return Vec::new();
        }
        let targets = |row: &[i64]| row[1..].iter().filter(|&&label| label != IGNORE).count();
        let rows: Vec<usize> = batch.labels.chunks(batch.seq_len).map(targets).collect();
        let pairs = rows.chunks(2).filter(|pair| pair.iter().all(|&it| it > 0));
        let pairs: Vec<usize> = pairs.map(|pair| pair[0]).collect();
        vec![pairs.len() as f32, pairs.iter().sum::<usize>() as f32]
    }

    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        let rows = batch.targets.dims()[0];
        let refuse = |why: &str| Error::Config {
            key: "data.collator.type",
            why: format!(
                "{why}; preference.PreferenceTrainer learns from pairs, as preference.PreferenceCollator gives them"
            ),
        };
        if batch.prediction != Prediction::NextToken {
            return Err(refuse("its labels are of the tokens in their place"));
        }
        if !rows.is_multiple_of(2) || batch.weights().is_some() {
            return Err(refuse("its rows are no pairs"));
        }
        // Before the model's own pass, of which the tape keeps much.
        let reference = match &self.reference {
            Some(reference) => reference.log_probs(fwd, model, batch)?,
            None => None,
        };
        let answers = Answers::of(fwd, model, batch)?;
        let policy = Pairs::of(&answers.log_probs, &answers.tokens)?;
        let reference = match reference {
            Some(log_probs) => Some(Pairs::of(&log_probs, &answers.tokens)?),
            None if self.formula.needs_reference() => Some(policy.detach()),
            None => None,
        };
        let valid = policy.valid()?; // [P, 1]: 0 where an answer has no token
        let made = self.formula.of(&policy, reference.as_ref())?;
        let mut scalars = self.scalars(&policy, &made.rewards, &valid)?;
        let mut sum = made.losses.mul(&valid)?.sum_all()?;
        if self.formula.counts_tokens() {
            let [pairs, tokens] = batch.counts[..] else {
                let why = "the pairs and tokens of the step were not counted before its loss (Training::count)";
                return Err(Error::Trainer(why.to_owned()));
            };
            let nll = policy.chosen.neg()?.mul(&valid)?.sum_all()?;
            let chosen_tokens = policy.chosen_tokens.mul(&valid)?.sum_all()?;
            // What is divided by all pairs of the step in the end is to be divided by all tokens of chosen answers.
            let share = f64::from(pairs) / f64::from(tokens.max(1.0));
            sum = sum.add(&nll.affine(share, 0.0)?)?;
            scalars.push(Mean::new("nll", nll).over(chosen_tokens));
        }
        Ok(Loss {
            sum,
            weight: valid.sum_all()?,
            scalars,
        })
    }

    fn state(&self) -> Value {
        match &self.reference {
            Some(reference) => reference.state(),
            None => Value::Null,
        }
    }

    fn restore(&mut self, state: &Value) -> Result<()> {
        match &mut self.reference {
            Some(reference) => reference.restore(state),
            None => Ok(()),
        }
    }
}
