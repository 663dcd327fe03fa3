//! An entry of a defaults list, and the rules for its group, its config path and its package.

use crate::diagnostic::Diagnostic;
use crate::origin::{Layer, Origin};
use crate::value::{Key, Node, Value};

/// What an entry selects.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// `_self_`: the content of the file that holds the list.
    Itself,
    /// A config file, by its path.
    Config(String),
    /// An option of a group.
    Group { group: String, choice: Selection },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Selection {
    Nothing,
    One(String),
    Several(Vec<String>),
}

#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub what: What,
    /// From `@package`, as it was written.
    pub package: Option<String>,
    pub optional: bool,
    /// `override group: option`.
    pub is_override: bool,
    /// Added by `+group=option`.
    pub is_appended: bool,
    pub is_primary: bool,
    /// From the header of the file; absolute.
    pub header: Option<String>,
    /// Group and package of the file that holds the list.
    pub parent_group: String,
    pub parent_package: String,
    pub deleted: bool,
    /// Where it is written.
    pub origin: Origin,
    /// As it is written, for messages.
    pub text: String,
}

impl Item {
    pub(crate) fn new(what: What, package: Option<String>, origin: Origin) -> Self {
        let text = match &what {
            What::Itself => "_self_".to_string(),
            What::Config(path) => path.clone(),
            What::Group { group, choice } => format!("{group}: {}", choice.text()),
        };
        Item {
            what,
            package: package.map(|package| {
                if package == "_here_" {
                    String::new()
                } else {
                    package
                }
            }),
            optional: false,
            is_override: false,
            is_appended: false,
            is_primary: false,
            header: None,
            parent_group: String::new(),
            parent_package: String::new(),
            deleted: false,
            origin,
            text,
        }
    }

    pub(crate) fn primary(name: &str) -> Self {
        let mut item = Item::new(What::Config(name.to_string()), None, Origin::built_in());
        item.is_primary = true;
        item
    }

    pub(crate) fn is_self(&self) -> bool {
        self.what == What::Itself
    }

    pub(crate) fn is_group(&self) -> bool {
        matches!(self.what, What::Group { .. })
    }

    pub(crate) fn set_parent(&mut self, group: &str, package: &str) {
        self.parent_group = group.to_string();
        self.parent_package = package.to_string();
        if let Some(package) = &self.package
            && package.contains("_group_")
        {
            let named = package.replace("_group_", &self.default_package());
            self.package = Some(format!("_global_.{named}"));
        }
    }

    /// A header is always absolute.
    pub(crate) fn set_header(&mut self, header: &str) {
        self.header = Some(match header {
            "" | "_global_" => "_global_".to_string(),
            absolute if absolute.starts_with("_global_.") => absolute.to_string(),
            relative => format!("_global_.{relative}"),
        });
    }

    /// Its path without a leading slash, and whether there was one.
    fn path(&self) -> (&str, bool) {
        let path = match &self.what {
            What::Itself => "_self_",
            What::Config(path) => path.as_str(),
            What::Group { group, .. } => group.as_str(),
        };
        match path.strip_prefix('/') {
            Some(rest) => (rest, true),
            None => (path, false),
        }
    }

    /// The group as a path from the root of the search path.
    pub(crate) fn group_path(&self) -> String {
        let (path, is_absolute) = self.path();
        let group = if self.is_group() {
            path
        } else {
            path.rsplit_once('/').map_or("", |(group, _)| group)
        };
        if is_absolute || self.parent_group.is_empty() {
            group.to_string()
        } else if group.is_empty() {
            self.parent_group.clone()
        } else {
            format!("{}/{group}", self.parent_group)
        }
    }

    /// The option's name, or the config's. `None` for a null choice.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.what {
            What::Itself => Some("_self_"),
            What::Config(path) => Some(path.rsplit_once('/').map_or(path, |(_, name)| name)),
            What::Group { choice, .. } => match choice {
                Selection::One(name) => Some(name),
                _ => None,
            },
        }
    }

    pub(crate) fn config_path(&self) -> String {
        match &self.what {
            What::Group { .. } => {
                format!("{}/{}", self.group_path(), self.name().unwrap_or("null"))
            }
            _ => {
                let (path, is_absolute) = self.path();
                if is_absolute || self.parent_group.is_empty() {
                    path.to_string()
                } else {
                    format!("{}/{path}", self.parent_group)
                }
            }
        }
    }

    fn default_package(&self) -> String {
        self.group_path().replace('/', ".")
    }

    /// The package its content lands in. `_global_` starts again at the root.
    pub(crate) fn final_package(&self) -> String {
        self.package_or(self.package.as_ref().or(self.header.as_ref()))
    }

    fn package_or(&self, package: Option<&String>) -> String {
        let relative = match package {
            Some(package) => package.clone(),
            None => {
                let (path, _) = self.path();
                let group = if self.is_group() {
                    path
                } else {
                    path.rsplit_once('/').map_or("", |(group, _)| group)
                };
                group.replace('/', ".")
            }
        };
        let full = match (self.parent_package.as_str(), relative.as_str()) {
            ("", package) => package.to_string(),
            (parent, "") => parent.to_string(),
            (parent, package) => format!("{parent}.{package}"),
        };
        match full.rfind("_global_") {
            Some(at) => full
                .get(at + "_global_.".len()..)
                .unwrap_or_default()
                .to_string(),
            None => full,
        }
    }

    /// How an override names it: `group`, or `group@package` if it is not in its usual package.
    pub(crate) fn override_key(&self) -> String {
        let package = self.package_or(self.package.as_ref());
        let group = self.group_path();
        if package == self.default_package() {
            group
        } else if package.is_empty() {
            format!("{group}@_global_")
        } else {
            format!("{group}@{package}")
        }
    }

    pub(crate) fn is_missing(&self) -> bool {
        self.name() == Some("???")
    }

    pub(crate) fn is_interpolation(&self) -> bool {
        match &self.what {
            What::Config(path) => path.contains("${"),
            _ => self.name().is_some_and(|name| name.contains("${")),
        }
    }
}

impl Selection {
    pub(crate) fn text(&self) -> String {
        match self {
            Selection::Nothing => "null".to_string(),
            Selection::One(name) => name.clone(),
            Selection::Several(names) => format!("[{}]", names.join(",")),
        }
    }

    /// The choice that a node of a defaults list, or of an override, stands for.
    pub(crate) fn from_node(node: &Node) -> Result<Self, Diagnostic> {
        let refuse = |node: &Node| {
            Diagnostic::new("the option of a config group must be a string or a list of strings")
                .at(&node.origin)
                .label(format!("this is {}", node.describe()))
        };
        match &node.value {
            Value::Null => Ok(Selection::Nothing),
            Value::Str(name) => Ok(Selection::One(name.clone())),
            Value::List(items) => items
                .iter()
                .map(|item| {
                    item.as_str()
                        .map(str::to_string)
                        .ok_or_else(|| refuse(item))
                })
                .collect::<Result<_, _>>()
                .map(Selection::Several),
            _ => Err(refuse(node)),
        }
    }
}

/// Reads the `defaults` of a file.
pub(crate) fn read_list(
    config: &str,
    defaults: Option<&Node>,
    layer: &std::sync::Arc<Layer>,
) -> Result<Vec<Item>, Diagnostic> {
    let Some(node) = defaults else {
        return Ok(Vec::new());
    };
    let Some(items) = node.as_list() else {
        return Err(Diagnostic::new(format!(
            "in '{config}': `defaults` must be a list ({})",
            layer.file.path
        ))
        .at(&node.origin.at_key())
        .label(format!("this is {}", node.describe())));
    };
    items.iter().map(|item| read_item(config, item)).collect()
}

fn read_item(config: &str, node: &Node) -> Result<Item, Diagnostic> {
    match &node.value {
        Value::Str(text) => {
            let (path, package) = split_package(text);
            if path == "_self_" {
                if package.is_some() {
                    return Err(Diagnostic::new("`_self_` takes no package").at(&node.origin));
                }
                return Ok(Item::new(What::Itself, None, node.origin.clone()));
            }
            Ok(Item::new(
                What::Config(path.to_string()),
                package,
                node.origin.clone(),
            ))
        }
        Value::Map(map) => {
            let mut entries = map.iter();
            let (Some((key, choice)), None) = (entries.next(), entries.next()) else {
                let keys: Vec<&str> = map.keys().map(Key::as_str).collect();
                let problem = if keys.is_empty() {
                    "an entry of a defaults list names no group".to_string()
                } else {
                    format!("too many keys in one entry: {}", keys.join(", "))
                };
                return Err(Diagnostic::new(format!("in '{config}': {problem}"))
                    .at(&node.origin)
                    .label("one `group: option` for each `-`"));
            };
            let (group, package) = split_package(key.as_str());
            let mut words: Vec<&str> = group.split(' ').collect();
            let group = words.pop().unwrap_or_default();
            let keyword = |name: &str| {
                words
                    .iter()
                    .take_while(|word| matches!(**word, "optional" | "override"))
                    .any(|word| *word == name)
            };
            if group.is_empty() {
                return Err(
                    Diagnostic::new(format!("in '{config}': a group without a name"))
                        .at(&node.origin),
                );
            }
            let what = What::Group {
                group: group.to_string(),
                choice: Selection::from_node(choice)?,
            };
            let mut origin = choice.origin.clone();
            origin.value = origin.key.map_or(origin.value, |key| crate::origin::Span {
                start: key.start,
                end: origin.value.end.max(key.end),
            });
            let mut item = Item::new(what, package, origin);
            item.optional = keyword("optional");
            item.is_override = keyword("override");
            item.text = format!("{key}: {}", choice_text(choice));
            if item.name() == Some("_self_") {
                item.what = What::Itself;
            }
            Ok(item)
        }
        _ => Err(Diagnostic::new(format!(
            "in '{config}': an entry of a defaults list is a config name or `group: option`"
        ))
        .at(&node.origin)
        .label(format!("this is {}", node.describe()))),
    }
}

fn choice_text(choice: &Node) -> String {
    Selection::from_node(choice).map_or_else(|_| choice.brief(), |choice| choice.text())
}

/// `group@package`. What follows a `:` in the package (an old way to rename) is left out.
fn split_package(text: &str) -> (&str, Option<String>) {
    match text.split_once('@') {
        Some((path, package)) => {
            let package = package.split_once(':').map_or(package, |(first, _)| first);
            (path, Some(package.to_string()))
        }
        None => (text, None),
    }
}
