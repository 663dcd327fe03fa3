//! Each family of kernels, next to candle's operation where it has one: `cargo bench -p tt-cpu`.
//!
//! Shapes are those of a research-size model at 1,024 tokens a step; matrix products report floating-point operations
//! per second, the others elements per second, and those of GPT-2's layers the bytes of operands and results.

use std::hint::black_box;

use candle_core::{CpuStorage, DType, Device, Layout, Tensor};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tt_cpu::{
    AdamParams, AttentionParams, CrossEntropyParams, FusedOps, Gelu, RngKey, UpdateRule, View,
    Write, pool,
};

const TOKENS: usize = 1024;
const HIDDEN: usize = 256;
const INTERMEDIATE: usize = 704;
const VOCAB: usize = 2048;

fn random(len: usize) -> CpuStorage {
    let mut storage = CpuStorage::F32(vec![0.0; len]);
    storage
        .fill_normal(
            len,
            0.0,
            0.5,
            RngKey {
                key: 1,
                stream: len as u64,
            },
        )
        .expect("f32");
    storage
}

/// An operand and its layout.
struct Operand(CpuStorage, Layout);

impl Operand {
    fn new(dims: &[usize]) -> Self {
        Self(random(dims.iter().product()), Layout::contiguous(dims))
    }

    fn view(&self) -> View<'_, CpuStorage> {
        (&self.0, &self.1)
    }

    fn candle(&self) -> Tensor {
        let data = self.0.as_slice::<f32>().expect("f32").to_vec();
        Tensor::from_vec(data, self.1.shape(), &Device::Cpu).expect("a shape that fits")
    }
}

fn matmul(c: &mut Criterion) {
    for (m, k, n) in [
        (TOKENS, HIDDEN, HIDDEN),
        (TOKENS, HIDDEN, INTERMEDIATE),
        (TOKENS, INTERMEDIATE, HIDDEN),
        (TOKENS, 896, 4864),
    ] {
        let mut group = c.benchmark_group(format!("linear {m}x{k}x{n}"));
        group.throughput(Throughput::Elements(2 * (m * k * n) as u64));
        let (x, w, dy) = (
            Operand::new(&[m, k]),
            Operand::new(&[n, k]),
            Operand::new(&[m, n]),
        );
        let w_t = w.1.transpose(0, 1).expect("two dims");
        let dy_t = dy.1.transpose(0, 1).expect("two dims");
        let (mut y, mut dx, mut dw) = (random(m * n), random(m * k), random(n * k));
        group.bench_function("forward", |b| {
            b.iter(|| CpuStorage::matmul_into(x.view(), (&w.0, &w_t), &mut y, Write::Assign))
        });
        group.bench_function("backward by input", |b| {
            b.iter(|| CpuStorage::matmul_into(dy.view(), w.view(), &mut dx, Write::Assign))
        });
        group.bench_function("backward by weight", |b| {
            b.iter(|| CpuStorage::matmul_into((&dy.0, &dy_t), x.view(), &mut dw, Write::Assign))
        });
        let (x, w) = (x.candle(), w.candle().t().expect("two dims"));
        group.bench_function("candle forward", |b| b.iter(|| black_box(x.matmul(&w))));
        group.finish();
    }
}

fn attention(c: &mut Criterion) {
    // (batch, tokens, heads, key/value heads, head dim); the last is one row of a model with few key/value heads.
    for (batch, tokens, heads, kv_heads, head_dim) in
        [(4, 256, 8, 4, 32), (8, 256, 4, 2, 64), (1, 1024, 14, 2, 64)]
    {
        attention_of(c, batch, tokens, heads, kv_heads, head_dim);
    }
}

fn attention_of(
    c: &mut Criterion,
    batch: usize,
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
) {
    let p = AttentionParams {
        batch,
        queries: tokens,
        keys: tokens,
        heads,
        kv_heads,
        head_dim,
        scale: 0.18,
        causal: true,
        window: None,
    };
    let q = Operand::new(&[batch, tokens, heads, head_dim]);
    let k = Operand::new(&[batch, tokens, kv_heads, head_dim]);
    let v = Operand::new(&[batch, tokens, kv_heads, head_dim]);
    let dout = Operand::new(&[batch, tokens, heads, head_dim]);
    let mut out = Operand::new(&[batch, tokens, heads, head_dim]);
    let mut lse = Operand::new(&[batch, heads, tokens]);
    let (mut dq, mut dk, mut dv) = (random(q.1.shape().elem_count()), k.0.clone(), v.0.clone());
    let mut group = c.benchmark_group(format!(
        "attention {batch}x{tokens}, {heads}/{kv_heads} heads of {head_dim}"
    ));
    group.bench_function("forward", |b| {
        b.iter(|| {
            CpuStorage::attention(
                &p,
                q.view(),
                k.view(),
                v.view(),
                None,
                &mut out.0,
                &mut lse.0,
            )
        })
    });
    group.bench_function("backward", |b| {
        b.iter(|| {
            CpuStorage::attention_backward(
                &p,
                q.view(),
                k.view(),
                v.view(),
                None,
                out.view(),
                lse.view(),
                dout.view(),
                &mut dq,
                &mut dk,
                &mut dv,
            )
        })
    });
    group.finish();
}

fn cross_entropy(c: &mut Criterion) {
    let hidden = Operand::new(&[TOKENS, HIDDEN]);
    let weight = Operand::new(&[VOCAB, HIDDEN]);
    let params = CrossEntropyParams {
        ignore_index: -100,
        label_smoothing: 0.0,
        z_loss: 0.0,
    };
    let (mut totals, mut dh, mut dw) = (random(3), hidden.0.clone(), weight.0.clone());
    let mut group = c.benchmark_group("linear cross-entropy 1024x256x2048");
    // All tokens are counted: fewer with a label are faster.
    group.throughput(Throughput::Elements(6 * (TOKENS * HIDDEN * VOCAB) as u64));
    for (name, every) in [("all tokens", 1), ("a fifth of the tokens", 5)] {
        let label = |i: i64| {
            if i % every == 0 {
                i
            } else {
                params.ignore_index
            }
        };
        let labels = CpuStorage::I64((0..TOKENS as i64).map(label).collect());
        let labels = (&labels, &Layout::contiguous(TOKENS));
        group.bench_function(format!("loss and gradients, {name}"), |b| {
            b.iter(|| {
                CpuStorage::linear_cross_entropy(
                    &params,
                    1.0,
                    hidden.view(),
                    weight.view(),
                    labels,
                    &mut totals,
                    Some(&mut dh),
                    Some(&mut dw),
                )
            })
        });
        let upstream = Operand::new(&[TOKENS]);
        let mut losses = random(TOKENS);
        group.bench_function(format!("losses, then gradients, {name}"), |b| {
            b.iter(|| {
                let (h, w) = (hidden.view(), weight.view());
                CpuStorage::linear_token_losses(&params, h, w, labels, &mut losses)?;
                CpuStorage::linear_token_losses_backward(
                    &params,
                    h,
                    w,
                    labels,
                    upstream.view(),
                    Some(&mut dh),
                    Some((&mut dw, Write::Assign)),
                )
            })
        });
    }
    group.finish();
}

fn rowwise(c: &mut Criterion) {
    let len = TOKENS * INTERMEDIATE;
    let [a, b_, dy] = [(); 3].map(|()| Operand::new(&[TOKENS, INTERMEDIATE]));
    let weight = Operand::new(&[INTERMEDIATE]);
    let mut inv_rms = Operand::new(&[TOKENS]);
    let [mut out, mut out2, mut m, mut v] = [(); 4].map(|()| CpuStorage::F32(vec![0.1; len]));
    let mut dweight = random(INTERMEDIATE);
    let (a_candle, b_candle) = (a.candle(), b_.candle());
    let rng = RngKey { key: 1, stream: 2 };
    let scale = Operand::new(&[1]);
    let adamw = UpdateRule::Adam(AdamParams {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        decoupled: true,
        amsgrad: false,
        step: 9,
    });
    let mut group = c.benchmark_group("1024x704");
    group.throughput(Throughput::Elements(len as u64));
    group.bench_function("rms_norm", |b| {
        b.iter(|| CpuStorage::rms_norm(a.view(), weight.view(), 1e-6, &mut out, &mut inv_rms.0))
    });
    group.bench_function("rms_norm backward", |b| {
        b.iter(|| {
            let dweight = Some((&mut dweight, Write::Assign));
            let (x, w, inv_rms) = (a.view(), weight.view(), inv_rms.view());
            CpuStorage::rms_norm_backward(x, w, inv_rms, dy.view(), Some(&mut out), dweight)
        })
    });
    group.bench_function("swiglu", |b| {
        b.iter(|| CpuStorage::swiglu(a.view(), b_.view(), &mut out))
    });
    group.bench_function("swiglu, candle", |b| {
        b.iter(|| black_box(a_candle.silu().and_then(|x| x * &b_candle)))
    });
    group.bench_function("swiglu backward", |b| {
        b.iter(|| CpuStorage::swiglu_backward(a.view(), b_.view(), dy.view(), &mut out, &mut out2))
    });
    group.bench_function("add", |b| {
        b.iter(|| CpuStorage::add_into(a.view(), b_.view(), &mut out))
    });
    group.bench_function("add, candle", |b| {
        b.iter(|| black_box(&a_candle + &b_candle))
    });
    group.bench_function("sum_rows", |b| {
        b.iter(|| CpuStorage::sum_rows_into(a.view(), TOKENS, &mut dweight, Write::Assign))
    });
    group.bench_function("sum_rows, candle", |b| {
        b.iter(|| black_box(a_candle.sum(0)))
    });
    group.bench_function("dropout", |b| {
        b.iter(|| CpuStorage::dropout(a.view(), 0.1, rng, &mut out))
    });
    group.bench_function("fill_normal", |b| {
        b.iter(|| out.fill_normal(len, 0.0, 1.0, rng))
    });
    group.bench_function("fill_normal, candle", |b| {
        b.iter(|| black_box(Tensor::randn(0f32, 1.0, len, &Device::Cpu)))
    });
    let (grad, factor) = (dy.view(), scale.view());
    group.bench_function("adamw", |b| {
        b.iter(|| {
            let states = &mut [&mut m, &mut v];
            CpuStorage::optimizer_step(&adamw, &mut out, grad, factor, states, None)
        })
    });
    group.bench_function("adamw with sums", |b| {
        b.iter(|| {
            let (states, sums) = (&mut [&mut m, &mut v], Some((&mut out2, 0)));
            CpuStorage::optimizer_step(&adamw, &mut out, grad, factor, states, sums)
        })
    });
    let [mut m, mut v] = [(); 2].map(|()| CpuStorage::BF16(vec![half::bf16::ONE; len]));
    group.bench_function("adamw with bf16 state", |b| {
        b.iter(|| {
            let states = &mut [&mut m, &mut v];
            CpuStorage::optimizer_step(&adamw, &mut out, grad, factor, states, None)
        })
    });
    group.finish();
}

/// LayerNorm and GELU of GPT-2 small (BERT base) on 8 x 512 tokens: bound by memory.
fn gpt2(c: &mut Criterion) {
    const ROWS: usize = 8 * 512;
    const WIDTH: usize = 768;
    for dtype in [DType::F32, DType::BF16] {
        let of = |dims: &[usize]| {
            let Operand(storage, layout) = Operand::new(dims);
            let mut typed = pool::take(dtype, layout.shape().elem_count());
            CpuStorage::cast_into((&storage, &layout), &mut typed).expect("float types");
            Operand(typed, layout)
        };
        let bytes = dtype.size_in_bytes();
        let x = Operand::new(&[ROWS, WIDTH]); // the residual stream is f32
        let (dy, mut y) = (of(&[ROWS, WIDTH]), of(&[ROWS, WIDTH]));
        let [weight, bias] = [(); 2].map(|()| Operand::new(&[WIDTH]));
        let [mut mean, mut inv] = [(); 2].map(|()| Operand::new(&[ROWS]));
        let (mut dx, mut dw, mut db) = (random(ROWS * WIDTH), random(WIDTH), random(WIDTH));
        let mut group = c.benchmark_group(format!("{ROWS}x{WIDTH}, {dtype:?}"));
        group.throughput(Throughput::Bytes((ROWS * WIDTH * (4 + bytes)) as u64));
        group.bench_function("layer_norm", |b| {
            b.iter(|| {
                let (w, bias) = (weight.view(), bias.view());
                CpuStorage::layer_norm(x.view(), w, bias, 1e-5, &mut y.0, &mut mean.0, &mut inv.0)
            })
        });
        group.throughput(Throughput::Bytes((ROWS * WIDTH * (8 + bytes)) as u64));
        group.bench_function("layer_norm backward", |b| {
            b.iter(|| {
                CpuStorage::layer_norm_backward(
                    x.view(),
                    weight.view(),
                    mean.view(),
                    inv.view(),
                    dy.view(),
                    Some(&mut dx),
                    Some((&mut dw, Write::Assign)),
                    Some((&mut db, Write::Assign)),
                )
            })
        });
        group.finish();

        let [x, dy, mut y] = [(); 3].map(|()| of(&[ROWS, 4 * WIDTH]));
        let mut group = c.benchmark_group(format!("{ROWS}x{}, {dtype:?}", 4 * WIDTH));
        for form in [Gelu::Erf, Gelu::Tanh] {
            let tensor = (ROWS * 4 * WIDTH * bytes) as u64;
            group.throughput(Throughput::Bytes(2 * tensor));
            group.bench_function(format!("gelu {form:?}"), |b| {
                b.iter(|| CpuStorage::gelu(form, x.view(), &mut y.0))
            });
            group.throughput(Throughput::Bytes(3 * tensor));
            group.bench_function(format!("gelu {form:?} backward"), |b| {
                b.iter(|| CpuStorage::gelu_backward(form, x.view(), dy.view(), &mut y.0))
            });
        }
        group.finish();
    }
}

criterion_group!(kernels, matmul, attention, cross_entropy, rowwise, gpt2);
criterion_main!(kernels);
