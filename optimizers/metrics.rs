//! Numbers about a step, made on the device while it is made, and only where they are asked for.
//!
//! `update_rms`: root mean square of what was taken off the weights. `update_ratio`: norm of the step over the norm of the
//! weights; about 1e-3 is usual in the middle of a run. `sign_agreement`: share of the weights that moved against their
//! gradient; a half is noise.

use std::sync::Arc;

use tt_tensor::fused::StepSums;
use tt_tensor::{Parameter, Tensor};

use crate::error::Result;

/// The sums of the last step, if it was asked for them.
#[derive(Default)]
pub(crate) struct StepMetrics {
    sums: Option<StepSums>,
    num_weights: usize,
}

impl StepMetrics {
    /// Begins a step on these parameters, whose slots are their positions.
    pub(crate) fn start<'a>(
        &mut self,
        wanted: bool,
        parameters: impl ExactSizeIterator<Item = &'a Arc<Parameter>>,
    ) -> Result<()> {
        self.sums = None;
        if !wanted || parameters.len() == 0 {
            return Ok(());
        }
        let slots = parameters.len();
        self.num_weights = 0;
        let mut device = None;
        for parameter in parameters {
            let value = parameter.value();
            self.num_weights += value.elem_count();
            device = Some(value.device());
        }
        if let Some(device) = device {
            self.sums = Some(StepSums::new(slots, device)?);
        }
        Ok(())
    }

    /// Where the kernel is to put the sums of the parameter at this position.
    pub(crate) fn slot(&self, slot: usize) -> Option<(&StepSums, usize)> {
        self.sums.as_ref().map(|sums| (sums, slot))
    }

    /// f32 `[]` each; none if the last step was not asked for them.
    pub(crate) fn named(&self, with_sign_agreement: bool) -> Result<Vec<(String, Tensor)>> {
        let Some(StepSums { values }) = &self.sums else {
            return Ok(Vec::new());
        };
        let totals = values.sum(&[0])?; // [3]
        let total = |i: usize| totals.narrow(0, i, 1)?.reshape(());
        let (squares, weights) = (total(0)?, total(1)?);
        let share = 1.0 / self.num_weights as f64;
        let least = Tensor::full(f32::MIN_POSITIVE, (), totals.device())?;
        let ratio = squares.div(&weights.maximum(&least)?)?.sqrt()?;
        let mut named = vec![
            ("update_rms".to_owned(), squares.affine(share, 0.0)?.sqrt()?),
            ("update_ratio".to_owned(), ratio),
        ];
        if with_sign_agreement {
            named.push(("sign_agreement".to_owned(), total(2)?.affine(share, 0.0)?));
        }
        Ok(named)
    }
}
