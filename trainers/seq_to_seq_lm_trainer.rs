//! Sequence to sequence by a decoder: the output is predicted after its input, in one sequence.
//!
//! The collator says which part is which, by its labels: `seq_to_seq.SeqToSeqCollator`, for one. What is learned of them is
//! what [`LMTrainer`] learns.

use tt_collators::Pipeline;
use tt_models::Model;
use tt_nn::Forward;
use tt_train::{DeviceBatch, Loss, Result, Trainer, Training};

use crate::{LMTrainer, LMTrainerOptions};

/// `seq_to_seq_lm_trainer.SeqToSeqLMTrainer`.
pub struct SeqToSeqLMTrainer(LMTrainer);

impl SeqToSeqLMTrainer {
    /// Makes one.
    pub fn new(options: &LMTrainerOptions) -> Self {
        Self(LMTrainer::new(options.label_smoothing, options.z_loss))
    }
}

impl Trainer for SeqToSeqLMTrainer {
    fn post_init(&mut self, training: &mut Training) -> Result<()> {
        self.0.post_init(training)
    }

    fn prepare_data(
        &mut self,
        training: &mut Training,
        data: &mut Pipeline,
    ) -> Result<Option<String>> {
        self.0.prepare_data(training, data)
    }

    fn validates_by_cross_entropy(&self) -> bool {
        true
    }

    fn loss(&self, fwd: &Forward, model: &dyn Model, batch: &DeviceBatch) -> Result<Loss> {
        self.0.loss(fwd, model, batch)
    }
}
