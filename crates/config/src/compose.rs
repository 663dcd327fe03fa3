//! Composition: from sources and command-line arguments to one tree.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::apply::apply;
use crate::composition::{Composition, MergedFile};
use crate::defaults::selection::Choices;
use crate::defaults::tree::{Builder, Built};
use crate::diagnostic::{Diagnostic, Diagnostics, nearest};
use crate::environment::Environment;
use crate::grammar::{self, Operation, Override, Sweep};
use crate::hydra;
use crate::interpolation::parse;
use crate::merge::{NewKeys, merge};
use crate::origin::{Origin, Place, Span};
use crate::repository::{Provided, Repository, Source};
use crate::value::{Key, Map, Node, Value};

/// Where configuration is looked for, and how it is composed.
///
/// Of several sources the one that was added first is looked at first.
#[derive(Clone, Debug)]
pub struct Composer {
    sources: Vec<Provided>,
    config_name: String,
    job_name: String,
    lenient_groups: bool,
    applied: Vec<String>,
    environment: Environment,
}

impl Composer {
    /// A composer for the primary config of that name (no extension), without sources.
    pub fn new(config_name: impl Into<String>) -> Self {
        Composer {
            sources: Vec::new(),
            config_name: config_name.into(),
            job_name: "tpu-train".to_string(),
            lenient_groups: false,
            applied: Vec::new(),
            environment: Environment::process(),
        }
    }

    /// Adds a directory. `provider` says who asked for it: `main`, `command-line`, ...
    pub fn directory(mut self, provider: &str, path: impl Into<PathBuf>) -> Self {
        self.sources.push(Provided {
            provider: provider.to_string(),
            source: Source::Directory(path.into()),
        });
        self
    }

    /// Adds files that are compiled into the binary: (path relative to the config root, text).
    pub fn embedded(
        mut self,
        provider: &str,
        files: &'static [(&'static str, &'static str)],
    ) -> Self {
        self.sources.push(Provided {
            provider: provider.to_string(),
            source: Source::Embedded(files),
        });
        self
    }

    /// Accepts `group=x` for a group that is not in the defaults list, and `+group=x` for one that
    /// is. Hydra refuses both; the default is to refuse.
    pub fn lenient_groups(mut self, lenient: bool) -> Self {
        self.lenient_groups = lenient;
        self
    }

    /// The value of `hydra.job.name`, unless the configuration sets it.
    pub fn job_name(mut self, name: impl Into<String>) -> Self {
        self.job_name = name.into();
        self
    }

    /// Reads these environment variables, and no others.
    pub fn variables<K: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let variables: HashMap<String, String> = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        self.environment = self.environment.with_variables(variables);
        self
    }

    /// The directory the program was started in: `hydra.runtime.cwd`.
    pub fn current_directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.environment.directory = path.into();
        self
    }

    /// Arguments whose effect the primary config holds already, as one that an earlier run has
    /// recorded does: they are listed with the others, but not applied.
    pub fn applied(mut self, arguments: Vec<String>) -> Self {
        self.applied = arguments;
        self
    }

    /// Composes one configuration. A sweep among the arguments is an error.
    pub fn compose<S: AsRef<str>>(&self, arguments: &[S]) -> Result<Composition, Diagnostics> {
        let overrides = parse_arguments(arguments)?;
        refuse_sweeps(&overrides)?;
        let attempt = self.attempt(overrides, false)?;
        attempt.problems.into_result(attempt.composition)
    }

    /// Composes one configuration. If arguments cannot be applied, what `check` finds wrong with
    /// the configuration without them is reported too.
    pub fn compose_checked<S: AsRef<str>>(
        &self,
        arguments: &[S],
        check: impl FnOnce(Composition) -> Result<(), Diagnostics>,
    ) -> Result<Composition, Diagnostics> {
        let overrides = parse_arguments(arguments)?;
        refuse_sweeps(&overrides)?;
        let Attempt {
            composition,
            mut problems,
            is_whole,
        } = self.attempt(overrides, false)?;
        if problems.is_empty() {
            return Ok(composition);
        }
        if let Err(found) = check(composition) {
            for problem in found.iter() {
                // Without a part of the tree, only what an argument says is wrong for certain.
                if is_whole || is_in_argument(problem) {
                    problems.push(problem.clone());
                }
            }
        }
        Err(problems)
    }

    /// Composes what the jobs of a sweep share: sweeps are left out, and groups still to be chosen
    /// may be. What is wrong with it is not told: of an option of a swept group nothing is known
    /// here, and every job is composed with all of it.
    pub(crate) fn compose_shared(
        &self,
        overrides: Vec<Override>,
    ) -> Result<Composition, Diagnostics> {
        Ok(self.attempt(overrides, true)?.composition)
    }

    pub(crate) fn repository(&self) -> Repository {
        let mut sources = vec![hydra::source()];
        sources.extend(self.sources.iter().cloned());
        Repository::new(sources, &self.environment.directory)
    }

    /// Fails only if there is nothing to compose from.
    fn attempt(&self, overrides: Vec<Override>, is_sweep: bool) -> Result<Attempt, Diagnostics> {
        let mut recorded = parse_arguments(&self.applied)?;
        recorded.extend(overrides.iter().cloned());
        let environment = self.environment.clone();
        let repository = self.with_search_path(&overrides, &environment)?;
        let choices = Choices::new(&repository, &overrides)?;
        let mut builder = Builder::new(&repository, &environment, choices);
        builder.skip_missing = is_sweep;
        let built = builder.build(&self.config_name, self.lenient_groups)?;
        let Built {
            roots,
            merges,
            choices,
            problems: absences,
            absent,
        } = built;

        let mut root = Node::built_in(Value::Map(Map::new()));
        let mut problems = Diagnostics::new();
        let mut files = Vec::new();
        for merged in merges {
            if merged.is_primary && merged.content.as_map().is_none() {
                problems.push(
                    Diagnostic::new(format!(
                        "the primary config '{}' must be a mapping",
                        merged.config
                    ))
                    .at(&merged.content.origin)
                    .label(format!("this is {}", merged.content.describe())),
                );
                continue;
            }
            check_templates(&merged.content, &mut problems);
            if !merged.is_primary
                && merged.config != "hydra/config"
                && embedded(&merged.package, merged.content.clone())
                    .get("hydra.searchpath")
                    .is_some()
            {
                problems.push(
                    Diagnostic::new(format!(
                        "in '{}': only the primary config can set hydra.searchpath",
                        merged.config
                    ))
                    .at(&merged.content.origin),
                );
            }
            files.push(MergedFile {
                config: merged.config.clone(),
                package: merged.package.clone(),
                parent: merged.parent.clone(),
                is_self: merged.is_self,
                is_primary: merged.is_primary,
            });
            let content = embedded(&merged.package, merged.content);
            if let Err(found) = merge(&mut root, &Vec::new(), content, NewKeys::Add, &environment) {
                problems.extend(found);
            }
        }
        if !problems.is_empty() {
            problems.extend(absences);
            return Err(problems);
        }
        problems.extend(absences);
        let is_absent = |change: &Override| {
            let top = change.key.split('.').next();
            absent.iter().any(|key| Some(key.as_str()) == top)
        };
        let known = choices.values.iter().filter(|change| !is_absent(change));
        for change in known {
            if self.lenient_groups
                && let Some(problem) = no_such_group(change, &repository)
            {
                problems.push(problem);
                continue;
            }
            if let Some(node) = change.node() {
                check_templates(&node, &mut problems);
            }
            if let Err(found) = apply(&mut root, change, &environment) {
                problems.extend(with_nearest_group(found, change, &repository));
            }
        }
        hydra::fill(
            &mut root,
            &hydra::Facts {
                overrides: &recorded,
                choices: &choices.known,
                sources: repository.sources(),
                config_name: &self.config_name,
                job_name: &self.job_name,
                environment: &environment,
            },
        );
        Ok(Attempt {
            composition: Composition::new(
                root,
                environment,
                recorded,
                choices.known,
                files,
                roots,
                repository,
            ),
            problems,
            is_whole: absent.is_empty(),
        })
    }

    /// The repository with `hydra.searchpath` added.
    fn with_search_path(
        &self,
        overrides: &[Override],
        environment: &Environment,
    ) -> Result<Repository, Diagnostics> {
        let repository = self.repository();
        let given = overrides
            .iter()
            .find(|given| given.left_side() == "hydra.searchpath")
            .and_then(Override::node);
        let (provider, node) = match given {
            Some(node) => ("hydra.searchpath in command-line", Some(node)),
            None => {
                let primary = repository.load(&self.config_name, None)?;
                let node = primary.and_then(|loaded| loaded.root.get("hydra.searchpath").cloned());
                ("hydra.searchpath in main", node)
            }
        };
        let Some(node) = node.filter(|node| !node.is_null()) else {
            return Ok(repository);
        };
        let refuse = |node: &Node| {
            Diagnostic::new("hydra.searchpath must be a list of strings")
                .at(&node.origin)
                .label(format!("this is {}", node.describe()))
        };
        let mut sources = repository.sources().to_vec();
        for item in node.as_list().ok_or_else(|| refuse(&node))? {
            let path = item.as_str().ok_or_else(|| refuse(item))?;
            let path = match path.split_once("://") {
                Some(("file", path)) => path,
                Some((scheme, _)) => {
                    return Err(Diagnostic::new(format!(
                        "hydra.searchpath cannot hold {scheme}:// (only directories)"
                    ))
                    .at(&item.origin)
                    .into());
                }
                None => path,
            };
            let source = Provided {
                provider: provider.to_string(),
                source: Source::Directory(environment.directory.join(path)),
            };
            if !source.is_available() {
                environment.warn(format!(
                    "{} ({provider}) is not a directory",
                    source.describe()
                ));
            }
            sources.push(source);
        }
        Ok(Repository::new(sources, &environment.directory))
    }
}

/// What could be composed, and what could not.
struct Attempt {
    composition: Composition,
    problems: Diagnostics,
    /// Every option that was chosen is there.
    is_whole: bool,
}

fn is_in_argument(problem: &Diagnostic) -> bool {
    let place = problem.origin().map(|origin| &origin.place);
    matches!(place, Some(Place::Argument(_)))
}

pub(crate) fn parse_arguments<S: AsRef<str>>(
    arguments: &[S],
) -> Result<Vec<Override>, Diagnostics> {
    let arguments: Vec<String> = arguments
        .iter()
        .map(|argument| argument.as_ref().to_string())
        .collect();
    grammar::parse_all(&arguments)
}

/// Without `--multirun` a sweep is ambiguous, or a mistake.
fn refuse_sweeps(overrides: &[Override]) -> Result<(), Diagnostics> {
    let mut problems = Diagnostics::new();
    for given in overrides {
        let Some(sweep) = given.sweep() else { continue };
        let text = &given.text;
        let span = given
            .value
            .as_ref()
            .map_or(Span::default(), |value| value.span);
        let origin = Origin::argument(text, span);
        problems.push(match sweep {
            Sweep::Choice {
                is_simple: true, ..
            } => Diagnostic::new(format!("the value of '{text}' is ambiguous"))
                .at(&origin)
                .note("to use it as a list, write key=[value1,value2]")
                .note("to use it as text, quote it: key=\\'value1,value2\\'")
                .note("to sweep over it, add --multirun"),
            _ => Diagnostic::new(format!("the sweep '{text}' needs --multirun")).at(&origin),
        });
    }
    problems.into_result(())
}

/// Puts content under its package.
fn embedded(package: &str, content: Node) -> Node {
    package
        .split('.')
        .rev()
        .filter(|step| !step.is_empty())
        .fold(content, |content, step| {
            let mut origin = content.origin.clone();
            origin.key = None;
            let mut map = Map::new();
            map.insert(Key::from(step), content);
            Node::new(Value::Map(map), origin)
        })
}

/// Complains about interpolations that cannot be parsed, also where nothing reads them.
fn check_templates(node: &Node, problems: &mut Diagnostics) {
    match &node.value {
        Value::Map(map) => map
            .values()
            .for_each(|child| check_templates(child, problems)),
        Value::List(items) => items
            .iter()
            .for_each(|child| check_templates(child, problems)),
        Value::Str(text) if node.is_interpolation() => {
            if let Err(error) = parse::template(text) {
                problems.push(
                    Diagnostic::new(format!("cannot parse the interpolation `{}`", node.brief()))
                        .at(&node.origin)
                        .label(error.message),
                );
            }
        }
        _ => {}
    }
}

/// `+group=option` for a group that does not exist would add a key of that name, which no
/// configuration has.
fn no_such_group(change: &Override, repository: &Repository) -> Option<Diagnostic> {
    let is_group = change.key.contains('/') && !change.key.contains('.');
    if change.operation != Operation::Add || !is_group {
        return None;
    }
    let problem = Diagnostic::new(format!("there is no config group `{}`", change.key))
        .at(&change.key_origin());
    let groups = repository.groups();
    let near = nearest(&change.key, groups.iter().map(String::as_str));
    Some(match near {
        Some(near) => problem.label(format!("did you mean `{near}`?")),
        None => problem.note(format!("groups: {}", groups.join(", "))),
    })
}

/// A key that is not there may be meant for a config group.
fn with_nearest_group(
    problems: Diagnostics,
    change: &Override,
    repository: &Repository,
) -> Diagnostics {
    if change.key.contains('.') {
        return problems; // a path of keys: a group has slashes
    }
    let groups = repository.groups();
    let Some(near) = nearest(&change.key, groups.iter().map(String::as_str)) else {
        return problems;
    };
    let mut told = Diagnostics::new();
    for problem in problems.iter() {
        let is_about_key = problem.message().starts_with("there is no key");
        told.push(if is_about_key {
            let value = change
                .text
                .split_once('=')
                .map_or("...", |(_, value)| value);
            let note = format!("did you mean the config group `{near}`? +{near}={value}");
            problem.clone().note(note)
        } else {
            problem.clone()
        });
    }
    told
}
