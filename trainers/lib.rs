//! Trainers: the trait, the training loop, one file per trainer.
