//! Models: the trait, one file per architecture.
