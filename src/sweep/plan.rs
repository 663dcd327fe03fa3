//! From a command line to the jobs it stands for and the folder they work in.
//!
//! Every job is composed and its set-up made here, without memory and data, so that what cannot run is found before the
//! first job starts. The folder
//! is chosen as `resume` chooses a run's: see [`tt_run::decide()`].

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};
use tt_config::{Composer, Composition, Diagnostic, Diagnostics, Missing, Node, Value};
use tt_run::{OutputDir, Resume, RunDir, RunDirError};

use crate::args::Options;
use crate::defaults;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::migration;
use crate::out;
use crate::plugins::Plugins;
use crate::setup::Setup;
use crate::sweep::config::SweepConfig;
use crate::sweep::job::{JobState, JobStatus, SweepJob};

/// The file in a sweep's folder that lists its jobs.
const JOBS: &str = "sweep.json";

/// A sweep, ready to be started.
pub(crate) struct SweepPlan {
    pub(crate) jobs: Vec<SweepJob>,
    pub(crate) config: SweepConfig,
    /// `hydra.launcher.n_jobs`: how many work at a time.
    pub(crate) n_jobs: usize,
    /// The user's settings of Hydra, which hold for every job.
    pub(crate) hydra_overrides: Vec<String>,
    pub(crate) resume: Resume,
    /// `hydra.sweep.dir`, resolved and as written.
    folder: (String, String),
}

impl SweepPlan {
    pub(crate) fn read(
        composer: &Composer,
        overrides: &[String],
        plugins: &Plugins,
    ) -> Result<Self, Failure> {
        let mut jobs = Vec::new();
        let mut shared = None;
        let mut problems = Diagnostics::new();
        let mut said = HashSet::new();
        for (num, job) in composer.sweep(overrides)?.into_iter().enumerate() {
            let mut composition = job.composition;
            let warnings = composition.warnings().into_iter();
            let mut remarks: Vec<_> = warnings.map(|text| format!("warning: {text}")).collect();
            let notes = migration::apply(&mut composition, plugins).into_iter();
            remarks.extend(notes.map(|text| format!("note: {text}")));
            defaults::apply(&mut composition);
            for remark in remarks {
                // Every job has them; once is enough.
                if said.insert(remark.clone()) {
                    out::error_line(remark);
                }
            }
            for key in ["hydra.job.num", "hydra.job.id"] {
                composition.set(key, Value::Int(num as i128));
            }
            let invocation = Invocation {
                plugins: plugins.clone(),
                composition,
                composer: composer.clone(),
                overrides: Vec::new(),
                arguments: Vec::new(),
                options: Options::default(),
            };
            let setup = Setup::read_to_plan(&invocation).map_err(Failure::from);
            match setup.and_then(|setup| setup.check_whole(&invocation.composition)) {
                Ok(()) => {}
                Err(Failure::Config(found)) => {
                    add_new(&mut problems, found);
                    continue;
                }
                Err(other) => return Err(other),
            }
            let composition = invocation.composition;
            jobs.push(SweepJob {
                num,
                overrides: job.overrides,
                config: composition.resolve(Missing::Keep)?.to_json(),
                subdir: text(&composition, "hydra.sweep.subdir")?.into(),
            });
            // The settings of the sweep cannot be swept: the first job's are everyone's.
            shared.get_or_insert(composition);
        }
        let Some(shared) = shared.filter(|_| problems.is_empty()) else {
            return Err(problems.into());
        };
        refuse_shared_folders(&jobs, &shared)?;
        let pattern = shared.get("hydra.sweep.dir").and_then(Node::as_str);
        let given = shared.get("hydra.overrides.hydra").and_then(Node::as_list);
        let given = given.unwrap_or_default().iter().filter_map(Node::as_str);
        Ok(Self {
            config: shared.extract("sweep")?,
            n_jobs: n_jobs(&shared)?,
            hydra_overrides: given.map(str::to_owned).collect(),
            resume: Resume::from(text(&shared, "resume")?.as_str()),
            folder: (
                text(&shared, "hydra.sweep.dir")?,
                pattern.unwrap_or_default().to_owned(),
            ),
            jobs,
        })
    }

    /// Locks the folder to work in, with a note on why this one.
    pub(crate) fn open_folder(&self) -> Result<(RunDir, Vec<String>), Failure> {
        let (dir, pattern) = &self.folder;
        let output_dir = OutputDir::new(dir, pattern);
        let mut notes = Vec::new();
        let opened = if output_dir.is_given() {
            RunDir::open(output_dir.path)
        } else {
            match self.unfinished(&output_dir, &mut notes) {
                Some(opened) => Ok(opened),
                None => RunDir::create_new(output_dir.path),
            }
        };
        let folder = opened.map_err(Failure::request)?;
        tt_disk::write_json(&folder.path().join(JOBS), &self.list()).map_err(Failure::run)?;
        Ok((folder, notes))
    }

    /// The newest unfinished sweep over the same jobs that nobody works at.
    fn unfinished(&self, output_dir: &OutputDir, notes: &mut Vec<String>) -> Option<RunDir> {
        if self.resume == Resume::Never {
            return None;
        }
        let earlier = output_dir.earlier_folders(notes);
        for folder in earlier.iter().filter(|folder| self.goes_on_in(folder)) {
            match RunDir::open(folder) {
                Ok(opened) => {
                    let path = folder.display();
                    notes.push(format!(
                        "going on with {path}: it is unfinished and has the same jobs; resume=none starts afresh"
                    ));
                    return Some(opened);
                }
                Err(e @ RunDirError::InUse { .. }) => notes.push(format!("not going on: {e}")),
                Err(_) => {} // a folder that cannot be written to is of no use
            }
        }
        None
    }

    fn goes_on_in(&self, folder: &Path) -> bool {
        let list = fs::read_to_string(folder.join(JOBS)).ok();
        let list = list.and_then(|text| serde_json::from_str::<Json>(&text).ok());
        if list.is_none_or(|list| list != self.list()) {
            return false;
        }
        // One whose folder has nothing yet is unfinished; one with another config makes it another sweep.
        let states = self.jobs.iter().map(|job| {
            let folder = folder.join(&job.subdir);
            (
                JobState::earlier(&folder, job),
                crate::sweep::job::is_used(&folder),
            )
        });
        let states: Vec<_> = states.collect();
        states
            .iter()
            .all(|(state, is_used)| state.is_some() || !is_used)
            && states.iter().any(|(state, _)| {
                state
                    .as_ref()
                    .is_none_or(|state| state.status != JobStatus::Finished)
            })
    }

    /// What [`JOBS`] holds: each job's folder and overrides.
    fn list(&self) -> Json {
        let jobs = self.jobs.iter();
        let jobs = jobs.map(|job| json!({"subdir": job.subdir, "overrides": job.overrides}));
        json!({"jobs": jobs.collect::<Vec<_>>()})
    }
}

fn text(composition: &Composition, key: &str) -> Result<String, Failure> {
    let node = composition.resolved(key, Missing::Refuse)?;
    match &node.value {
        Value::Str(text) => Ok(text.clone()),
        // `${hydra.job.num}` is a number.
        Value::Int(number) => Ok(number.to_string()),
        _ => Err(Failure::Config(
            Diagnostic::new(format!("`{key}` must be text"))
                .at(&node.origin)
                .into(),
        )),
    }
}

fn n_jobs(composition: &Composition) -> Result<usize, Failure> {
    let key = "hydra.launcher.n_jobs";
    let node = composition.resolved(key, Missing::Refuse)?;
    match &node.value {
        Value::Int(number) if *number >= 1 => Ok(usize::try_from(*number).unwrap_or(usize::MAX)),
        _ => Err(Failure::Config(
            Diagnostic::new(format!("`{key}` must be a number of jobs, at least 1"))
                .at(&node.origin)
                .into(),
        )),
    }
}

fn refuse_shared_folders(jobs: &[SweepJob], composition: &Composition) -> Result<(), Diagnostics> {
    let mut seen = HashSet::new();
    for job in jobs {
        if !seen.insert(&job.subdir) {
            let key = "hydra.sweep.subdir";
            let why = format!("`{key}`: two jobs would work in {}", job.subdir.display());
            let problem = composition.section(key).error(why);
            return Err(problem.note("${hydra.job.num} tells them apart").into());
        }
    }
    Ok(())
}

/// Jobs share most of their problems.
fn add_new(problems: &mut Diagnostics, found: Diagnostics) {
    let known: HashSet<String> = problems.iter().map(Diagnostic::to_string).collect();
    for problem in found.iter().filter(|p| !known.contains(&p.to_string())) {
        problems.push(problem.clone());
    }
}
