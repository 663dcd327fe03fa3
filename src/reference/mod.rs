//! The reference of the configuration: `docs/configuration.md` and `docs/config.schema.json`.
//!
//! Both are generated from the typed configs, so a field's doc comment is its documentation and its range stands in
//! one place. Compiled for tests alone: the test `docs_are_current` compares the files with what would be written now,
//! and writes them where [`WRITE`] is set, which is what `cargo xtask docs` does.

mod document;
mod page;
mod rows;

use std::path::PathBuf;

use schemars::{Schema, schema_for};
use tt_config::{Composer, Composition, Node, Table};

use crate::config::AppConfig;
use crate::configs::{EMBEDDED, Groups};
use crate::plugins::Plugins;

/// The environment variable that turns the check into writing.
const WRITE: &str = "TT_WRITE_DOCS";

/// What the shown defaults belong to.
const BASE: &[&str] = &["model=qwen2", "trainer=lm"];

/// A plug-in of the tables: what names it, and where its own config stands.
struct Choice {
    /// What it is, in the singular: `optimizer`.
    kind: &'static str,
    /// The key whose value names it: `trainer.optimizer.type`.
    key: &'static str,
    name: &'static str,
    about: &'static str,
    /// The key of its own config: `trainer.optimizer.kwargs`.
    section: &'static str,
    schema: Schema,
}

/// Every plug-in that is built in, in the order of the walk from model to data.
fn choices() -> Vec<Choice> {
    let plugins = Plugins::built_in();
    let mut all = listed(&plugins.models, "model.type", "model");
    all.extend(listed(&plugins.trainers, "trainer.type", "trainer.kwargs"));
    all.extend(listed(
        &plugins.optimizers,
        "trainer.optimizer.type",
        "trainer.optimizer.kwargs",
    ));
    all.extend(listed(
        &tt_optimizers::SCHEDULES,
        "trainer.lr_scheduler.type",
        "trainer.lr_scheduler.kwargs",
    ));
    all.extend(listed(
        &tt_data::SOURCES,
        "data.dataset.url",
        "data.dataset.kwargs",
    ));
    all.extend(listed(
        &tt_collators::TABLE,
        "data.collator.type",
        "data.collator.kwargs",
    ));
    all
}

fn listed<B: Clone>(table: &Table<B>, key: &'static str, section: &'static str) -> Vec<Choice> {
    let entries = table.entries().iter();
    entries
        .map(|entry| Choice {
            kind: table.kind(),
            key,
            name: entry.name,
            about: entry.about,
            section,
            schema: (entry.schema)(),
        })
        .collect()
}

/// The keys of the root config and its groups, without those of plug-ins.
pub(crate) fn keys_of_the_root() -> Vec<String> {
    let rows = rows::rows(&schema_for!(AppConfig).to_value(), "");
    rows.into_iter().map(|row| row.key).collect()
}

/// The configurations that the defaults are read from: the base, and each option of each group.
struct Defaults {
    groups: Groups,
    base: Composition,
    options: Vec<Composition>,
}

impl Defaults {
    /// Composes what is compiled in, whatever lies in the folder that the tests run in.
    fn compose() -> Self {
        let composer = Composer::new("default")
            .lenient_groups(true)
            .embedded("tpu-train", EMBEDDED);
        let groups = composer.groups();
        let compose = |overrides: &[&str]| {
            let composed = composer.compose(overrides);
            composed.unwrap_or_else(|problems| panic!("{overrides:?}: {problems}"))
        };
        let mut options = Vec::new();
        for (group, names) in &groups {
            let prefix = format!("{group}=");
            for name in names {
                let choice = format!("{prefix}{name}");
                let rest = BASE.iter().filter(|other| !other.starts_with(&prefix));
                let overrides: Vec<&str> = rest.copied().chain([choice.as_str()]).collect();
                options.push(compose(&overrides));
            }
        }
        Self {
            base: compose(BASE),
            options,
            groups,
        }
    }

    /// The value at `key` where `choice` is chosen; `None` if no option chooses it, or none gives the key.
    fn under(&self, choice: &Choice, key: &str) -> Option<&Node> {
        let mut all = std::iter::once(&self.base).chain(&self.options);
        let chosen = all.find(|composition| {
            let named = composition.get(choice.key);
            named.and_then(Node::as_str) == Some(choice.name)
        });
        chosen?.get(key)
    }
}

/// A file under `docs/`.
fn docs(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name)
}

#[test]
fn docs_are_current() {
    let files = [
        ("config.schema.json", document::text()),
        ("configuration.md", page::text(&Defaults::compose())),
    ];
    for (name, text) in files {
        let path = docs(name);
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, text).expect("docs/ can be written");
            continue;
        }
        let current = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            current == text,
            "docs/{name} is out of date: run `cargo xtask docs`"
        );
    }
}
