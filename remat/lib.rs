//! Remat, also called activation checkpointing: which modules keep only their input in the forward pass and are run
//! again in the backward pass. Costs one more forward pass of those modules, saves their activations; gradients keep
//! every bit.
//!
//! ```
//! use tt_nn::ModulePath;
//! use tt_remat::{Remat, RematConfig};
//!
//! let block = ModulePath::root().join("model.layers.0");
//! let modules = [(block.clone(), "Qwen2DecoderLayer"), (block.join("mlp"), "GatedMlp")];
//! let config = RematConfig { activation_checkpoint_layers: vec!["model.layers.*".into()], every: 1 };
//! let remat = Remat::new(&config, &modules, &[block.clone()]).unwrap();
//! assert_eq!(remat.modules().collect::<Vec<_>>(), [&block]);
//! ```
//!
//! A policy over module paths, applied from outside: models do not know of it (see [`tt_nn::Recompute`]).
//! Source: Chen et al. 2016, arXiv:1604.06174.

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_nn::{ModulePath, PathGlob, Recompute};

/// What stands for the model's repeated blocks, whatever their class is called.
pub const BLOCKS: &str = "blocks";

/// `model.remat`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RematConfig {
    /// The modules that keep only their input and are run again in the backward pass: globs over module paths
    /// (`model.layers.*.mlp`), class names (`Qwen2DecoderLayer`, `GatedMlp`), or `blocks` for all repeated blocks.
    /// Of modules within one another the outermost counts.
    pub activation_checkpoint_layers: Vec<String>,
    /// Of the modules that a name stands for, in their order, each n-th is run again; 1: all of them.
    #[schemars(range(min = 1))]
    pub every: usize,
}

impl Default for RematConfig {
    fn default() -> Self {
        Self {
            activation_checkpoint_layers: Vec::new(),
            every: 1,
        }
    }
}

/// A name under `activation_checkpoint_layers` that stands for nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{name}` is no module path or class of this model{}", suggestion(.near))]
    NoModule { name: String, near: Option<String> },
    #[error(transparent)]
    Glob(#[from] tt_nn::Error),
}

fn suggestion(near: &Option<String>) -> String {
    match near {
        Some(near) => format!("; did you mean `{near}`?"),
        None => String::new(),
    }
}

/// The modules of a model that are run again.
#[derive(Clone, Debug)]
pub struct Remat(HashSet<ModulePath>);

impl Remat {
    /// `modules` are those of the model by path and class, in the order in which they run, `blocks` its repeated blocks.
    pub fn new(
        config: &RematConfig,
        modules: &[(ModulePath, &str)],
        blocks: &[ModulePath],
    ) -> Result<Self, Error> {
        let mut chosen = HashSet::new();
        for name in &config.activation_checkpoint_layers {
            let glob = PathGlob::new(name)?;
            let is_named = |(path, class): &(ModulePath, &str)| match name.as_str() {
                BLOCKS => blocks.contains(path),
                name => is_class(name, class) || glob.matches(path.as_str()),
            };
            let named: Vec<_> = modules.iter().filter(|module| is_named(module)).collect();
            if named.is_empty() {
                let (name, near) = (name.clone(), nearest(name, modules));
                return Err(Error::NoModule { name, near });
            }
            let every = config.every.max(1);
            let each = named.iter().skip(every - 1).step_by(every);
            chosen.extend(each.map(|(path, _)| path.clone()));
        }
        Ok(Self(chosen))
    }

    /// What is run again, in no order.
    pub fn modules(&self) -> impl Iterator<Item = &ModulePath> {
        self.0.iter()
    }
}

impl Recompute for Remat {
    fn recomputes(&self, module: &ModulePath, _class: &'static str) -> bool {
        self.0.contains(module)
    }
}

/// Our class names, and those that transformers has for the parts of its models: `LlamaMLP` is a `GatedMlp`. That name, which
/// the preset `mlp` has, stands for a feed-forward without a gate too, where the model's is one: `GPT2MLP`.
fn is_class(name: &str, class: &str) -> bool {
    let theirs = match class {
        "GatedMlp" => "MLP",
        "FeedForward" => "Mlp", // so that one name, `GatedMlp`, stands for the feed-forward part of every model
        "SelfAttention" => "Attention",
        "RmsNorm" => "RMSNorm",
        _ => "",
    };
    let is_mlp = name == "GatedMlp" && class.ends_with("MLP");
    name == class || is_mlp || (!theirs.is_empty() && !name.contains('.') && name.ends_with(theirs))
}

fn nearest(name: &str, modules: &[(ModulePath, &str)]) -> Option<String> {
    let known = modules
        .iter()
        .flat_map(|(path, class)| [path.as_str(), class]);
    let rated = known.map(|known| (strsim::jaro_winkler(name, known), known));
    rated
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .filter(|(likeness, _)| *likeness > 0.8)
        .map(|(_, known)| known.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four blocks with an attention and an MLP each.
    fn chosen(names: &[&str], every: usize) -> Result<Vec<String>, Error> {
        let layers = ModulePath::root().join("model.layers");
        let blocks: Vec<_> = (0..4).map(|i| layers.join(i)).collect();
        let parts = |block: &ModulePath| {
            [
                (block.clone(), "LlamaDecoderLayer"),
                (block.join("self_attn"), "SelfAttention"),
                (block.join("mlp"), "GatedMlp"),
            ]
        };
        let modules: Vec<_> = blocks.iter().flat_map(parts).collect();
        let config = RematConfig {
            activation_checkpoint_layers: names.iter().map(|name| (*name).to_owned()).collect(),
            every,
        };
        let remat = Remat::new(&config, &modules, &blocks)?;
        let mut paths: Vec<_> = remat.modules().map(ModulePath::to_string).collect();
        paths.sort();
        Ok(paths)
    }

    #[test]
    fn blocks_go_by_path_by_class_or_by_that_name() {
        let all = [
            "model.layers.0",
            "model.layers.1",
            "model.layers.2",
            "model.layers.3",
        ];
        assert_eq!(chosen(&["blocks"], 1).unwrap(), all);
        assert_eq!(chosen(&["LlamaDecoderLayer"], 1).unwrap(), all);
        assert_eq!(chosen(&["model.layers.*"], 1).unwrap(), all);
        assert_eq!(chosen(&["blocks"], 2).unwrap(), [all[1], all[3]]);
        assert_eq!(chosen(&["blocks"], 3).unwrap(), [all[2]]);
        assert!(chosen(&[], 1).unwrap().is_empty());
    }

    #[test]
    fn parts_of_blocks_go_by_the_names_that_transformers_has_for_them() {
        let ours = chosen(&["GatedMlp"], 1).unwrap();
        assert_eq!(ours, chosen(&["LlamaMLP"], 1).unwrap());
        assert_eq!(ours, chosen(&["model.layers.*.mlp"], 1).unwrap());
        assert_eq!(
            chosen(&["LlamaAttention"], 1).unwrap()[0],
            "model.layers.0.self_attn"
        );
    }

    #[test]
    fn the_preset_for_gated_feed_forwards_stands_for_the_plain_ones_of_a_model_that_has_them() {
        assert!(is_class("GatedMlp", "GPT2MLP") && is_class("GPT2MLP", "GPT2MLP"));
        assert!(!is_class("GatedMlp", "GPT2Attention"));
    }

    #[test]
    fn a_name_that_stands_for_nothing_is_an_error_with_the_nearest() {
        let message = chosen(&["LlamaDecoderLayers"], 1).unwrap_err().to_string();
        assert!(
            message.contains("did you mean `LlamaDecoderLayer`?"),
            "{message}"
        );
        let message = chosen(&["xyz"], 1).unwrap_err().to_string();
        assert!(message.ends_with("of this model"), "{message}");
        assert!(chosen(&["model.[0"], 1).is_err());
    }
}
