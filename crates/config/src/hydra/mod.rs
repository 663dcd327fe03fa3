//! Hydra's own settings, the node `hydra`: built-in config files, and what is filled in at the end.

use std::sync::Arc;

use crate::environment::Environment;
use crate::grammar::Override;
use crate::origin::Origin;
use crate::repository::{Provided, Source};
use crate::value::{Key, Map, Node, Value};

const FILES: &[(&str, &str)] = &[
    ("hydra/config.yaml", include_str!("config.yaml")),
    ("hydra/output/default.yaml", include_str!("output.yaml")),
    ("hydra/launcher/basic.yaml", include_str!("launcher.yaml")),
    ("hydra/sweeper/basic.yaml", include_str!("sweeper.yaml")),
    ("hydra/help/default.yaml", include_str!("help.yaml")),
    ("hydra/hydra_help/default.yaml", ""),
    // Logging is the program's own; the groups exist so that configs which choose them compose.
    ("hydra/hydra_logging/default.yaml", ""),
    ("hydra/hydra_logging/disabled.yaml", ""),
    ("hydra/hydra_logging/none.yaml", ""),
    ("hydra/job_logging/default.yaml", ""),
    ("hydra/job_logging/disabled.yaml", ""),
    ("hydra/job_logging/none.yaml", ""),
    ("hydra/job_logging/stdout.yaml", ""),
    ("hydra/env/default.yaml", ""),
];

/// The version of Hydra whose behaviour is followed.
const VERSION: &str = "1.3";

pub(crate) fn source() -> Provided {
    Provided {
        provider: "hydra".to_string(),
        source: Source::Embedded(FILES),
    }
}

/// What is known only when everything is composed.
pub(crate) struct Facts<'a> {
    pub overrides: &'a [Override],
    pub choices: &'a indexmap::IndexMap<String, Option<String>>,
    pub sources: &'a [Provided],
    pub config_name: &'a str,
    pub job_name: &'a str,
    pub environment: &'a Environment,
}

/// Fills in `hydra.overrides`, `hydra.runtime` and `hydra.job`.
pub(crate) fn fill(root: &mut Node, facts: &Facts<'_>) {
    let text = |text: &str| Value::Str(text.to_string());
    let (hydra, task): (Vec<&Override>, Vec<&Override>) =
        facts.overrides.iter().partition(|given| given.is_hydra());
    let texts = |given: &[&Override]| {
        let node = |given: &&Override| {
            let text: &Arc<str> = &given.text;
            Node::new(
                Value::Str(text.to_string()),
                Origin::argument(text, crate::origin::Span::new(0, text.len())),
            )
        };
        Value::List(given.iter().map(node).collect())
    };
    set(root, "hydra.overrides.hydra", texts(&hydra));
    set(root, "hydra.overrides.task", texts(&task));

    let mut choices = Map::new();
    for (key, name) in facts.choices {
        let value = name.as_deref().map_or(Value::Null, text);
        choices.insert(Key::from(key.as_str()), Node::built_in(value));
    }
    set(root, "hydra.runtime.choices", Value::Map(choices));
    set(root, "hydra.runtime.version", text(VERSION));
    set(root, "hydra.runtime.version_base", text(VERSION));
    let directory = facts.environment.directory.display().to_string();
    set(root, "hydra.runtime.cwd", text(&directory));
    let sources = facts.sources.iter().map(|source| {
        let (schema, path) = match &source.source {
            Source::Directory(path) => {
                let path = facts.environment.directory.join(path);
                ("file", path.display().to_string())
            }
            Source::Embedded(_) => ("builtin", String::new()),
        };
        let pairs = [
            ("path", path.as_str()),
            ("schema", schema),
            ("provider", &source.provider),
        ];
        let pairs = pairs.map(|(key, value)| (Key::from(key), Node::built_in(text(value))));
        Node::built_in(Value::Map(pairs.into_iter().collect()))
    });
    let sources = Value::List(sources.collect());
    set(root, "hydra.runtime.config_sources", sources);

    if root.get("hydra.job.name").is_some_and(Node::is_missing) {
        set(root, "hydra.job.name", text(facts.job_name));
    }
    set(root, "hydra.job.config_name", text(facts.config_name));
    let dirname = override_dirname(root, &task);
    set(root, "hydra.job.override_dirname", Value::Str(dirname));
}

/// The task's overrides, sorted and joined: a name for a directory.
fn override_dirname(root: &Node, task: &[&Override]) -> String {
    let setting = |name: &str| root.get(&format!("hydra.job.config.override_dirname.{name}"));
    let separator = |name: &str, default: &'static str| {
        setting(name)
            .and_then(Node::as_str)
            .unwrap_or(default)
            .to_string()
    };
    let excluded: Vec<&str> = setting("exclude_keys")
        .and_then(Node::as_list)
        .unwrap_or_default()
        .iter()
        .filter_map(Node::as_str)
        .collect();
    let mut lines: Vec<&str> = task
        .iter()
        .filter(|given| !excluded.contains(&given.key.as_str()))
        .map(|given| &*given.text)
        .collect();
    lines.sort_unstable();
    lines
        .join(&separator("item_sep", ","))
        .replace('=', &separator("kv_sep", "="))
}

/// Sets a value, and the mappings on the way to it.
pub(crate) fn set(root: &mut Node, path: &str, value: Value) {
    let mut here = root;
    for step in path.split('.') {
        if here.as_map().is_none() {
            here.value = Value::Map(Map::new());
        }
        let Value::Map(map) = &mut here.value else {
            return;
        };
        here = map
            .entry(Key::from(step))
            .or_insert_with(|| Node::built_in(Value::Null));
    }
    *here = Node::built_in(value);
}
