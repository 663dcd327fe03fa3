//! How much of what a device could compute a step uses.
//!
//! Operations are those of the model: the products and attention of a loss and its gradients on full rows, a causal attention
//! with the half that it looks at, without what remat or a kernel makes a second time, and without optimizers. So a run is no
//! better for computing more, as in "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tt_collators::Batch;
use tt_models::Model;
use tt_nn::ParamTree;
use tt_optimizers::Optimizers;
use tt_tensor::{Device, MetaDevice, Precision, Seed, Tensor, fused};

use crate::Trainer;
use crate::error::Result;
use crate::training::Training;

/// What there is to use, and what a micro-batch uses of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilization {
    /// Operations of a micro-batch, see [`model_flops`].
    pub flops_per_micro_batch: u64,
    /// Operations that the device makes in a second, at best.
    pub peak_flops: f64,
}

/// Operations of the loss of `batch` and its gradients; an addition and a multiplication are two. `params` are on `device`.
pub fn model_flops(
    device: MetaDevice,
    model: Arc<dyn Model>,
    params: ParamTree,
    trainer: &dyn Trainer,
    precision: Precision,
    batch: &Batch,
) -> Result<u64> {
    let optimizers = Optimizers::new(Vec::new());
    let meta = Device::Meta(device);
    let mut training = Training::new(model, params, optimizers, Seed::new(0), meta);
    training.precision = precision;
    training.count(std::slice::from_ref(batch), |batch| trainer.counts(batch))?;
    let before = device.usage();
    training.accumulate(std::slice::from_ref(batch), |fwd, model, batch| {
        trainer.loss(fwd, model, batch)
    })?;
    let usage = device.usage();
    let again = usage.recomputed_flops - before.recomputed_flops;
    Ok(usage.flops - before.flops - again)
}

/// Operations a second of a large product in `precision`: the best of those that a fifth of a second has room for.
pub fn measured_peak_flops(device: Device, precision: Precision) -> Result<f64> {
    const SIZE: usize = 1024;
    const TIME: Duration = Duration::from_millis(200);
    let fill = |seed: usize| -> Result<Tensor> {
        let values: Vec<f32> = (0..SIZE * SIZE)
            .map(|i| ((i * seed) % 17) as f32 / 17.0 - 0.5)
            .collect();
        let values = Tensor::from_slice(&values, (SIZE, SIZE), device)?;
        Ok(values.to_dtype(precision.dtype())?)
    };
    let (x, weight) = (fill(3)?, fill(5)?);
    let begun = Instant::now();
    let mut best = Duration::MAX;
    let mut is_warm = false;
    while !is_warm || best == Duration::MAX || begun.elapsed() < TIME {
        let started = Instant::now();
        let y = fused::linear(&x, &weight, None)?;
        // Reading an element waits for the product.
        let one = y.narrow(0, 0, 1)?.narrow(1, 0, 1)?;
        one.to_dtype(tt_tensor::DType::F32)?.to_vec::<f32>()?;
        if is_warm {
            best = best.min(started.elapsed());
        }
        is_warm = true;
    }
    Ok(2.0 * (SIZE * SIZE * SIZE) as f64 / best.as_secs_f64())
}
