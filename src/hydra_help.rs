//! `--hydra-help`: Hydra's flags, and the settings under the key `hydra` with the values they have.

use tt_config::{Composition, Node};
use tt_report::{Column, Table};

use crate::cli;

/// What a user may want to set, or to refer to as `${hydra:job.num}`.
const SETTINGS: &[(&str, &str)] = &[
    ("hydra.run.dir", "the run's folder"),
    ("hydra.sweep.dir", "a sweep's folder"),
    ("hydra.sweep.subdir", "a job's folder inside it"),
    ("hydra.launcher.n_jobs", "jobs of a sweep at once"),
    (
        "hydra.sweeper.params",
        "sweeps that a config holds: {lr: '1e-3,1e-4'}",
    ),
    (
        "hydra.mode",
        "MULTIRUN on the command line sweeps, as -m does",
    ),
    ("hydra.searchpath", "more folders to look for configs in"),
    ("hydra.job.name", "the program"),
    ("hydra.job.config_name", "the root config"),
    ("hydra.job.num", "the job's number in its sweep"),
    (
        "hydra.job.override_dirname",
        "the overrides as a name: lr=0.1,seed=1",
    ),
    ("hydra.overrides.task", "the overrides as given"),
    (
        "hydra.runtime.cwd",
        "where the program was started; it stays there",
    ),
    (
        "hydra.runtime.output_dir",
        "the folder of this run, once it has one",
    ),
    (
        "hydra.runtime.choices",
        "the option chosen for each config group",
    ),
];

/// Longer values are cut short.
const MOST_CHARS: usize = 50;

/// The text; settings have the values that `composition` gives them.
pub(crate) fn text(composition: &Composition) -> String {
    let mut text = String::from("Hydra's flags:\n");
    text.push_str(&table(cli::hydra_flags()));
    text.push_str("\nHydra's settings, which are keys like any other (key=value):\n");
    text.push_str(&table(SETTINGS.iter().map(|(key, about)| {
        let value = composition.get(key).map_or(String::new(), brief);
        (format!("{key}={value}"), *about)
    })));
    text.push_str("\n--cfg hydra prints all of them; --help shows what there is besides Hydra.\n");
    text
}

fn brief(node: &Node) -> String {
    let text = match node.as_str() {
        Some(text) => text.to_owned(),
        None => node.to_json().to_string(),
    };
    match text.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn table<'a>(rows: impl Iterator<Item = (String, &'a str)>) -> String {
    let mut table = Table::new([Column::left(), Column::left()]);
    for (left, right) in rows {
        table.row([format!("  {left}").as_str(), right]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use tt_config::Composer;

    use super::*;
    use crate::configs::EMBEDDED;

    #[test]
    fn every_setting_named_is_there() {
        let composer = Composer::new("default").job_name("tpu-train");
        let composer = composer.embedded("tpu-train", EMBEDDED);
        let composition = composer.compose::<&str>(&[]).unwrap();
        for (key, _) in SETTINGS {
            assert!(composition.get(key).is_some(), "{key}");
        }
        let text = text(&composition);
        assert!(text.contains("hydra.launcher.n_jobs=1 "), "{text}");
        assert!(text.contains("hydra.run.dir=outputs/${now:"), "{text}");
    }
}
