//! Which folder a run works in, and which checkpoint it goes on from.
//!
//! | `resume` | `hydra.run.dir` given | otherwise |
//! | --- | --- | --- |
//! | `auto` | goes on there if it has saved; nothing to do if that run has finished | goes on with the newest unfinished run of the same config |
//! | `none` | an earlier run there is moved aside | a new folder |
//! | a run folder | as `auto` if the run there began from it; else takes its newest checkpoint, works in the folder given | goes on there |
//! | a checkpoint | as `auto` if the run there began from it; else takes it, works in the folder given | goes on with the newest unfinished run of the same config that began from it; else takes it, works in a new folder |
//!
//! A run that has saved is never started over in place: if none of its checkpoints can be used, that is an error.
//!
//! Two configs are of the same run if they differ only in what cannot change its numbers: see [`same_run`].

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tt_checkpoint::{Checkpoint, Damage};

use crate::run_dir::{self, RunDir, RunDirError};

/// The file in a run folder that [`same_run`] reads.
pub(crate) const RESOLVED_CONFIG: &str = "resolved_config.json";

/// The root key `resume`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Resume {
    Auto,
    Never,
    From(PathBuf),
}

impl From<&str> for Resume {
    fn from(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            "none" => Self::Never,
            path => Self::From(path.into()),
        }
    }
}

/// Where a run would work if it started afresh.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// `hydra.run.dir`.
    pub(crate) run_dir: &'a Path,
    /// How many of its last folders are named for the time; 0 if the user gave the whole name.
    pub(crate) folders_by_clock: usize,
    /// The whole config, resolved.
    pub(crate) config: &'a Value,
}

impl<'a> Wanted<'a> {
    /// `pattern` is `hydra.run.dir` as it was written, before interpolation.
    pub(crate) fn new(run_dir: &'a str, pattern: &str, config: &'a Value) -> Self {
        let run_dir = Path::new(run_dir);
        let by_name = match pattern.find("${now:") {
            Some(clock) => pattern[..clock].matches('/').count(),
            None => usize::MAX,
        };
        Self {
            run_dir,
            folders_by_clock: run_dir.components().count().saturating_sub(by_name),
            config,
        }
    }

    /// Whether the user gave the whole name of the folder.
    pub(crate) fn is_given(&self) -> bool {
        self.folders_by_clock == 0
    }

    /// The folders that earlier commands have made where this one would, newest first: they are named for the time.
    pub(crate) fn earlier_folders(&self) -> Vec<PathBuf> {
        // `outputs`, for `outputs/DATE/TIME`.
        let Some(root) = self.run_dir.ancestors().nth(self.folders_by_clock) else {
            return Vec::new();
        };
        let mut folders = vec![root.to_owned()];
        for _ in 0..self.folders_by_clock {
            folders = folders
                .iter()
                .flat_map(|folder| subfolders(folder))
                .collect();
        }
        folders.sort_unstable_by(|a, b| b.cmp(a));
        folders
    }
}

/// What there is to do.
#[derive(Debug)]
pub(crate) enum Decision {
    Start(Start),
    /// The folder named holds this very run, and it has finished.
    Finished(PathBuf),
}

/// The folder that a run is to work in.
///
/// A new one is made when it is taken and not before, so that a request refused until then changes nothing on disk.
#[derive(Debug)]
pub(crate) enum Folder {
    /// An earlier run's, which goes on.
    Held(RunDir),
    /// A new one under this name, or with a number if it is taken.
    New(PathBuf),
    /// The one of this name; an earlier run there is moved aside.
    Given(PathBuf),
}

impl Folder {
    /// Makes and locks the folder. Gives also the name that an earlier run there now has.
    pub(crate) fn take(self) -> Result<(RunDir, Option<PathBuf>), RunDirError> {
        let run_dir = match self {
            Self::Held(run_dir) => return Ok((run_dir, None)),
            Self::New(path) => return Ok((RunDir::create_new(&path)?, None)),
            Self::Given(path) => RunDir::open(&path)?,
        };
        if !run_dir.is_used() {
            return Ok((run_dir, None));
        }
        let (run_dir, aside) = run_dir.set_aside()?;
        Ok((run_dir, Some(aside)))
    }
}

/// Where a run works, and from which state.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) folder: Folder,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// The `resume=PATH` that the run began from, now or when it was first started.
    pub(crate) origin: Option<PathBuf>,
    /// What was decided and why, for the user to read.
    pub(crate) notes: Vec<String>,
}

impl Start {
    /// The folder of a run that has finished and is asked for no step more.
    pub(crate) fn finished(&self, max_steps: Option<u64>) -> Option<&Path> {
        let Folder::Held(run_dir) = &self.folder else {
            return None;
        };
        let step = self.checkpoint.as_ref()?.step();
        (run_dir::is_finished(run_dir.path()) && step >= max_steps?).then(|| run_dir.path())
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ResumeError {
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error(transparent)]
    Checkpoint(#[from] tt_checkpoint::Error),
    #[error("resume={path}: found neither a checkpoint nor a run folder with one there")]
    NothingThere { path: PathBuf },
    #[error(
        "no checkpoint of {} can be used{}\nresume=none starts afresh and keeps this run",
        run.display(),
        damage.iter().map(|one| format!("\n  {one}")).collect::<String>(),
    )]
    AllDamaged { run: PathBuf, damage: Vec<Damage> },
    /// Not damage: the checkpoint may be whole, and passing over it would lose steps.
    #[error("cannot read the checkpoints of {}; resume=none starts afresh", run.display())]
    Unreadable {
        run: PathBuf,
        source: tt_checkpoint::Error,
    },
    #[error(
        "resume={path} lies inside hydra.run.dir; to branch off from it, name another hydra.run.dir"
    )]
    InsideRunDir { path: PathBuf },
}

/// Decides where to work, and locks that folder if an earlier run goes on in it.
pub(crate) fn decide(resume: &Resume, wanted: &Wanted) -> Result<Decision, ResumeError> {
    let folder = wanted.run_dir;
    let stays = wanted.is_given()
        && match resume {
            Resume::Auto => true,
            Resume::Never => false,
            Resume::From(path) => run_dir::origin(folder).is_some_and(|o| o == full_path(path)),
        };
    if stays && run_dir::is_finished(folder) && holds_same_run(folder, wanted) {
        return Ok(Decision::Finished(folder.to_owned()));
    }
    let start = match resume {
        _ if stays => auto_in_given_folder(wanted),
        Resume::Auto => auto_among_earlier_runs(wanted),
        Resume::Never => Ok(fresh(wanted)),
        Resume::From(path) => from_path(path, wanted),
    };
    start.map(Decision::Start)
}

/// The same for every way of writing a path; one that is gone has its name at least.
fn full_path(path: &Path) -> PathBuf {
    let full = path.canonicalize().or_else(|_| std::path::absolute(path));
    full.unwrap_or_else(|_| path.to_owned())
}

fn holds_same_run(folder: &Path, wanted: &Wanted) -> bool {
    read_config(folder).is_some_and(|config| same_run(&config, wanted.config))
}

fn auto_in_given_folder(wanted: &Wanted) -> Result<Start, ResumeError> {
    if !wanted.run_dir.exists() {
        return Ok(fresh(wanted));
    }
    let run_dir = RunDir::open(wanted.run_dir)?;
    let folder = run_dir.path().to_owned();
    if let Some(start) = continued(run_dir, wanted, "hydra.run.dir holds it")? {
        return Ok(start);
    }
    let origin = run_dir::origin(&folder);
    let is_same_run = !run_dir::is_finished(&folder) && holds_same_run(&folder, wanted);
    let mut start = match origin.filter(|_| is_same_run) {
        Some(origin) => started_from(&origin, wanted)?,
        None => fresh(wanted),
    };
    // Stopped before its first save: the same run starts over, there is nothing worth moving aside.
    if is_same_run {
        start.folder = Folder::Held(RunDir::open(&folder)?);
        start.notes.push(format!(
            "starting {} over: it had not saved yet",
            folder.display()
        ));
    }
    Ok(start)
}

fn auto_among_earlier_runs(wanted: &Wanted) -> Result<Start, ResumeError> {
    let why = "it is unfinished and has the same config; resume=none starts afresh";
    first_usable(earlier_runs(wanted), wanted, why, || Ok(fresh(wanted)))
}

/// Goes on with the first of `folders` that can be, or else as `otherwise` says.
fn first_usable(
    folders: impl Iterator<Item = PathBuf>,
    wanted: &Wanted,
    why: &str,
    otherwise: impl FnOnce() -> Result<Start, ResumeError>,
) -> Result<Start, ResumeError> {
    let mut notes = Vec::new();
    for folder in folders {
        let run_dir = match RunDir::open(&folder) {
            Ok(run_dir) => run_dir,
            // Another's, it may be: it must not stand in the way of this one.
            Err(e) => {
                notes.push(format!("not resuming: {:#}", anyhow::Error::from(e)));
                continue;
            }
        };
        match continued(run_dir, wanted, why) {
            Ok(Some(mut start)) => {
                notes.append(&mut start.notes);
                return Ok(Start { notes, ..start });
            }
            Ok(None) => {}
            // Where it was saved nothing is touched: the run begins again in a new folder.
            Err(ResumeError::AllDamaged { run, damage }) => {
                notes.extend(damage.iter().map(|one| format!("warning: {one}")));
                notes.push(format!(
                    "not resuming {}: none of its checkpoints can be used",
                    run.display()
                ));
            }
            Err(e) => return Err(e),
        }
    }
    let mut start = otherwise()?;
    start.notes.splice(..0, notes);
    Ok(start)
}

fn from_path(path: &Path, wanted: &Wanted) -> Result<Start, ResumeError> {
    let is_run = run_dir::checkpoints(path).is_dir();
    let is_same = is_inside(path, wanted.run_dir) && is_inside(wanted.run_dir, path);
    if is_run && (is_same || !wanted.is_given()) {
        let start = continued(RunDir::open(path)?, wanted, "resume names it")?;
        let path = path.to_owned();
        return start.ok_or(ResumeError::NothingThere { path });
    }
    // Its later checkpoints would be taken for the continuation's.
    if is_inside(path, wanted.run_dir) {
        let path = path.to_owned();
        return Err(ResumeError::InsideRunDir { path });
    }
    if wanted.is_given() {
        return started_from(path, wanted);
    }
    let origin = full_path(path);
    let of_same_origin =
        earlier_runs(wanted).filter(|run| run_dir::origin(run).as_ref() == Some(&origin));
    let why = "it began from there and is unfinished; another hydra.run.dir branches off again";
    first_usable(of_same_origin, wanted, why, || started_from(path, wanted))
}

/// A run of its own, from the checkpoint at `path` or the newest of the run there.
fn started_from(path: &Path, wanted: &Wanted) -> Result<Start, ResumeError> {
    let nothing_there = || ResumeError::NothingThere {
        path: path.to_owned(),
    };
    let (checkpoint, mut notes) = if run_dir::checkpoints(path).is_dir() {
        newest_checkpoint(path)?.ok_or_else(nothing_there)?
    } else if path.is_dir() {
        (Checkpoint::open(path)?, Vec::new())
    } else {
        return Err(nothing_there());
    };
    notes.push(format!(
        "starting from step {} of {}",
        checkpoint.step(),
        checkpoint.dir().display()
    ));
    Ok(Start {
        checkpoint: Some(checkpoint),
        origin: Some(full_path(path)),
        notes,
        ..fresh(wanted)
    })
}

/// The newest checkpoint of the run in `folder` that can be used, and a note on each that cannot.
///
/// `None` means that the run has never saved: if it has, and nothing of it can be used, that is an error.
fn newest_checkpoint(folder: &Path) -> Result<Option<(Checkpoint, Vec<String>)>, ResumeError> {
    let latest = tt_checkpoint::latest(&run_dir::checkpoints(folder));
    let run = folder.to_owned();
    let latest = match latest {
        Ok(latest) => latest,
        Err(source) => return Err(ResumeError::Unreadable { run, source }),
    };
    let damage = latest.skipped;
    match latest.checkpoint {
        Some(checkpoint) => {
            let note = |one| format!("warning: {one}; using the one before it");
            Ok(Some((checkpoint, damage.iter().map(note).collect())))
        }
        None if damage.is_empty() => Ok(None),
        None => Err(ResumeError::AllDamaged { run, damage }),
    }
}

/// The run goes on in `run_dir` if it has saved; otherwise the folder is let go.
fn continued(run_dir: RunDir, wanted: &Wanted, why: &str) -> Result<Option<Start>, ResumeError> {
    let Some((checkpoint, mut notes)) = newest_checkpoint(run_dir.path())? else {
        return Ok(None);
    };
    notes.push(format!(
        "resuming {} from step {}: {why}",
        run_dir.path().display(),
        checkpoint.step()
    ));
    if let Some(earlier) = read_config(run_dir.path()) {
        for difference in differences(&earlier, wanted.config) {
            notes.push(format!("config changed since: {difference}"));
        }
    }
    Ok(Some(Start {
        origin: run_dir::origin(run_dir.path()),
        folder: Folder::Held(run_dir),
        checkpoint: Some(checkpoint),
        notes,
    }))
}

fn is_inside(path: &Path, folder: &Path) -> bool {
    match (path.canonicalize(), folder.canonicalize()) {
        (Ok(path), Ok(folder)) => path.starts_with(folder),
        _ => false, // what does not exist holds nothing
    }
}

/// A folder without an earlier run in it.
fn fresh(wanted: &Wanted) -> Start {
    let path = wanted.run_dir.to_owned();
    Start {
        folder: match wanted.is_given() {
            true => Folder::Given(path),
            false => Folder::New(path),
        },
        checkpoint: None,
        origin: None,
        notes: Vec::new(),
    }
}

/// Unfinished runs of the same config, newest first.
fn earlier_runs(wanted: &Wanted) -> impl Iterator<Item = PathBuf> {
    let folders = wanted.earlier_folders().into_iter();
    folders
        .filter(|run| !run_dir::is_finished(run))
        .filter(|run| holds_same_run(run, wanted))
}

fn subfolders(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    // A folder that cannot be read holds no run that could be continued.
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
}

fn read_config(run: &Path) -> Option<Value> {
    let text = fs::read_to_string(run.join(RESOLVED_CONFIG)).ok()?;
    serde_json::from_str(&text).ok()
}

/// Whether two resolved configs are of the same run.
///
/// Left out is what cannot change a number of the run: where it is written, how it is called and shown, how it is
/// resumed, and on how many threads it runs.
pub(crate) fn same_run(a: &Value, b: &Value) -> bool {
    differences(a, b).is_empty()
}

/// The keys that matter to [`same_run`] and differ, as `key: old -> new`.
fn differences(old: &Value, new: &Value) -> Vec<String> {
    const LEFT_OUT: [&str; 9] = [
        "hydra",
        "resume",
        "logging",
        "device.threads",
        "sweep",
        "data.num_workers",
        "trainer.log_interval",
        "name",
        "notes",
    ];
    let mut found = Vec::new();
    compare("", old, new, &mut |key, old, new| {
        let shown = |value: Option<&Value>| value.map_or("(absent)".to_owned(), Value::to_string);
        found.push(format!("{key}: {} -> {}", shown(old), shown(new)));
    });
    found.retain(|difference| {
        !LEFT_OUT.iter().any(|key| {
            let rest = difference.strip_prefix(key);
            rest.is_some_and(|rest| rest.starts_with(['.', ':']))
        })
    });
    found
}

fn compare(
    key: &str,
    old: &Value,
    new: &Value,
    report: &mut impl FnMut(&str, Option<&Value>, Option<&Value>),
) {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        if old != new {
            report(key, Some(old), Some(new));
        }
        return;
    };
    let path = |name: &str| match key {
        "" => name.to_owned(),
        _ => format!("{key}.{name}"),
    };
    for (name, old) in old {
        match new.get(name) {
            Some(new) => compare(&path(name), old, new, report),
            None => report(&path(name), Some(old), None),
        }
    }
    for (name, new) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
        report(&path(name), None, Some(new));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tt_checkpoint::{CheckpointConfig, HostTensor, Snapshot, Writer};

    use super::*;

    /// A run folder as a killed run leaves it, with a checkpoint at `step`.
    fn leave_run(root: &Path, name: &str, config: &Value, step: Option<u64>) -> PathBuf {
        let run = RunDir::open(&root.join("outputs").join(name)).unwrap();
        run.write(RESOLVED_CONFIG, &config.to_string()).unwrap();
        run.write("metrics.jsonl", "").unwrap();
        if let Some(step) = step {
            let mut snapshot = Snapshot {
                step,
                ..Snapshot::default()
            };
            let tensor = HostTensor::from_f32([1], &[1.0]);
            snapshot.model.insert("w".into(), tensor);
            let mut writer = Writer::open(run.checkpoints(), CheckpointConfig::default()).unwrap();
            writer.submit(snapshot).unwrap();
            writer.finish().unwrap();
        }
        run.path().to_owned()
    }

    fn auto(root: &Path, config: &Value) -> Start {
        let run_dir = root.join("outputs/2026-06-01/00-00-00");
        let wanted = Wanted {
            run_dir: &run_dir,
            folders_by_clock: 2,
            config,
        };
        started(decide(&Resume::Auto, &wanted).unwrap())
    }

    fn started(decision: Decision) -> Start {
        match decision {
            Decision::Start(start) => start,
            Decision::Finished(folder) => panic!("{} has finished", folder.display()),
        }
    }

    impl Start {
        fn path(&self) -> &Path {
            match &self.folder {
                Folder::Held(run_dir) => run_dir.path(),
                Folder::New(path) | Folder::Given(path) => path,
            }
        }
    }

    #[test]
    fn the_newest_unfinished_run_of_the_same_config_goes_on() {
        let root = tempfile::tempdir().unwrap();
        let config = json!({"lr": 0.1, "resume": "auto", "hydra": {"run": {"dir": "a"}}});
        let same = json!({"lr": 0.1, "resume": "none", "hydra": {"run": {"dir": "b"}}});
        leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(9));
        let newest = leave_run(root.path(), "2026-01-02/00-00-00", &same, Some(5));
        leave_run(
            root.path(),
            "2026-01-03/00-00-00",
            &json!({"lr": 0.2}),
            Some(7),
        );
        leave_run(root.path(), "2026-01-04/00-00-00", &config, None);
        let finished = leave_run(root.path(), "2026-01-05/00-00-00", &config, Some(8));
        fs::write(finished.join("summary.json"), "{}").unwrap();

        let start = auto(root.path(), &config);
        assert_eq!(start.path(), newest);
        assert_eq!(start.checkpoint.unwrap().step(), 5);
        assert!(
            start.notes.iter().any(|note| note.contains("step 5")),
            "{:?}",
            start.notes
        );
    }

    /// Cuts a file of each checkpoint short.
    fn damage(run: &Path) {
        for step in subfolders(&run_dir::checkpoints(run)) {
            fs::write(step.join("model.safetensors"), "").unwrap();
        }
    }

    #[test]
    fn a_run_whose_checkpoints_are_all_damaged_is_not_started_over() {
        let root = tempfile::tempdir().unwrap();
        let config = json!({});
        let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
        damage(&run);
        let wanted = Wanted {
            run_dir: &run,
            folders_by_clock: 0,
            config: &config,
        };
        for resume in [Resume::Auto, Resume::From(run.clone())] {
            let error = decide(&resume, &wanted).unwrap_err().to_string();
            assert!(error.contains("model.safetensors has 0 bytes"), "{error}");
            assert!(error.contains("resume=none"), "{error}");
        }
    }

    #[test]
    fn an_earlier_run_with_damage_alone_is_passed_over_with_its_damage() {
        let root = tempfile::tempdir().unwrap();
        let config = json!({});
        let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
        damage(&run);
        let start = auto(root.path(), &config);
        assert_ne!(start.path(), run);
        assert!(start.notes[0].contains("0 bytes"), "{:?}", start.notes);
        assert!(start.notes[1].contains("not resuming"), "{:?}", start.notes);
    }

    #[cfg(unix)]
    #[test]
    fn a_checkpoint_that_cannot_be_read_is_not_taken_for_damaged() {
        let root = tempfile::tempdir().unwrap();
        let config = json!({});
        let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
        let file = run_dir::checkpoints(&run).join("step-00000003/model.safetensors");
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&file, &file).unwrap(); // a loop: an I/O error for root too
        let wanted = Wanted {
            run_dir: &run,
            folders_by_clock: 0,
            config: &config,
        };
        let error = decide(&Resume::Auto, &wanted).unwrap_err();
        assert!(matches!(error, ResumeError::Unreadable { .. }), "{error}");
    }

    #[test]
    fn a_run_in_use_is_passed_over_with_a_note() {
        let root = tempfile::tempdir().unwrap();
        let config = json!({"lr": 0.1});
        let used = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(9));
        let _held = RunDir::open(&used).unwrap();
        let start = auto(root.path(), &config);
        assert!(start.checkpoint.is_none());
        assert_ne!(start.path(), used);
        assert!(start.notes[0].contains("in use"), "{:?}", start.notes);
    }

    #[test]
    fn a_run_that_cannot_be_opened_is_passed_over_with_a_note() {
        let root = tempfile::tempdir().unwrap();
        let config = json!({"lr": 0.1});
        let older = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(9));
        let barred = leave_run(root.path(), "2026-01-02/00-00-00", &config, Some(9));
        fs::remove_file(barred.join(".lock")).unwrap();
        fs::create_dir(barred.join(".lock")).unwrap(); // not to be written, not by root either
        let start = auto(root.path(), &config);
        assert_eq!(start.path(), older);
        assert!(start.notes[0].contains("01-02"), "{:?}", start.notes);
    }

    #[test]
    fn the_part_of_the_name_that_the_clock_gives_is_counted() {
        let config = json!({});
        let by_clock = |run_dir, pattern| Wanted::new(run_dir, pattern, &config).folders_by_clock;
        assert_eq!(
            by_clock("outputs/2026-01-31/12-00-00", "outputs/${now:%F}/${now:%T}"),
            2
        );
        assert_eq!(by_clock("runs/big-12-00-00", "runs/${name}-${now:%T}"), 1);
        assert_eq!(by_clock("runs/big", "runs/${name}"), 0);
    }

    #[test]
    fn a_thread_count_does_not_make_another_run() {
        let a = json!({"device": {"type": "cpu", "threads": 1}});
        let b = json!({"device": {"type": "cpu", "threads": null}});
        let c = json!({"device": {"type": "tpu", "threads": 1}});
        assert!(same_run(&a, &b));
        assert!(!same_run(&a, &c));
    }

    #[test]
    fn names_workers_and_the_pace_of_the_log_do_not_make_another_run() {
        let a = json!({"name": "a", "notes": null, "data": {"num_workers": 1}, "trainer": {"log_interval": 1}});
        let b = json!({"name": "b", "notes": "x", "data": {"num_workers": 2}, "trainer": {"log_interval": 5}});
        assert!(same_run(&a, &b));
    }

    #[test]
    fn differences_name_key_old_and_new() {
        let old = json!({"trainer": {"max_steps": 3, "gone": 1}, "loggings": 1});
        let new = json!({"trainer": {"max_steps": 5}, "loggings": 2});
        let expected = [
            "trainer.max_steps: 3 -> 5",
            "trainer.gone: 1 -> (absent)",
            "loggings: 1 -> 2",
        ];
        assert_eq!(differences(&old, &new), expected);
    }

    #[test]
    fn a_checkpoint_of_another_run_starts_a_new_folder() {
        let root = tempfile::tempdir().unwrap();
        let config = json!({});
        let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
        let run_dir = root.path().join("branch");
        let wanted = Wanted {
            run_dir: &run_dir,
            folders_by_clock: 0,
            config: &config,
        };
        let start = started(decide(&Resume::From(run), &wanted).unwrap());
        assert_eq!(start.path(), run_dir);
        assert_eq!(start.checkpoint.unwrap().step(), 3);
    }

    #[test]
    fn a_finished_run_is_not_done_again_but_may_be_extended() {
        let root = tempfile::tempdir().unwrap();
        let config = json!({"trainer": {"max_steps": 3}});
        let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
        fs::write(run.join("summary.json"), "{}").unwrap();
        let decide_with = |config| {
            let wanted = Wanted {
                run_dir: &run,
                folders_by_clock: 0,
                config,
            };
            decide(&Resume::Auto, &wanted).unwrap()
        };
        assert!(matches!(decide_with(&config), Decision::Finished(folder) if folder == run));
        let longer = started(decide_with(&json!({"trainer": {"max_steps": 5}})));
        assert_eq!(longer.checkpoint.unwrap().step(), 3);
        assert!(
            longer
                .notes
                .iter()
                .any(|note| note.contains("trainer.max_steps: 3 -> 5"))
        );
    }

    #[test]
    fn a_run_named_both_to_resume_and_to_work_in_goes_on_there() {
        let root = tempfile::tempdir().unwrap();
        let config = json!({});
        let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
        let decide_from = |path: &Path| {
            let wanted = Wanted {
                run_dir: &run,
                folders_by_clock: 0,
                config: &config,
            };
            decide(&Resume::From(path.to_owned()), &wanted)
        };
        let start = started(decide_from(&run).unwrap());
        assert_eq!(start.path(), run);
        drop(start);
        let error = decide_from(&run.join("checkpoints/step-00000003")).unwrap_err();
        assert!(matches!(error, ResumeError::InsideRunDir { .. }), "{error}");
    }

    #[test]
    fn a_path_with_nothing_there_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let config = json!({});
        let wanted = Wanted {
            run_dir: &root.path().join("run"),
            folders_by_clock: 0,
            config: &config,
        };
        let path = root.path().join("nowhere");
        let error = decide(&Resume::From(path), &wanted).unwrap_err();
        assert!(error.to_string().contains("nowhere"), "{error}");
        assert!(!root.path().join("run").exists(), "nothing made");
    }
}
