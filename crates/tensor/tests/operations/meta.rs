//! On the device without memory every operation gives the shape and dtype that it gives on the CPU, and takes the bytes
//! of that; so do gradients.

use tt_tensor::{
    CrossEntropyParams, DType, Device, MetaDevice, Parameter, Result, Seed, Tape, Tensor, fused,
};

type Op = fn(&Tensor) -> Result<Tensor>;

/// Operations of an f32 `[4, 6]` that make a buffer of their own.
const OPS: &[(&str, Op)] = &[
    ("affine", |x| x.affine(2.0, 1.0)),
    ("exp", |x| x.exp()),
    ("powf", |x| x.powf(2.0)),
    ("add", |x| x.add(x)),
    ("broadcast", |x| x.narrow(0, 0, 1)?.mul(x)),
    ("compare", |x| x.gt(x)),
    ("where", |x| x.gt(x)?.where_cond(x, x)),
    ("sum", |x| x.sum_keepdim(&[0])),
    ("sum_all", |x| x.sum_all()),
    ("max", |x| x.max_keepdim(1)),
    ("argmax", |x| x.argmax(1)),
    ("softmax", |x| x.softmax(1)),
    ("transposed", |x| x.t()?.contiguous()),
    ("cat", |x| {
        Tensor::cat(&[x.clone(), x.clone(), x.clone()], 1)
    }),
    ("to_dtype", |x| x.to_dtype(DType::BF16)),
    ("matmul", |x| x.matmul(&x.t()?)),
    ("linear", |x| fused::linear(x, x, None)),
    ("swiglu", |x| fused::swiglu(x, x)),
    ("gelu", |x| x.gelu()),
    ("gelu_tanh", |x| x.gelu_tanh()),
    ("layer_norm", |x| {
        let weight = Tensor::ones(6, x.device())?;
        fused::layer_norm(x, &weight, &weight, 1e-5, DType::BF16)
    }),
    ("dropout", |x| fused::dropout(x, 0.5, Seed::new(0).key())),
    ("zeros", |x| Tensor::zeros((3, 5), x.device())),
    ("randn", |x| {
        Tensor::randn(0.0, 1.0, 7, Seed::new(0), x.device())
    }),
];

fn input(device: Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..24).map(|i| i as f32 / 24.0).collect();
    Tensor::from_slice(&values, (4, 6), device)
}

#[test]
fn an_operation_gives_the_same_shape_and_takes_the_bytes_of_its_result() -> Result<()> {
    let meta = MetaDevice::new();
    let x = input(Device::Meta(meta))?;
    for (name, op) in OPS {
        let expected = op(&input(Device::Cpu)?)?;
        let before = meta.usage().live_bytes;
        let y = op(&x)?;
        assert_eq!(
            (y.dims(), y.dtype()),
            (expected.dims(), expected.dtype()),
            "{name}"
        );
        let bytes = y.elem_count() * y.dtype().size_in_bytes();
        assert_eq!(meta.usage().live_bytes - before, bytes as u64, "{name}");
    }
    assert_eq!(
        meta.usage().live_bytes,
        4 * 24,
        "nothing but the input is left"
    );
    Ok(())
}

/// Gradients of a weight `[4, 6]` through what a model is made of.
fn gradient(device: Device) -> Result<Tensor> {
    let weight = Parameter::new("w", input(device)?);
    let tape = Tape::new();
    let w = tape.watch(&weight);
    let ids = Tensor::from_slice(&[0u32, 1, 2, 3], (1, 4), device)?;
    let x = fused::embedding(&w, &ids)?; // [1, 4, 6]
    let x = fused::rms_norm(&x, &Tensor::ones(6, device)?, 1e-6, DType::F32)?;
    let ones = Tensor::ones(6, device)?;
    let x = fused::layer_norm(&x, &ones, &ones, 1e-5, DType::F32)?.gelu()?;
    let heads = x.reshape((1, 4, 1, 6))?;
    let (cos, sin) = fused::rope_tables(&[1.0, 0.5, 0.25], 4, device)?;
    let heads = fused::rope(&heads, &cos, &sin, &ids)?;
    let options = fused::Attention {
        causal: true,
        ..fused::Attention::default()
    };
    let x = fused::attention(&heads, &heads, &heads, &options)?.reshape((4, 6))?;
    let labels = Tensor::from_slice(&[1i64, 2, 3, 0], 4, device)?;
    let params = CrossEntropyParams {
        ignore_index: -100,
        label_smoothing: 0.0,
        z_loss: 0.0,
    };
    tape.backward(&fused::linear_cross_entropy(&x, &w, &labels, params)?.sum)?;
    Ok(weight.take_grad().expect("a gradient"))
}

#[test]
fn gradients_have_their_shapes_and_nothing_is_left_of_the_passes() -> Result<()> {
    let meta = MetaDevice::new();
    let grad = gradient(Device::Meta(meta))?;
    assert_eq!(grad.dims(), gradient(Device::Cpu)?.dims());
    assert_eq!(meta.usage().live_bytes, 4 * 24, "the gradient");
    assert_eq!(grad.to_vec::<f32>()?, [0.0; 24], "what is read is 0");
    Ok(())
}

#[test]
fn devices_do_not_mix() -> Result<()> {
    let (a, b) = (input(Device::Meta(MetaDevice::new()))?, input(Device::Cpu)?);
    assert!(a.add(&b).is_err());
    assert!(a.add(&input(Device::Meta(MetaDevice::new()))?).is_err());
    Ok(())
}
