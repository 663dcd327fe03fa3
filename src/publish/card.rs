//! The page of a model on the Hub: what it is, how it was trained, and how the loss went.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tt_hub::{Reference, RepoKind};
use tt_metrics::Sample;
use tt_run::program::TPU_TRAIN;
use tt_run::run_dir::{METRICS, RESOLVED_CONFIG, SAMPLES};

/// By which a page is known to be made by this program.
pub(super) const MARK: &str = "<!-- written by tpu-train -->";
/// Of the loss, at most.
const MOST_ROWS: usize = 20;
const MOST_SAMPLES: usize = 3;
/// What a reader asks first. Paths of this machine are none of it.
const KEYS: &[&str] = &[
    "model.type",
    "trainer.type",
    "data.dataset.url",
    "data.sequence_length",
    "trainer.global_batch_size",
    "trainer.max_steps",
    "trainer.num_epochs",
    "lr",
    "trainer.optimizer.type",
    "trainer.lr_scheduler.type",
    "precision",
    "seed",
];

pub(super) struct Card {
    name: String,
    is_adapter: bool,
    /// The key and its value.
    config: Vec<(&'static str, String)>,
    /// On the Hub.
    base: Option<String>,
    /// Of each step shown: the loss, and that of validation.
    losses: Vec<(u64, Option<f64>, Option<f64>)>,
    /// As printed: `> PROMPT ||CONTINUATION`.
    samples: Vec<String>,
}

impl Card {
    /// Of the model in `folder`, which is a checkpoint of `run` if that is known.
    pub(super) fn read(id: &str, folder: &Path, run: Option<&Path>) -> Self {
        let json = |name| run.and_then(|run| tt_disk::read_json::<Value>(&run.join(name)).ok());
        let config = json(RESOLVED_CONFIG).unwrap_or_default();
        let value = |key: &str| {
            let pointer = format!("/{}", key.replace('.', "/"));
            config.pointer(&pointer).filter(|value| !value.is_null())
        };
        let shown = |key: &&'static str| {
            let text = match value(key)? {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            Some((*key, text))
        };
        let text = |name| run.and_then(|run| fs::read_to_string(run.join(name)).ok());
        Self {
            name: id.rsplit('/').next().unwrap_or(id).to_owned(),
            is_adapter: folder.join("adapter_config.json").is_file(),
            base: value("model.pretrained_url").and_then(|url| base(url.as_str()?)),
            config: KEYS.iter().filter_map(shown).collect(),
            losses: losses(&text(METRICS).unwrap_or_default()),
            samples: run.map(samples).unwrap_or_default(),
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::from("---\n");
        let library = if self.is_adapter {
            "peft"
        } else {
            "transformers"
        };
        let _ = write!(
            text,
            "library_name: {library}\npipeline_tag: text-generation\n"
        );
        if let Some(base) = &self.base {
            let _ = writeln!(text, "base_model: {base}");
        }
        let _ = write!(
            text,
            "tags:\n- tpu-train\n---\n\n{MARK}\n\n# {}\n\n",
            self.name
        );
        let what = if self.is_adapter {
            "An adapter"
        } else {
            "A language model"
        };
        let _ = write!(text, "{what}, trained with tpu-train {}", TPU_TRAIN.version);
        if let Some(base) = &self.base {
            let _ = write!(text, " from [{base}](https://huggingface.co/{base})");
        }
        text.push_str(".\n");
        if !self.config.is_empty() {
            text.push_str("\n## Training\n\n| key | value |\n| --- | --- |\n");
            for (key, value) in &self.config {
                let _ = writeln!(text, "| `{key}` | {} |", value.replace('|', "\\|"));
            }
        }
        if !self.losses.is_empty() {
            text.push_str(
                "\n## Loss\n\n| step | loss | validation loss |\n| ---: | ---: | ---: |\n",
            );
            let figure =
                |loss: &Option<f64>| loss.map_or(String::new(), |loss| format!("{loss:.4}"));
            for (step, loss, val_loss) in &self.losses {
                let _ = writeln!(text, "| {step} | {} | {} |", figure(loss), figure(val_loss));
            }
        }
        if !self.samples.is_empty() {
            let samples = self.samples.join("\n");
            let _ = write!(
                text,
                "\n## Samples\n\nAfter `||` the model goes on:\n\n````text\n{samples}\n````\n"
            );
        }
        text
    }
}

/// The id, if the base is on the Hub.
fn base(url: &str) -> Option<String> {
    let is_url = Reference::is_url(url);
    let is_id = url.matches('/').count() == 1 && !Path::new(url).exists();
    let reference = Reference::parse(url, RepoKind::Model).ok();
    reference
        .filter(|_| is_url || is_id)
        .map(|reference| reference.repo.id)
}

/// Evenly over the run, the last step among them; where there was a validation if there ever was one.
fn losses(metrics: &str) -> Vec<(u64, Option<f64>, Option<f64>)> {
    let mut steps: BTreeMap<u64, (Option<f64>, Option<f64>)> = BTreeMap::new();
    for line in metrics.lines() {
        // The last one may be half written.
        let Ok(row) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let Some(step) = row["step"].as_u64() else {
            continue;
        };
        let entry = steps.entry(step).or_default();
        entry.0 = row["loss"].as_f64().or(entry.0);
        entry.1 = row["val_loss"].as_f64().or(entry.1);
    }
    let is_validated = steps.values().any(|(_, val_loss)| val_loss.is_some());
    let rows = steps
        .into_iter()
        .map(|(step, (loss, val_loss))| (step, loss, val_loss));
    let rows: Vec<_> = rows
        .filter(|(_, loss, val_loss)| {
            if is_validated {
                val_loss.is_some()
            } else {
                loss.is_some()
            }
        })
        .collect();
    let count = rows.len().min(MOST_ROWS);
    (1..=count)
        .map(|index| rows[index * rows.len() / count - 1])
        .collect()
}

/// The last ones of a run.
fn samples(run: &Path) -> Vec<String> {
    let samples = Sample::read_all(&run.join(SAMPLES));
    let last = samples.len().saturating_sub(MOST_SAMPLES);
    let shown = samples[last..]
        .iter()
        .map(|sample| format!("> {} ||{}", sample.prompt, sample.continuation).replace("````", ""));
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_losses_shown_are_spread_over_the_run_and_end_with_it() {
        let row = |step| format!("{{\"step\":{step},\"loss\":2.5}}\n");
        let rows: String = (1..=1000).map(row).collect();
        let shown = losses(&rows);
        assert_eq!(shown.len(), MOST_ROWS);
        assert_eq!((shown[0].0, shown[19].0), (50, 1000));
        let validated = rows + "{\"step\":500,\"val_loss\":2.0}\n{\"step\":10";
        assert_eq!(losses(&validated), [(500, Some(2.5), Some(2.0))]);
        assert!(losses("").is_empty());
    }

    #[test]
    fn a_page_says_nothing_of_paths_here() {
        let run = tempfile::tempdir().unwrap();
        let config = r#"{"lr": 0.1, "model": {"type": "qwen2.Qwen2", "pretrained_url": "/home/me/secret"}, "data": {"path": "/home/me/mail"}}"#;
        fs::write(run.path().join(RESOLVED_CONFIG), config).unwrap();
        let text = Card::read("u/n", run.path(), Some(run.path())).text();
        assert!(
            text.contains("| `lr` | 0.1 |") && text.contains(MARK),
            "{text}"
        );
        assert!(!text.contains("/home"), "{text}");
        let config = config.replace("/home/me/secret", "hf://Qwen/Qwen2-0.5B");
        fs::write(run.path().join(RESOLVED_CONFIG), config).unwrap();
        let text = Card::read("u/n", run.path(), Some(run.path())).text();
        assert!(text.contains("base_model: Qwen/Qwen2-0.5B\n"), "{text}");
    }
}
