//! What steps are measured against, where `device.peak_tflops` asks for it.

use tt_collators::{Batch, Pipeline};
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
        let precision = self.config.precision.into();
        let peak_flops = match self.config.device.peak_tflops {
            None => return Ok(None),
            Some(PeakTflops::Given(peak)) if peak.is_finite() && peak > 0.0 => peak * 1e12,
            Some(PeakTflops::Given(peak)) => {
                let why = format!("`{KEY}`: {peak} is no speed; give a number over 0, or auto");
                return Err(Diagnostics::from(problem(composition, KEY, why)).into());
            }
            Some(PeakTflops::Measured(_)) => {
                let peak = measured_peak_flops(device, precision).map_err(Failure::run)?;
                out::line(format!(
                    "peak of the device: {:.3} TFLOP/s, measured",
                    peak / 1e12
                ));
                peak
            }
        };
        let meta = MetaDevice::new();
        let params = self
            .unallocated_params(meta, &ParamSpec::whole)
            .map_err(Failure::run)?;
        let spec = data.batch_spec().map_err(Failure::run)?;
        let rows = self.trainer_config.micro_batch_size;
        let batch = Batch::full(rows, data.sequence_length(), &spec);
        let (model, trainer) = (self.model.clone(), &*self.trainer);
        let flops = model_flops(meta, model, params, trainer, precision, &batch);
        Ok(Some(Utilization {
            flops_per_micro_batch: flops.map_err(Failure::run)?,
            peak_flops,
        }))
    }
}
