//! Evaluation: the loss of a trained model over some batches, by its trainer's objective as in validation, and how many bits
//! each byte of the text takes.
//!
//! Over the same batches the loss is that of validation, to the bit. Bits per byte: the negative log-likelihood of the targets
//! that stand for text ([`TextTargets`]), in bits, over the bytes that they stand for. Both are of one forward pass.

use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use tt_collators::{Batch, TextTargets};
use tt_data::TokenBytes;
use tt_models::{Generation, Input, Model, TensorNames};
use tt_nn::{Forward, ModulePath, ParamSpec};
use tt_tensor::{CrossEntropyParams, Tensor, fused};

use crate::device_batch::{DeviceBatch, at_targets};
use crate::error::Result;
use crate::loss::{Loss, Mean};
use crate::step::add_counts;
use crate::totals::Totals;
use crate::training::Training;
use crate::validation::cross_entropy;
use crate::{IGNORE, Trainer};

const PLAIN: CrossEntropyParams = CrossEntropyParams {
    ignore_index: IGNORE,
    label_smoothing: 0.0,
    z_loss: 0.0,
};

/// What a model makes of one batch.
pub struct Look {
    loss: Loss,
    /// Where the loss is another: the plain one.
    cross_entropy: Option<Loss>,
    text: Option<TextLoss>,
    targets: u64,
}

/// The text among the targets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TextLoss {
    /// Negative log-likelihood, summed.
    pub nats: f64,
    /// Targets that stand for text.
    pub tokens: u64,
    /// Bytes of UTF-8 that they stand for.
    pub bytes: u64,
}

impl TextLoss {
    /// `None` where there is no text.
    pub fn bits_per_byte(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.nats / std::f64::consts::LN_2 / self.bytes as f64)
    }
}

/// What a model makes of all batches.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Mean cross-entropy, as `val_loss` is.
    pub loss: f32,
    /// The trainer's own loss, where it is another.
    pub objective: Option<f32>,
    /// What the trainer reports besides.
    pub scalars: Vec<(&'static str, f32)>,
    /// `None` if what is predicted is not the text that follows.
    pub text: Option<TextLoss>,
    /// Targets that the loss counts.
    pub targets: u64,
    /// Batches that were looked at.
    pub batches: u64,
}

/// Adds what [`Trainer::counts`] says of a batch to what it said of those before.
pub fn count(trainer: &dyn Trainer, batch: &Batch, counts: &mut Vec<f32>) {
    add_counts(counts, trainer.counts(batch));
}

/// Looks at a batch without learning from it. `counts` are of all batches ([`count`]), `bytes` of the tokenizer that the
/// batch is made with.
pub fn look(
    training: &Training,
    trainer: &dyn Trainer,
    batch: &Batch,
    counts: &[f32],
    bytes: &TokenBytes<'_>,
) -> Result<Look> {
    let fwd = Forward::inference(&training.params).with_precision(training.precision);
    let model = Remembering::new(&*training.model);
    let on_device = DeviceBatch::upload(batch, training.device)?.with_counts(counts);
    let loss = trainer.loss(&fwd, &model, &on_device)?.checked()?;
    let cross_entropy = match trainer.validates_by_cross_entropy() {
        true => None,
        false => Some(cross_entropy(&fwd, &*training.model, &on_device)?),
    };
    let text = match TextTargets::of(batch, bytes)? {
        None => None,
        Some(text) => {
            let targets = at_targets(batch, &text.labels, IGNORE);
            let shape = (batch.rows, batch.seq_len);
            let targets = Tensor::from_slice(&targets, shape, training.device)?;
            let hidden = match model.only(&on_device.input) {
                Some(hidden) => hidden,
                None => training.model.hidden_states(&fwd, &on_device.input)?,
            };
            let head = training.model.output(&fwd)?;
            let loss = fused::linear_cross_entropy(&hidden, &head, &targets, PLAIN)?;
            Some(TextLoss {
                nats: loss.sum.reshape(1)?.to_scalar::<f32>()?.into(),
                tokens: text.tokens,
                bytes: text.bytes,
            })
        }
    };
    Ok(Look {
        loss,
        cross_entropy,
        text,
        targets: batch.num_targets as u64,
    })
}

/// Sums over batches.
#[derive(Default)]
pub struct Tally {
    totals: Option<Totals>,
    cross_entropies: Option<Totals>,
    text: Option<TextLoss>,
    /// Some batch had no text to count.
    is_mixed: bool,
    targets: u64,
    batches: u64,
}

impl Tally {
    /// Counts a batch in. Error: the trainer reports other numbers than of the batch before.
    pub fn add(&mut self, look: &Look) -> Result<()> {
        let add = |totals: Option<Totals>, part: &Loss| match totals {
            None => Ok(Totals::new(copy(part), 1.0)),
            Some(so_far) => so_far.plus(copy(part)),
        };
        self.totals = Some(add(self.totals.take(), &look.loss)?);
        if let Some(loss) = &look.cross_entropy {
            self.cross_entropies = Some(add(self.cross_entropies.take(), loss)?);
        }
        match look.text {
            None => self.is_mixed = true,
            Some(more) => {
                let text = self.text.get_or_insert_default();
                text.nats += more.nats;
                text.tokens += more.tokens;
                text.bytes += more.bytes;
            }
        }
        self.targets += look.targets;
        self.batches += 1;
        Ok(())
    }

    /// The means; `None` if there was nothing to predict.
    pub fn evaluation(&self) -> Result<Option<Evaluation>> {
        let Some(totals) = &self.totals else {
            return Ok(None);
        };
        let Some(objective) = totals.mean()? else {
            return Ok(None);
        };
        let plain = self.cross_entropies.as_ref().map(Totals::mean);
        let plain = plain.transpose()?.flatten();
        let device = totals.loss.device();
        Ok(Some(Evaluation {
            loss: plain.unwrap_or(objective),
            objective: plain.map(|_| objective),
            scalars: totals.read(&Tensor::zeros(1, device)?)?.scalars,
            text: self.text.filter(|_| !self.is_mixed),
            targets: self.targets,
            batches: self.batches,
        }))
    }
}

/// The same tensors; none is on the tape.
fn copy(loss: &Loss) -> Loss {
    let scalars = loss.scalars.iter().map(|scalar| Mean {
        name: scalar.name,
        sum: scalar.sum.clone(),
        weight: scalar.weight.clone(),
    });
    Loss {
        sum: loss.sum.clone(),
        weight: loss.weight.clone(),
        scalars: scalars.collect(),
    }
}

/// A model that keeps the hidden states it gave, so that a second loss over the same batch needs no second pass.
struct Remembering<'a> {
    model: &'a dyn Model,
    passes: Mutex<Vec<Pass>>,
}

/// One call of `hidden_states`.
struct Pass {
    /// The address of what was read: that of a batch is another than that of anything made beside it.
    input: usize,
    hidden: Tensor,
}

impl<'a> Remembering<'a> {
    fn new(model: &'a dyn Model) -> Self {
        Self {
            model,
            passes: Mutex::new(Vec::new()),
        }
    }

    /// The hidden states of `input`, if that is all that was read: a second pass may be that of a reference model.
    fn only(self, input: &Input) -> Option<Tensor> {
        let passes = self.passes.into_inner();
        match &passes.unwrap_or_else(PoisonError::into_inner)[..] {
            [only] if only.input == address(input) => Some(only.hidden.clone()),
            _ => None,
        }
    }
}

fn address(input: &Input) -> usize {
    std::ptr::from_ref(input).addr()
}

// What is not passed on here would be the trait's default and not the model's.
#[deny(clippy::missing_trait_methods)]
impl Model for Remembering<'_> {
    fn params(&self) -> Vec<ParamSpec> {
        self.model.params()
    }

    fn hidden_states(&self, fwd: &Forward, input: &Input) -> tt_models::Result<Tensor> {
        let hidden = self.model.hidden_states(fwd, input)?;
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        passes.push(Pass {
            input: address(input),
            hidden: hidden.detach(),
        });
        Ok(hidden)
    }

    fn encode(&self, fwd: &Forward, input: &Input) -> tt_models::Result<Tensor> {
        self.model.encode(fwd, input)
    }

    fn head(&self, fwd: &Forward) -> tt_models::Result<Tensor> {
        self.model.head(fwd)
    }

    fn output(&self, fwd: &Forward) -> tt_models::Result<fused::Head> {
        self.model.output(fwd)
    }

    fn is_causal(&self) -> bool {
        self.model.is_causal()
    }

    fn generation(&self) -> Generation {
        self.model.generation()
    }

    fn tensor_names(&self) -> TensorNames {
        self.model.tensor_names()
    }

    fn blocks(&self) -> Vec<ModulePath> {
        self.model.blocks()
    }

    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn max_positions(&self) -> usize {
        self.model.max_positions()
    }

    fn hf_config(&self) -> Value {
        self.model.hf_config()
    }

    fn logits(&self, fwd: &Forward, input: &Input) -> tt_models::Result<Tensor> {
        self.model.logits(fwd, input)
    }
}
