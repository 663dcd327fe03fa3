//! What steps are measured against, where `device.peak_tflops` asks for it.

use tt_collators::{Batch, BatchSpec, Pipeline};
use tt_config::{Composition, Diagnostics};
use tt_nn::ParamSpec;
use tt_tensor::{Device, MetaDevice};
use tt_train::{Utilization, measured_peak_flops, model_flops};

use super::{Setup, problem};
use crate::device::PeakTflops;
use crate::failure::Failure;
use crate::out;

const KEY: &str = "device.peak_tflops";

impl Setup {
    /// Takes no time unless it is asked for.
    pub(super) fn utilization(
        &self,
        composition: &Composition,
        data: &Pipeline,
        device: Device,
    ) -> Result<Option<Utilization>, Failure> {
        let peak_flops = match self.config.device.peak_tflops {
            None => return Ok(None),
            Some(PeakTflops::Given(_)) => self.given_peak_flops(composition)?,
            Some(PeakTflops::Measured(_)) => None,
        };
        let measured = || -> Result<f64, Failure> {
            let precision = self.config.precision.into();
            let peak = measured_peak_flops(device, precision).map_err(Failure::run)?;
            out::line(format!(
                "peak of the device: {:.3} TFLOP/s, measured",
                peak / 1e12
            ));
            Ok(peak)
        };
        let peak_flops = peak_flops.map_or_else(measured, Ok)?;
        let spec = data.batch_spec().map_err(Failure::run)?;
        Ok(Some(Utilization {
            flops_per_micro_batch: self.flops_per_micro_batch(&spec)?,
            peak_flops,
        }))
    }

    /// What `device.peak_tflops` says, if it is a number. Error: one that is no speed.
    pub(crate) fn given_peak_flops(
        &self,
        composition: &Composition,
    ) -> Result<Option<f64>, Diagnostics> {
        match self.config.device.peak_tflops {
            Some(PeakTflops::Given(peak)) if peak.is_finite() && peak > 0.0 => {
                Ok(Some(peak * 1e12))
            }
            Some(PeakTflops::Given(peak)) => {
                let why = format!("`{KEY}`: {peak} is no speed; give a number over 0, or auto");
                Err(problem(composition, KEY, why).into())
            }
            Some(PeakTflops::Measured(_)) | None => Ok(None),
        }
    }

    /// Operations of the model for a full micro-batch.
    pub(crate) fn flops_per_micro_batch(&self, spec: &BatchSpec) -> Result<u64, Failure> {
        let precision = self.config.precision.into();
        let meta = MetaDevice::new();
        let params = self
            .unallocated_params(meta, &ParamSpec::whole)
            .map_err(Failure::run)?;
        let rows = self.trainer_config.micro_batch_size;
        let batch = Batch::full(rows, self.config.data.sequence_length, spec);
        let (model, trainer) = (self.model.clone(), &*self.trainer);
        let flops = model_flops(meta, model, params, trainer, precision, &batch);
        flops.map_err(Failure::run)
    }
}
