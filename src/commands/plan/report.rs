//! How a plan is shown: a table for people, JSON for programs.

use std::fmt::Write;

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::fit::{Changed, Fit, Outcome};
use super::{PROCESS_BYTES, Plan};

/// Decimal, as disks and machines are sold.
const UNITS: &[(&str, f64)] = &[
    ("TB", 1e12),
    ("GB", 1e9),
    ("MB", 1e6),
    ("kB", 1e3),
    ("B", 1.0),
];

/// Reads a number of bytes such as `24GB`, `1.5 TB` or `512MiB`; a plain number is bytes.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let factor = match text[end..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024f64.powi(2),
        "gib" => 1024f64.powi(3),
        "tib" => 1024f64.powi(4),
        _ => return None,
    };
    Some((number * factor) as u64)
}

/// Elements by part of the model, and how many of all are trained.
struct Parameters {
    total: u64,
    trainable: u64,
    parts: IndexMap<String, u64>,
}

/// What a run does in all.
struct Work {
    tokens_per_step: u64,
    flops_per_step: u64,
    /// 6 FLOPs for each parameter and token, what the model FLOPs utilisation is usually reckoned with.
    model_flops_per_step: u64,
    steps: Option<u64>,
}

impl Plan {
    fn parameters(&self) -> Parameters {
        let all = &self.footprint.parameters;
        let mut parts = IndexMap::new();
        for parameter in all {
            *parts.entry(part_of(&parameter.path)).or_default() += parameter.elements;
        }
        let trainable = all.iter().filter(|parameter| parameter.is_trainable);
        Parameters {
            total: all.iter().map(|parameter| parameter.elements).sum(),
            trainable: trainable.map(|parameter| parameter.elements).sum(),
            parts,
        }
    }

    fn work(&self) -> Work {
        let tokens = (self.trainer.global_batch_size * self.sequence_length) as u64;
        Work {
            tokens_per_step: tokens,
            flops_per_step: self.footprint.flops_per_step,
            model_flops_per_step: 6 * self.parameters().total * tokens,
            steps: self.trainer.max_steps,
        }
    }
}

/// The module that a parameter is counted under: the first two names of its path, up to a number.
fn part_of(path: &str) -> String {
    let modules = path.rsplit_once('.').map_or(path, |(modules, _)| modules);
    let names = modules
        .split('.')
        .take_while(|name| name.parse::<usize>().is_err());
    names.take(2).collect::<Vec<_>>().join(".")
}

pub(super) fn table(plan: &Plan, fit: Option<&Fit>) -> String {
    let (parameters, work, footprint) = (plan.parameters(), plan.work(), &plan.footprint);
    let mut text = String::new();
    let mut row = |name: &str, value: &str, note: String| {
        let line = format!("{name:<24}{value:>10}  {note}");
        writeln!(text, "{}", line.trim_end()).expect("into a string"); // without a name, an empty line
    };
    let frozen = parameters.total - parameters.trainable;
    let trained = match frozen {
        0 => "parameters, all trained".to_owned(),
        _ => format!(
            "parameters, {} trained, {} frozen",
            count(parameters.trainable),
            count(frozen)
        ),
    };
    row(&plan.model, &count(parameters.total), trained);
    for (part, elements) in &parameters.parts {
        row(&format!("  {part}"), &count(*elements), String::new());
    }

    let (global, micro) = (
        plan.trainer.global_batch_size,
        plan.trainer.micro_batch_size,
    );
    let rows = format!(
        "{global} row{} of {} tokens, {micro} at once",
        if global == 1 { "" } else { "s" },
        plan.sequence_length
    );
    row("", "", String::new());
    row("a step", "", rows);
    row("  tokens", &count(work.tokens_per_step), String::new());
    let model_flops = format!("6ND: {}", count(work.model_flops_per_step));
    row("  FLOPs", &count(work.flops_per_step), model_flops);
    match work.steps {
        Some(steps) => {
            row("the run", &steps.to_string(), "steps".to_owned());
            row(
                "  tokens",
                &count(steps * work.tokens_per_step),
                String::new(),
            );
            let flops = steps as f64 * work.flops_per_step as f64;
            row("  FLOPs", &scaled(flops, COUNTS), String::new());
        }
        None => row(
            "the run",
            "",
            "steps until trainer.num_epochs are over".to_owned(),
        ),
    }

    row("", "", String::new());
    row("memory", "", String::new());
    row("  weights", &bytes(footprint.weights), String::new());
    row("  gradients", &bytes(footprint.gradients), String::new());
    row(
        "  optimizer state",
        &bytes(footprint.optimizer),
        String::new(),
    );
    let without = plan.activations_without_remat.map(bytes);
    let without = without.map(|bytes| format!("with remat; {bytes} without"));
    row(
        "  activations",
        &bytes(footprint.activations),
        without.unwrap_or_default(),
    );
    row(
        "  of a step at once",
        &bytes(footprint.tensors),
        "buffers and scratch included".to_owned(),
    );
    row(
        "  copy for checkpoints",
        &bytes(footprint.snapshot),
        String::new(),
    );
    row(
        "  process",
        &bytes(PROCESS_BYTES),
        "besides data that is held in memory".to_owned(),
    );
    row("  peak", &bytes(plan.peak_bytes()), String::new());
    let checkpoint = footprint.saved_weights + footprint.optimizer;
    let parts = format!(
        "model {}, optimizer {}",
        bytes(footprint.saved_weights),
        bytes(footprint.optimizer)
    );
    row("a checkpoint on disk", &bytes(checkpoint), parts);
    if let Some(fit) = fit {
        row("", "", String::new());
        writeln!(text, "{}", verdict(fit)).expect("into a string");
    }
    text
}

fn verdict(fit: &Fit) -> String {
    let memory = bytes(fit.memory_bytes);
    let with = |changed: &Changed| {
        format!(
            "{}: {}",
            changed.overrides.join(" "),
            bytes(changed.peak_bytes)
        )
    };
    match &fit.outcome {
        Outcome::Fits => format!("fits {memory}"),
        Outcome::FitsWith(changed) => {
            format!("does not fit {memory}, but would with {}", with(changed))
        }
        Outcome::TooLarge(Some(changed)) => {
            format!(
                "does not fit {memory}; the least of what was tried is {}",
                with(changed)
            )
        }
        Outcome::TooLarge(None) => format!("does not fit {memory}"),
    }
}

pub(super) fn json(plan: &Plan, fit: Option<&Fit>) -> String {
    let (parameters, work, footprint) = (plan.parameters(), plan.work(), &plan.footprint);
    let value = json!({
        "model": plan.model,
        "parameters": {
            "total": parameters.total,
            "trainable": parameters.trainable,
            "frozen": parameters.total - parameters.trainable,
            "by_module": parameters.parts,
        },
        "step": {
            "global_batch_size": plan.trainer.global_batch_size,
            "micro_batch_size": plan.trainer.micro_batch_size,
            "sequence_length": plan.sequence_length,
            "tokens": work.tokens_per_step,
            "flops": work.flops_per_step,
            "model_flops_6nd": work.model_flops_per_step,
        },
        "run": {
            "steps": work.steps,
            "tokens": work.steps.map(|steps| steps * work.tokens_per_step),
            "flops": work.steps.map(|steps| steps as f64 * work.flops_per_step as f64),
        },
        "memory_bytes": {
            "weights": footprint.weights,
            "gradients": footprint.gradients,
            "optimizer": footprint.optimizer,
            "activations": footprint.activations,
            "activations_without_remat": plan.activations_without_remat,
            "tensors_at_once": footprint.tensors,
            "checkpoint_copy": footprint.snapshot,
            "process": PROCESS_BYTES,
            "peak": plan.peak_bytes(),
        },
        "checkpoint_bytes": {
            "model": footprint.saved_weights,
            "optimizer": footprint.optimizer,
        },
        "fit": fit.map(fit_json),
    });
    format!("{value:#}\n")
}

fn fit_json(fit: &Fit) -> Value {
    let changed = match &fit.outcome {
        Outcome::Fits => None,
        Outcome::FitsWith(changed) => Some(changed),
        Outcome::TooLarge(changed) => changed.as_ref(),
    };
    json!({
        "memory_bytes": fit.memory_bytes,
        "fits": matches!(fit.outcome, Outcome::Fits),
        "would_fit": !matches!(fit.outcome, Outcome::TooLarge(_)),
        "overrides": changed.map(|changed| &changed.overrides),
        "peak_bytes": changed.map(|changed| changed.peak_bytes),
    })
}

const COUNTS: &[(&str, f64)] = &[
    ("Z", 1e21),
    ("E", 1e18),
    ("P", 1e15),
    ("T", 1e12),
    ("G", 1e9),
    ("M", 1e6),
    ("k", 1e3),
    ("", 1.0),
];

fn count(number: u64) -> String {
    scaled(number as f64, COUNTS)
}

fn bytes(number: u64) -> String {
    scaled(number as f64, UNITS)
}

/// Three digits and the unit that keeps them before the thousands.
fn scaled(number: f64, units: &[(&str, f64)]) -> String {
    let unit = units.iter().find(|(_, factor)| number >= *factor);
    let (name, factor) = unit.or(units.last()).copied().unwrap_or(("", 1.0));
    let scaled = number / factor;
    let decimals = match scaled {
        _ if factor == 1.0 => 0,
        x if x < 10.0 => 2,
        x if x < 100.0 => 1,
        _ => 0,
    };
    format!("{scaled:.decimals$} {name}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_decimal_and_binary_units() {
        let sizes = [
            ("24GB", 24_000_000_000),
            ("1.5 tb", 1_500_000_000_000),
            ("512MiB", 512 << 20),
            ("16g", 16_000_000_000),
            ("100", 100),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "GB", "much", "1XB", "-1GB"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_show_three_digits() {
        let shown = [0, 999, 1_000, 12_345, 123_456_789].map(count);
        assert_eq!(shown, ["0", "999", "1.00 k", "12.3 k", "123 M"]);
        assert_eq!(bytes(7_615_616_512 * 4), "30.5 GB");
    }

    #[test]
    fn parameters_are_counted_by_part() {
        let parts = [
            ("model.layers.3.self_attn.q_proj.weight", "model.layers"),
            ("model.norm.weight", "model.norm"),
            ("lm_head.weight", "lm_head"),
            ("w", "w"),
        ];
        for (path, part) in parts {
            assert_eq!(part_of(path), part);
        }
    }
}
