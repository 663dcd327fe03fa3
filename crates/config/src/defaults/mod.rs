//! Defaults lists: which files make up a configuration, in which order, in which packages.
//!
//! [`selection`] holds what the command line chooses, [`tree`] expands the lists into a tree, and
//! flattens it into the order in which the files are merged.

pub(crate) mod item;
pub(crate) mod selection;
pub(crate) mod tree;
