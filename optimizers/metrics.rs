//! Numbers about a step, made on the device while it is made, and only where they are asked for.
//!
//! `update_rms`: root mean square of what was taken off the weights. `update_ratio`: norm of the step over the norm of the
//! weights; about 1e-3 is usual in the middle of a run. `sign_agreement`: share of the weights that moved against their
//! gradient; a half is noise.

//!
//! A number is handed out as the sums that it is made of: ranks that share the parameters add them up first.

use std::sync::Arc;

use tt_tensor::fused::StepSums;
use tt_tensor::{Parameter, Tensor};

use crate::StepContext;
use crate::error::Result;

/// A number about a step, as the sums that it is made of: over the parameters that this rank [counts](StepContext::counts).
/// Every rank gives as many, of the same names in the same order.
pub struct Metric {
    /// As it is logged.
    pub name: String,
    /// f32 `[n]`, still on the device.
    pub sums: Tensor,
    /// Makes the number of the sums over all ranks.
    pub of_sums: fn(&[f32]) -> f32,
}

impl Metric {
    /// `sum`, one f32, over `count`.
    pub fn mean(name: &str, sum: &Tensor, count: usize) -> Result<Self> {
        let count = Tensor::full(count as f32, 1, sum.device())?;
        Ok(Self {
            name: name.to_owned(),
            sums: Tensor::cat(&[sum.reshape(1)?, count], 0)?,
            of_sums: |sums| sums[0] / sums[1].max(1.0),
        })
    }

    /// The square root of [`Metric::mean`].
    pub fn rms(name: &str, squares: &Tensor, count: usize) -> Result<Self> {
        Ok(Self {
            of_sums: |sums| (sums[0] / sums[1].max(1.0)).sqrt(),
            ..Self::mean(name, squares, count)?
        })
    }

    /// The number, where there is one rank.
    pub fn read(&self) -> Result<f32> {
        Ok((self.of_sums)(&self.sums.to_vec::<f32>()?))
    }
}

/// The sums of the last step, if it was asked for them.
#[derive(Default)]
pub(crate) struct StepMetrics {
    sums: Option<StepSums>,
    /// By position.
    is_counted: Vec<bool>,
    num_weights: usize,
}

impl StepMetrics {
    /// Begins a step on these parameters, whose slots are their positions.
    pub(crate) fn start<'a>(
        &mut self,
        context: &StepContext,
        parameters: impl ExactSizeIterator<Item = &'a Arc<Parameter>>,
    ) -> Result<()> {
        self.sums = None;
        if !context.wants_metrics || parameters.len() == 0 {
            return Ok(());
        }
        self.num_weights = 0;
        self.is_counted.clear();
        let mut device = None;
        for parameter in parameters {
            let value = parameter.value();
            let is_counted = context.counts(parameter);
            if is_counted {
                self.num_weights += value.elem_count();
            }
            self.is_counted.push(is_counted);
            device = Some(value.device());
        }
        if let Some(device) = device {
            self.sums = Some(StepSums::new(self.is_counted.len(), device)?);
        }
        Ok(())
    }

    /// Where the kernel is to put the sums of the parameter at this position, if this rank counts it.
    pub(crate) fn slot(&self, slot: usize) -> Option<(&StepSums, usize)> {
        let sums = self.sums.as_ref().filter(|_| self.is_counted[slot]);
        sums.map(|sums| (sums, slot))
    }

    /// None if the last step was not asked for them.
    pub(crate) fn named(&self, with_sign_agreement: bool) -> Result<Vec<Metric>> {
        let Some(StepSums { values }) = &self.sums else {
            return Ok(Vec::new());
        };
        let totals = values.sum(&[0])?; // [3]
        let total = |i: usize| totals.narrow(0, i, 1);
        let mut named = vec![
            Metric::rms("update_rms", &total(0)?, self.num_weights)?,
            Metric {
                name: "update_ratio".to_owned(),
                sums: Tensor::cat(&[total(0)?, total(1)?], 0)?,
                of_sums: |sums| (sums[0] / sums[1].max(f32::MIN_POSITIVE)).sqrt(),
            },
        ];
        if with_sign_agreement {
            named.push(Metric::mean(
                "sign_agreement",
                &total(2)?,
                self.num_weights,
            )?);
        }
        Ok(named)
    }
}
