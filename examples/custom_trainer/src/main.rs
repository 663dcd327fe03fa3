//! `cargo run --release -p custom-trainer -- +model=qwen2 +trainer=focal`
//!
//! The focal loss, `(1 - p)^gamma * -log p` for the probability `p` of the right token, makes light of what the model
//! knows already (Lin et al. 2017, arXiv:1708.02002). Besides the loss, `metrics.jsonl` gets an `accuracy` a step, and a
//! `val_accuracy` a validation.

use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Deserialize;
use tpu_train::models::Model;
use tpu_train::nn::Forward;
use tpu_train::tensor::{DType, fused};
use tpu_train::train::{DeviceBatch, Loss, Mean, Result, Trainer};
use tpu_train::{App, Entry};

/// `trainer.kwargs`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FocalTrainer {
    /// How little a token counts that the model is sure of; 0 is cross-entropy.
    #[schemars(range(min = 0.0))]
    gamma: f64,
}

impl Trainer for FocalTrainer {
    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        let hidden = model.hidden_states(fwd, &batch.input)?; // [B, T, hidden]
        let logits = fused::logits(&hidden, &model.head(fwd)?)?; // [B, T, vocab]
        let (ids, weight) = batch.target_ids()?; // [B, T]; weight is 0 where there is no target
        let index = ids.reshape((ids.dims()[0], ids.dims()[1], 1))?;
        let log_p = logits.log_softmax(2)?.gather(&index, 2)?;
        let log_p = log_p.reshape(ids.shape().clone())?; // [B, T]

        let unsure = log_p.exp()?.affine(-1.0, 1.0)?.powf(self.gamma)?; // (1 - p)^gamma
        let sum = unsure.mul(&log_p.neg()?)?.mul(&weight)?.sum_all()?;
        let right = logits.detach().argmax(2)?.eq(&ids)?;
        let right = right.to_dtype(DType::F32)?.mul(&weight)?.sum_all()?;
        Ok(Loss {
            sum,
            weight: weight.sum_all()?,
            scalars: vec![Mean::new("accuracy", right)],
        })
    }
}

fn main() -> ExitCode {
    App::new()
        .with_trainer(Entry::new::<FocalTrainer>(
            "focal.FocalTrainer",
            "language modelling with the focal loss",
            |kwargs| Ok(Box::new(kwargs.extract::<FocalTrainer>()?)),
        ))
        .with_configs(&[("trainer/focal.yaml", include_str!("focal.yaml"))])
        .run(std::env::args_os().skip(1))
}
