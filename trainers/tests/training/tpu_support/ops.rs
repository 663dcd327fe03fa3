//! Every operation, as the table lists it: what it is called, its operands, and how it is called.

use tt_tensor::{CrossEntropyParams, DType, Device, Precision, Result, Seed, Tensor, fused};

/// Gives the result of an operation on operands that are tracked.
type Body = fn(&[Tensor], &[Tensor]) -> Result<Tensor>;

pub struct Op {
    pub name: &'static str,
    /// Operands of the type under test.
    pub operands: &'static [&'static [usize]],
    /// Operands that stay f32: weights.
    pub weights: &'static [&'static [usize]],
    pub body: Body,
    /// Operands are in [0.5, 2), for functions that are not defined, or steep, elsewhere.
    pub is_positive: bool,
}

const fn op(name: &'static str, operands: &'static [&'static [usize]], body: Body) -> Op {
    Op {
        name,
        operands,
        weights: &[],
        body,
        is_positive: false,
    }
}

const fn positive(name: &'static str, body: Body) -> Op {
    Op {
        is_positive: true,
        ..op(name, ONE, body)
    }
}

const fn weighted(
    name: &'static str,
    operands: &'static [&'static [usize]],
    weights: &'static [&'static [usize]],
    body: Body,
) -> Op {
    Op {
        weights,
        ..op(name, operands, body)
    }
}

/// Odd sizes: no dim is a multiple of anything that the device likes.
const ONE: &[&[usize]] = &[&[37, 131]];
const TWO: &[&[usize]] = &[&[37, 131], &[37, 131]];
const BROADCAST: &[&[usize]] = &[&[3, 37, 131], &[37, 1]];
/// Queries, keys and values of two sequences, four heads that share two.
const HEADS: &[&[usize]] = &[&[2, 70, 4, 16], &[2, 70, 2, 16], &[2, 70, 2, 16]];

fn u32s(values: impl Iterator<Item = u32>, shape: &[usize], like: &Tensor) -> Result<Tensor> {
    Tensor::from_slice(&values.collect::<Vec<_>>(), shape, like.device())
}

fn segments(like: &Tensor) -> Result<Tensor> {
    u32s((0..140).map(|i| i / 30), &[2, 70], like)
}

/// In the order of the table.
pub const OPS: &[Op] = &[
    op("affine", ONE, |x, _| x[0].affine(1.5, -0.5)),
    positive("powf", |x, _| x[0].powf(1.7)),
    op("exp", ONE, |x, _| x[0].exp()),
    positive("log", |x, _| x[0].log()),
    positive("sqrt", |x, _| x[0].sqrt()),
    op("sqr", ONE, |x, _| x[0].sqr()),
    positive("recip", |x, _| x[0].recip()),
    op("abs", ONE, |x, _| x[0].abs()),
    op("sin", ONE, |x, _| x[0].sin()),
    op("cos", ONE, |x, _| x[0].cos()),
    op("tanh", ONE, |x, _| x[0].tanh()),
    op("sigmoid", ONE, |x, _| x[0].sigmoid()),
    op("relu", ONE, |x, _| x[0].relu()),
    op("silu", ONE, |x, _| x[0].silu()),
    op("gelu (erf)", ONE, |x, _| x[0].gelu()),
    op("gelu (tanh)", ONE, |x, _| x[0].gelu_tanh()),
    op("add", TWO, |x, _| x[0].add(&x[1])),
    op("sub", TWO, |x, _| x[0].sub(&x[1])),
    op("mul", TWO, |x, _| x[0].mul(&x[1])),
    Op {
        is_positive: true,
        ..op("div", TWO, |x, _| x[0].div(&x[1]))
    },
    op("maximum", TWO, |x, _| x[0].maximum(&x[1])),
    op("minimum", TWO, |x, _| x[0].minimum(&x[1])),
    op("add, broadcast", BROADCAST, |x, _| x[0].add(&x[1])),
    op("mul, broadcast", BROADCAST, |x, _| x[0].mul(&x[1])),
    op("compare, where", TWO, |x, _| {
        x[0].gt(&x[1])?.where_cond(&x[0], &x[1].affine(0.5, 0.0)?)
    }),
    op("sum, first dim", ONE, |x, _| x[0].sum(&[0])),
    op("sum, last dim", ONE, |x, _| x[0].sum(&[1])),
    op("sum, all dims", ONE, |x, _| x[0].sum_all()),
    op("mean, middle dim", &[&[5, 37, 13]], |x, _| x[0].mean(&[1])),
    op("max, last dim", ONE, |x, _| x[0].max(1)),
    op("min, first dim", ONE, |x, _| x[0].min(0)),
    op("softmax", ONE, |x, _| x[0].softmax(1)),
    op("log_softmax", ONE, |x, _| x[0].log_softmax(1)),
    op("transpose, contiguous", ONE, |x, _| x[0].t()?.contiguous()),
    op("permute, contiguous", &[&[5, 7, 3, 11]], |x, _| {
        x[0].permute(&[2, 0, 3, 1])?.contiguous()
    }),
    op("narrow, cat", ONE, |x, _| {
        let (left, right) = (x[0].narrow(1, 0, 50)?, x[0].narrow(1, 50, 81)?);
        Tensor::cat(&[right, left], 1)
    }),
    op("expand, contiguous", &[&[37, 1, 13]], |x, _| {
        x[0].expand((37, 5, 13))?.contiguous()
    }),
    op("index_select", ONE, |x, _| {
        x[0].index_select(&u32s((0..60).map(|i| i * 5 % 37), &[60], &x[0])?, 0)
    }),
    op("index_add", &[&[37, 131], &[60, 131]], |x, _| {
        let ids = u32s((0..60).map(|i| i * 5 % 37), &[60], &x[0])?;
        x[0].index_add(&ids, &x[1], 0)
    }),
    op("gather", ONE, |x, _| {
        let ids = u32s((0..37 * 9).map(|i| i * 7 % 131), &[37, 9], &x[0])?;
        x[0].gather(&ids, 1)
    }),
    op("scatter_add", &[&[37, 131], &[37, 9]], |x, _| {
        let ids = u32s((0..37 * 9).map(|i| i * 7 % 131), &[37, 9], &x[0])?;
        x[0].scatter_add(&ids, &x[1], 1)
    }),
    op("matmul", &[&[67, 131], &[131, 35]], |x, _| {
        x[0].matmul(&x[1])
    }),
    op(
        "matmul, batched, transposed",
        &[&[3, 67, 131], &[3, 35, 131]],
        |x, _| x[0].matmul(&x[1].transpose(1, 2)?),
    ),
    weighted(
        "linear with bias",
        &[&[67, 131]],
        &[&[35, 131], &[35]],
        |x, w| fused::linear(&x[0], &w[0], Some(&w[1])),
    ),
    weighted(
        "linear_onto",
        &[&[67, 35], &[67, 131]],
        &[&[35, 131]],
        |x, w| fused::linear_onto(x[0].clone(), &x[1], &w[0]),
    ),
    weighted("rms_norm", ONE, &[&[131]], |x, w| {
        fused::rms_norm(&x[0], &w[0], 1e-6, x[0].dtype())
    }),
    weighted("layer_norm", ONE, &[&[131], &[131]], |x, w| {
        fused::layer_norm(&x[0], &w[0], &w[1], 1e-5, x[0].dtype())
    }),
    op("rope", &[&[2, 35, 3, 16]], |x, _| {
        let frequencies: Vec<f32> = (0..8).map(|i| 10f32.powi(-i)).collect();
        let (cos, sin) = fused::rope_tables(&frequencies, 64, x[0].device())?;
        let positions = u32s((0..70).map(|i| i * 3 % 64), &[2, 35], &x[0])?;
        fused::rope(&x[0], &cos, &sin, &positions)
    }),
    op("swiglu", TWO, |x, _| fused::swiglu(&x[0], &x[1])),
    op("attention, causal, GQA", HEADS, |x, _| {
        let options = fused::Attention {
            causal: true,
            ..fused::Attention::default()
        };
        fused::attention(&x[0], &x[1], &x[2], &options)
    }),
    op("attention, segments, window", HEADS, |x, _| {
        let options = fused::Attention {
            causal: true,
            window: Some(20),
            segments: Some((segments(&x[0])?, segments(&x[0])?)),
            ..fused::Attention::default()
        };
        fused::attention(&x[0], &x[1], &x[2], &options)
    }),
    op("attention, both ways, padding", HEADS, |x, _| {
        let real = |i: u32| u32::from(i < 64 || (70..99).contains(&i));
        let segments = u32s((0..140).map(real), &[2, 70], &x[0])?;
        let options = fused::Attention {
            segments: Some((segments.clone(), segments)),
            ..fused::Attention::default()
        };
        fused::attention(&x[0], &x[1], &x[2], &options)
    }),
    weighted(
        "linear_cross_entropy",
        &[&[70, 32]],
        &[&[1009, 32]],
        |x, w| {
            let labels: Vec<i64> = (0..70)
                .map(|i| if i % 7 == 0 { -100 } else { i * 13 % 1009 })
                .collect();
            let labels = Tensor::from_slice(&labels, 70, x[0].device())?;
            let params = CrossEntropyParams {
                ignore_index: -100,
                label_smoothing: 0.1,
                z_loss: 1e-3,
            };
            Ok(fused::linear_cross_entropy(&x[0], &w[0], &labels, params)?.sum)
        },
    ),
    weighted("embedding", &[], &[&[61, 35]], |_, w| {
        fused::embedding(&w[0], &u32s((0..70).map(|i| i * 11 % 61), &[2, 35], &w[0])?)
    }),
    op("dropout", ONE, |x, _| {
        fused::dropout(&x[0], 0.1, Seed::new(3).key())
    }),
];

/// A random operand, rounded to `precision`, as f32 on `device`: in [-2, 2), or in [0.5, 2).
pub fn operand(
    op: &Op,
    shape: &[usize],
    seed: u64,
    precision: Precision,
    device: Device,
) -> Tensor {
    let low = if op.is_positive { 0.5 } else { -2.0 };
    let exact = Tensor::rand(low, 2.0, shape, Seed::new(seed), Device::Cpu).expect("on the CPU");
    let rounded = exact
        .to_dtype(precision.dtype())
        .and_then(|x| x.to_dtype(DType::F32));
    let values = rounded.and_then(|x| x.to_vec::<f32>()).expect("on the CPU");
    Tensor::from_slice(&values, shape, device).expect("there is memory for it")
}
