//! Operations of a user's own: a reference on the CPU, forward and gradient, and kernels of the TPU where there are some.
//!
//! [`apply`] runs one where its operands are, and records it: so it works under recomputation, in `plan`, and in either mode
//! of launches. Without kernels a TPU's operands go to the CPU and the results back, which is counted by name and forbidden
//! by `device.fallback=error`, as with our own operations.

use std::sync::Arc;

use candle_core::{DType, Shape};
use tt_tpu::TpuDevice;

use crate::device::{Device, common_device};
use crate::error::{Error, Result};
use crate::profile;
use crate::tape::{Saved, record};
use crate::tensor::Tensor;

/// An operation of a user's own on tensors of one device.
///
/// Operands are contiguous and off the tape. A mistake in what a method gives is an error that names the operation.
pub trait Operation: Send + Sync + 'static {
    /// In errors, traces, and the count of what ran on the CPU.
    fn name(&self) -> &'static str;

    /// Shape and type of the result. Error: the operands do not fit.
    ///
    /// All that there is of it on the device without memory, where `plan` rehearses a run.
    fn result(&self, inputs: &[Tensor]) -> Result<(Shape, DType)>;

    /// The result, on the CPU: the reference that kernels are held against.
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor>;

    /// The gradient of each operand, of its shape and type, on the CPU; `None` where none is wanted.
    fn backward(&self, undone: &Undone) -> Result<Vec<Option<Tensor>>>;

    /// The result, by kernels of the TPU; `None`: there is none for these operands.
    fn forward_on_tpu(&self, tpu: TpuDevice, inputs: &[Tensor]) -> Result<Option<Tensor>> {
        let _ = (tpu, inputs);
        Ok(None)
    }

    /// The gradients, by kernels of the TPU; `None`: there is none for these operands.
    fn backward_on_tpu(
        &self,
        tpu: TpuDevice,
        undone: &Undone,
    ) -> Result<Option<Vec<Option<Tensor>>>> {
        let _ = (tpu, undone);
        Ok(None)
    }
}

/// What a gradient is made of.
pub struct Undone<'a> {
    /// The operands, as they were.
    pub inputs: &'a [Tensor],
    /// The gradient of the result, contiguous, of its shape and type.
    pub dy: &'a Tensor,
    /// Of which operands the gradient is of use.
    pub wanted: &'a [bool],
}

/// The result of `operation` on `inputs`, recorded on their tape.
pub fn apply(operation: impl Operation, inputs: &[&Tensor]) -> Result<Tensor> {
    let operation = Arc::new(operation);
    let name = operation.name();
    let devices: Vec<Device> = inputs.iter().map(|input| input.device).collect();
    let device = common_device(name, &devices)?;
    let y = {
        let inputs = dense(inputs.iter().copied())?;
        let (shape, dtype) = operation.result(&inputs)?;
        let _span = profile::span("kernel", || name);
        let y = forward(&*operation, device, &inputs, &shape, dtype)?;
        expect(name, "the result", &y, (&shape, dtype, device))?;
        y
    };
    let saved: Vec<Saved> = inputs.iter().map(|input| Saved::new(input)).collect();
    record(name, inputs, y.detach(), move |g| {
        let values: Vec<Tensor> = saved.iter().map(Saved::get).collect();
        let inputs = dense(&values)?;
        let wanted: Vec<bool> = (0..inputs.len()).map(|i| g.wanted(i)).collect();
        let undone = Undone {
            inputs: &inputs,
            dy: &g.output().contiguous()?,
            wanted: &wanted,
        };
        let grads = backward(&*operation, device, &undone)?;
        if grads.len() != inputs.len() {
            let why = format!("{} gradients of {} operands", grads.len(), inputs.len());
            return Err(Error::invalid(name, why));
        }
        for (i, (grad, input)) in grads.into_iter().zip(&inputs).enumerate() {
            if !wanted[i] {
                continue;
            }
            let what = format!("the gradient of operand {i}");
            let grad =
                grad.ok_or_else(|| Error::invalid(name, format!("{what} is wanted and missing")))?;
            expect(
                name,
                &what,
                &grad,
                (input.shape(), input.dtype, input.device),
            )?;
            g.add(i, grad.detach())?;
        }
        Ok(())
    })
}

fn forward(
    operation: &dyn Operation,
    device: Device,
    inputs: &[Tensor],
    shape: &Shape,
    dtype: DType,
) -> Result<Tensor> {
    match device {
        Device::Cpu => operation.forward(inputs),
        Device::Meta(_) => Tensor::uninitialised(shape.clone(), dtype, device),
        Device::Tpu(tpu) => match operation.forward_on_tpu(tpu, inputs)? {
            Some(y) => Ok(y),
            None => {
                tpu.fall_back(operation.name())?;
                operation.forward(&all_to(Device::Cpu, inputs)?)?.to(device)
            }
        },
    }
}

fn backward(
    operation: &dyn Operation,
    device: Device,
    undone: &Undone,
) -> Result<Vec<Option<Tensor>>> {
    match device {
        Device::Cpu => operation.backward(undone),
        Device::Meta(_) => {
            let like =
                |input: &Tensor| Tensor::uninitialised(input.shape().clone(), input.dtype, device);
            let grads = undone.inputs.iter().zip(undone.wanted);
            grads
                .map(|(input, wanted)| wanted.then(|| like(input)).transpose())
                .collect()
        }
        Device::Tpu(tpu) => {
            if let Some(grads) = operation.backward_on_tpu(tpu, undone)? {
                return Ok(grads);
            }
            tpu.fall_back(operation.name())?;
            let grads = operation.backward(&Undone {
                inputs: &all_to(Device::Cpu, undone.inputs)?,
                dy: &undone.dy.to(Device::Cpu)?,
                wanted: undone.wanted,
            })?;
            let back = |grad: Option<Tensor>| grad.map(|it| it.to(device)).transpose();
            grads.into_iter().map(back).collect()
        }
    }
}

/// Contiguous and off the tape.
fn dense<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<Vec<Tensor>> {
    let dense = |tensor: &Tensor| tensor.detach().contiguous();
    tensors.into_iter().map(dense).collect()
}

fn all_to(device: Device, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    tensors.iter().map(|tensor| tensor.to(device)).collect()
}

fn expect(
    name: &'static str,
    what: &str,
    tensor: &Tensor,
    (shape, dtype, device): (&Shape, DType, Device),
) -> Result<()> {
    let (have, is_there) = (tensor.shape(), tensor.device == device);
    if have == shape && tensor.dtype == dtype && is_there {
        return Ok(());
    }
    let (dims, wanted) = (have.dims(), shape.dims());
    let elsewhere = if is_there { "" } else { ", elsewhere" };
    let got = tensor.dtype;
    Err(Error::invalid(
        name,
        format!("{what} is {dims:?} of {got:?}{elsewhere} instead of {wanted:?} of {dtype:?}"),
    ))
}
