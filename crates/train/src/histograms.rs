//! How the elements of gradients and weights are spread in a step, for who looks at a run.
//!
//! Of each trained parameter: its gradient of the mean loss, before clipping, and its weight before the step. Of what ranks
//! share each counts its part, within the bounds of the whole, and what several have is counted once.

use tt_metrics::{Histogram, bounds};
use tt_tensor::{DType, Parameter, Tensor};

use crate::error::Result;
use crate::reduce::found_by_all;
use crate::training::Training;

/// A tensor to be counted, times `scale`.
struct Counted<'a> {
    name: String,
    tensor: Tensor,
    scale: f32,
    parameter: &'a Parameter,
}

impl Training {
    /// Whether the step that is being made is one of those that are looked at.
    pub(crate) fn wants_histograms(&self) -> bool {
        let due = |interval: u64| interval > 0 && (self.step + 1).is_multiple_of(interval);
        self.histogram_interval.is_some_and(due)
    }

    /// `divisor` makes of the gathered gradients those of the mean loss. The same on all ranks, which do this together.
    pub(crate) fn count_elements(&self, divisor: &Tensor) -> Result<Vec<Histogram>> {
        let divisor = divisor.reshape(1)?.to_scalar::<f32>()?;
        let trained = || self.params.iter().filter(|(_, it)| it.is_trainable());
        let gradients = trained().filter_map(|(spec, parameter)| {
            Some(Counted {
                name: format!("gradients/{}", spec.path),
                tensor: parameter.grad()?,
                scale: 1.0 / divisor.max(f32::MIN_POSITIVE),
                parameter,
            })
        });
        let weights = trained().map(|(spec, parameter)| Counted {
            name: format!("parameters/{}", spec.path),
            tensor: parameter.local(),
            scale: 1.0,
            parameter,
        });
        let all: Vec<_> = gradients.chain(weights).collect();
        if self.ranks.is_none() {
            let count = |it: &Counted| Ok(Histogram::of(&it.name, &self.counted(it)?));
            return all.iter().map(count).collect();
        }
        let own = all.iter().map(|it| Ok(bounds(&self.counted(it)?)));
        let own: Vec<_> = own.collect::<Result<_>>()?;
        let mut of_ranks = found_by_all(&*self.reduce, &own)?.into_iter();
        let mut of_whole = of_ranks.next().unwrap_or_default();
        for of_rank in of_ranks {
            for (whole, part) in of_whole.iter_mut().zip(of_rank) {
                let ends = [*whole, part].into_iter().flatten();
                let ends: Vec<f32> = ends.flat_map(|(min, max)| [min, max]).collect();
                *whole = bounds(&ends);
            }
        }
        let parts = all
            .iter()
            .zip(of_whole)
            .map(|(it, bounds)| Ok(Histogram::within(&it.name, &self.counted(it)?, bounds)));
        let parts: Vec<_> = parts.collect::<Result<_>>()?;
        let mut of_ranks = found_by_all(&*self.reduce, &parts)?.into_iter();
        let mut sums = of_ranks.next().unwrap_or_default();
        for of_rank in of_ranks {
            for (sum, part) in sums.iter_mut().zip(&of_rank) {
                sum.add(part);
            }
        }
        Ok(sums)
    }

    /// The elements that this rank counts.
    fn counted(&self, it: &Counted) -> Result<Vec<f32>> {
        if !self.reduce.counts(it.parameter) {
            return Ok(Vec::new());
        }
        let mut values = it.tensor.to_dtype(DType::F32)?.to_vec::<f32>()?;
        if it.scale != 1.0 {
            values.iter_mut().for_each(|x| *x *= it.scale);
        }
        Ok(values)
    }
}
