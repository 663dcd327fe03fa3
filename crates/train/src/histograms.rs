//! How the elements of gradients and weights are spread in a step, for who looks at a run.
//!
//! Of each trained parameter: its gradient of the mean loss, before clipping, and its weight before the step. Of a
//! parameter that ranks share it is this rank's part.

use tt_metrics::Histogram;
use tt_tensor::{DType, Tensor};

use crate::error::Result;
use crate::training::Training;

impl Training {
    /// Whether the step that is being made is one of those that are looked at.
    pub(crate) fn wants_histograms(&self) -> bool {
        let due = |interval: u64| interval > 0 && (self.step + 1).is_multiple_of(interval);
        self.histogram_interval.is_some_and(due)
    }

    /// `divisor` makes of the gathered gradients those of the mean loss.
    pub(crate) fn count_elements(&self, divisor: &Tensor) -> Result<Vec<Histogram>> {
        let divisor = divisor.reshape(1)?.to_scalar::<f32>()?;
        let scale = 1.0 / divisor.max(f32::MIN_POSITIVE);
        let mut histograms = Vec::new();
        let trained = || self.params.iter().filter(|(_, it)| it.is_trainable());
        for (spec, parameter) in trained() {
            if let Some(gradient) = parameter.grad() {
                let mut values = on_host(&gradient)?;
                values.iter_mut().for_each(|x| *x *= scale);
                let name = format!("gradients/{}", spec.path);
                histograms.push(Histogram::of(name, &values));
            }
        }
        for (spec, parameter) in trained() {
            let values = on_host(&parameter.value())?;
            let name = format!("parameters/{}", spec.path);
            histograms.push(Histogram::of(name, &values));
        }
        Ok(histograms)
    }
}

fn on_host(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.to_vec::<f32>()?)
}
