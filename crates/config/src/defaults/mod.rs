//! Defaults lists: which files make up a configuration, in which order, in which packages.
//!
//! [`selection`] holds what the command line chooses, [`tree`] expands the lists into a tree, [`order`]
//! flattens it into the order in which the files are merged.

mod absent;
pub(crate) mod item;
pub(crate) mod order;
pub(crate) mod selection;
pub(crate) mod tree;
