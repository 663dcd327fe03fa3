//! A case's tensors as host batches and plain numbers.

use candle_core::IndexOp;
use tt_collators::Batch;
use tt_testkit::Tensors;
use tt_train::IGNORE;

/// Host batches from tensors `[B, T]`, or `[micro, B, T]`.
pub fn micro_batches(tensors: &Tensors) -> Vec<Batch> {
    let ids = &tensors["input_ids"];
    match ids.rank() {
        2 => vec![batch(tensors)],
        _ => (0..ids.dims()[0]).map(|i| batch(&at(tensors, i))).collect(),
    }
}

/// Entry `i` of the first axis of each tensor.
pub fn at(tensors: &Tensors, i: usize) -> Tensors {
    let entries = tensors.iter();
    entries
        .map(|(name, tensor)| (name.clone(), tensor.i(i).unwrap()))
        .collect()
}

fn batch(tensors: &Tensors) -> Batch {
    let integers = |name: &str| -> Vec<i64> {
        tensors[name]
            .flatten_all()
            .unwrap()
            .to_vec1::<i64>()
            .unwrap()
    };
    let unsigned = |values: Vec<i64>| values.into_iter().map(|v| v as u32).collect::<Vec<_>>();
    let (rows, seq_len) = tensors["input_ids"].dims2().unwrap();
    let mask = unsigned(integers("attention_mask"));
    let packed = tensors.contains_key("segment_ids");
    let labels = integers("labels");
    let targets = labels.chunks(seq_len).flat_map(|row| &row[1..]);
    Batch {
        rows,
        seq_len,
        num_targets: targets.filter(|&&label| label != IGNORE).count(),
        input_ids: unsigned(integers("input_ids")),
        segment_ids: if packed {
            unsigned(integers("segment_ids"))
        } else {
            mask
        },
        position_ids: if packed {
            unsigned(integers("position_ids"))
        } else {
            (0..rows).flat_map(|_| 0..seq_len as u32).collect()
        },
        labels,
        ..Batch::default()
    }
}

pub fn flat(tensor: &candle_core::Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

pub fn scalar(tensor: &candle_core::Tensor) -> f32 {
    tensor.to_scalar().unwrap()
}

pub fn l2(values: &[f32]) -> f64 {
    values
        .iter()
        .map(|v| f64::from(*v).powi(2))
        .sum::<f64>()
        .sqrt()
}
