//! Defaults that follow from another key, put into the composed tree: what reads it, and what a run records, sees the value.

use tt_config::{Composition, Missing, Value};

/// Rows in memory at once where nobody says how many: what a small machine holds of a small model.
const MOST_ROWS: i128 = 4;

/// Gives the keys that follow another, and are null for that, their values.
pub(crate) fn apply(composition: &mut Composition) {
    // `model/adapter=none` is a file without a key.
    let adapter = "model.adapter";
    let chosen = composition.get(adapter).and_then(|node| node.as_map());
    if chosen.is_some_and(|map| map.is_empty()) {
        composition.set(adapter, Value::Null);
    }
    let [micro, global] = ["trainer.micro_batch_size", "trainer.global_batch_size"];
    if composition.get(micro).is_some_and(|node| node.is_null()) {
        let global = composition.resolved(global, Missing::Keep);
        // What is wrong with the other key is for its own check to say.
        let rows = match global.map(|node| node.value) {
            Ok(Value::Int(rows)) => rows,
            _ => 1,
        };
        composition.set(micro, Value::Int(micro_batch_size(rows)));
    }
}

/// The largest divisor of the rows of a step that is at most [`MOST_ROWS`]: it depends on nothing else, so that a run
/// rounds alike on every machine.
fn micro_batch_size(global: i128) -> i128 {
    let divides = |rows: &i128| global % rows == 0;
    (1..=MOST_ROWS).rev().find(divides).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_micro_batch_is_the_largest_divisor_up_to_four() {
        let sizes = [1, 2, 3, 4, 5, 6, 7, 8, 10, 512].map(micro_batch_size);
        assert_eq!(sizes, [1, 2, 3, 4, 1, 3, 1, 4, 2, 4]);
    }
}
