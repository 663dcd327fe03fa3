//! The page of one run, and the page that compares several.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use indexmap::{IndexMap, IndexSet};
use serde_json::Value as Json;
use tt_report::{Chart, ChartLine, ConfigRow, NextCommand, Page, PageRun, PageSample, number};
use tt_run::ending::{command_line, resuming};
use tt_run::program;

use super::recorded::{Curve, Recorded};

/// Of each run, the last ones.
const MOST_SAMPLES: usize = 6;
const MOST_SAMPLES_EACH: usize = 2;

/// Not shown: the inverse of the speed.
const HIDDEN: &str = "step_time_ms";

/// What the time of a step is made of: in one chart.
const PARTS: [&str; 4] = ["forward_ms", "backward_ms", "optimizer_ms", "data_wait_ms"];

pub(super) fn of_run(run: &Recorded) -> Page {
    let name = label(run);
    let config = run.config.iter().map(|(key, value, origin)| ConfigRow {
        key: key.clone(),
        values: vec![value.clone()],
        origin: origin.clone(),
    });
    Page {
        title: name.clone(),
        subtitle: run.folder.display().to_string(),
        columns: columns(),
        runs: vec![row(run, name)],
        charts: charts_of_run(run),
        next: next(run),
        samples: samples(run, MOST_SAMPLES, ""),
        config: config.collect(),
        environment: environment(&run.environment),
    }
}

pub(super) fn of_runs(runs: &[Recorded]) -> Page {
    let names = names(runs);
    let rows = runs.iter().zip(&names);
    let samples_of =
        |(run, name): (&Recorded, &String)| samples(run, MOST_SAMPLES_EACH, &format!("{name}, "));
    Page {
        title: format!("{} runs", runs.len()),
        subtitle: format!("compared by {}", program::running().name),
        columns: columns(),
        runs: rows
            .clone()
            .map(|(run, name)| row(run, name.clone()))
            .collect(),
        charts: charts_of_runs(runs, &names),
        next: Vec::new(),
        samples: rows.flat_map(samples_of).collect(),
        config: differing(runs),
        environment: Vec::new(),
    }
}

fn label(run: &Recorded) -> String {
    let folder = run
        .folder
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    run.name
        .clone()
        .or(folder)
        .unwrap_or_else(|| "run".to_owned())
}

/// The keys `name` where they tell the runs apart, else what is left of the folders without what they share.
fn names(runs: &[Recorded]) -> Vec<String> {
    let given: HashSet<_> = runs.iter().filter_map(|run| run.name.as_ref()).collect();
    if given.len() == runs.len() {
        return runs.iter().map(label).collect();
    }
    let parts = |path: &Path| -> Vec<String> {
        let parts = path.components();
        parts
            .map(|part| part.as_os_str().to_string_lossy().into_owned())
            .collect()
    };
    let paths: Vec<_> = runs.iter().map(|run| parts(&run.folder)).collect();
    let shortest = paths.iter().map(Vec::len).min().unwrap_or(0);
    let is_shared = |nth: &usize| paths.iter().all(|path| path[*nth] == paths[0][*nth]);
    let shared = (0..shortest.saturating_sub(1))
        .take_while(is_shared)
        .count();
    paths.iter().map(|path| path[shared..].join("/")).collect()
}

fn columns() -> Vec<String> {
    let columns = [
        "state",
        "step",
        "tokens",
        "loss",
        "val_loss",
        "best val_loss",
        "tokens/s",
        "time",
    ];
    columns.map(str::to_owned).to_vec()
}

fn row(run: &Recorded, name: String) -> PageRun {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let speed = run.summary["tokens_per_second"].as_f64();
    let seconds = run.summary["wall_time_seconds"].as_f64();
    PageRun {
        name,
        cells: vec![
            run.state.to_owned(),
            or_dash(run.last_step().map(|step| step.to_string())),
            or_dash(run.tokens.map(number::count)),
            or_dash(run.last("loss").map(number::result)),
            or_dash(run.last("val_loss").map(number::result)),
            or_dash(run.least("val_loss").map(number::result)),
            or_dash(
                speed
                    .or_else(|| run.last("tokens_per_second"))
                    .map(number::count),
            ),
            or_dash(seconds.map(|seconds| number::clock(Duration::from_secs_f64(seconds)))),
        ],
    }
}

fn chart_line(name: &str, color: usize, points: &Curve, is_smoothed: bool) -> ChartLine {
    ChartLine {
        name: name.to_owned(),
        color,
        is_smoothed,
        points: points.clone(),
    }
}

/// What every step gives is noisy, and averaged; a schedule is not.
fn is_smoothed(key: &str) -> bool {
    key != "lr" && !key.starts_with("val_")
}

/// Training and validation loss in one chart, each other measure in its own.
fn charts_of_run(run: &Recorded) -> Vec<Chart> {
    let mut charts: IndexMap<&str, Vec<ChartLine>> = IndexMap::new();
    for (key, points) in &run.curves {
        let (chart, name, color) = match key.as_str() {
            HIDDEN => continue,
            key if PARTS.contains(&key) => {
                let color = PARTS
                    .iter()
                    .position(|part| *part == key)
                    .unwrap_or_default();
                ("parts of a step, ms", key, color)
            }
            "loss" => ("loss", "training", 0),
            "val_loss" => ("loss", "validation", 1),
            key => (key, key, 0),
        };
        let line = chart_line(name, color, points, is_smoothed(key));
        charts.entry(chart).or_default().push(line);
    }
    let charts = charts.into_iter();
    charts
        .map(|(title, lines)| Chart {
            title: title.to_owned(),
            lines,
        })
        .collect()
}

/// A chart each measure, a line each run.
fn charts_of_runs(runs: &[Recorded], names: &[String]) -> Vec<Chart> {
    let keys: IndexSet<_> = runs.iter().flat_map(|run| run.curves.keys()).collect();
    let keys = keys.into_iter().filter(|key| *key != HIDDEN);
    let chart = |key: &String| {
        let lines = runs.iter().zip(names).enumerate();
        let lines = lines.filter_map(|(nth, (run, name))| {
            Some(chart_line(name, nth, run.curve(key)?, is_smoothed(key)))
        });
        Chart {
            title: key.clone(),
            lines: lines.collect(),
        }
    };
    keys.map(chart).collect()
}

fn samples(run: &Recorded, most: usize, before: &str) -> Vec<PageSample> {
    let last = run.samples.iter().rev().take(most).rev();
    let shown = last.map(|sample| PageSample {
        of: format!("{before}step {}", sample.step),
        prompt: sample.prompt.clone(),
        continuation: sample.continuation.clone(),
    });
    shown.collect()
}

fn next(run: &Recorded) -> Vec<NextCommand> {
    let folder = tt_run::quote::value(&run.folder);
    let command = |what: &str, arguments: Vec<String>| NextCommand {
        what: what.to_owned(),
        text: command_line(&arguments),
    };
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let checkpoint = format!("checkpoint={folder}");
    let mut next = Vec::new();
    if run.state != "finished" {
        next.push(command(
            "Go on with it",
            resuming(&run.overrides, &run.folder),
        ));
    }
    next.push(command(
        "Let it write",
        words(&["generate", &checkpoint, "--prompt", "Once upon a time"]),
    ));
    next.push(command(
        "Write it for other programs",
        words(&["export", &checkpoint, "out=my-model"]),
    ));
    let recorded = run.folder.display().to_string();
    next.push(command(
        "See what was asked for, and when",
        words(&["inspect", &recorded]),
    ));
    next
}

fn environment(environment: &Json) -> Vec<(String, String)> {
    let text = |value: &Json| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let mut rows: Vec<_> = ["version", "rustc", "target", "host", "working_dir", "git"]
        .into_iter()
        .filter(|key| !environment[key].is_null())
        .map(|key| (key.to_owned(), text(&environment[key])))
        .collect();
    if let Some(model) = environment["cpu"]["model"].as_str() {
        let cores = &environment["cpu"]["num_cores"];
        rows.push(("cpu".to_owned(), format!("{model}, {cores} cores")));
    }
    if let Some(bytes) = environment["memory_bytes"].as_u64() {
        rows.push(("memory".to_owned(), number::bytes(bytes)));
    }
    rows
}

/// The keys in which the runs are not all alike.
fn differing(runs: &[Recorded]) -> Vec<ConfigRow> {
    let configs = runs.iter().map(|run| {
        let pairs = run
            .config
            .iter()
            .map(|(key, value, _)| (key.as_str(), value.as_str()));
        pairs.collect::<IndexMap<_, _>>()
    });
    let configs: Vec<_> = configs.collect();
    let keys: IndexSet<_> = configs.iter().flat_map(|config| config.keys()).collect();
    let rows = keys.into_iter().map(|key| ConfigRow {
        key: (*key).to_owned(),
        values: configs
            .iter()
            .map(|config| config.get(key).map_or("-", |value| value).to_owned())
            .collect(),
        origin: String::new(),
    });
    rows.filter(|row| row.values.iter().any(|value| *value != row.values[0]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(folder: &str, lr: &str) -> Recorded {
        Recorded {
            folder: folder.into(),
            name: None,
            state: "finished",
            curves: [("loss".to_owned(), vec![(1.0, 3.0), (2.0, f64::NAN)])].into(),
            tokens: None,
            summary: Json::Null,
            config: vec![
                ("lr".into(), lr.into(), "argument".into()),
                ("seed".into(), "1".into(), "default".into()),
            ],
            samples: Vec::new(),
            environment: Json::Null,
            overrides: vec![format!("lr={lr}")],
        }
    }

    #[test]
    fn compared_runs_are_called_by_what_tells_them_apart_and_so_are_their_keys() {
        let runs = [run("multirun/a/0", "1e-3"), run("multirun/a/1", "1e-4")];
        let page = of_runs(&runs);
        assert_eq!([&*page.runs[0].name, &*page.runs[1].name], ["0", "1"]);
        let rows: Vec<_> = page
            .config
            .iter()
            .map(|row| (&*row.key, &*row.values))
            .collect();
        assert_eq!(rows, [("lr", &["1e-3".to_owned(), "1e-4".to_owned()][..])]);
        assert_eq!(page.charts[0].lines.len(), 2);
        // A name that only some of them have, or share, is none that tells them apart.
        let mut runs = runs;
        runs.iter_mut()
            .for_each(|run| run.name = Some("same".into()));
        assert_eq!(names(&runs), ["0", "1"]);
    }

    #[test]
    fn a_run_that_has_not_finished_says_how_to_go_on() {
        let mut unfinished = run("/outputs/x", "1e-3");
        unfinished.state = "not finished";
        let texts: Vec<_> = of_run(&unfinished)
            .next
            .into_iter()
            .map(|it| it.text)
            .collect();
        assert_eq!(texts[0], "tpu-train lr=1e-3 resume=/outputs/x");
        assert_eq!(
            of_run(&run("/outputs/x", "1e-3")).next.len(),
            texts.len() - 1
        );
    }
}
