//! The groups of kernels that the device is tried with: a small computation each, to be made on the CPU too.

use tt_tensor::fused::{self, Attention};
use tt_tensor::{
    AdamParams, CrossEntropyParams, DType, Device, Parameter, Result, Seed, Tape, Tensor,
    UpdateRule,
};

pub(super) struct Group {
    pub(super) name: &'static str,
    compute: fn(Device) -> Result<Tensor>,
}

pub(super) const GROUPS: &[Group] = &[
    group("copy", |device| input(device)?.t()?.contiguous()),
    group("element-wise", |device| {
        let x = input(device)?;
        x.mul(&x.sigmoid()?)?.add(&x)
    }),
    group("reduce", |device| input(device)?.sum(&[1])),
    group("softmax", |device| input(device)?.softmax(1)),
    group("index", |device| {
        let ids = Tensor::from_slice(&[5_u32, 0, 36, 5], 4, device)?;
        input(device)?.index_select(&ids, 0)
    }),
    group("matmul", |device| gradient(device, |x| x.matmul(&x.t()?))),
    group("norm", |device| {
        // Of equal weights the gradient would be 0.
        let weight: Vec<_> = (0..COLUMNS).map(|i| i as f32 / COLUMNS as f32).collect();
        let weight = Tensor::from_slice(&weight, COLUMNS, device)?;
        gradient(device, move |x| {
            fused::rms_norm(x, &weight, 1e-6, DType::F32)
        })
    }),
    group("layer norm", |device| {
        let weight: Vec<_> = (0..COLUMNS).map(|i| i as f32 / COLUMNS as f32).collect();
        let weight = Tensor::from_slice(&weight, COLUMNS, device)?;
        gradient(device, move |x| {
            fused::layer_norm(x, &weight, &weight, 1e-5, DType::F32)
        })
    }),
    group("rope", |device| {
        let (cos, sin) = fused::rope_tables(&[1.0, 0.1], ROWS, device)?;
        let positions: Vec<u32> = (0..ROWS as u32).collect();
        let positions = Tensor::from_slice(&positions, (1, ROWS), device)?;
        gradient(device, move |x| {
            fused::rope(&heads(x)?, &cos, &sin, &positions)
        })
    }),
    group("swiglu", |device| {
        gradient(device, |x| fused::swiglu(x, &x.sqr()?))
    }),
    group("gelu", |device| {
        gradient(device, |x| x.gelu()?.add(&x.gelu_tanh()?))
    }),
    group("attention", |device| {
        let causal = Attention {
            causal: true,
            ..Attention::default()
        };
        gradient(device, move |x| {
            let x = heads(x)?;
            fused::attention(&x, &x, &x, &causal)
        })
    }),
    group("loss", |device| {
        // Not a row's own, whose loss would be the difference of nearly equal numbers.
        let labels: Vec<i64> = (0..ROWS as i64).map(|i| (i + 5) % ROWS as i64).collect();
        let labels = Tensor::from_slice(&labels, ROWS, device)?;
        gradient(device, move |x| {
            let params = CrossEntropyParams {
                ignore_index: -100,
                label_smoothing: 0.0,
                z_loss: 0.0,
            };
            Ok(fused::linear_cross_entropy(x, x, &labels, params)?.sum)
        })
    }),
    group("dropout", |device| {
        fused::dropout(&input(device)?, 0.5, Seed::new(0).key())
    }),
    group("optimizer", |device| {
        let rule = UpdateRule::Adam(AdamParams {
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            decoupled: true,
            amsgrad: false,
            step: 1,
        });
        let (param, grad, scale) = (input(device)?, input(device)?, Tensor::ones(1, device)?);
        let states = [
            Tensor::zeros((ROWS, COLUMNS), device)?,
            Tensor::zeros((ROWS, COLUMNS), device)?,
        ];
        fused::optimizer_step(&rule, &param, &grad, &scale, &states.each_ref(), None)?;
        Ok(param)
    }),
];

const fn group(name: &'static str, compute: fn(Device) -> Result<Tensor>) -> Group {
    Group { name, compute }
}

impl Group {
    /// The largest error on `device`, relative to the largest magnitude of the CPU's result.
    pub(super) fn relative_error(&self, device: Device) -> Result<f32> {
        let values = |device| {
            (self.compute)(device)?
                .to_dtype(DType::F32)?
                .to_vec::<f32>()
        };
        let (want, have) = (values(Device::Cpu)?, values(device)?);
        let largest = want.iter().fold(0_f32, |max, x| max.max(x.abs()));
        let errors = want
            .iter()
            .zip(&have)
            .map(|(want, have)| (want - have).abs());
        // Not `f32::max`, which passes over NaN.
        let worst = errors.fold(0_f32, |max, x| if x <= max { max } else { x });
        Ok(worst / largest)
    }
}

/// Sizes that fill no lane evenly.
const ROWS: usize = 37;
const COLUMNS: usize = 60;

/// `[ROWS, COLUMNS]`, f32.
fn input(device: Device) -> Result<Tensor> {
    let values: Vec<_> = (0..ROWS * COLUMNS)
        .map(|i| (i as f32 * 0.37).sin())
        .collect();
    Tensor::from_slice(&values, (ROWS, COLUMNS), device)
}

/// `[1, ROWS, 15, 4]`.
fn heads(x: &Tensor) -> Result<Tensor> {
    x.reshape((1, ROWS, COLUMNS / 4, 4))
}

/// The gradient of the sum of squares of `f(input)`: the kernels of `f`, forward and backward.
fn gradient(device: Device, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let parameter = Parameter::new("x", input(device)?);
    let tape = Tape::new();
    let loss = f(&tape.watch(&parameter))?.sqr()?.sum_all()?;
    tape.backward(&loss)?;
    Ok(parameter.grad().expect("x is watched"))
}
