//! `cargo xtask layers`: which file uses which, and that nothing uses what stands above it.
//!
//! Three rules, checked on the sources as they are written:
//!
//! - the files of `src/` form no circle;
//! - those of any other crate form none of more than two files, but for [`ONE_BY_NATURE`];
//! - a crate depends only on crates of lower layers, see [`LAYERS`].
//!
//! A file uses another if it names an item of it by a path: `crate::run::X`, `super::X`, `child::X`, or through a module
//! it has imported. A re-export stands for the file that it names, and re-exporting is no use; so a `mod.rs` that only
//! declares and re-exports uses nothing. Nor does the root of a library, which holds the contract that its files fulfil and
//! the table that names them. Tests may look anywhere, so code under `#[cfg(test)]` is left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::source::{self, ModulePath, Source};

/// The crates, lowest first. Each may use those of the lines before its own.
const LAYERS: &[&[&str]] = &[
    &["tt-config", "tt-cpu", "tt-disk", "tt-kernels"],
    &["tt-metrics", "tt-hub", "tt-tpu", "tt-meta"],
    &["tt-tensor"],
    &["tt-nn", "tt-dist", "tt-data"],
    &[
        "tt-models",
        "tt-collators",
        "tt-optimizers",
        "tt-remat",
        "tt-adapters",
        "tt-sharding",
    ],
    &["tt-engine", "tt-checkpoint"],
    &["tt-train"],
    &["tt-trainers"],
    &["tt-run", "tt-launch", "tt-report"],
    &["tpu-train"],
    &["xtask"],
];

/// Files that know each other because what they define does: a tensor has a place on a tape and may be the value of a
/// parameter, a tape keeps parameters, a parameter holds a tensor. Only type erasure would part them.
const ONE_BY_NATURE: &[&[&str]] = &[&[
    "crates/tensor/src/parameter.rs",
    "crates/tensor/src/tape.rs",
    "crates/tensor/src/tensor.rs",
]];

/// Checks the workspace at `root`, and gives the files of `src/` with what each uses. Errors: all that breaks a rule.
pub fn check(root: &Path) -> Result<String> {
    let mut problems = Vec::new();
    let mut listing = String::new();
    let crates = crates(root)?;
    for package in &crates {
        let mut graph = Graph::read(&package.lib)
            .with_context(|| format!("reading {}", package.folder.display()))?;
        for group in ONE_BY_NATURE {
            graph = graph.join(&group.iter().map(|file| root.join(file)).collect::<Vec<_>>());
        }
        let is_binary = package.name == "tpu-train";
        if is_binary {
            listing = graph.listing(root);
        }
        let circle = graph.circle(if is_binary { 2 } else { 3 });
        if let Some(files) = circle {
            let names: Vec<_> = files.iter().map(|file| shown(file, root)).collect();
            problems.push(format!("a circle of files: {}", names.join(" -> ")));
        }
    }
    problems.extend(crates.iter().flat_map(upward_dependencies));
    if problems.is_empty() {
        return Ok(listing);
    }
    bail!("{}", problems.join("\n"))
}

/// A library of the workspace.
struct Package {
    name: String,
    folder: PathBuf,
    /// The file that its other files hang from.
    lib: PathBuf,
    /// Of its dependencies those in this workspace.
    dependencies: Vec<String>,
}

/// What ships, and this program: examples and benchmarks stand above all of it.
fn crates(root: &Path) -> Result<Vec<Package>> {
    let plug_ins = [
        "adapters",
        "collators",
        "models",
        "optimizers",
        "remat",
        "sharding",
        "trainers",
    ];
    let mut folders = vec![root.to_owned(), root.join("xtask")];
    folders.extend(plug_ins.map(|name| root.join(name)));
    for entry in fs::read_dir(root.join("crates"))? {
        folders.push(entry?.path());
    }
    folders.sort();
    let mut found = Vec::new();
    for folder in folders {
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else {
            continue; // planned, or somebody's scratch
        };
        let lib = ["src/lib.rs", "lib.rs", "src/main.rs"].map(|name| folder.join(name));
        let lib = lib.into_iter().find(|path| path.is_file());
        let lib = lib.with_context(|| format!("no library in {}", folder.display()))?;
        found.push(Package {
            name: package_name(&manifest).context("a manifest without a name")?,
            dependencies: dependencies(&manifest),
            folder,
            lib,
        });
    }
    Ok(found)
}

fn package_name(manifest: &str) -> Option<String> {
    let line = manifest.lines().find(|line| line.starts_with("name = "))?;
    line.split('"').nth(1).map(str::to_owned)
}

/// Those that are not for tests alone.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut is_dependencies = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_dependencies =
                line.trim_end() == "[dependencies]" || line.contains(".dependencies]");
            // `[workspace.dependencies]` only says where things are.
            is_dependencies &= !line.starts_with("[workspace");
        } else if is_dependencies {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if layer(name).is_some() {
                found.push(name.to_owned());
            }
        }
    }
    found
}

fn layer(package: &str) -> Option<usize> {
    LAYERS.iter().position(|names| names.contains(&package))
}

fn upward_dependencies(package: &Package) -> Vec<String> {
    let name = &package.name;
    let Some(own) = layer(name) else {
        if name == "tt-testkit" {
            return Vec::new(); // for tests, which may use anything
        }
        return vec![format!(
            "`{name}` has no layer: say where it stands in xtask/src/layers.rs"
        )];
    };
    let above = package
        .dependencies
        .iter()
        .filter(|it| layer(it) >= Some(own));
    above
        .map(|other| format!("`{name}` depends on `{other}`, which does not stand below it"))
        .collect()
}

/// The files of one crate, and which uses which.
struct Graph(BTreeMap<PathBuf, BTreeSet<PathBuf>>);

impl Graph {
    fn read(lib: &Path) -> Result<Self> {
        let modules = source::modules(lib)?;
        let mut uses = BTreeMap::new();
        for (path, source) in &modules {
            if path.is_empty() {
                uses.entry(source.file.clone()).or_default();
                continue;
            }
            let used = source
                .uses
                .iter()
                .filter_map(|path| find(&modules, path, 0));
            let others = used.filter(|file| *file != source.file);
            let files: &mut BTreeSet<PathBuf> = uses.entry(source.file.clone()).or_default();
            files.extend(others);
        }
        Ok(Self(uses))
    }

    /// Takes the files of `group` for one, under the name of the first.
    fn join(self, group: &[PathBuf]) -> Self {
        let name = |file: PathBuf| {
            if group.contains(&file) {
                group[0].clone()
            } else {
                file
            }
        };
        let mut joined: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (file, used) in self.0 {
            let file = name(file);
            let used = used.into_iter().map(name).filter(|other| *other != file);
            joined.entry(file.clone()).or_default().extend(used);
        }
        Self(joined)
    }

    /// The shortest circle of at least `min_files` files.
    fn circle(&self, min_files: usize) -> Option<Vec<&Path>> {
        let mut shortest: Option<Vec<&Path>> = None;
        for (file, used) in &self.0 {
            for next in used {
                // Back from `next`, without the edge that would make a circle of two if those are allowed.
                let Some(mut path) = self.way(next, file, min_files > 2) else {
                    continue;
                };
                path.insert(0, file);
                if shortest.as_ref().is_none_or(|best| path.len() < best.len()) {
                    shortest = Some(path);
                }
            }
        }
        shortest
    }

    /// The shortest way from one file to another along what they use.
    fn way(&self, from: &Path, to: &Path, not_directly: bool) -> Option<Vec<&Path>> {
        let (from, _) = self.0.get_key_value(from)?;
        let mut before: BTreeMap<&Path, &Path> = BTreeMap::new();
        let mut waiting = VecDeque::from([from.as_path()]);
        while let Some(file) = waiting.pop_front() {
            for next in &self.0[file] {
                let is_direct = file == from && next == to;
                if (is_direct && not_directly) || next == from || before.contains_key(&**next) {
                    continue;
                }
                before.insert(next, file);
                if next == to {
                    let mut way = vec![next.as_path()];
                    while let Some(&earlier) = before.get(way[0]) {
                        way.insert(0, earlier);
                    }
                    return Some(way);
                }
                waiting.push_back(next);
            }
        }
        None
    }

    fn listing(&self, root: &Path) -> String {
        let mut text = String::new();
        for (file, used) in &self.0 {
            let used: Vec<_> = used.iter().map(|file| shown(file, root)).collect();
            let line = format!("{}: {}", shown(file, root), used.join(" "));
            writeln!(text, "{}", line.trim_end()).expect("into a string");
        }
        text
    }
}

fn shown(file: &Path, root: &Path) -> String {
    file.strip_prefix(root)
        .unwrap_or(file)
        .display()
        .to_string()
}

/// The file that defines what the path names, through re-exports; `None` if it is of another crate.
fn find(modules: &BTreeMap<ModulePath, Source>, path: &[String], depth: usize) -> Option<PathBuf> {
    const MOST_RE_EXPORTS: usize = 8;
    let is_module = |len: &usize| modules.contains_key(&path[..*len]);
    let len = (0..=path.len()).rev().find(is_module)?;
    let source = &modules[&path[..len]];
    if let Some(name) = path.get(len).filter(|_| depth < MOST_RE_EXPORTS) {
        let rest = &path[len + 1..];
        if let Some(named) = source.re_exports.get(name) {
            let full = [named.as_slice(), rest].concat();
            return find(modules, &full, depth + 1);
        }
        if len == 0 && path.len() == 1 && !source.defines.contains(name) {
            return None; // a crate, or nothing of ours
        }
    }
    Some(source.file.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate of these files.
    fn graph(files: &[(&str, &str)]) -> Graph {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let graph = Graph::read(&folder.path().join("lib.rs")).unwrap();
        let relative = |path: &Path| path.strip_prefix(folder.path()).unwrap().to_owned();
        let uses = graph.0.iter().map(|(file, used)| {
            let used = used.iter().map(|file| relative(file)).collect();
            (relative(file), used)
        });
        Graph(uses.collect())
    }

    fn uses(graph: &Graph, file: &str) -> Vec<String> {
        let used = graph.0[Path::new(file)].iter();
        used.map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn a_path_uses_the_file_that_defines_what_it_names() {
        let graph = graph(&[
            ("lib.rs", "mod a; mod b; pub use b::inner::Deep;"),
            (
                "a.rs",
                "use crate::{b::{Thing, inner}, Deep};\nfn f() { inner::call() }",
            ),
            (
                "b/mod.rs",
                "pub mod inner; mod things; pub(crate) use things::Thing;",
            ),
            (
                "b/inner.rs",
                "pub struct Deep; pub fn call() { super::things::make() }",
            ),
            (
                "b/things.rs",
                "pub struct Thing; // crate::a::not_this\nconst S: &str = \"crate::a::nor_this\";",
            ),
        ]);
        assert_eq!(uses(&graph, "lib.rs"), [""; 0]);
        assert_eq!(uses(&graph, "b/mod.rs"), [""; 0]);
        assert_eq!(uses(&graph, "a.rs"), ["b/inner.rs", "b/things.rs"]);
        assert_eq!(uses(&graph, "b/inner.rs"), ["b/things.rs"]);
        assert!(graph.circle(2).is_none());
    }

    #[test]
    fn what_an_inline_module_takes_from_its_parent_is_of_the_same_file() {
        let graph = graph(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod b; fn f() { b::f() }"),
            (
                "a/b.rs",
                "fn f() {} mod inner { use super::f; fn g() { super::super::h() } } mod other { use super::f; }",
            ),
        ]);
        assert_eq!(uses(&graph, "a/b.rs"), ["a/mod.rs"]);
    }

    #[test]
    fn tests_may_look_anywhere() {
        let graph = graph(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b;"),
            (
                "b.rs",
                "#[cfg(test)]\nmod tests { use crate::a; }\n#[cfg(test)]\nmod more;",
            ),
            ("b/more.rs", "use crate::a;"),
        ]);
        assert_eq!(uses(&graph, "b.rs"), [""; 0]);
        assert!(!graph.0.contains_key(Path::new("b/more.rs")));
    }

    #[test]
    fn a_circle_is_found_and_told_from_a_pair() {
        let pair = graph(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use super::a::A;"),
            ("c.rs", "use crate::a::A;"),
        ]);
        assert_eq!(pair.circle(2).unwrap().len(), 3, "back where it began");
        assert!(pair.circle(3).is_none());
        let three = graph(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C;"),
            ("c.rs", "fn f() { crate::a::f() }"),
        ]);
        let files: Vec<_> = three.circle(3).unwrap();
        assert_eq!(files.len(), 4);
    }

    #[test]
    fn files_that_are_one_by_nature_form_circles_only_with_others() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C;"),
            ("c.rs", "use crate::{a::A, d::D};"),
            ("d.rs", ""),
        ];
        let one = ["a.rs", "b.rs", "c.rs"].map(PathBuf::from);
        assert!(graph(&files).circle(3).is_some());
        assert!(graph(&files).join(&one).circle(2).is_none());
        let mut with_another = files;
        with_another[4].1 = "use crate::b::B;";
        assert!(graph(&with_another).join(&one).circle(2).is_some());
    }

    #[test]
    fn a_dependency_on_a_higher_layer_is_named() {
        let package = |name: &str, dependencies: &[&str]| Package {
            name: name.to_owned(),
            folder: PathBuf::new(),
            lib: PathBuf::new(),
            dependencies: dependencies.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert!(upward_dependencies(&package("tt-nn", &["tt-tensor"])).is_empty());
        let found = upward_dependencies(&package("tt-models", &["tt-nn", "tt-remat"]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("`tt-remat`"), "{found:?}");
        let manifest = "[package]\nname = \"x\"\n[dependencies]\nanyhow.workspace = true\ntt-nn.workspace = true\n\
                        [dev-dependencies]\ntt-run.workspace = true\n";
        assert_eq!(dependencies(manifest), ["tt-nn"]);
    }
}
