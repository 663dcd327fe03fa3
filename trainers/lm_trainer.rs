//! Causal language modelling: cross-entropy of each token given those before it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_models::Model;
use tt_nn::Forward;
use tt_tensor::{CrossEntropyParams, fused};
use tt_train::{DeviceBatch, Error, IGNORE, Loss, Result, Trainer, Training};

/// `trainer.kwargs` of `lm_trainer.LMTrainer`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LMTrainerOptions {
    /// Share of the target's probability that is spread over the vocabulary.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub label_smoothing: f64,
    /// Adds this times the squared log-sum-exp of the logits to the loss of each token.
    #[schemars(range(min = 0.0))]
    pub z_loss: f64,
}

/// `lm_trainer.LMTrainer`.
pub struct LMTrainer {
    cross_entropy: CrossEntropyParams,
}

impl LMTrainer {
    /// Label smoothing and z-loss are as in [`CrossEntropyParams`]; 0 is off.
    pub fn new(label_smoothing: f64, z_loss: f64) -> Self {
        Self {
            cross_entropy: CrossEntropyParams {
                ignore_index: IGNORE,
                label_smoothing: label_smoothing as f32,
                z_loss: z_loss as f32,
            },
        }
    }
}

impl Trainer for LMTrainer {
    /// Error: a model that sees the token it is to predict.
    fn post_init(&mut self, training: &mut Training) -> Result<()> {
        if training.model.is_causal() {
            return Ok(());
        }
        let why = "lm_trainer.LMTrainer predicts the next token, which this model's attention sees";
        Err(Error::Config {
            key: "trainer.type",
            why: why.to_owned(),
        })
    }

    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        let hidden = model.hidden_states(fwd, &batch.input)?; // [B, T, hidden]
        // Smoothing and z-loss shape the gradient; validation reports the plain cross-entropy.
        let params = if fwd.is_training() {
            self.cross_entropy
        } else {
            CrossEntropyParams {
                label_smoothing: 0.0,
                z_loss: 0.0,
                ..self.cross_entropy
            }
        };
        let head = model.output(fwd)?;
        let loss = fused::linear_cross_entropy(&hidden, &head, &batch.targets, params)?;
        Ok(Loss {
            sum: loss.sum,
            weight: loss.count,
            scalars: Vec::new(),
        })
    }
}
