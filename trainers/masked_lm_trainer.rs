//! Masked language modelling: cross-entropy of each hidden token given those around it.
//!
//! What is hidden the collator says, `masked_lm.MaskedLMCollator` for one: labels stand at the tokens that they are of, and
//! the loss looks at nothing else. Validation reports `val_masked_accuracy` besides, the share of the hidden tokens that the
//! model would name first; in training that would take another pass through the head.
//! Source: Devlin et al. 2018, arXiv:1810.04805.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_models::Model;
use tt_nn::Forward;
use tt_tensor::{CrossEntropyParams, DType, Tensor, fused};
use tt_train::{DeviceBatch, Error, IGNORE, Loss, Mean, Prediction, Result, Trainer, Training};

use crate::cross_entropy::cross_entropy;

/// `trainer.kwargs` of `masked_lm.MaskedLMTrainer`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MaskedLMTrainerOptions {
    /// Share of the target's probability that is spread over the vocabulary.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub label_smoothing: f64,
}

/// `masked_lm.MaskedLMTrainer`.
pub struct MaskedLMTrainer {
    label_smoothing: f32,
}

impl MaskedLMTrainer {
    /// Makes one.
    pub fn new(options: &MaskedLMTrainerOptions) -> Self {
        Self {
            label_smoothing: options.label_smoothing as f32,
        }
    }
}

impl Trainer for MaskedLMTrainer {
    /// Error: a model that does not see what comes after a hidden token.
    fn post_init(&mut self, training: &mut Training) -> Result<()> {
        if !training.model.is_causal() {
            return Ok(());
        }
        let why = "masked_lm.MaskedLMTrainer learns hidden tokens from those on both sides, and this model's attention looks \
                   back only; lm_trainer.LMTrainer is for that, +model=bert for this";
        Err(Error::Config {
            key: "trainer.type",
            why: why.to_owned(),
        })
    }

    fn validates_by_cross_entropy(&self) -> bool {
        true
    }

    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        if batch.prediction != Prediction::SameToken {
            return Err(Error::Config {
                key: "data.collator.type",
                why: "its labels are of the next token; masked_lm.MaskedLMTrainer learns tokens in their place, as \
                      masked_lm.MaskedLMCollator hides them (+data/collator=masked_lm)"
                    .to_owned(),
            });
        }
        let hidden = model.hidden_states(fwd, &batch.input)?; // [B, T, hidden]
        let head = model.output(fwd)?;
        let params = CrossEntropyParams {
            ignore_index: IGNORE,
            // Validation reports the plain cross-entropy.
            label_smoothing: if fwd.is_training() {
                self.label_smoothing
            } else {
                0.0
            },
            z_loss: 0.0,
        };
        let scalars = if fwd.is_training() {
            Vec::new()
        } else {
            vec![Mean::new("masked_accuracy", right(&hidden, &head, batch)?)]
        };
        Ok(Loss {
            scalars,
            ..cross_entropy(&hidden, &head, batch, params)?
        })
    }
}

/// The summed weight of the targets whose logit is the greatest. Row by row, so that the logits are never held whole.
fn right(hidden: &Tensor, head: &fused::Head, batch: &DeviceBatch) -> Result<Tensor> {
    let (ids, weights) = batch.target_ids()?; // [B, T]
    let [rows, _, _] = hidden.dims_of("masked accuracy")?;
    let mut right = Vec::with_capacity(rows);
    for row in 0..rows {
        let logits = fused::logits(&hidden.narrow(0, row, 1)?, head)?; // [1, T, vocab]
        let is_right = logits.argmax(2)?.eq(&ids.narrow(0, row, 1)?)?;
        let weight = is_right
            .to_dtype(DType::F32)?
            .mul(&weights.narrow(0, row, 1)?)?;
        right.push(weight.sum_all()?.reshape(1)?);
    }
    Ok(Tensor::cat(&right, 0)?.sum_all()?)
}

#[cfg(test)]
mod tests {
    use tt_collators::Batch;
    use tt_models::{BertConfig, ModelConfig};
    use tt_nn::ParamTree;
    use tt_tensor::{Device, Seed, Tape};

    use super::*;

    /// Two rows of four tokens; those whose label is not [`IGNORE`] are hidden.
    fn batch(labels: [i64; 8]) -> Batch {
        Batch {
            rows: 2,
            seq_len: 4,
            input_ids: vec![3, 1, 4, 1, 5, 9, 2, 6],
            labels: labels.to_vec(),
            segment_ids: vec![1; 8],
            position_ids: (0..4).chain(0..4).collect(),
            prediction: Prediction::SameToken,
            num_targets: labels.iter().filter(|label| **label != IGNORE).count(),
            ..Batch::default()
        }
    }

    /// Sum and weight of the loss, and the masked accuracy outside training.
    fn numbers(batch: &Batch, is_training: bool) -> (f32, f32, Option<f32>) {
        let config: BertConfig = serde_json::from_value(serde_json::json!({
            "vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "max_position_embeddings": 8, "initializer_range": 0.3,
        }))
        .unwrap();
        let model = config.build().unwrap();
        let params = ParamTree::init(&model.params(), Seed::new(1), Device::Cpu).unwrap();
        let tape = Tape::new();
        let fwd = match is_training {
            true => Forward::training(&params, &tape, Seed::new(2)),
            false => Forward::inference(&params),
        };
        let trainer = MaskedLMTrainer::new(&MaskedLMTrainerOptions::default());
        let batch = DeviceBatch::upload(batch, Device::Cpu).unwrap();
        let loss = trainer.loss(&fwd, &*model, &batch).unwrap();
        let scalar = |tensor: &Tensor| {
            let tensor = tensor.detach().reshape(1).unwrap();
            tensor.to_scalar::<f32>().unwrap()
        };
        let accuracy = loss.scalars.first().map(|it| scalar(&it.sum));
        if is_training {
            tape.backward(&loss.sum).unwrap();
            for (spec, parameter) in params.iter() {
                let grad = parameter.grad().map(|grad| grad.to_vec::<f32>().unwrap());
                let is_finite = grad.iter().flatten().all(|g| g.is_finite());
                assert!(is_finite, "{}", spec.path);
            }
        }
        (scalar(&loss.sum), scalar(&loss.weight), accuracy)
    }

    const NONE: [i64; 8] = [IGNORE; 8];

    #[test]
    fn only_hidden_tokens_count() {
        let mut labels = NONE;
        labels[1] = 7;
        let (first, weight, _) = numbers(&batch(labels), false);
        assert_eq!(weight, 1.0);
        labels[1] = IGNORE;
        labels[6] = 2;
        let (second, _, _) = numbers(&batch(labels), false);
        labels[1] = 7;
        let (both, weight, _) = numbers(&batch(labels), false);
        assert_eq!(weight, 2.0);
        assert!(
            (both - first - second).abs() < 1e-5,
            "{both}: {first}, {second}"
        );
    }

    /// A short row may have none; its mean would be 0 by 0.
    #[test]
    fn a_batch_in_which_nothing_is_hidden_has_no_loss_and_no_weight_and_finite_gradients() {
        assert_eq!(numbers(&batch(NONE), true), (0.0, 0.0, None));
        assert_eq!(numbers(&batch(NONE), false), (0.0, 0.0, Some(0.0)));
    }

    #[test]
    fn accuracy_counts_the_targets_that_the_model_names_first() {
        // Whatever the model names at a place, it is one of the 16.
        let mut right = 0.0;
        for token in 0..16 {
            let mut labels = NONE;
            labels[2] = token;
            right += numbers(&batch(labels), false).2.unwrap();
        }
        assert_eq!(right, 1.0);
    }
}
