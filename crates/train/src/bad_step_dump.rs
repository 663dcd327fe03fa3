//! What is kept of a bad step in the run folder.
//!
//! `bad_steps/step-00000123/` holds `report.json` (what was found, and where each row is from), `batch.safetensors`
//! (the step's fields as they were trained on, `[rows, seq_len]`, micro-batches one after the other) and `rows.txt`
//! (their text).

use std::cmp::Ordering;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;
use tt_checkpoint::{HostTensor, TensorMap, write_tensors};
use tt_collators::{Batch, Per, Pipeline, Slice};
use tt_data::Cursor;

use crate::bad_step::BadStep;
use crate::error::{Error, Result};

/// The folder of a run that dumps go to.
const FOLDER: &str = "bad_steps";

#[derive(Serialize)]
struct RowReport {
    micro_batch: usize,
    row: usize,
    /// Whether the finding names it; null of rows behind it, which nobody has looked at.
    found: Option<bool>,
    /// Where in the order of the data it begins.
    from: Cursor,
    /// What it holds, in that order.
    documents: Vec<String>,
}

/// Writes the dump, in place of one of the same step; gives its folder.
pub(crate) fn dump(
    bad: &BadStep,
    micro_batches: &[&Batch],
    data: &Pipeline,
    run_dir: &Path,
) -> Result<PathBuf> {
    let dir = run_dir.join(FOLDER).join(format!("step-{:08}", bad.step));
    let io = |source| Error::Write {
        path: dir.clone(),
        source,
    };
    fs::create_dir_all(&dir).map_err(io)?;
    write_tensors(&dir.join("batch.safetensors"), &tensors(micro_batches))?;
    let rows = rows(bad, micro_batches, data)?;
    let report = json!({
        "step": bad.step,
        // JSON has no NaN.
        "loss": bad.loss.to_string(),
        "grad_norm": bad.grad_norm.to_string(),
        "why": bad.to_string(),
        "first_non_finite": bad.finding,
        "rows": rows,
    });
    fs::write(dir.join("report.json"), format!("{report:#}\n")).map_err(io)?;
    let text = text(&rows, micro_batches, data)?;
    fs::write(dir.join("rows.txt"), text).map_err(io)?;
    Ok(dir)
}

fn tensors(micro_batches: &[&Batch]) -> TensorMap {
    let rows: usize = micro_batches.iter().map(|batch| batch.rows).sum();
    let Some(first) = micro_batches.first() else {
        return TensorMap::new();
    };
    let fields = first.iter().map(|(field, values)| {
        let shape = match field.per {
            Per::Token | Per::Target => vec![rows, first.seq_len],
            Per::Row => vec![rows],
        };
        let all = micro_batches.iter();
        let all = all.filter_map(|batch| batch.field(field.name));
        macro_rules! joined {
            ($variant:ident) => {
                all.flat_map(|values| match values {
                    Slice::$variant(values) => values,
                    _ => &[],
                })
                .copied()
                .collect::<Vec<_>>()
            };
        }
        let tensor = match values {
            Slice::F32(_) => HostTensor::from_f32(shape, &joined!(F32)),
            Slice::I64(_) => HostTensor::from_i64(shape, &joined!(I64)),
            Slice::U32(_) => HostTensor::from_u32(shape, &joined!(U32)),
        };
        (field.name.to_owned(), tensor)
    });
    fields.collect()
}

/// Rows of padding alone are left out.
fn rows(bad: &BadStep, micro_batches: &[&Batch], data: &Pipeline) -> Result<Vec<RowReport>> {
    let mut reports = Vec::new();
    for (micro, batch) in micro_batches.iter().enumerate() {
        for (row, (from, to)) in batch.extents().enumerate() {
            let finding = bad.finding.as_ref();
            let found = finding.and_then(|finding| match micro.cmp(&finding.micro_batch?) {
                Ordering::Less => Some(false),
                Ordering::Equal => Some(finding.rows.contains(&row)),
                Ordering::Greater => None,
            });
            let documents = data.documents(from, to)?;
            reports.push(RowReport {
                micro_batch: micro,
                row,
                found,
                from,
                documents: documents.iter().map(ToString::to_string).collect(),
            });
        }
    }
    Ok(reports)
}

fn text(rows: &[RowReport], micro_batches: &[&Batch], data: &Pipeline) -> Result<String> {
    let mut text = String::new();
    for report in rows {
        let batch = &micro_batches[report.micro_batch];
        let range = report.row * batch.seq_len..(report.row + 1) * batch.seq_len;
        let tokens = batch.input_ids[range.clone()].iter();
        let is_token = |(&id, &segment): (&u32, &u32)| (segment != 0).then_some(id);
        let tokens: Vec<u32> = tokens
            .zip(&batch.segment_ids[range])
            .filter_map(is_token)
            .collect();
        writeln!(
            text,
            "--- micro-batch {}, row {}{}: {}\n{}",
            report.micro_batch,
            report.row,
            if report.found == Some(true) {
                " (found)"
            } else {
                ""
            },
            report.documents.join(", "),
            data.tokenizer().decode(&tokens)?,
        )
        .expect("into a string");
    }
    Ok(text)
}
