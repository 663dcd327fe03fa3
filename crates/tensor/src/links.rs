//! Tensors on several chips, put together or summed over the chips' links.

use tt_tpu::{Collective, TpuStorage};

use crate::device::{Device, Output};
use crate::error::Error;
use crate::tensor::Tensor;

impl Tensor {
    /// What `collective` makes of this tensor and those that the linked chips give, off the tape and in one dim. `meet` comes when
    /// nothing is left that may fail here: it waits until the others are as far, as this chip then waits for theirs without end.
    /// Errors: the tensor is on no chip that is linked, or cannot be shared out; what `meet` says.
    pub fn over_links<E: From<Error>>(
        &self,
        collective: Collective,
        meet: impl FnOnce() -> Result<(), E>,
    ) -> Result<Tensor, E> {
        let Device::Tpu(tpu) = self.device() else {
            return Err(Error::DeviceMismatch { op: "over_links" }.into());
        };
        let x = self.detach().contiguous()?;
        let received = tpu
            .received(collective, x.elem_count())
            .map_err(Error::from)?;
        let mut y: Output = self.device().alloc(self.dtype(), received)?;
        meet()?;
        let reading = x.read();
        let collected = tpu.collect(collective, reading.view::<TpuStorage>()?, y.of()?);
        collected.map_err(Error::from)?;
        Ok(Self::from_output(y, self.dtype(), self.device(), received))
    }
}
