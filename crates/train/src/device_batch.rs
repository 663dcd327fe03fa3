//! A batch on the device: what a loss sees.

use tt_collators::{Batch, IGNORE};
use tt_models::Input;
use tt_nn::Positions;
use tt_tensor::{DType, Device, Tensor};

use crate::error::Result;

/// One micro-batch, `[B, T]` everywhere.
pub struct DeviceBatch {
    pub input: Input,
    /// i64, shifted: the label at `t` is the token at `t + 1`, or -100 where there is no loss.
    pub targets: Tensor,
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
        Ok(Self {
            input: Input {
                input_ids: Tensor::from_slice(&batch.input_ids, shape, device)?,
                positions,
                fields: Vec::new(),
            },
            targets: Tensor::from_slice(&shifted(batch), shape, device)?,
        })
    }

    /// For losses made of single operations: the targets as u32 ids, 0 where there is no loss, and f32 weights, 1 where
    /// there is one and 0 elsewhere; `[B, T]` both.
    pub fn target_ids(&self) -> Result<(Tensor, Tensor)> {
        let device = self.targets.device();
        let counts = self.targets.ne(&Tensor::scalar(IGNORE, device)?)?;
        let ids = counts.where_cond(&self.targets, &Tensor::scalar(0i64, device)?)?;
        Ok((ids.to_dtype(DType::U32)?, counts.to_dtype(DType::F32)?))
    }
}

/// Labels moved one position to the left within each row.
fn shifted(batch: &Batch) -> Vec<i64> {
    let rows = batch.labels.chunks_exact(batch.seq_len.max(1));
    rows.flat_map(|row| row[1..].iter().copied().chain([IGNORE]))
        .collect()
}
