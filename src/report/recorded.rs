//! The records of one run, read for a report. Works also while the run does.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use indexmap::IndexMap;
use serde_json::{Map, Value as Json};
use tt_metrics::Sample;
use tt_run::RecordedRun;
use tt_run::run_dir::{self, METRICS, RESOLVED_CONFIG, SAMPLES, SUMMARY};

/// Points of a measure by step; what is not finite is NaN.
pub(super) type Curve = Vec<(f64, f64)>;

pub(super) struct Recorded {
    pub(super) folder: PathBuf,
    /// The key `name`.
    pub(super) name: Option<String>,
    pub(super) state: &'static str,
    /// Each number of `metrics.jsonl`, in the order in which they came.
    pub(super) curves: IndexMap<String, Curve>,
    pub(super) tokens: Option<f64>,
    /// `Null` if the run has not finished.
    pub(super) summary: Json,
    /// Dotted path, value and origin of each key.
    pub(super) config: Vec<(String, String, String)>,
    pub(super) samples: Vec<Sample>,
    pub(super) environment: Json,
    /// As they were given.
    pub(super) overrides: Vec<String>,
}

impl Recorded {
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let shown = folder.display();
        if !folder.join(RESOLVED_CONFIG).is_file() {
            return Err(anyhow!(
                "{shown} is not a run folder: it has no {RESOLVED_CONFIG}"
            ));
        }
        let recorded = RecordedRun::at(folder);
        let json = |name: &str| tt_disk::read_json::<Json>(&folder.join(name)).unwrap_or_default();
        let config = json(RESOLVED_CONFIG);
        let origins = recorded.origins().unwrap_or_default();
        let (curves, tokens) = read_rows(&folder.join(METRICS))
            .with_context(|| format!("cannot read {shown}/{METRICS}"))?;
        let mut keys = Vec::new();
        flatten(&config, "", &origins, &mut keys);
        Ok(Self {
            folder: std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()),
            name: config["name"].as_str().map(str::to_owned),
            state: if run_dir::is_finished(folder) {
                "finished"
            } else {
                "not finished"
            },
            curves,
            tokens,
            summary: json(SUMMARY),
            config: keys,
            samples: Sample::read_all(&folder.join(SAMPLES)),
            environment: json("environment.json"),
            overrides: recorded.overrides().unwrap_or_default(),
        })
    }

    pub(super) fn curve(&self, key: &str) -> Option<&Curve> {
        self.curves.get(key)
    }

    /// The last value that is a number.
    pub(super) fn last(&self, key: &str) -> Option<f64> {
        let mut points = self.curve(key)?.iter().rev();
        points
            .find(|point| point.1.is_finite())
            .map(|point| point.1)
    }

    pub(super) fn least(&self, key: &str) -> Option<f64> {
        let values = self.curve(key)?.iter().map(|point| point.1);
        values.filter(|value| value.is_finite()).reduce(f64::min)
    }

    pub(super) fn last_step(&self) -> Option<f64> {
        let ends = self.curves.values().filter_map(|curve| curve.last());
        ends.map(|point| point.0).reduce(f64::max)
    }
}

/// Each number by step, and the tokens of the last row that has them.
fn read_rows(path: &Path) -> std::io::Result<(IndexMap<String, Curve>, Option<f64>)> {
    let mut curves: IndexMap<String, Curve> = IndexMap::new();
    let mut tokens = None;
    let file = match File::open(path) {
        // Stopped before its first step.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((curves, tokens)),
        file => file?,
    };
    for line in BufReader::new(file).split(b'\n') {
        // The last one may be half written.
        let Ok(row) = serde_json::from_slice::<Map<String, Json>>(&line?) else {
            continue;
        };
        let Some(step) = row.get("step").and_then(Json::as_f64) else {
            continue;
        };
        for (key, value) in row {
            let number = match value {
                Json::Number(number) => number.as_f64().unwrap_or(f64::NAN),
                Json::Null => f64::NAN,
                // Which of them are NaN, which infinite.
                _ => continue,
            };
            match key.as_str() {
                "step" => {}
                "tokens" => tokens = Some(number),
                _ => curves.entry(key).or_default().push((step, number)),
            }
        }
    }
    Ok((curves, tokens))
}

/// The leaves of the config, Hydra's own left out.
fn flatten(
    value: &Json,
    path: &str,
    origins: &Map<String, Json>,
    into: &mut Vec<(String, String, String)>,
) {
    match value {
        Json::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                if path != "hydra" {
                    flatten(value, &path, origins, into);
                }
            }
        }
        value => {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            let origin = origins.get(path).and_then(Json::as_str).unwrap_or_default();
            into.push((path.to_owned(), text, origin.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_kind_are_curves_and_nulls_are_gaps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS);
        let rows = "{\"step\":1,\"loss\":2.5,\"tokens\":64}\n\
                    {\"step\":2,\"loss\":null,\"tokens\":128,\"z_loss\":0.5,\"non_finite\":{\"loss\":\"NaN\"}}\n\
                    {\"step\":2,\"val_loss\":2.25}\n{\"step\":3,\"lo";
        std::fs::write(&path, rows).unwrap();
        let (curves, tokens) = read_rows(&path).unwrap();
        assert_eq!(tokens, Some(128.0));
        assert_eq!(
            curves.keys().collect::<Vec<_>>(),
            ["loss", "z_loss", "val_loss"]
        );
        assert!(curves["loss"][0] == (1.0, 2.5) && curves["loss"][1].1.is_nan());
        assert_eq!(curves["val_loss"], [(2.0, 2.25)]);
    }
}
