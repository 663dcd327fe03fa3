//! A comparison as JSON, for programs.

use serde_json::{Value, json};
use tt_train::compare::Compared;

use super::comparison_report::ComparisonReport;

impl ComparisonReport {
    pub(super) fn json(&self) -> String {
        let it = &self.comparison;
        let first = it.first_divergence();
        let of = |i: usize| {
            let variant = &self.variants[i];
            json!({
                "overrides": variant.overrides,
                "ranks": variant.ranks,
                "loss": it.losses[i],
                "grad_norm": it.grad_norms[i],
                "lr": it.lr[i],
                "is_applied": it.is_applied[i],
            })
        };
        let unmatched = |i: usize| -> Vec<Value> {
            let tensors = it.unmatched[i].iter();
            tensors
                .map(|(role, tensor)| json!({"role": role, "tensor": tensor}))
                .collect()
        };
        let value = json!({
            "agrees": it.agrees(),
            "verdict": self.verdict(),
            "first_divergence": first.map(|i| tensor_json(&it.tensors[i])),
            "variants": {"a": of(0), "b": of(1)},
            "batch": {"micro_batches": self.micro_batches, "rows": self.rows, "sequence_length": self.sequence_length},
            "tolerance": it.tolerance,
            "tensors": it.tensors.iter().map(tensor_json).collect::<Vec<_>>(),
            "unmatched": {"a": unmatched(0), "b": unmatched(1)},
            "tpu": self.tpu.as_ref().map(|tpu| {
                json!({"launches": tpu.launches, "fallbacks": tpu.fallbacks})
            }),
            "notes": self.notes(),
        });
        format!("{value:#}\n")
    }
}

fn tensor_json(it: &Compared) -> Value {
    let difference = &it.difference;
    let [a, b] = difference.largest;
    json!({
        "role": it.role,
        "tensor": it.tensor,
        "call": it.call,
        "micro_batch": it.micro_batch,
        "class": it.class,
        "within": it.within,
        "within_class": it.within_class,
        "shape": it.shape,
        "diverges": it.diverges(),
        "error": it.error,
        "allowed": it.allowed,
        "relative_l2": difference.relative_l2,
        "cosine": difference.cosine,
        "max_abs": difference.max_abs,
        "max_abs_at": coordinates(difference.at, &it.shape),
        "values_at": {"a": difference.values_at[0], "b": difference.values_at[1]},
        "largest": {"a": a, "b": b},
        "non_finite": {"a": difference.non_finite[0], "b": difference.non_finite[1]},
        "unlike": difference.unlike,
        "is_equal": difference.is_equal,
    })
}

/// The place of element `index`, counted row by row.
fn coordinates(mut index: usize, shape: &[usize]) -> Vec<usize> {
    let mut place: Vec<usize> = shape
        .iter()
        .rev()
        .map(|size| {
            let at = index % size.max(&1);
            index /= size.max(&1);
            at
        })
        .collect();
    place.reverse();
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_has_coordinates_row_by_row() {
        assert_eq!(coordinates(23, &[2, 3, 4]), [1, 2, 3]);
        assert_eq!(coordinates(6, &[2, 3, 4]), [0, 1, 2]);
        assert_eq!(coordinates(0, &[]), [0usize; 0]);
    }
}
