//! `tpu-train inspect RUN [RUN]`: what a run was and how far it came, or in what two runs' configs differ and why.
//!
//! Reads only what the runs have recorded: config files that have changed since make no difference.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::anyhow;
use serde_json::{Map, Value as Json};
use tt_config::Node;
use tt_metrics::last_row_with;
use tt_report::number::bytes;
use tt_run::ending::RERUN_FLAG;
use tt_run::run_dir::{self, METRICS, RESOLVED_CONFIG, SUMMARY};
use tt_run::{RecordedRun, RecordedSegment, program, segments};

use crate::args::Options;
use crate::commands::plan::Estimate;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out;
use crate::plugins::Plugins;
use crate::rerun;
use crate::{defaults, migration};

/// Longer values are cut short.
const MOST_CHARS: usize = 80;

pub(crate) fn run(folders: &[String], plugins: &Plugins) -> Result<ExitCode, Failure> {
    let text = match folders {
        [run] => summary(&Run::read(run)?, plugins)?,
        [a, b] => comparison(&Run::read(a)?, &Run::read(b)?),
        _ => {
            let name = program::running().name;
            return Err(Failure::Request(anyhow!(
                "inspect takes one run folder, or two to compare: {name} inspect RUN_A RUN_B"
            )));
        }
    };
    out::text(text);
    Ok(ExitCode::SUCCESS)
}

/// What a run folder says about its configuration.
struct Run {
    recorded: RecordedRun,
    /// Resolved.
    config: Node,
    overrides: Vec<String>,
    /// Empty for a run that recorded none.
    origins: Map<String, Json>,
}

impl Run {
    fn read(folder: &str) -> Result<Self, Failure> {
        let folder = Path::new(folder);
        if !folder.join(RESOLVED_CONFIG).is_file() {
            let shown = folder.display();
            return Err(Failure::Request(if folder.is_dir() {
                anyhow!("{shown} is not a run folder: it has no {RESOLVED_CONFIG}")
            } else {
                anyhow!("there is no folder {shown}")
            }));
        }
        let recorded = RecordedRun::at(folder);
        Ok(Self {
            config: recorded.resolved_config()?,
            overrides: recorded.overrides()?,
            origins: recorded.origins().map_err(Failure::request)?,
            recorded,
        })
    }

    fn folder(&self) -> &Path {
        self.recorded.folder()
    }

    fn origin(&self, path: &str) -> &str {
        let recorded = self.origins.get(path).and_then(Json::as_str);
        recorded.unwrap_or("origin not recorded")
    }
}

fn comparison(a: &Run, b: &Run) -> String {
    let differences = a.config.differences(&b.config);
    let mut text = String::new();
    let mut line = |line: String| {
        writeln!(text, "{}", line.trim_end()).expect("into a string");
    };
    for (name, run) in [("A", a), ("B", b)] {
        let (folder, overrides) = (run.folder().display(), run.overrides.join(" "));
        line(format!("{name}  {folder}  {overrides}"));
    }
    line(match differences.len() {
        0 => "\nthe configs are equal".to_owned(),
        1 => "\n1 key differs".to_owned(),
        count => format!("\n{count} keys differ"),
    });
    for difference in &differences {
        line(format!("\n{}", difference.path));
        for (name, run, node) in [("A", a, &difference.left), ("B", b, &difference.right)] {
            line(match node {
                Some(node) => format!(
                    "  {name}  {}  from {}",
                    brief(node),
                    run.origin(&difference.path)
                ),
                None => format!("  {name}  no such key"),
            });
        }
    }
    text
}

/// The value on one line.
fn brief(node: &Node) -> String {
    let text = node.to_json().to_string();
    match text.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn summary(run: &Run, plugins: &Plugins) -> Result<String, Failure> {
    let folder = run.folder();
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        writeln!(text, "{name:<12}{value}").expect("into a string");
    };
    let status = if run_dir::is_finished(folder) {
        "finished"
    } else {
        "not finished"
    };
    row("run", format!("{}, {status}", folder.display()));
    row("choices", choices(&run.recorded)?.join(" "));
    row("overrides", run.overrides.join(" "));

    if let Some(origin) = run_dir::origin(folder) {
        row("began from", origin.display().to_string());
    }
    let segments = segments(folder);
    for (nth, segment) in segments.iter().enumerate() {
        let before = nth.checked_sub(1).map(|before| &segments[before]);
        row("steps", segment_line(segment));
        for difference in before.map_or_else(Vec::new, |before| segment.differences(before)) {
            row("", difference.to_string());
        }
    }
    let ranks = segments.last().and_then(|it| it.segment.ranks);
    match each_rank(run, ranks, plugins) {
        Ok(rows) => rows.into_iter().for_each(|(name, value)| row(name, value)),
        // What the run was made of may be gone, or of another version.
        Err(failure) => {
            let why = failure.to_string();
            let why = why.lines().next().unwrap_or_default();
            row("ranks", format!("what each held cannot be told: {why}"));
        }
    }

    for key in ["loss", "val_loss"] {
        if let Some(last) = last_row_with(&folder.join(METRICS), key) {
            row(key, format!("{} at step {}", last[key], last["step"]));
        }
    }
    let summary = if run_dir::is_finished(folder) {
        tt_disk::read_json(&folder.join(SUMMARY)).map_err(Failure::request)?
    } else {
        Json::Null
    };
    if let Some(loss) = summary["final_val_loss"].as_f64() {
        row("final loss", format!("{loss:.4} on validation"));
    }
    let latest = tt_checkpoint::latest(&run_dir::checkpoints(folder)).map_err(Failure::request)?;
    row(
        "checkpoint",
        match latest.checkpoint {
            Some(checkpoint) => checkpoint.dir().display().to_string(),
            None => "none".to_owned(),
        },
    );
    Ok(text)
}

/// What each of the ranks holds: the one that holds the most. `ranks` is how many there were last, if that was noted.
fn each_rank(
    run: &Run,
    ranks: Option<usize>,
    plugins: &Plugins,
) -> Result<[(&'static str, String); 3], Failure> {
    let composer = rerun::recorded(&run.recorded)?;
    let number = ranks.map(|ranks| format!("device.ranks={ranks}"));
    let overrides: Vec<String> = number.into_iter().collect();
    let mut composition = composer.compose(&overrides)?;
    migration::apply(&mut composition, plugins);
    defaults::apply(&mut composition);
    let estimate = Estimate::of(&Invocation {
        composition,
        plugins: plugins.clone(),
        composer,
        overrides,
        arguments: Vec::new(),
        options: Options::default(),
    })?;
    let footprint = &estimate.footprint;
    let held = [
        ("weights", footprint.weights),
        ("gradients", footprint.gradients),
        ("optimizer state", footprint.optimizer),
    ];
    let held = held.map(|(name, size)| format!("{name} {}", bytes(size)));
    let folder = run.folder().display();
    let name = program::running().name;
    let peak = bytes(estimate.peak_bytes());
    Ok([
        ("ranks", estimate.ranks()),
        ("each holds", held.join(", ")),
        (
            "at most",
            format!("{peak} in a step, of which {name} plan {RERUN_FLAG} {folder} tells more"),
        ),
    ])
}

/// The steps of a start, where they were made and with which arguments.
fn segment_line(recorded: &RecordedSegment) -> String {
    let segment = &recorded.segment;
    let first = segment.first_step;
    let steps = match recorded.last_step {
        _ if recorded.is_gone() => format!("none left of {first}-"),
        Some(last) => format!("{first}-{last}"),
        None => format!("{first}-"),
    };
    let known = [&segment.started, &segment.host, &segment.instruction_set];
    let known = known.into_iter().flatten().map(String::as_str);
    let place: Vec<_> = known.collect();
    let (place, overrides) = (place.join(" "), recorded.overrides().join(" "));
    format!("{steps}  {place}  {overrides}")
        .trim_end()
        .to_owned()
}

/// What was chosen for each config group, Hydra's own groups left out.
fn choices(recorded: &RecordedRun) -> Result<Vec<String>, Failure> {
    let choices = recorded.choices()?;
    let choices = choices.as_ref().and_then(Node::as_map);
    let chosen = choices.into_iter().flatten().filter_map(|(group, option)| {
        let is_own = group.as_str().starts_with("hydra/");
        let option = option.as_str().filter(|_| !is_own)?;
        Some(format!("{group}={option}"))
    });
    Ok(chosen.collect())
}
