//! How a comparison is shown: a table for people, Markdown for pages. For programs see [`super::comparison_json`].

use std::fmt::Write;

use tt_report::{Column, Table, number};
use tt_tpu::Stats;
use tt_train::compare::{Compared, Comparison, Role};

/// Tensors that are shown one by one.
const SHOWN: usize = 8;

pub(super) struct ComparisonReport {
    pub(super) variants: [Shown; 2],
    /// Of the step.
    pub(super) micro_batches: usize,
    pub(super) rows: usize,
    pub(super) sequence_length: usize,
    pub(super) comparison: Comparison,
    /// What the TPU has done, if a variant was on one.
    pub(super) tpu: Option<Stats>,
}

/// What is shown of a variant.
pub(super) struct Shown {
    pub(super) name: char,
    pub(super) overrides: Vec<String>,
    pub(super) ranks: usize,
}

/// Roles in the order of a step, with what they are called: one tensor, and several.
const ROLES: &[(Role, &str, &str)] = &[
    (Role::Input, "input", "inputs"),
    (Role::Output, "output", "outputs"),
    (Role::Loss, "loss", "loss"),
    (
        Role::OutputGradient,
        "gradient of the output",
        "gradients of outputs",
    ),
    (
        Role::InputGradient,
        "gradient of the input",
        "gradients of inputs",
    ),
    (
        Role::WeightGradient,
        "gradient of the weight",
        "gradients of weights",
    ),
    (
        Role::GradNorm,
        "norm of all gradients",
        "norm of all gradients",
    ),
    (Role::Update, "update", "updates of weights"),
];

fn name(role: Role) -> &'static str {
    let row = ROLES.iter().find(|row| row.0 == role);
    row.map_or("", |row| row.1)
}

impl ComparisonReport {
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        let mut line = |line: String| writeln!(text, "{line}").expect("into a string");
        for (variant, what) in self.variants.iter().zip(self.of_variants()) {
            line(format!("{}  {}  {what}", variant.name, variant.text()));
        }
        line(self.setting());
        line(String::new());
        line(self.by_role().to_string());
        if let Some(worst) = self.worst() {
            line(worst.to_string());
        }
        self.notes().into_iter().for_each(&mut line);
        line(self.verdict());
        text
    }

    pub(super) fn markdown(&self) -> String {
        let [a, b] = &self.variants;
        let [of_a, of_b] = self.of_variants();
        let mut parts = vec![
            format!("# `{}` against `{}`", b.text(), a.text()),
            self.verdict(),
            format!(
                "- A: `{}`: {of_a}\n- B: `{}`: {of_b}\n- {}",
                a.text(),
                b.text(),
                self.setting()
            ),
            self.by_role().markdown(),
        ];
        if let Some(worst) = self.worst() {
            parts.push("Tensors by what they take of the tolerance:".to_owned());
            parts.push(worst.markdown());
        }
        let notes = self.notes();
        if !notes.is_empty() {
            parts.push(notes.join("\n\n"));
        }
        parts.join("\n\n") + "\n"
    }

    fn of_variants(&self) -> [String; 2] {
        [0, 1].map(|i| {
            let (loss, norm) = (self.comparison.losses[i], self.comparison.grad_norms[i]);
            format!("loss {loss:.6}, gradient norm {norm:.6}")
        })
    }

    fn setting(&self) -> String {
        let it = &self.comparison.tensors;
        let equal = it
            .iter()
            .filter(|tensor| tensor.difference.is_equal)
            .count();
        let micro_batches = match self.micro_batches {
            1 => String::new(),
            count => format!(" in {count} micro-batches"),
        };
        format!(
            "one step on {} rows of {} tokens{micro_batches}: {} tensors compared, {equal} equal in every element",
            self.rows,
            self.sequence_length,
            it.len(),
        )
    }

    /// One row for each role.
    fn by_role(&self) -> Table {
        let tensors = &self.comparison.tensors;
        let mut table = table(["", "tensors", "equal", "diverge", "worst", "allowed"], 1);
        for (role, _, plural) in ROLES {
            let of_role: Vec<_> = tensors.iter().filter(|it| it.role == *role).collect();
            let by_excess = |a: &&&Compared, b: &&&Compared| excess(a).total_cmp(&excess(b));
            let Some(worst) = of_role.iter().max_by(by_excess) else {
                continue;
            };
            let count = |holds: &dyn Fn(&Compared) -> bool| {
                of_role.iter().filter(|it| holds(it)).count().to_string()
            };
            table.row([
                (*plural).to_owned(),
                of_role.len().to_string(),
                count(&|it| it.difference.is_equal),
                count(&Compared::diverges),
                number::error(worst.error),
                number::error(worst.allowed),
            ]);
        }
        table
    }

    /// The tensors that are furthest beyond, or nearest to, what is allowed; `None` if all are equal. What goes into
    /// modules has come out of others, or is theirs to answer for.
    fn worst(&self) -> Option<Table> {
        let tensors = self.comparison.tensors.iter();
        let is_own = |it: &&Compared| {
            it.error > 0.0 && !matches!(it.role, Role::Input | Role::InputGradient)
        };
        let mut worst: Vec<&Compared> = tensors.filter(is_own).collect();
        // What a module gives is often what its last submodule has given.
        worst.dedup_by(|b, a| a.role == b.role && a.difference == b.difference);
        worst.sort_by(|a, b| excess(b).total_cmp(&excess(a)));
        let head = [
            "tensor",
            "",
            "class",
            "relative L2",
            "allowed",
            "cosine",
            "max |a-b|",
            "max |a|",
        ];
        let mut table = table(head, 3);
        for it in worst.iter().take(SHOWN) {
            let difference = &it.difference;
            let cosine = difference.cosine.map(|cosine| format!("{cosine:.6}"));
            table.row([
                it.tensor.clone(),
                name(it.role).to_owned(),
                it.class.unwrap_or_default().to_owned(),
                number::error(it.error),
                number::error(it.allowed),
                cosine.unwrap_or("-".to_owned()),
                number::error(difference.max_abs),
                number::error(difference.largest[0]),
            ]);
        }
        (!worst.is_empty()).then_some(table)
    }

    /// What the figures do not say by themselves.
    pub(super) fn notes(&self) -> Vec<String> {
        let it = &self.comparison;
        let mut notes = Vec::new();
        for (variant, is_applied) in self.variants.iter().zip(it.is_applied) {
            if !is_applied {
                notes.push(format!(
                    "{} did not apply the step: its loss or gradient is not as it should be",
                    variant.name
                ));
            }
        }
        let shared = self.variants.iter().filter(|variant| variant.ranks > 1);
        for Shown { name, ranks, .. } in shared {
            notes.push(format!(
                "{name} is on {ranks} ranks, micro-batch i on rank i mod {ranks}: what modules take and give is compared by \
                 micro-batch, gradients of weights as summed over all, and weights put together from their parts; not \
                 compared is what a rank has of them before and by itself"
            ));
        }
        if let Some(tpu) = &self.tpu {
            notes.push(on_tpu(tpu));
        }
        if it.lr.contains(&0.0) {
            notes.push("the learning rate is 0: updates say nothing".to_owned());
        }
        for (variant, unmatched) in self.variants.iter().zip(&it.unmatched) {
            if let [(role, tensor), rest @ ..] = &unmatched[..] {
                let name = name(*role);
                let more = match rest.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                notes.push(format!(
                    "only {} has the {name} of `{tensor}`{more}, or in another shape: not compared",
                    variant.name
                ));
            }
        }
        notes
    }

    pub(super) fn verdict(&self) -> String {
        let it = &self.comparison;
        let Some(first) = it.first_divergence() else {
            let verdict = if it.agrees() {
                "no divergence: all tensors agree within the tolerance"
            } else {
                "diverged: one variant applied the step and the other did not"
            };
            return verdict.to_owned();
        };
        let tensor = &it.tensors[first];
        let mut text = format!(
            "first divergence: the {}, {}\n  {}",
            described(tensor),
            difference(tensor),
            origin(tensor, self.micro_batches)
        );
        if let Some(before) = first.checked_sub(1) {
            let before = described(&it.tensors[before]);
            let count = match first {
                1 => "the tensor before it agrees".to_owned(),
                _ => format!("the {first} tensors before it agree"),
            };
            write!(text, "; {count}, last the {before}").expect("into a string");
        }
        text
    }
}

impl Shown {
    fn text(&self) -> String {
        match &self.overrides[..] {
            [] => "(as configured)".to_owned(),
            overrides => overrides.join(" "),
        }
    }
}

/// A table with this head, whose columns from number `first_number` on are numbers.
fn table<const N: usize>(head: [&str; N], first_number: usize) -> Table {
    let column = |index| {
        if index < first_number {
            Column::left()
        } else {
            Column::right()
        }
    };
    let mut table = Table::new((0..N).map(column).collect::<Vec<_>>());
    table.row(head);
    table
}

/// What a tensor takes of its tolerance.
fn excess(it: &Compared) -> f64 {
    match it.error {
        0.0 => 0.0, // also where nothing is allowed
        error => error / it.allowed,
    }
}

/// ``output of `model.norm` (RmsNorm [2, 32, 64])``
fn described(it: &Compared) -> String {
    if matches!(it.role, Role::Loss | Role::GradNorm) {
        let of = it.micro_batch.map(|it| format!(" of micro-batch {it}"));
        return name(it.role).to_owned() + &of.unwrap_or_default();
    }
    let class = it
        .class
        .map(|class| format!("{class} "))
        .unwrap_or_default();
    let call = match it.call {
        0 => String::new(),
        call => format!(", use {call}"),
    };
    let micro_batch = match it.micro_batch {
        None => String::new(),
        Some(micro_batch) => format!(", micro-batch {micro_batch}"),
    };
    format!(
        "{} of `{}` ({class}{:?}{call}{micro_batch})",
        name(it.role),
        it.tensor,
        it.shape
    )
}

fn difference(it: &Compared) -> String {
    match it.difference.unlike {
        0 => format!(
            "relative L2 difference {}, {} allowed",
            number::error(it.error),
            number::error(it.allowed)
        ),
        unlike => format!("{unlike} elements are not finite in one variant"),
    }
}

/// Whose code has computed the tensor, in a step of so many micro-batches.
fn origin(it: &Compared, micro_batches: usize) -> String {
    let class = it
        .within_class
        .map(|class| format!(" ({class})"))
        .unwrap_or_default();
    let module = match it.within.as_str() {
        "" => "the model itself".to_owned(),
        path => format!("`{path}`{class}"),
    };
    match it.role {
        Role::Loss => "computed by the trainer from the model's output".to_owned(),
        Role::GradNorm => "computed before clipping".to_owned(),
        Role::Update => "computed by the optimizer, of the same gradients".to_owned(),
        Role::Input | Role::Output => format!("computed by {module}"),
        Role::WeightGradient if micro_batches > 1 => format!(
            "computed by {module} in the backward pass, and summed over {micro_batches} micro-batches"
        ),
        _ => format!("computed by {module} in the backward pass"),
    }
}

/// How much of the work was done there: agreement of what ran on the CPU says nothing.
fn on_tpu(tpu: &Stats) -> String {
    let launches = format!("on the TPU: {} launches", tpu.num_launches());
    if tpu.fallbacks.is_empty() {
        return format!("{launches}, nothing ran on the CPU");
    }
    let fallbacks = tpu.fallbacks.iter();
    let fallbacks: Vec<_> = fallbacks
        .map(|(op, count)| format!("{op} {count}"))
        .collect();
    format!(
        "{launches}; operations that ran on the CPU for want of a kernel, and how often: {}",
        fallbacks.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tt_train::compare::{Difference, Tolerance};

    use super::*;

    fn tensor(role: Role, tensor: &str, a: &[f32], b: &[f32]) -> Compared {
        let difference = Difference::between(a, b);
        Compared {
            role,
            tensor: tensor.to_owned(),
            call: 0,
            micro_batch: None,
            class: tensor.ends_with("proj").then_some("Linear"),
            within: tensor.to_owned(),
            within_class: None,
            shape: vec![a.len()],
            error: difference.relative_l2,
            allowed: 1e-4,
            difference,
        }
    }

    fn report(b: &[f32]) -> ComparisonReport {
        ComparisonReport {
            variants: [('A', vec![]), ('B', vec!["precision=bf16".to_owned()])].map(
                |(name, overrides)| Shown {
                    name,
                    overrides,
                    ranks: 1,
                },
            ),
            micro_batches: 1,
            rows: 4,
            sequence_length: 32,
            comparison: Comparison {
                tensors: vec![
                    tensor(Role::Output, "up_proj", &[3.0, 4.0], &[3.0, 4.0]),
                    tensor(Role::Output, "down_proj", &[3.0, 4.0], b),
                    tensor(Role::Update, "up_proj.weight", &[0.5], &[0.5]),
                ],
                unmatched: [Vec::new(), vec![(Role::Output, "norm".to_owned())]],
                tolerance: Tolerance::uniform(1e-4),
                losses: [1.0, 1.5],
                grad_norms: [2.0, 2.0],
                lr: [1e-3, 1e-3],
                is_applied: [true, true],
            },
            tpu: None,
        }
    }

    #[test]
    fn markdown_leads_with_the_verdict() {
        let expected = "\
# `precision=bf16` against `(as configured)`

first divergence: the output of `down_proj` (Linear [2]), relative L2 difference 2.0e-1, 1.0e-4 allowed
  computed by `down_proj`; the tensor before it agrees, last the output of `up_proj` (Linear [2])

- A: `(as configured)`: loss 1.000000, gradient norm 2.000000
- B: `precision=bf16`: loss 1.500000, gradient norm 2.000000
- one step on 4 rows of 32 tokens: 3 tensors compared, 2 equal in every element

|  | tensors | equal | diverge | worst | allowed |
| --- | ---: | ---: | ---: | ---: | ---: |
| outputs | 2 | 1 | 1 | 2.0e-1 | 1.0e-4 |
| updates of weights | 1 | 1 | 0 | 0 | 1.0e-4 |

Tensors by what they take of the tolerance:

| tensor |  | class | relative L2 | allowed | cosine | max \\|a-b\\| | max \\|a\\| |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |
| down_proj | output | Linear | 2.0e-1 | 1.0e-4 | 0.989949 | 1.0e0 | 4.0e0 |

only B has the output of `norm`, or in another shape: not compared
";
        assert_eq!(report(&[3.0, 3.0]).markdown(), expected);
    }

    #[test]
    fn the_table_ends_with_the_verdict() {
        let last = |report: ComparisonReport| report.table().lines().last().unwrap().to_owned();
        assert_eq!(
            last(report(&[3.0, 4.0])),
            "no divergence: all tensors agree within the tolerance"
        );
        assert!(last(report(&[3.0, f32::NAN])).starts_with("  computed by `down_proj`"));
        let mut skipped = report(&[3.0, 4.0]);
        skipped.comparison.is_applied = [true, false];
        assert!(last(skipped).starts_with("diverged: one variant applied the step"));
    }

    #[test]
    fn json_has_the_first_divergence_and_numbers_that_json_can_hold() {
        let value: Value = serde_json::from_str(&report(&[3.0, f32::INFINITY]).json()).unwrap();
        let first = &value["first_divergence"];
        assert_eq!(
            (&value["agrees"], &first["tensor"]),
            (&json!(false), &json!("down_proj"))
        );
        assert_eq!(
            (&first["unlike"], &first["error"]),
            (&json!(1), &Value::Null)
        );
        assert_eq!(first["non_finite"], json!({"a": 0, "b": 1}));
        assert_eq!(value["tensors"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn what_ran_on_the_cpu_is_said() {
        let stats = Stats {
            launches: [("fill", 3), ("unary", 4)].into(),
            fallbacks: [("gather", 2)].into(),
            ..Stats::default()
        };
        let said = on_tpu(&stats);
        assert!(
            said.contains("7 launches") && said.ends_with("gather 2"),
            "{said}"
        );
    }
}
