//! `.hydra/origins.json`: for each key of a run's resolved config, where its value came from.
//!
//! A flat object from dotted path to one line of text, as `--info origins` prints it. Mappings and lists are listed
//! as well as what they hold, since a whole branch may be what one run has and another has not.

use serde_json::{Map, Value as Json};
use tt_config::{Node, Value};

/// The file's name in a run folder.
pub(crate) const ORIGINS: &str = "origins.json";

/// The content of the file, for a tree whose nodes remember their origins.
pub(crate) fn of(tree: &Node) -> Json {
    let mut origins = Map::new();
    collect(tree, "", &mut origins);
    Json::Object(origins)
}

fn collect(node: &Node, path: &str, origins: &mut Map<String, Json>) {
    if !path.is_empty() {
        origins.insert(path.to_owned(), node.origin.explain().into());
    }
    let below = |step: &str| match path {
        "" => step.to_owned(),
        _ => format!("{path}.{step}"),
    };
    match &node.value {
        Value::Map(map) => {
            for (key, child) in map {
                collect(child, &below(key.as_str()), origins);
            }
        }
        Value::List(items) => {
            for (index, child) in items.iter().enumerate() {
                collect(child, &below(&index.to_string()), origins);
            }
        }
        _ => {}
    }
}
