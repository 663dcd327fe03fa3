//! Optimizers: the trait, one file per optimizer, schedules.
