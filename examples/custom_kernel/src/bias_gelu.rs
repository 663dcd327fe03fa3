//! `gelu(x + bias)` in one operation, and its kernels for the TPU.
//!
//! `x` is `[.., D]` of a float type, `bias` `[D]` f32; GELU is the one by tanh, as in GPT-2. Arithmetic is f32, rounded once.

use tpu_train::tensor::{
    DType, Device, Error, Operation, Result, Shape, Tensor, TpuDevice, Undone, apply,
};
use tpu_train::tpu::{OwnModule, dtype_code, kernels, own_module};

static MODULE: OwnModule = own_module!("bias_gelu");

kernels! {
    in MODULE;

    Forward = "bias_gelu" {
        x: u64, bias: u64, dy: u64, y: u64, rows: u64, cols: u64, dtype: u32, reserved: u32,
    }

    Backward = "bias_gelu_backward" {
        x: u64, bias: u64, dy: u64, dx: u64, rows: u64, cols: u64, dtype: u32, reserved: u32,
    }
}

/// `gelu(x + bias)`, of `x`'s shape and type.
pub fn bias_gelu(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    apply(BiasGelu, &[x, bias])
}

struct BiasGelu;

impl Operation for BiasGelu {
    fn name(&self) -> &'static str {
        "bias_gelu"
    }

    fn result(&self, inputs: &[Tensor]) -> Result<(Shape, DType)> {
        let (x, bias) = (&inputs[0], &inputs[1]);
        let fits = x.dims().last() == bias.dims().last() && bias.rank() == 1;
        if !fits || bias.dtype() != DType::F32 || !x.dtype().is_float() {
            let why = format!("x is {x:?}, bias {bias:?}");
            return Err(Error::invalid(self.name(), why));
        }
        Ok((x.shape().clone(), x.dtype()))
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let x = &inputs[0];
        let y: Vec<f32> = sums(inputs)?
            .iter()
            .map(|z| value_and_slope(*z).0)
            .collect();
        Tensor::from_slice(&y, x.shape().clone(), Device::Cpu)?.to_dtype(x.dtype())
    }

    fn backward(&self, undone: &Undone) -> Result<Vec<Option<Tensor>>> {
        let x = &undone.inputs[0];
        let dy = undone.dy.to_dtype(DType::F32)?.to_vec::<f32>()?;
        let sums = sums(undone.inputs)?;
        let dx: Vec<f32> = sums
            .iter()
            .zip(dy)
            .map(|(z, dy)| value_and_slope(*z).1 * dy)
            .collect();
        let dx = Tensor::from_slice(&dx, x.shape().clone(), Device::Cpu)?;
        with_bias(dx.to_dtype(x.dtype())?, undone)
    }

    fn forward_on_tpu(&self, tpu: TpuDevice, inputs: &[Tensor]) -> Result<Option<Tensor>> {
        let x = &inputs[0];
        let y = Tensor::uninitialised(x.shape().clone(), x.dtype(), x.device())?;
        let (rows, cols) = rows_and_cols(x);
        if rows * cols > 0 {
            tpu.launch(Forward {
                x: x.tpu_address()?,
                bias: inputs[1].tpu_address()?,
                y: y.tpu_address()?,
                rows: rows as u64,
                cols: cols as u64,
                dtype: dtype_code(x.dtype())?,
                ..Forward::default()
            })?;
        }
        Ok(Some(y))
    }

    fn backward_on_tpu(
        &self,
        tpu: TpuDevice,
        undone: &Undone,
    ) -> Result<Option<Vec<Option<Tensor>>>> {
        let x = &undone.inputs[0];
        let dx = Tensor::uninitialised(x.shape().clone(), x.dtype(), x.device())?;
        let (rows, cols) = rows_and_cols(x);
        if rows * cols > 0 {
            tpu.launch(Backward {
                x: x.tpu_address()?,
                bias: undone.inputs[1].tpu_address()?,
                dy: undone.dy.tpu_address()?,
                dx: dx.tpu_address()?,
                rows: rows as u64,
                cols: cols as u64,
                dtype: dtype_code(x.dtype())?,
                ..Backward::default()
            })?;
        }
        with_bias(dx, undone).map(Some)
    }
}

fn rows_and_cols(x: &Tensor) -> (usize, usize) {
    let cols = x.dims().last().copied().unwrap_or(1);
    (x.elem_count() / cols.max(1), cols)
}

/// `dx`, and the gradient of the bias: the sum of its rows, by the device's own kernel.
fn with_bias(dx: Tensor, undone: &Undone) -> Result<Vec<Option<Tensor>>> {
    let sum = || {
        dx.to_dtype(DType::F32)?
            .reshape(rows_and_cols(&dx))?
            .sum(&[0])
    };
    let dbias = undone.wanted[1].then(sum).transpose()?;
    Ok(vec![Some(dx), dbias])
}

/// `x + bias`, on the host.
fn sums(inputs: &[Tensor]) -> Result<Vec<f32>> {
    inputs[0].to_dtype(DType::F32)?.add(&inputs[1])?.to_vec()
}

/// GELU of `z`, and its derivative.
fn value_and_slope(z: f32) -> (f32, f32) {
    const TWICE: f32 = 1.595_769; // 2 sqrt(2/pi)
    const CUBIC: f32 = 0.044_715;
    let gate = 1.0 / (1.0 + (-TWICE * (z + CUBIC * z * z * z)).exp()); // (1 + tanh(u)) / 2
    let slope = TWICE * (1.0 + 3.0 * CUBIC * z * z);
    (z * gate, gate + z * gate * (1.0 - gate) * slope)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tpu_train::tensor::{Parameter, Seed, Tape};
    use tt_testkit::{check_gradients, on_tpu, relative_l2};

    #[test]
    fn the_reference_is_gelu_by_tanh_and_its_gradient() {
        for (z, expected) in [
            (-3.0, -0.003_637_392),
            (0.0, 0.0),
            (0.5, 0.345_714),
            (2.0, 1.954_597_7),
        ] {
            assert!((value_and_slope(z).0 - expected).abs() < 1e-6, "gelu({z})");
        }
        let x: Vec<f32> = (0..12).map(|i| i as f32 / 2.5 - 2.0).collect();
        let inputs = [
            ("x", vec![3, 4], x),
            ("bias", vec![4], vec![0.3, -0.2, 0.0, 1.0]),
        ];
        check_gradients(Device::Cpu, &inputs, 1e-2, 2e-3, |inputs| {
            bias_gelu(&inputs[0], &inputs[1])
        });
    }

    /// The value, and the gradients of `x` and the bias, f32.
    fn all_of(device: Device, shape: [usize; 2], dtype: DType) -> Result<[Vec<f32>; 3]> {
        let draw = |seed, shape: &[usize]| Tensor::randn(0.0, 2.0, shape, Seed::new(seed), device);
        // Rounded first, so that both devices have the same operands.
        let x = draw(1, &shape)?.to_dtype(dtype)?.to_dtype(DType::F32)?;
        let (x, bias) = (
            Parameter::new("x", x),
            Parameter::new("bias", draw(2, &shape[1..])?),
        );
        let tape = Tape::new();
        let y = bias_gelu(&tape.watch(&x).to_dtype(dtype)?, &tape.watch(&bias))?;
        // Of one sign, so that the sum of many rows keeps its digits.
        let dy = Tensor::rand(0.5, 1.5, &shape[..], Seed::new(3), device)?;
        let loss = y.to_dtype(DType::F32)?.mul(&dy)?.sum_all()?;
        tape.backward(&loss)?;
        let grad = |of: &Parameter| of.grad().expect("a gradient").to_vec();
        Ok([
            y.detach().to_dtype(DType::F32)?.to_vec()?,
            grad(&x)?,
            grad(&bias)?,
        ])
    }

    #[test]
    fn a_closed_gate_lets_nothing_through_and_an_open_one_everything() {
        on_tpu(|tpu| {
            let z = [-1e4f32, -50.0, -10.0, -1.0, 0.0, 1.0, 10.0, 50.0, 1e4];
            let x = Parameter::new("x", Tensor::from_slice(&z, 9, tpu).unwrap());
            let tape = Tape::new();
            let y = bias_gelu(&tape.watch(&x), &Tensor::zeros(9, tpu).unwrap()).unwrap();
            tape.backward(&y.sum_all().unwrap()).unwrap();
            let (y, dx) = (
                y.detach().to_vec::<f32>(),
                x.grad().unwrap().to_vec::<f32>(),
            );
            for ((z, y), dx) in z.iter().zip(y.unwrap()).zip(dx.unwrap()) {
                let (value, slope) = value_and_slope(*z);
                assert!((y - value).abs() <= 1e-6 * z.abs(), "gelu({z}) = {y}");
                assert!((dx - slope).abs() <= 2e-6, "gelu'({z}) = {dx}");
            }
        });
    }

    /// Many rows in a lane, one in each, one in pieces; more than the lanes and the cores have at once.
    #[test]
    fn kernels_give_what_the_reference_gives() {
        on_tpu(|tpu| {
            for shape in [[1, 1], [3, 5], [300, 33], [70, 4100], [600, 1000]] {
                for (dtype, bound) in [(DType::F32, 1e-6), (DType::BF16, 4e-3), (DType::F16, 5e-4)]
                {
                    let [there, here] =
                        [tpu, Device::Cpu].map(|it| all_of(it, shape, dtype).unwrap());
                    for (what, (there, here)) in
                        ["y", "dx", "dbias"].iter().zip(there.iter().zip(&here))
                    {
                        let error = relative_l2(there, here);
                        assert!(
                            error <= bound,
                            "{what} of {shape:?} in {dtype:?}: {error:.1e}"
                        );
                    }
                }
            }
            let Device::Tpu(tpu) = tpu else {
                unreachable!("by name")
            };
            let launches = tpu.stats().launches;
            assert!(launches["bias_gelu"] >= 15 && launches["bias_gelu_backward"] >= 15);
        });
    }
}
