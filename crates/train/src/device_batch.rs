//! A batch on the device: what a loss sees.

use tt_collators::{Batch, Field, Padding, Per, Prediction, Slice, WEIGHTS};
use tt_models::Input;
use tt_nn::Positions;
use tt_tensor::{DType, Device, Shape, Tensor, WithDType};

use crate::IGNORE;
use crate::error::{Error, Result};

/// One micro-batch: `[B, T]`, and `[B]` for fields that a row has one of.
pub struct DeviceBatch {
    /// With what the collator adds, which a model may look at too. Fields of targets stand where the targets do, and are
    /// padding where there is none.
    pub input: Input,
    /// i64: what the model's output at each position is compared with, or -100 where there is no loss. That is the label
    /// of the next token, or the one in its place, as `prediction` says.
    pub targets: Tensor,
    /// What the labels are compared with.
    pub prediction: Prediction,
    /// What [`Trainer::counts`](crate::Trainer::counts) comes to over the whole step, or all of validation.
    pub counts: Vec<f32>,
}

impl DeviceBatch {
    /// Copies a host batch to `device`.
    pub fn upload(batch: &Batch, device: Device) -> Result<Self> {
        let shape = (batch.rows, batch.seq_len);
        let segment_ids = Tensor::from_slice(&batch.segment_ids, shape, device)?;
        let positions = Positions {
            position_ids: Tensor::from_slice(&batch.position_ids, shape, device)?,
            bound: batch.seq_len,
            segment_ids: Some(segment_ids),
        };
        let fields = batch.fields.iter().map(|(field, values)| {
            let values = upload(batch, *field, values.as_slice(), device)?;
            Ok((field.name, values))
        });
        Ok(Self {
            input: Input {
                input_ids: Tensor::from_slice(&batch.input_ids, shape, device)?,
                positions,
                fields: fields.collect::<Result<_>>()?,
            },
            targets: Tensor::from_slice(&at_targets(batch, &batch.labels, IGNORE), shape, device)?,
            prediction: batch.prediction,
            counts: Vec::new(),
        })
    }

    pub(crate) fn with_counts(self, counts: &[f32]) -> Self {
        let counts = counts.to_vec();
        Self { counts, ..self }
    }

    /// u32 `[B, T]`.
    pub fn input_ids(&self) -> &Tensor {
        &self.input.input_ids
    }

    /// u32: positions within the segment.
    pub fn position_ids(&self) -> &Tensor {
        &self.input.positions.position_ids
    }

    /// u32: documents of a row counted from 1; 0 is padding.
    pub fn segment_ids(&self) -> Option<&Tensor> {
        self.input.positions.segment_ids.as_ref()
    }

    /// The field of a name that the collator gives. Errors: it gives none of that name.
    pub fn field(&self, name: &str) -> Result<&Tensor> {
        self.input.field(name).ok_or_else(|| {
            let known = self.input.fields.iter().map(|(known, _)| *known);
            let known: Vec<_> = known.collect();
            let known = if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            };
            let name = name.to_owned();
            Error::NoField { name, known }
        })
    }

    /// f32: how much each target counts, if the collator says so.
    pub fn weights(&self) -> Option<&Tensor> {
        self.input.field(WEIGHTS)
    }

    /// For losses made of single operations: the targets as u32 ids, 0 where there is no loss, and f32 weights, 0 where
    /// there is none and elsewhere those of the collator, or 1; `[B, T]` both.
    pub fn target_ids(&self) -> Result<(Tensor, Tensor)> {
        let device = self.targets.device();
        let counts = self.targets.ne(&Tensor::scalar(IGNORE, device)?)?;
        let ids = counts.where_cond(&self.targets, &Tensor::scalar(0i64, device)?)?;
        let weights = match self.weights() {
            Some(weights) => weights.clone(),
            None => counts.to_dtype(DType::F32)?,
        };
        Ok((ids.to_dtype(DType::U32)?, weights))
    }
}

/// A field as the loss sees it.
fn upload(batch: &Batch, field: Field, values: Slice<'_>, device: Device) -> Result<Tensor> {
    let shape = match field.per {
        Per::Token | Per::Target => Shape::from((batch.rows, batch.seq_len)),
        Per::Row => Shape::from(batch.rows),
    };
    let is_of_targets = field.per == Per::Target;
    fn put<T: WithDType>(values: &[T], shape: Shape, device: Device) -> Result<Tensor> {
        Ok(Tensor::from_slice(values, shape, device)?)
    }
    match (values, field.padding) {
        (Slice::F32(values), Padding::F32(padding)) if is_of_targets => {
            put(&at_targets(batch, values, padding), shape, device)
        }
        (Slice::I64(values), Padding::I64(padding)) if is_of_targets => {
            put(&at_targets(batch, values, padding), shape, device)
        }
        (Slice::U32(values), Padding::U32(padding)) if is_of_targets => {
            put(&at_targets(batch, values, padding), shape, device)
        }
        (Slice::F32(values), _) => put(values, shape, device),
        (Slice::I64(values), _) => put(values, shape, device),
        (Slice::U32(values), _) => put(values, shape, device),
    }
}

/// What belongs to a label, where that is predicted; `padding` where there is no label.
pub(crate) fn at_targets<T: Copy>(batch: &Batch, values: &[T], padding: T) -> Vec<T> {
    let (len, shift) = (batch.seq_len, batch.prediction.shift());
    let at = |position: usize| {
        let from = position + shift;
        let is_in_row = position % len + shift < len;
        if is_in_row && batch.labels[from] != IGNORE {
            values[from]
        } else {
            padding
        }
    };
    (0..values.len()).map(at).collect()
}

#[cfg(test)]
mod tests {
    use tt_collators::Values;

    use super::*;

    /// Two rows of three tokens; in the second, the last has no label.
    fn batch(prediction: Prediction) -> Batch {
        Batch {
            rows: 2,
            seq_len: 3,
            input_ids: vec![1, 2, 3, 4, 5, 6],
            labels: vec![IGNORE, 2, 3, IGNORE, 5, IGNORE],
            segment_ids: vec![1; 6],
            position_ids: vec![0, 1, 2, 0, 1, 2],
            fields: vec![
                (
                    Field::weights(),
                    Values::F32(vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
                ),
                (
                    Field::per_token("draw", 0u32),
                    Values::U32(vec![7, 8, 9, 10, 11, 12]),
                ),
                (Field::per_row("sign", 0i64), Values::I64(vec![1, -1])),
            ],
            prediction,
            num_targets: 3,
            ..Batch::default()
        }
    }

    #[test]
    fn targets_and_what_belongs_to_them_stand_where_they_are_predicted() {
        let cases = [
            (
                Prediction::NextToken,
                [2, 3, IGNORE, 5, IGNORE, IGNORE],
                [0.2, 0.3, 0.0, 0.5, 0.0, 0.0],
            ),
            (
                Prediction::SameToken,
                [IGNORE, 2, 3, IGNORE, 5, IGNORE],
                [0.0, 0.2, 0.3, 0.0, 0.5, 0.0],
            ),
        ];
        for (prediction, targets, weights) in cases {
            let on_device = DeviceBatch::upload(&batch(prediction), Device::Cpu).unwrap();
            assert_eq!(on_device.targets.to_vec::<i64>().unwrap(), targets);
            let of_targets = on_device.weights().unwrap().to_vec::<f32>().unwrap();
            assert_eq!(of_targets, weights);
            let (_, counted) = on_device.target_ids().unwrap();
            assert_eq!(counted.to_vec::<f32>().unwrap(), weights);
        }
    }

    #[test]
    fn fields_of_tokens_and_rows_are_as_the_collator_gives_them() {
        let on_device = DeviceBatch::upload(&batch(Prediction::NextToken), Device::Cpu).unwrap();
        let draw = on_device.field("draw").unwrap();
        assert_eq!(draw.dims(), [2, 3]);
        assert_eq!(draw.to_vec::<u32>().unwrap(), [7, 8, 9, 10, 11, 12]);
        let sign = on_device.field("sign").unwrap();
        assert_eq!(sign.dims(), [2]);
        assert_eq!(sign.to_vec::<i64>().unwrap(), [1, -1]);
        assert_eq!(
            on_device.field("reward").unwrap_err().to_string(),
            "the trainer asks for the field `reward`, which the collator does not give; it gives weights, draw, sign"
        );
        let plain = Batch {
            fields: Vec::new(),
            ..batch(Prediction::NextToken)
        };
        let plain = DeviceBatch::upload(&plain, Device::Cpu).unwrap();
        assert!(plain.weights().is_none());
        let (_, counted) = plain.target_ids().unwrap();
        assert_eq!(
            counted.to_vec::<f32>().unwrap(),
            [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]
        );
    }
}
