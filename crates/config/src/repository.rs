//! Finds configuration files in the search path: directories on disk and files in the binary.
//!
//! A config is named by its path without extension (`model/qwen2`); `.yaml` and `.toml` files are
//! found. The first source that has it wins. A group is a directory in any source.

use std::collections::{BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::diagnostic::Diagnostic;
use crate::origin::{Choice, Layer, Origin, SourceFile, Span};
use crate::value::{Map, Node, Value};
use crate::{toml, yaml};

const EXTENSIONS: [&str; 2] = ["yaml", "toml"];

/// One entry of the search path.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Directory(PathBuf),
    /// (path relative to the config root, text) of each file.
    Embedded(&'static [(&'static str, &'static str)]),
}

/// A source and who put it on the search path.
#[derive(Clone, Debug)]
pub(crate) struct Provided {
    pub provider: String,
    pub source: Source,
}

impl Provided {
    pub(crate) fn describe(&self) -> String {
        match &self.source {
            Source::Directory(path) => format!("file://{}", path.display()),
            Source::Embedded(_) => "built in".to_string(),
        }
    }

    pub(crate) fn is_available(&self) -> bool {
        match &self.source {
            Source::Directory(path) => path.is_dir(),
            Source::Embedded(_) => true,
        }
    }
}

/// A file, parsed for one use of it.
pub(crate) struct Loaded {
    /// Its content without `defaults` (and, in TOML, without `package`).
    pub root: Node,
    pub defaults: Option<Node>,
    /// From `# @package NAME`, or `package = "NAME"` in TOML.
    pub package: Option<String>,
    pub layer: Arc<Layer>,
}

pub(crate) struct Repository {
    sources: Vec<Provided>,
    /// Paths below it are shown relative to it.
    directory: PathBuf,
    files: Mutex<HashMap<String, Option<Arc<SourceFile>>>>,
}

impl Repository {
    pub(crate) fn new(sources: Vec<Provided>, directory: &Path) -> Self {
        Repository {
            sources,
            directory: directory.to_path_buf(),
            files: Mutex::default(),
        }
    }

    pub(crate) fn sources(&self) -> &[Provided] {
        &self.sources
    }

    /// The file of a config, if any source has it.
    pub(crate) fn find(&self, config: &str) -> Result<Option<Arc<SourceFile>>, Diagnostic> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = files.get(config) {
            return Ok(found.clone());
        }
        let mut found = None;
        for provided in &self.sources {
            found = self.find_in(&provided.source, config)?;
            if found.is_some() {
                break;
            }
        }
        files.insert(config.to_string(), found.clone());
        Ok(found)
    }

    /// Reads a config for the use that `chosen_by` makes of it. `None` if there is none.
    pub(crate) fn load(
        &self,
        config: &str,
        chosen_by: Option<Choice>,
    ) -> Result<Option<Loaded>, Diagnostic> {
        let Some(file) = self.find(config)? else {
            return Ok(None);
        };
        let is_toml = file.path.ends_with(".toml");
        let layer = Arc::new(Layer { file, chosen_by });
        let mut root = if is_toml {
            toml::read(&layer)?
        } else {
            yaml::read(&layer)?
        };
        if root.is_null() {
            root.value = Value::Map(Map::new());
        }
        if !root.is_container() {
            return Err(
                Diagnostic::new(format!("config '{config}' is not a mapping"))
                    .at(&root.origin)
                    .label(format!("this is {}", root.describe())),
            );
        }
        let mut package = header(&layer)?;
        let mut defaults = None;
        if let Value::Map(map) = &mut root.value {
            defaults = map.shift_remove("defaults");
            if is_toml
                && package.is_none()
                && let Some(node) = map.shift_remove("package")
            {
                package = Some(toml_package(&node)?);
            }
        }
        Ok(Some(Loaded {
            root,
            defaults,
            package,
            layer,
        }))
    }

    fn find_in(
        &self,
        source: &Source,
        config: &str,
    ) -> Result<Option<Arc<SourceFile>>, Diagnostic> {
        if !is_inside(config) {
            return Ok(None);
        }
        let names: Vec<String> = match config.rsplit_once('.') {
            Some((_, extension)) if EXTENSIONS.contains(&extension) => vec![config.to_string()],
            _ => EXTENSIONS
                .iter()
                .map(|extension| format!("{config}.{extension}"))
                .collect(),
        };
        let mut found: Option<Arc<SourceFile>> = None;
        for name in names {
            let file = match source {
                Source::Directory(root) => {
                    let path = root.join(&name);
                    if !path.is_file() {
                        continue;
                    }
                    let bytes = std::fs::read(&path).map_err(|error| {
                        Diagnostic::new(format!("cannot read {}: {error}", self.shown(&path)))
                    })?;
                    let text = String::from_utf8(bytes).map_err(|_| {
                        Diagnostic::new(format!(
                            "cannot read {}: it is not UTF-8",
                            self.shown(&path)
                        ))
                    })?;
                    SourceFile {
                        path: self.shown(&path),
                        text,
                    }
                }
                Source::Embedded(files) => match files.iter().find(|(path, _)| *path == name) {
                    Some((path, text)) => SourceFile {
                        path: embedded_path(path),
                        text: (*text).to_string(),
                    },
                    None => continue,
                },
            };
            if let Some(first) = &found {
                return Err(Diagnostic::new(format!(
                    "config '{config}' is ambiguous: there are both {} and {}",
                    first.path, file.path
                )));
            }
            found = Some(Arc::new(file));
        }
        Ok(found)
    }

    /// The search path on one line, Hydra's own configs left out.
    pub(crate) fn search_path(&self) -> String {
        let shown: Vec<String> = self
            .sources
            .iter()
            .filter(|provided| provided.provider != "hydra")
            .map(|provided| match &provided.source {
                Source::Directory(path) => format!("{} ({})", self.shown(path), provided.provider),
                Source::Embedded(_) => "built in".to_string(),
            })
            .collect();
        shown.join(", ")
    }

    fn shown(&self, path: &Path) -> String {
        let shown = path.strip_prefix(&self.directory).unwrap_or(path);
        if shown.as_os_str().is_empty() {
            return ".".to_string();
        }
        shown
            .strip_prefix(".")
            .unwrap_or(shown)
            .display()
            .to_string()
    }

    pub(crate) fn group_exists(&self, group: &str) -> bool {
        if group.is_empty() || !is_inside(group) {
            return false;
        }
        self.sources.iter().any(|provided| match &provided.source {
            Source::Directory(path) => path.join(group).is_dir(),
            Source::Embedded(files) => files.iter().any(|(path, _)| in_group(path, group)),
        })
    }

    /// The options of a group, sorted.
    pub(crate) fn options(&self, group: &str) -> Vec<String> {
        self.list(group, false)
    }

    /// The groups directly inside a group (`""` for the top), sorted.
    pub(crate) fn subgroups(&self, group: &str) -> Vec<String> {
        self.list(group, true)
    }

    /// All groups, by path, sorted.
    pub(crate) fn groups(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut open = vec![String::new()];
        while let Some(group) = open.pop() {
            for name in self.subgroups(&group) {
                let path = join(&group, &name);
                // A directory that links to one of its parents would go on for ever.
                if path.matches('/').count() < 16 {
                    open.push(path.clone());
                }
                all.push(path);
            }
        }
        all.sort();
        all
    }

    fn list(&self, group: &str, groups: bool) -> Vec<String> {
        let mut names = BTreeSet::new();
        for provided in &self.sources {
            match &provided.source {
                Source::Directory(root) => {
                    let Ok(entries) = std::fs::read_dir(root.join(group)) else {
                        continue;
                    };
                    for entry in entries.flatten() {
                        let name = entry.file_name().to_string_lossy().into_owned();
                        let is_dir = entry.path().is_dir();
                        names.extend(listed(&name, is_dir, groups));
                    }
                }
                Source::Embedded(files) => {
                    for (path, _) in files.iter() {
                        let rest = match group {
                            "" => Some(*path),
                            _ => path
                                .strip_prefix(group)
                                .and_then(|rest| rest.strip_prefix('/')),
                        };
                        if let Some(rest) = rest {
                            let (name, is_dir) = match rest.split_once('/') {
                                Some((first, _)) => (first, true),
                                None => (rest, false),
                            };
                            names.extend(listed(name, is_dir, groups));
                        }
                    }
                }
            }
        }
        names.into_iter().collect()
    }
}

fn listed(name: &str, is_dir: bool, groups: bool) -> Option<String> {
    match (is_dir, groups) {
        (true, true) if !name.starts_with('.') && name != "__pycache__" => Some(name.to_string()),
        (false, false) => {
            let (stem, extension) = name.rsplit_once('.')?;
            EXTENSIONS.contains(&extension).then(|| stem.to_string())
        }
        _ => None,
    }
}

pub(crate) fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_string()
    } else {
        format!("{parent}/{name}")
    }
}

fn in_group(path: &str, group: &str) -> bool {
    path.strip_prefix(group)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Config names never leave the search path.
fn is_inside(config: &str) -> bool {
    Path::new(config)
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
        && !config.contains('\0')
}

/// How a file in the binary is shown: the program's own as in its source tree.
fn embedded_path(path: &str) -> String {
    if path.starts_with("hydra/") {
        path.to_string()
    } else {
        format!("configs/{path}")
    }
}

/// The `# @package NAME` of a file: before any content or other comment.
fn header(layer: &Arc<Layer>) -> Result<Option<String>, Diagnostic> {
    let text = &layer.file.text;
    let mut package = None;
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let start = offset;
        offset += line.len();
        let trimmed = line.trim().trim_start_matches('\u{feff}');
        if trimmed.is_empty() {
            continue;
        }
        let body = trimmed.trim_start_matches('#').trim();
        if !trimmed.starts_with('#') || !body.starts_with('@') {
            break;
        }
        let words: Vec<&str> = body.split(' ').filter(|word| !word.is_empty()).collect();
        let [key, value] = words[..] else {
            let span = Span::new(start, start + line.trim_end().len());
            return Err(
                Diagnostic::new(format!("a malformed header in {}", layer.file.path))
                    .at(&Origin::file(layer, span))
                    .label("expected `# @package NAME`"),
            );
        };
        if key == "@package" {
            package = Some(value.to_string());
        }
    }
    Ok(package)
}

fn toml_package(node: &Node) -> Result<String, Diagnostic> {
    node.as_str().map(str::to_string).ok_or_else(|| {
        Diagnostic::new("`package` must be text")
            .at(&node.origin)
            .label(format!("this is {}", node.describe()))
    })
}
