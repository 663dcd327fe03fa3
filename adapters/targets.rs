//! Which linear layers are meant: names and globs over module paths, matched against a model's parameters.
//!
//! A target is a glob (see [`PathGlob`]) for the last parts of a layer's path: `q_proj` is every layer of that name, `mlp.*`
//! every layer of every `mlp`, `model.layers.0.self_attn.q_proj` a single one. `all-linear` is every linear layer but the
//! output head.

use std::borrow::Cow;
use std::collections::HashSet;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use tt_nn::{ParamKind, ParamSpec, PathGlob};

use crate::error::{Error, Result};

/// The name in peft for every linear layer but the head.
pub(crate) const ALL_LINEAR: &str = "all-linear";

/// `target_modules`: one target or several.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Targets(pub Vec<String>);

/// A linear layer of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub path: String,
    pub inputs: usize,
    pub outputs: usize,
    /// Its weight is `[in, out]`, as GPT-2's.
    pub in_out: bool,
}

impl Targets {
    /// The layers that are meant, in the model's order. Error: a target that matches none, or what is not linear.
    pub fn resolve(&self, specs: &[ParamSpec]) -> Result<Vec<Layer>> {
        let mut is_meant = HashSet::new();
        for (index, target) in self.0.iter().enumerate() {
            let glob = last_parts(target, index)?;
            let is_matched = |layer: &Layer| target == ALL_LINEAR || glob.matches(&layer.path);
            let mut matched = layers(specs).filter(is_matched).peekable();
            if matched.peek().is_none() {
                return Err(unmatched(target, &glob, index, specs));
            }
            is_meant.extend(matched.map(|layer| layer.path));
        }
        Ok(layers(specs)
            .filter(|layer| is_meant.contains(&layer.path))
            .collect())
    }
}

/// Matches paths that end in what matches `target`.
fn last_parts(target: &str, index: usize) -> Result<PathGlob> {
    let refuse = |why: String| Error::Target {
        target: target.to_owned(),
        index,
        why,
    };
    if target.is_empty() {
        return Err(refuse("a target names a layer".to_owned()));
    }
    PathGlob::new(&format!("**.{target}")).map_err(|error| refuse(error.to_string()))
}

/// All linear layers but the head.
pub(crate) fn layers(specs: &[ParamSpec]) -> impl Iterator<Item = Layer> {
    specs.iter().filter_map(|spec| {
        let (inputs, outputs) = match (spec.kind, &spec.shape[..]) {
            (ParamKind::Linear, &[outputs, inputs]) => (inputs, outputs),
            (ParamKind::LinearInOut, &[inputs, outputs]) => (inputs, outputs),
            _ => return None,
        };
        Some(Layer {
            path: module(spec).to_owned(),
            inputs,
            outputs,
            in_out: spec.kind == ParamKind::LinearInOut,
        })
    })
}

/// The path of the module that a parameter belongs to.
fn module(spec: &ParamSpec) -> &str {
    spec.path.rsplit_once('.').map_or("", |(module, _)| module)
}

fn unmatched(target: &str, glob: &PathGlob, index: usize, specs: &[ParamSpec]) -> Error {
    let target = target.to_owned();
    let other = specs.iter().find(|spec| {
        let is_matrix = matches!(spec.kind, ParamKind::Embedding | ParamKind::Head);
        is_matrix && glob.matches(module(spec))
    });
    if let Some(spec) = other {
        let path = module(spec).to_owned();
        let what = match spec.kind {
            ParamKind::Head => "the output head",
            _ => "an embedding",
        };
        return Error::NotLinear {
            target,
            index,
            path,
            what,
        };
    }
    let nearest = nearest(&target, specs);
    Error::UnmatchedTarget {
        target,
        index,
        nearest,
    }
}

/// The last parts of a layer's path, as many as the target has, that look most like it.
fn nearest(target: &str, specs: &[ParamSpec]) -> Option<String> {
    const MIN_SIMILARITY: f64 = 0.5;
    let count = target.split('.').count();
    let ends = layers(specs).map(|layer| {
        let parts: Vec<&str> = layer.path.split('.').collect();
        parts[parts.len().saturating_sub(count)..].join(".")
    });
    let scored = ends.map(|end| (strsim::normalized_levenshtein(target, &end), end));
    let (similarity, end) = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (similarity >= MIN_SIMILARITY).then_some(end)
}

impl<'de> Deserialize<'de> for Targets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum OneOrMore {
            One(String),
            More(Vec<String>),
        }
        Ok(Self(match OneOrMore::deserialize(deserializer)? {
            OneOrMore::One(target) => vec![target],
            OneOrMore::More(targets) => targets,
        }))
    }
}

impl JsonSchema for Targets {
    fn schema_name() -> Cow<'static, str> {
        "Targets".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "array"], "items": {"type": "string"}, "minItems": 1})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_matches_the_last_parts_of_a_path() {
        let path = "model.layers.10.self_attn.q_proj";
        let matches = |target: &str| last_parts(target, 0).unwrap().matches(path);
        for target in [
            "q_proj",
            "{q,v}_proj",
            "self_attn.q_proj",
            "layers.*.self_attn.q_proj",
            "layers.1*.self_attn.*",
            "layers.**",
            "*_proj",
            "model.layers.10.self_attn.q_proj",
        ] {
            assert!(matches(target), "{target}");
        }
        for target in [
            "proj",
            "q_pro",
            "layers.1.self_attn.q_proj",
            "x.model.layers.10.self_attn.q_proj",
            "*.mlp.*",
        ] {
            assert!(!matches(target), "{target}");
        }
        assert!(last_parts("", 0).is_err() && last_parts("[", 0).is_err());
    }
}
