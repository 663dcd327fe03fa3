//! `bench ops`: what the time of the run's step goes into, by operation, as spans within true steps have it. How many
//! floating-point operations each is, the same step on a device without memory counts.

use serde_json::{Value, json};
use tt_config::Composition;
use tt_report::{Column, Table, number};
use tt_tensor::Device;
use tt_train::{Budget, OperationCost, budget};

use super::config::BenchConfig;
use super::job::Job;
use super::report::{Report, ms};
use super::samples::samples;
use crate::failure::Failure;
use crate::setup::Setup;

/// `to_count` is the same configuration read once more.
pub(super) fn measure(
    setup: Setup,
    to_count: Setup,
    composition: &Composition,
    device: Device,
    config: &BenchConfig,
) -> Result<Report, Failure> {
    let of_step = |job: &mut Job| {
        let (training, trainer) = (&mut job.training, &mut *job.trainer);
        budget(training, trainer, &job.batches)
    };
    let mut counting = Job::without_memory(to_count, composition)?;
    let counted = of_step(&mut counting)?.unwrap_or_default();
    let mut job = Job::new(setup, composition, device)?;
    let made = samples(config, || Ok(of_step(&mut job)?))?;
    let budget = made.into_iter().sum::<Budget>().with_flops_of(&counted);

    let steps = budget.steps as f64;
    let step_ms = ms(budget.time) / steps;
    let elsewhere_ms = ms(budget.elsewhere()) / steps;
    let mut operations: Vec<_> = budget.operations.iter().collect();
    operations.sort_by_key(|(_, cost)| std::cmp::Reverse(cost.time));
    let share = |part_ms: f64| part_ms / step_ms;
    let of_operation = |((part, operation), cost): &(&(String, String), &OperationCost)| {
        let own_ms = ms(cost.time) / steps;
        let flops = cost.flops as f64 / steps;
        json!({
            "operation": operation,
            "part": part,
            "calls": cost.calls as f64 / steps,
            "ms": own_ms,
            "share": share(own_ms),
            "flops": flops,
            "gflops": per_second(cost),
        })
    };
    let flops: u64 = budget.operations.values().map(|cost| cost.flops).sum();
    let mut report = Report::default();
    report.fact("step_ms", step_ms);
    report.fact("flops", flops as f64 / steps);
    report.fact("elsewhere_ms", elsewhere_ms);
    report.fact("steps", budget.steps);
    let listed: Value = operations.iter().map(of_operation).collect();
    report.fact("operations", listed);

    let mean = format!("mean of {}, recorded", budget.steps);
    report.row("step", format!("{step_ms:.1} ms"), mean);
    let mut table = Table::new([
        Column::left(),
        Column::left(),
        Column::right(),
        Column::right(),
        Column::right(),
        Column::right(),
        Column::right(),
    ]);
    table.row([
        "operation",
        "part",
        "calls",
        "ms",
        "share",
        "FLOPs",
        "GFLOP/s",
    ]);
    let percent = |part_ms: f64| format!("{:.1} %", 100.0 * share(part_ms));
    for ((part, operation), cost) in operations {
        let own_ms = ms(cost.time) / steps;
        let (flops, gflops) = match per_second(cost) {
            Some(gflops) => (
                number::count(cost.flops as f64 / steps),
                format!("{gflops:.1}"),
            ),
            None => Default::default(),
        };
        table.row([
            operation.clone(),
            part.clone(),
            format!("{:.0}", cost.calls as f64 / steps),
            format!("{own_ms:.2}"),
            percent(own_ms),
            flops,
            gflops,
        ]);
    }
    let rest = format!("{elsewhere_ms:.2}");
    table.row(["elsewhere", "", "", &rest, &percent(elsewhere_ms)]);
    report.table = Some(table);
    Ok(report)
}

/// GFLOP/s; `None` of what has no products.
fn per_second(cost: &OperationCost) -> Option<f64> {
    let seconds = cost.time.as_secs_f64();
    (cost.flops > 0 && seconds > 0.0).then(|| cost.flops as f64 / seconds / 1e9)
}
