//! How an estimate is shown: a table for people, JSON for programs.

use indexmap::IndexMap;
use serde_json::{Value, json};
use tt_dist::Axis;
use tt_report::number::{self, bytes};
use tt_report::{Column, Table};

use super::estimate::{Estimate, PROCESS_BYTES};
use super::fit::{Changed, Fit, Outcome};
use super::time::StepTime;

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

impl Estimate {
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
            flops_per_step: self.footprint.flops_per_step * self.mesh.num_ranks() as u64,
            model_flops_per_step: 6 * self.parameters().total * tokens,
            steps: self.steps,
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

pub(super) fn table(estimate: &Estimate, fit: Option<&Fit>) -> String {
    const COLUMNS: [Column; 3] = [
        Column::left().width(24).gap(0),
        Column::right().width(10),
        Column::left(),
    ];
    let (parameters, work) = (estimate.parameters(), estimate.work());
    let (footprint, trainer) = (&estimate.footprint, &estimate.trainer);
    let count = |whole: u64| number::count(whole as f64);
    let mut table = Table::new(COLUMNS);
    let mut row = |name: &str, value: &str, note: &str| table.row([name, value, note]);
    let frozen = parameters.total - parameters.trainable;
    let trained = match frozen {
        0 => "parameters, all trained".to_owned(),
        _ => format!(
            "parameters, {} trained, {} frozen",
            count(parameters.trainable),
            count(frozen)
        ),
    };
    row(&estimate.model, &count(parameters.total), &trained);
    for (part, elements) in &parameters.parts {
        row(&format!("  {part}"), &count(*elements), "");
    }

    let rows = format!(
        "{} row{} of {} tokens, {} at once",
        trainer.global_batch_size,
        if trainer.global_batch_size == 1 {
            ""
        } else {
            "s"
        },
        estimate.sequence_length,
        trainer.micro_batch_size
    );
    row("", "", "");
    row("a step", "", &rows);
    row("  tokens", &count(work.tokens_per_step), "");
    let model_flops = format!("6ND: {}", count(work.model_flops_per_step));
    row("  FLOPs", &count(work.flops_per_step), &model_flops);
    match work.steps {
        Some(steps) => {
            row("the run", &steps.to_string(), "steps");
            row("  tokens", &count(steps * work.tokens_per_step), "");
            let flops = steps as f64 * work.flops_per_step as f64;
            row("  FLOPs", &number::count(flops), "");
        }
        None => row("the run", "", "steps until trainer.num_epochs are over"),
    }

    let ranks = estimate.mesh.num_ranks();
    if ranks > 1 {
        row("", "", "");
        row("ranks", &ranks.to_string(), &estimate.axes());
        row(
            "  FLOPs",
            &count(footprint.flops_per_step),
            "of each in a step",
        );
        let sent = "received by each in a step, to make weights whole";
        row("  weights", &bytes(footprint.traffic.gathered_bytes), sent);
        let sent = "sent by each in a step, to sum them";
        row("  gradients", &bytes(footprint.traffic.reduced_bytes), sent);
    }
    if let Some(time) = &estimate.time {
        for [name, value, note] in time_rows(time.as_ref(), ranks) {
            row(&name, &value, &note);
        }
    }

    let without = estimate.activations_without_remat.map(bytes);
    let without = without.map(|bytes| format!("with remat; {bytes} without"));
    row("", "", "");
    row("memory", "", if ranks > 1 { "of each rank" } else { "" });
    if footprint.reference > 0 {
        let note = "the model before the first step, frozen";
        row("  reference", &bytes(footprint.reference), note);
    }
    for (name, size, note) in [
        ("  weights", footprint.weights, ""),
        ("  gradients", footprint.gradients, ""),
        ("  optimizer state", footprint.optimizer, ""),
        (
            "  activations",
            footprint.activations,
            without.as_deref().unwrap_or_default(),
        ),
        (
            "  of a step at once",
            footprint.tensors,
            "buffers and scratch included",
        ),
        ("  copy for checkpoints", footprint.snapshot, ""),
        (
            "  process",
            PROCESS_BYTES,
            "besides data that is held in memory",
        ),
        ("  peak", estimate.peak_bytes(), ""),
    ] {
        row(name, &bytes(size), note);
    }
    if estimate.threads > 1 {
        let note = format!("{} ranks in one process", estimate.threads);
        row("  of all", &bytes(estimate.process_bytes()), &note);
    }
    let checkpoint = footprint.saved_weights + footprint.saved_optimizer;
    let parts = format!(
        "model {}, optimizer {}",
        bytes(footprint.saved_weights),
        bytes(footprint.saved_optimizer)
    );
    row("a checkpoint on disk", &bytes(checkpoint), &parts);
    if let Some(fit) = fit {
        table.line("");
        let each = if ranks > 1 && estimate.threads == 1 {
            "each rank "
        } else {
            ""
        };
        table.line(format!("{each}{}", verdict(fit)));
    }
    for warning in &estimate.warnings {
        table.line(warning);
    }
    table.to_string()
}

fn time_rows(time: Result<&StepTime, &&str>, ranks: usize) -> Vec<[String; 3]> {
    let row = |name: &str, value: String, note: &str| [name.to_owned(), value, note.to_owned()];
    let time = match time {
        Ok(time) => time,
        Err(key) => {
            let missing = format!("with {key}, it can be told");
            return vec![
                row("", String::new(), ""),
                row("time of a step", String::new(), &missing),
            ];
        }
    };
    let speed = number::count(time.flops_per_second);
    let speed = format!("at {speed}FLOP/s of each rank");
    let mut rows = vec![
        row("", String::new(), ""),
        row("time of a step", seconds(time.step()), &speed),
    ];
    if ranks > 1 {
        rows.extend([
            row("  compute", seconds(time.compute), ""),
            row(
                "  within hosts",
                seconds(time.within_host),
                "weights and gradients between ranks of a host",
            ),
            row("  between hosts", seconds(time.between_hosts), ""),
            row(
                "  hidden",
                seconds(time.hidden),
                "of both, behind computing",
            ),
        ]);
    }
    rows.push(row(
        "  tokens/s",
        number::count(time.tokens_per_second()),
        "",
    ));
    if ranks > 1 {
        let of_one = format!("{:.1} %", 100.0 * time.efficiency());
        rows.push(row(
            "  efficiency",
            of_one,
            "tokens/s of a rank, to those of one rank alone",
        ));
    }
    rows
}

fn seconds(seconds: f64) -> String {
    match seconds {
        _ if seconds >= 100.0 => format!("{seconds:.0} s"),
        _ if seconds >= 1.0 => format!("{seconds:.2} s"),
        _ => format!("{:.1} ms", seconds * 1e3),
    }
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

pub(super) fn json(estimate: &Estimate, fit: Option<&Fit>) -> String {
    let (parameters, work) = (estimate.parameters(), estimate.work());
    let footprint = &estimate.footprint;
    let value = json!({
        "model": estimate.model,
        "parameters": {
            "total": parameters.total,
            "trainable": parameters.trainable,
            "frozen": parameters.total - parameters.trainable,
            "by_module": parameters.parts,
        },
        "step": {
            "global_batch_size": estimate.trainer.global_batch_size,
            "micro_batch_size": estimate.trainer.micro_batch_size,
            "sequence_length": estimate.sequence_length,
            "tokens": work.tokens_per_step,
            "flops": work.flops_per_step,
            "model_flops_6nd": work.model_flops_per_step,
        },
        "ranks": {
            "count": estimate.mesh.num_ranks(),
            "axes": Axis::ALL.map(|axis| (axis.name(), estimate.mesh.size(axis))).into_iter().collect::<IndexMap<_, _>>(),
            "flops": footprint.flops_per_step,
            "gathered_bytes": footprint.traffic.gathered_bytes,
            "reduced_bytes": footprint.traffic.reduced_bytes,
        },
        "time": estimate.time.as_ref().and_then(|time| time.as_ref().ok()).map(|time| json!({
            "step_seconds": time.step(),
            "compute_seconds": time.compute,
            "within_host_seconds": time.within_host,
            "between_hosts_seconds": time.between_hosts,
            "hidden_seconds": time.hidden,
            "tokens_per_second": time.tokens_per_second(),
            "efficiency": time.efficiency(),
            "flops_per_second": time.flops_per_second,
        })),
        "run": {
            "steps": work.steps,
            "tokens": work.steps.map(|steps| steps * work.tokens_per_step),
            "flops": work.steps.map(|steps| steps as f64 * work.flops_per_step as f64),
        },
        "memory_bytes": {
            "weights": footprint.weights,
            "reference": footprint.reference,
            "gradients": footprint.gradients,
            "optimizer": footprint.optimizer,
            "activations": footprint.activations,
            "activations_without_remat": estimate.activations_without_remat,
            "tensors_at_once": footprint.tensors,
            "checkpoint_copy": footprint.snapshot,
            "process": PROCESS_BYTES,
            "peak": estimate.peak_bytes(),
            "process_peak": estimate.process_bytes(),
        },
        "checkpoint_bytes": {
            "model": footprint.saved_weights,
            "optimizer": footprint.saved_optimizer,
        },
        "warnings": estimate.warnings,
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

#[cfg(test)]
mod tests {
    use super::*;

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
