//! Causal language modelling: cross-entropy of each token given those before it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_collators::{Layout, Pipeline};
use tt_models::Model;
use tt_nn::Forward;
use tt_tensor::CrossEntropyParams;
use tt_train::{DeviceBatch, Error, IGNORE, Loss, Prediction, Result, Trainer, Training};

use crate::cross_entropy::cross_entropy;

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

    fn prepare_data(
        &mut self,
        _training: &mut Training,
        data: &mut Pipeline,
    ) -> Result<Option<String>> {
        let warning = |rows| {
            format!(
                "warning: each record of the data gives {rows} rows, as pairs do, and lm_trainer.LMTrainer learns them all, the \
                 rejected answers too; trainer=dpo, ipo, simpo and orpo learn from pairs, and data=sft from the chosen answers \
                 alone (data.collator.kwargs.columns)"
            )
        };
        Ok(match data.batch_spec()?.layout {
            Layout::Grouped(rows) if rows > 1 => Some(warning(rows)),
            _ => None,
        })
    }

    fn validates_by_cross_entropy(&self) -> bool {
        true
    }

    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        if batch.prediction != Prediction::NextToken {
            return Err(Error::Config {
                key: "data.collator.type",
                why: "its labels are of the tokens in their place; lm_trainer.LMTrainer learns the next token".to_owned(),
            });
        }
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
        cross_entropy(&hidden, &head, batch, params)
    }
}

#[cfg(test)]
mod tests {
    use tt_collators::{Batch, Field, Values};
    use tt_models::{Qwen2Config, Qwen2ForCausalLM};
    use tt_nn::ParamTree;
    use tt_tensor::{Device, Seed, Tape, Tensor};

    use super::*;

    /// Two rows of five tokens, with a weight for each if given.
    fn batch(weights: Option<[f32; 10]>) -> Batch {
        let ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3];
        let labels = ids.map(i64::from);
        let fields = weights.map(|weights| (Field::weights(), Values::F32(weights.to_vec())));
        Batch {
            rows: 2,
            seq_len: 5,
            input_ids: ids.to_vec(),
            labels: labels.to_vec(),
            segment_ids: vec![1; 10],
            position_ids: (0..5).chain(0..5).collect(),
            fields: fields.into_iter().collect(),
            num_targets: 8,
            ..Batch::default()
        }
    }

    /// Loss and weight of a batch, and the embedding's gradient.
    fn learn(batch: &Batch) -> Result<(f32, f32, Vec<f32>)> {
        let config: Qwen2Config = serde_json::from_value(serde_json::json!({
            "vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 8,
        }))
        .unwrap();
        let model = Qwen2ForCausalLM::new(config).unwrap();
        let params = ParamTree::init(&model.params(), Seed::new(1), Device::Cpu).unwrap();
        let tape = Tape::new();
        let fwd = Forward::training(&params, &tape, Seed::new(2));
        let batch = DeviceBatch::upload(batch, Device::Cpu).unwrap();
        let trainer = LMTrainer::new(0.1, 1e-2);
        let loss = trainer.loss(&fwd, &model, &batch)?;
        tape.backward(&loss.sum).unwrap();
        let (_, embedding) = params.iter().next().unwrap();
        let scalar = |tensor: &Tensor| tensor.to_scalar::<f32>().unwrap();
        let gradient = embedding.grad().unwrap().to_vec().unwrap();
        Ok((scalar(&loss.sum), scalar(&loss.weight), gradient))
    }

    #[track_caller]
    fn assert_close(a: &(f32, f32, Vec<f32>), b: &(f32, f32, Vec<f32>)) {
        let flat = |(sum, weight, gradient): &(f32, f32, Vec<f32>)| -> Vec<f32> {
            [*sum, *weight]
                .into_iter()
                .chain(gradient.iter().copied())
                .collect()
        };
        for (a, b) in flat(a).iter().zip(flat(b)) {
            assert!((a - b).abs() < 1e-5 + 1e-4 * b.abs(), "{a} {b}");
        }
    }

    #[test]
    fn with_weights_of_one_the_loss_is_that_without() {
        let (weighted, plain) = (batch(Some([1.0; 10])), batch(None));
        assert_close(&learn(&weighted).unwrap(), &learn(&plain).unwrap());
    }

    #[test]
    fn a_target_of_weight_zero_is_one_without_a_label() {
        let mut weights = [1.0; 10];
        let mut unlabelled = batch(None);
        for i in [2, 8] {
            weights[i] = 0.0;
            unlabelled.labels[i] = IGNORE;
        }
        let weighted = batch(Some(weights));
        assert_close(&learn(&weighted).unwrap(), &learn(&unlabelled).unwrap());
    }

    #[test]
    fn a_target_of_weight_two_counts_twice() {
        let (sum, weight, gradient) = learn(&batch(None)).unwrap();
        let doubled = learn(&batch(Some([2.0; 10]))).unwrap();
        let gradient = gradient.iter().map(|g| 2.0 * g).collect();
        assert_close(&doubled, &(2.0 * sum, 2.0 * weight, gradient));
    }

    #[test]
    fn labels_in_their_place_are_refused() {
        let masked = Batch {
            prediction: Prediction::SameToken,
            ..batch(None)
        };
        let error = learn(&masked).unwrap_err().to_string();
        assert!(
            error.contains("lm_trainer.LMTrainer learns the next token"),
            "{error}"
        );
    }
}
