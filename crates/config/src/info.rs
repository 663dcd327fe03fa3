//! What a composition says about itself: `--cfg`, `--info`, the list of groups, completion.
//!
//! Tables and trees have Hydra's form. [`Composition::origins`] has no counterpart in Hydra.

use std::fmt::Write as _;

use crate::compose::Composer;
use crate::composition::{Composition, as_path};
use crate::defaults::item::What;
use crate::defaults::tree::TreeNode;
use crate::diagnostic::{Diagnostic, Diagnostics, nearest};
use crate::interpolation::resolve::{Missing, Resolver};
use crate::value::{Key, Map, Node, Value};

/// Which part of a composition `--cfg` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The configuration proper.
    Job,
    /// The node `hydra`.
    Hydra,
    /// Everything, Hydra's own settings included.
    All,
}

impl Composition {
    /// The configuration as YAML: `--cfg`, with `--package` and `--resolve`.
    pub fn show(
        &self,
        part: Part,
        package: Option<&str>,
        resolve: bool,
    ) -> Result<String, Diagnostics> {
        let mut shown = match part {
            Part::All => self.tree().clone(),
            Part::Job => self.job(),
            Part::Hydra => self.hydra(),
        };
        let package = package.filter(|package| !package.is_empty() && *package != "_global_");
        if let Some(package) = package {
            shown = match shown.get(package) {
                Some(node) => node.clone(),
                None => return Err(self.no_package(&shown, package).into()),
            };
        }
        if resolve {
            shown = match (package, part) {
                (Some(package), _) => self.resolved(package, Missing::Keep)?,
                (None, Part::Job) => self.resolve(Missing::Keep)?,
                (None, Part::All) => self.resolved("", Missing::Keep)?,
                (None, Part::Hydra) => under_hydra(self.resolved("hydra", Missing::Keep)?),
            };
        }
        Ok(match package {
            Some(package) if shown.is_container() => {
                format!("# @package {package}\n{}", shown.to_yaml())
            }
            _ => shown.to_yaml(),
        })
    }

    /// The node `hydra` under its key: what `hydra.yaml` records.
    pub fn hydra(&self) -> Node {
        let empty = || Node::built_in(Value::Map(Map::new()));
        under_hydra(self.get("hydra").cloned().unwrap_or_else(empty))
    }

    fn no_package(&self, shown: &Node, package: &str) -> Diagnostic {
        let problem = Diagnostic::new(format!("there is no package `{package}`"));
        let keys: Vec<&str> = shown
            .as_map()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.as_str())
            .collect();
        match nearest(package, keys.iter().copied()) {
            Some(near) => problem.label(format!("did you mean `{near}`?")),
            None => problem.note(format!("there are {}", keys.join(", "))),
        }
    }

    /// The final defaults list, as a table.
    pub fn defaults_list(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .files()
            .iter()
            .map(|file| {
                let is_self = if file.is_self { "True" } else { "False" };
                let parent = file.parent.as_deref().unwrap_or("<root>");
                [&file.config, &file.package, is_self, parent]
                    .map(str::to_string)
                    .to_vec()
            })
            .collect();
        let header = ["Config path", "Package", "_self_", "Parent"];
        format!("{}{}", title("Defaults List"), table(&header, &rows))
    }

    /// The tree of defaults lists.
    pub fn defaults_tree(&self) -> String {
        let mut out = title("Defaults Tree");
        out.push_str("<root>:\n");
        for root in &self.roots {
            write_tree(root, None, 1, &mut out);
        }
        out
    }

    /// Where configs are looked for, first to last.
    pub fn search_path(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .repository
            .sources()
            .iter()
            .map(|source| vec![source.provider.clone(), source.describe()])
            .collect();
        let table = table(&["Provider", "Search path"], &rows);
        format!("{}{table}", title("Config search path"))
    }

    /// Search path, tree, list and configuration, one after the other.
    pub fn config_info(&self) -> String {
        let parts = [
            self.search_path(),
            self.defaults_tree(),
            self.defaults_list(),
            format!("{}{}", title("Config"), self.job().to_yaml()),
        ];
        parts.join("\n")
    }

    /// Each key at and below a dotted path, with its resolved value and where that came from.
    pub fn origins(&self, path: &str) -> Result<String, Diagnostics> {
        let job = self.job();
        let start = if path == "hydra" || path.starts_with("hydra.") {
            self.get(path)
        } else {
            job.get(path)
        };
        let Some(start) = start else {
            return Err(self.no_package(&job, path).into());
        };
        let mut rows = Vec::new();
        self.collect_origins(start, path, &mut rows);
        let width = |column: usize, most: usize| {
            let widths = rows
                .iter()
                .map(|row: &[String; 3]| row[column].chars().count());
            widths.max().unwrap_or(0).min(most)
        };
        let (key_width, value_width) = (width(0, 50), width(1, 30));
        let mut out = String::new();
        for [key, value, origin] in &rows {
            let _ = writeln!(out, "{key:key_width$}  {value:value_width$}  {origin}");
        }
        Ok(out)
    }

    fn collect_origins(&self, node: &Node, path: &str, rows: &mut Vec<[String; 3]>) {
        let children: Vec<(String, &Node)> = match &node.value {
            Value::Map(map) => map.iter().map(|(key, c)| (key.to_string(), c)).collect(),
            Value::List(items) if items.iter().any(|item| goes_deeper(node, item)) => {
                let items = items.iter().enumerate();
                items.map(|(index, c)| (index.to_string(), c)).collect()
            }
            _ => Vec::new(),
        };
        if !children.is_empty() {
            for (name, child) in children {
                let full = crate::schema::join(path, &name);
                self.collect_origins(child, &full, rows);
            }
            return;
        }
        let resolver = Resolver::new(self.tree(), &self.environment);
        let resolved = resolver.tree(&as_path(self.tree(), path), Missing::Keep);
        let (value, origin) = match &resolved {
            Ok(resolved) => (resolved.brief(), resolved.origin.explain()),
            Err(_) => (
                node.brief(),
                format!("{} (cannot be resolved)", node.origin.explain()),
            ),
        };
        rows.push([path.to_string(), value, origin]);
    }
}

/// Items that are containers, or that something else than the list's own file has set.
fn goes_deeper(list: &Node, item: &Node) -> bool {
    item.is_container()
        || item.origin.to_string().split(':').next() != list.origin.to_string().split(':').next()
}

fn under_hydra(hydra: Node) -> Node {
    let mut map = Map::new();
    map.insert(Key::from("hydra"), hydra);
    Node::built_in(Value::Map(map))
}

fn title(text: &str) -> String {
    format!("{text}\n{}\n", "*".repeat(text.len()))
}

fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = header
        .iter()
        .enumerate()
        .map(|(column, name)| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(name.len())
        })
        .collect();
    let line = |cells: Vec<&str>| {
        let mut line = String::from("|");
        for (cell, width) in cells.into_iter().zip(&widths) {
            let _ = write!(line, " {cell:width$} |");
        }
        line
    };
    let header = line(header.to_vec());
    let rule = "-".repeat(header.chars().count());
    let mut out = format!("{header}\n{rule}\n");
    for row in rows {
        out.push_str(&line(row.iter().map(String::as_str).collect()));
        out.push('\n');
    }
    out + &rule + "\n"
}

fn write_tree(tree: &TreeNode, parent: Option<&TreeNode>, depth: usize, out: &mut String) {
    let item = &tree.item;
    if item.deleted {
        return;
    }
    let indent = "  ".repeat(depth);
    let label = match &item.what {
        // Below a file of the parent's own group, `_self_` needs the group to be told apart.
        What::Itself => match parent.map(|parent| &parent.item) {
            Some(parent) if !parent.is_group() && !parent.group_path().is_empty() && depth > 2 => {
                format!("{}/_self_", parent.group_path())
            }
            _ => "_self_".to_string(),
        },
        What::Config(_) => match &item.package {
            Some(package) => format!("{}@{package}", item.config_path()),
            None => item.config_path(),
        },
        What::Group { choice, .. } => format!("{}: {}", item.override_key(), choice.text()),
    };
    let colon = if tree.children.is_empty() { "" } else { ":" };
    let _ = writeln!(out, "{indent}{label}{colon}");
    for child in &tree.children {
        write_tree(child, Some(tree), depth + 1, out);
    }
}

impl Composer {
    /// The config groups and their options, one line each; Hydra's own groups left out.
    pub fn groups(&self) -> Vec<(String, Vec<String>)> {
        let repository = self.repository();
        repository
            .groups()
            .into_iter()
            .filter(|group| group != "hydra" && !group.starts_with("hydra/"))
            .map(|group| {
                let options = repository.options(&group);
                (group, options)
            })
            .filter(|(_, options)| !options.is_empty())
            .collect()
    }

    /// What an argument that begins with `word` could go on as, given the other arguments: groups,
    /// their options, and keys.
    pub fn complete<S: AsRef<str>>(&self, others: &[S], word: &str) -> Vec<String> {
        let bare = word.trim_start_matches(['+', '~']);
        let sign = &word[..word.len() - bare.len()];
        let repository = self.repository();
        let mut found = Vec::new();
        if let Some((left, value)) = bare.split_once('=') {
            let group = left.split('@').next().unwrap_or(left);
            let (before, last) = match value.rfind([',', '[']) {
                Some(at) => value.split_at(at + 1),
                None => ("", value),
            };
            for option in repository.options(group) {
                if repository.group_exists(group) && option.starts_with(last) {
                    found.push(format!("{sign}{left}={before}{option}"));
                }
            }
        } else {
            for (group, _) in self.groups() {
                if group.starts_with(bare) {
                    found.push(format!("{sign}{group}="));
                }
            }
            if let Ok(composition) = self.compose(others) {
                let (path, last) = bare.rsplit_once('.').unwrap_or(("", bare));
                let parent = composition.get(path).and_then(Node::as_map);
                for (key, child) in parent.into_iter().flatten() {
                    if !key.as_str().starts_with(last)
                        || (path.is_empty() && last.is_empty() && key.as_str() == "hydra")
                    {
                        continue;
                    }
                    let full = crate::schema::join(path, key.as_str());
                    let end = if child.as_map().is_some() { '.' } else { '=' };
                    found.push(format!("{sign}{full}{end}"));
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }
}
