//! Fused operations against compositions of primitive ones, forward and gradient, and against finite
//! differences and candle; on every device.

use tt_tensor::{CrossEntropyParams, DType, Device, Parameter, Result, Seed, Tape, Tensor, fused};
use tt_testkit::{check_gradients, on_each_device, relative_l2};

type Input = (&'static str, Vec<usize>, Vec<f32>);

fn input(name: &'static str, shape: &[usize], seed: u64) -> Input {
    let tensor = Tensor::randn(0.0, 1.0, shape, Seed::new(seed), Device::Cpu).unwrap();
    (name, shape.to_vec(), tensor.to_vec().unwrap())
}

/// The value of `f` and the gradients of a weighted sum of it.
fn run(device: Device, inputs: &[Input], f: &dyn Fn(&[Tensor]) -> Result<Tensor>) -> Vec<Vec<f32>> {
    let tape = Tape::new();
    let parameters: Vec<_> = inputs
        .iter()
        .map(|(name, shape, values)| {
            Parameter::new(
                *name,
                Tensor::from_slice(values, shape.clone(), device).unwrap(),
            )
        })
        .collect();
    let tracked: Vec<_> = parameters.iter().map(|p| tape.watch(p)).collect();
    let y = f(&tracked).unwrap();
    let weights = Tensor::randn(0.5, 1.0, y.shape().clone(), Seed::new(99), device).unwrap();
    tape.backward(&y.mul(&weights).unwrap().sum_all().unwrap())
        .unwrap();
    let mut results = vec![y.to_vec::<f32>().unwrap()];
    results.extend(
        parameters
            .iter()
            .map(|p| p.grad().unwrap().to_vec::<f32>().unwrap()),
    );
    results
}

/// Holds a fused operation against its composition, then its gradient against differences.
fn agree(
    name: &str,
    device: Device,
    inputs: &[Input],
    fused: &dyn Fn(&[Tensor]) -> Result<Tensor>,
    composed: &dyn Fn(&[Tensor]) -> Result<Tensor>,
) {
    let (ours, reference) = (run(device, inputs, fused), run(device, inputs, composed));
    for (i, (ours, reference)) in ours.iter().zip(&reference).enumerate() {
        let what = if i == 0 { "value" } else { inputs[i - 1].0 };
        // A gradient that cancels (of a query that sees one key) is rounding noise on both sides.
        let is_noise = |values: &[f32]| values.iter().all(|value| value.abs() < 1e-6);
        if is_noise(ours) && is_noise(reference) {
            continue;
        }
        let error = relative_l2(ours, reference);
        assert!(error < 2e-5, "{name}: {what} differs by {error:.1e}");
    }
}

on_each_device! {
    fn linear_is_a_product_and_a_sum(device) {
        for (rows, inputs, outputs) in [(1, 1, 1), (6, 16, 32), (7, 5, 3), (33, 17, 65)] {
            let given = [input("x", &[rows, inputs], 1), input("w", &[outputs, inputs], 2), input("b", &[outputs], 3)];
            agree("linear", device, &given, &|x| fused::linear(&x[0], &x[1], Some(&x[2])), &|x| {
                x[0].matmul(&x[1].t()?)?.add(&x[2])
            });
        }
    }
}

on_each_device! {
    fn linear_onto_adds_a_product_in_place_or_to_a_copy(device) {
        for (rows, inputs, outputs) in [(1, 1, 1), (6, 4, 32), (7, 5, 3)] {
            let given = [input("y", &[rows, outputs], 1), input("x", &[rows, inputs], 2), input("w", &[outputs, inputs], 3)];
            let sum = |x: &[Tensor]| x[0].add(&x[1].matmul(&x[2].t()?)?);
            // The parameter's own values must stay as they are.
            agree("linear_onto", device, &given, &|x| fused::linear_onto(x[0].clone(), &x[1], &x[2]), &sum);
            // Nobody else holds what an operation has just made.
            agree("linear_onto", device, &given, &|x| fused::linear_onto(x[0].sqr()?, &x[1], &x[2]), &|x| {
                x[0].sqr()?.add(&x[1].matmul(&x[2].t()?)?)
            });
        }
        let y = Tensor::ones((2, 3), device).unwrap();
        let (x, w) = (Tensor::ones((2, 4), device).unwrap(), Tensor::ones((3, 4), device).unwrap());
        let z = fused::linear_onto(y.clone(), &x, &w).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [1.0; 6]);
        assert_eq!(z.to_vec::<f32>().unwrap(), [5.0; 6]);
        assert!(fused::linear_onto(y, &x, &Tensor::ones((2, 4), device).unwrap()).is_err());
    }
}

on_each_device! {
    fn rms_norm_divides_by_the_root_mean_square(device) {
        // From two columns on: with one, the gradient cancels to rounding noise.
        for (rows, dim) in [(1, 2), (3, 8), (5, 17), (70, 256)] {
            let given = [input("x", &[rows, dim], 1), input("w", &[dim], 2)];
            agree("rms_norm", device, &given, &|x| fused::rms_norm(&x[0], &x[1], 1e-5, DType::F32), &|x| {
                let mean = x[0].sqr()?.mean_keepdim(&[1])?.affine(1.0, 1e-5)?;
                x[0].div(&mean.sqrt()?)?.mul(&x[1])
            });
        }
        let given = [input("x", &[2, 6], 1), input("w", &[6], 2)];
        check_gradients(device, &given, 1e-2, 5e-3, |x| fused::rms_norm(&x[0], &x[1], 1e-5, DType::F32));
        let (x, w) = (Tensor::randn(0., 1., (4, 32), Seed::new(1), device).unwrap(), Tensor::ones(32, device).unwrap());
        let ours = fused::rms_norm(&x, &w, 1e-6, DType::F32).unwrap().to_vec::<f32>().unwrap();
        let candle = candle_nn::ops::rms_norm(&x.to_candle().unwrap(), &w.to_candle().unwrap(), 1e-6).unwrap();
        assert!(relative_l2(&ours, &candle.flatten_all().unwrap().to_vec1::<f32>().unwrap()) < 1e-6);
    }
}

on_each_device! {
    fn swiglu_gates_with_silu(device) {
        for len in [1, 15, 16, 1000] {
            let given = [input("gate", &[len], 1), input("up", &[len], 2)];
            agree("swiglu", device, &given, &|x| fused::swiglu(&x[0], &x[1]), &|x| x[0].silu()?.mul(&x[1]));
        }
    }
}

on_each_device! {
    fn gelu_is_x_times_the_share_below_it(device) {
        for len in [1, 15, 16, 1000] {
            let given = [input("x", &[len], 1)];
            agree("gelu_tanh", device, &given, &|x| x[0].gelu_tanh(), &|x| {
                let scale = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
                let inner = x[0].powf(3.0)?.affine(0.044715, 0.0)?.add(&x[0])?.affine(scale, 0.0)?;
                x[0].mul(&inner.tanh()?.affine(0.5, 0.5)?)
            });
        }
        let given = [input("x", &[4, 5], 1)];
        check_gradients(device, &given, 1e-2, 5e-3, |x| x[0].gelu());
        let x = Tensor::randn(0., 2., 1000, Seed::new(1), device).unwrap();
        let ours = x.gelu().unwrap().to_vec::<f32>().unwrap();
        let candle = x.to_candle().unwrap().gelu_erf().unwrap();
        assert!(relative_l2(&ours, &candle.to_vec1::<f32>().unwrap()) < 2e-7);
        // Slices are operands.
        let wide = x.reshape((10, 100)).unwrap().narrow(1, 20, 30).unwrap();
        let whole = wide.contiguous().unwrap().gelu().unwrap();
        assert_eq!(wide.gelu().unwrap().to_vec::<f32>().unwrap(), whole.to_vec::<f32>().unwrap());
    }
}

on_each_device! {
    fn rope_rotates_pairs_by_their_position(device) {
        let (b, t, h, d) = (2, 5, 3, 8);
        let inv_freq: Vec<f32> = (0..d / 2).map(|i| 0.7f32.powi(i as i32)).collect();
        let (cos, sin) = fused::rope_tables(&inv_freq, 9, device).unwrap();
        let ids = [0u32, 1, 2, 0, 1, 4, 5, 6, 7, 8];
        let positions = Tensor::from_slice(&ids, (b, t), device).unwrap();
        let flat = Tensor::from_slice(&ids, b * t, device).unwrap();
        let table = |table: &Tensor| table.index_select(&flat, 0)?.reshape((b, t, 1, d / 2));
        let given = [input("x", &[b, t, h, d], 1)];
        agree("rope", device, &given, &|x| fused::rope(&x[0], &cos, &sin, &positions), &|x| {
            let (low, high) = (x[0].narrow(3, 0, d / 2)?, x[0].narrow(3, d / 2, d / 2)?);
            let (cos, sin) = (table(&cos)?, table(&sin)?);
            let first = low.mul(&cos)?.sub(&high.mul(&sin)?)?;
            let second = high.mul(&cos)?.add(&low.mul(&sin)?)?;
            Tensor::cat(&[first, second], 3)
        });
    }
}

/// Attention by whole score matrices, one mask for all rules.
fn attention_composed(
    [q, k, v]: [&Tensor; 3],
    visible: &dyn Fn(usize, usize, usize) -> bool,
) -> Result<Tensor> {
    let [b, tq, h, d] = q.dims_of("q")?;
    let [_, tk, kv, _] = k.dims_of("k")?;
    let group = h / kv;
    // [B, T, Hkv, D] -> [B * H, T, D], each key/value head repeated for its group.
    let spread = |x: &Tensor| {
        x.reshape((b, tk, kv, 1, d))?
            .expand((b, tk, kv, group, d))?
            .reshape((b, tk, h, d))?
            .permute(&[0, 2, 1, 3])?
            .reshape((b * h, tk, d))
    };
    let q = q.permute(&[0, 2, 1, 3])?.reshape((b * h, tq, d))?;
    let scores = q
        .matmul(&spread(k)?.transpose(1, 2)?)?
        .affine(1.0 / (d as f64).sqrt(), 0.0)?;
    let mask: Vec<f32> = (0..b * h * tq * tk)
        .map(|i| {
            let (row, i, j) = (i / (h * tq * tk), i / tk % tq, i % tk);
            if visible(row, i, j) { 0.0 } else { -1e30 }
        })
        .collect();
    let mask = Tensor::from_slice(&mask, (b * h, tq, tk), q.device())?;
    let y = scores.add(&mask)?.softmax(2)?.matmul(&spread(v)?)?; // [B * H, Tq, D]
    y.reshape((b, h, tq, d))?
        .permute(&[0, 2, 1, 3])?
        .contiguous()
}

on_each_device! {
    fn attention_matches_whole_score_matrices(device) {
        // batch, queries, keys, heads, kv heads, head dim, window, segments
        let cases = [
            (1, 1, 1, 1, 1, 2, None, false),
            (2, 7, 7, 4, 2, 8, None, false),
            (1, 65, 65, 2, 1, 16, None, true),
            (2, 33, 33, 3, 3, 10, Some(5), true),
            (1, 3, 130, 2, 2, 32, None, false),
            (1, 200, 200, 4, 1, 24, Some(70), false),
        ];
        for (b, tq, tk, h, kv, d, window, with_segments) in cases {
            let segment = |row: usize, t: usize| (t * 3 / tk + row) as u32;
            let ids = |len: usize| -> Vec<u32> {
                (0..b).flat_map(|row| (0..len).map(move |t| segment(row, t + tk - len))).collect()
            };
            let segments = with_segments.then(|| (
                Tensor::from_slice(&ids(tq), (b, tq), device).unwrap(),
                Tensor::from_slice(&ids(tk), (b, tk), device).unwrap(),
            ));
            let options = fused::Attention { scale: None, causal: true, window, segments };
            let visible = |row: usize, i: usize, j: usize| {
                let i = i + tk - tq;
                j <= i && window.is_none_or(|w| i - j < w) && (!with_segments || segment(row, i) == segment(row, j))
            };
            let given = [input("q", &[b, tq, h, d], 1), input("k", &[b, tk, kv, d], 2), input("v", &[b, tk, kv, d], 3)];
            agree("attention", device, &given, &|x| fused::attention(&x[0], &x[1], &x[2], &options), &|x| {
                attention_composed([&x[0], &x[1], &x[2]], &visible)
            });
        }
    }
}

on_each_device! {
    fn attention_both_ways_leaves_padding_to_itself(device) {
        // Real tokens of each row of 70, the rest padding; the second of two rows is the shorter one.
        let (b, t, h, d) = (2, 70, 2, 16);
        for (lengths, window) in [([70, 70], None), ([61, 9], None), ([61, 9], Some(20))] {
            let ids: Vec<u32> = lengths.iter().flat_map(|n| (0..t).map(move |i| u32::from(i < *n))).collect();
            let segments = Tensor::from_slice(&ids, (b, t), device).unwrap();
            let options = fused::Attention { window, segments: Some((segments.clone(), segments)), ..Default::default() };
            let visible = |row: usize, i: usize, j: usize| {
                ids[row * t + i] == ids[row * t + j] && window.is_none_or(|w| i < j + w)
            };
            let given = [input("q", &[b, t, h, d], 1), input("k", &[b, t, h, d], 2), input("v", &[b, t, h, d], 3)];
            agree("attention", device, &given, &|x| fused::attention(&x[0], &x[1], &x[2], &options), &|x| {
                attention_composed([&x[0], &x[1], &x[2]], &visible)
            });
        }
    }
}

on_each_device! {
    fn a_query_that_sees_no_key_gives_zeros_and_takes_no_gradient(device) {
        let (b, t, h, d) = (1, 9, 2, 8);
        // Queries 2 and 7 are of a segment without keys.
        let is_seen = |i: usize| i % 5 != 2;
        let ids = |of: &dyn Fn(usize) -> u32| Tensor::from_slice(&(0..t).map(of).collect::<Vec<_>>(), (b, t), device).unwrap();
        let segments = (ids(&|i| if is_seen(i) { 1 } else { 4 }), ids(&|_| 1));
        let options = fused::Attention { segments: Some(segments), ..Default::default() };
        let kept: Vec<f32> = (0..t).map(|i| f32::from(is_seen(i))).collect();
        let kept = Tensor::from_slice(&kept, (b, t, 1, 1), device).unwrap();
        let given = [input("q", &[b, t, h, d], 1), input("k", &[b, t, h, d], 2), input("v", &[b, t, h, d], 3)];
        agree("attention", device, &given, &|x| fused::attention(&x[0], &x[1], &x[2], &options), &|x| {
            attention_composed([&x[0], &x[1], &x[2]], &|_, _, _| true)?.mul(&kept)
        });
    }
}

on_each_device! {
    #[full_on_tpu]
    fn attention_gradient_matches_its_differences(device) {
        let given = [input("q", &[1, 4, 2, 4], 1), input("k", &[1, 4, 1, 4], 2), input("v", &[1, 4, 1, 4], 3)];
        let options = fused::Attention { causal: true, ..Default::default() };
        check_gradients(device, &given, 1e-2, 5e-3, |x| fused::attention(&x[0], &x[1], &x[2], &options));
    }
}

on_each_device! {
    fn linear_cross_entropy_matches_whole_logits(device) {
        for (rows, dim, vocab, label_smoothing, z_loss) in
            [(1, 4, 3, 0.0, 0.0), (5, 16, 32, 0.0, 0.0), (300, 24, 77, 0.1, 0.0), (130, 16, 48, 0.1, 1e-2)]
        {
            let labels: Vec<i64> = (0..rows).map(|i| if i % 4 == 3 { -100 } else { (i * 7 % vocab) as i64 }).collect();
            let targets = Tensor::from_slice(&labels, rows, device).unwrap();
            let params = CrossEntropyParams { ignore_index: -100, label_smoothing, z_loss };
            let valid: Vec<f32> = labels.iter().map(|l| if *l == -100 { 0.0 } else { 1.0 }).collect();
            let one_hot: Vec<f32> = labels.iter().flat_map(|l| (0..vocab).map(move |v| if v as i64 == *l { 1.0 } else { 0.0 })).collect();
            let valid = Tensor::from_slice(&valid, (rows, 1), device).unwrap();
            let one_hot = Tensor::from_slice(&one_hot, (rows, vocab), device).unwrap();
            let given = [input("hidden", &[rows, dim], 1), input("weight", &[vocab, dim], 2)];
            agree("linear_cross_entropy", device, &given, &|x| {
                Ok(fused::linear_cross_entropy(&x[0], &x[1], &targets, params)?.sum)
            }, &|x| {
                let logits = x[0].matmul(&x[1].t()?)?;
                let lse = logits.log_sum_exp_keepdim(1)?;
                let hard = lse.sub(&logits.mul(&one_hot)?.sum_keepdim(&[1])?)?.affine(1.0 - f64::from(label_smoothing), 0.0)?;
                let soft = lse.sub(&logits.mean_keepdim(&[1])?)?.affine(f64::from(label_smoothing), 0.0)?;
                let z = lse.sqr()?.affine(f64::from(z_loss), 0.0)?;
                hard.add(&soft)?.add(&z)?.mul(&valid)?.sum_all()
            });
            let hidden = Tensor::from_slice(&given[0].2, (rows, dim), device).unwrap();
            let weight = Tensor::from_slice(&given[1].2, (vocab, dim), device).unwrap();
            let loss = fused::linear_cross_entropy(&hidden, &weight, &targets, params).unwrap();
            let count = labels.iter().filter(|l| **l != -100).count();
            assert_eq!(loss.count.to_scalar::<f32>().unwrap(), count as f32);
        }
    }
}

on_each_device! {
    #[full_on_tpu]
    fn token_losses_are_those_that_the_fused_loss_sums(device) {
        // More than one chunk; 65 columns are not whole vectors.
        for (rows, dim, vocab, label_smoothing, z_loss, biased) in
            [(5, 8, 11, 0.0, 0.0, false), (5, 8, 11, 0.1, 1e-2, true), (1030, 5, 65, 0.0, 0.0, true)]
        {
            let labels: Vec<i64> = (0..rows).map(|i| if i % 4 == 3 { -100 } else { (i * 7 % vocab) as i64 }).collect();
            let targets = Tensor::from_slice(&labels, rows, device).unwrap();
            let params = CrossEntropyParams { ignore_index: -100, label_smoothing, z_loss };
            let valid: Vec<f32> = labels.iter().map(|l| if *l == -100 { 0.0 } else { 1.0 }).collect();
            let ids: Vec<u32> = labels.iter().map(|l| (*l).max(0) as u32).collect();
            let valid = Tensor::from_slice(&valid, rows, device).unwrap();
            let ids = Tensor::from_slice(&ids, (rows, 1), device).unwrap();
            let given = [input("hidden", &[rows, dim], 1), input("weight", &[vocab, dim], 2), input("bias", &[vocab], 3)];
            let given = &given[..if biased { 3 } else { 2 }];
            let head = |x: &[Tensor]| fused::Head { weight: x[1].clone(), bias: x.get(2).cloned() };
            agree("linear_token_losses", device, given, &|x| {
                fused::linear_token_losses(&x[0], &head(x), &targets, params)
            }, &|x| {
                let logits = fused::linear(&x[0], &x[1], x.get(2))?;
                let log_probs = logits.log_softmax(1)?;
                let hard = log_probs.gather(&ids, 1)?.affine(f64::from(label_smoothing) - 1.0, 0.0)?;
                let soft = log_probs.mean_keepdim(&[1])?.affine(-f64::from(label_smoothing), 0.0)?;
                let z = logits.log_sum_exp_keepdim(1)?.sqr()?.affine(f64::from(z_loss), 0.0)?;
                hard.add(&soft)?.add(&z)?.reshape(rows)?.mul(&valid)
            });
            agree("linear_cross_entropy", device, given, &|x| {
                Ok(fused::linear_cross_entropy(&x[0], &head(x), &targets, params)?.sum)
            }, &|x| fused::linear_token_losses(&x[0], &head(x), &targets, params)?.sum_all());
        }
    }
}

on_each_device! {
    #[full_on_tpu]
    fn log_probabilities_of_rows_are_sums_over_their_tokens(device) {
        let (b, t, dim, vocab) = (2, 3, 4, 7);
        let labels = [-100i64, 3, 6, 0, -100, -100];
        let targets = Tensor::from_slice(&labels, (b, t), device).unwrap();
        let given = [input("hidden", &[b, t, dim], 1), input("weight", &[vocab, dim], 2)];
        let of_rows = |x: &[Tensor]| fused::linear_log_probs(&x[0], &x[1], &targets, -100)?.sum(&[1]);
        agree("linear_log_probs", device, &given, &of_rows, &|x| {
            let logits = x[0].reshape((b * t, dim))?.matmul(&x[1].t()?)?;
            let log_probs = logits.log_softmax(1)?.reshape((b, t, vocab))?;
            let one_hot: Vec<f32> = labels.iter().flat_map(|l| (0..vocab as i64).map(move |v| f32::from(v == *l))).collect();
            log_probs.mul(&Tensor::from_slice(&one_hot, (b, t, vocab), device)?)?.sum(&[1, 2])
        });
        check_gradients(device, &given, 1e-2, 5e-3, of_rows);
        let outside = Tensor::from_slice(&[7i64; 6], (b, t), device).unwrap();
        let hidden = Tensor::zeros((b, t, dim), device).unwrap();
        let weight = Tensor::zeros((vocab, dim), device).unwrap();
        let losses = fused::linear_log_probs(&hidden, &weight, &outside, -100).and_then(|y| y.to_vec::<f32>());
        assert!(losses.is_err());
    }
}

on_each_device! {
    #[full_on_tpu]
    fn layer_norm_takes_out_the_mean_and_divides_by_the_deviation(device) {
        for (rows, dim) in [(1, 3), (3, 8), (5, 17), (70, 256)] {
            let given = [input("x", &[rows, dim], 1), input("w", &[dim], 2), input("b", &[dim], 3)];
            agree("layer_norm", device, &given, &|x| {
                fused::layer_norm(&x[0], &x[1], &x[2], 1e-5, DType::F32)
            }, &|x| {
                let centred = x[0].sub(&x[0].mean_keepdim(&[1])?)?;
                let variance = centred.sqr()?.mean_keepdim(&[1])?.affine(1.0, 1e-5)?;
                centred.div(&variance.sqrt()?)?.mul(&x[1])?.add(&x[2])
            });
        }
        // Weights twice on a tape gather both gradients.
        let given = [input("x", &[3, 8], 1), input("w", &[8], 2), input("b", &[8], 3)];
        let norm = |x: &Tensor, w: &[Tensor]| fused::layer_norm(x, &w[1], &w[2], 1e-5, DType::F32);
        let composed = |x: &Tensor, w: &[Tensor]| {
            let centred = x.sub(&x.mean_keepdim(&[1])?)?;
            let variance = centred.sqr()?.mean_keepdim(&[1])?.affine(1.0, 1e-5)?;
            centred.div(&variance.sqrt()?)?.mul(&w[1])?.add(&w[2])
        };
        agree("layer_norm twice", device, &given, &|x| norm(&norm(&x[0], x)?, x), &|x| {
            composed(&composed(&x[0], x)?, x)
        });
        let given = [input("x", &[2, 6], 1), input("w", &[6], 2), input("b", &[6], 3)];
        check_gradients(device, &given, 1e-2, 5e-3, |x| fused::layer_norm(&x[0], &x[1], &x[2], 1e-5, DType::F32));
        let x = Tensor::randn(5., 2., (4, 2, 32), Seed::new(1), device).unwrap();
        let (w, b) = (Tensor::full(2.0, 32, device).unwrap(), Tensor::full(0.5, 32, device).unwrap());
        let ours = fused::layer_norm(&x, &w, &b, 1e-6, DType::F32).unwrap().to_vec::<f32>().unwrap();
        let [x, w, b] = [x, w, b].map(|tensor| tensor.to_candle().unwrap());
        let candle = candle_nn::ops::layer_norm(&x, &w, &b, 1e-6).unwrap();
        assert!(relative_l2(&ours, &candle.flatten_all().unwrap().to_vec1::<f32>().unwrap()) < 1e-6);
    }
}

on_each_device! {
    #[full_on_tpu]
    fn a_linear_layer_with_its_weight_transposed_is_the_same_layer(device) {
        for (rows, inputs, outputs) in [(1, 1, 1), (6, 16, 32), (33, 17, 65)] {
            let given = [input("x", &[rows, inputs], 1), input("w", &[inputs, outputs], 2), input("b", &[outputs], 3)];
            agree("linear_in_out", device, &given, &|x| fused::linear_in_out(&x[0], &x[1], Some(&x[2])), &|x| {
                fused::linear(&x[0], &x[1].t()?, Some(&x[2]))
            });
        }
        let (x, w) = (Tensor::ones((2, 4), device).unwrap(), Tensor::ones((3, 4), device).unwrap());
        assert!(fused::linear_in_out(&x, &w, None).is_err());
    }
}

on_each_device! {
    fn embedding_selects_rows_and_adds_gradients_of_repeated_ids(device) {
        let ids = Tensor::from_slice(&[3u32, 0, 3, 3, 1, 0], (2, 3), device).unwrap();
        let flat = ids.reshape(6).unwrap();
        let given = [input("w", &[5, 7], 1)];
        agree("embedding", device, &given, &|x| fused::embedding(&x[0], &ids), &|x| {
            x[0].index_select(&flat, 0)?.reshape((2, 3, 7))
        });
        let outside = Tensor::from_slice(&[5u32], 1, device).unwrap();
        let weight = Tensor::zeros((5, 7), device).unwrap();
        // The CPU finds it at once, a device by the next read.
        let error = fused::embedding(&weight, &outside).and_then(|y| y.to_vec::<f32>()).unwrap_err().to_string();
        assert!(error.contains(if device == Device::Cpu { "5" } else { "out of range" }), "{error}");
    }
}

on_each_device! {
    fn dropout_keeps_its_share_and_its_gradient_has_the_same_mask(device) {
        let (len, p) = (20_000, 0.25);
        let key = Seed::new(3).fold(1).key();
        let x = Parameter::new("x", Tensor::ones(len, device).unwrap());
        let tape = Tape::new();
        let y = fused::dropout(&tape.watch(&x), p, key).unwrap();
        let kept = y.to_vec::<f32>().unwrap();
        tape.backward(&y.sum_all().unwrap()).unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), kept);
        let share = kept.iter().filter(|v| **v != 0.0).count() as f64 / len as f64;
        assert!((share - 0.75).abs() < 0.01, "{share}");
        assert!(kept.iter().all(|v| *v == 0.0 || (*v * 0.75 - 1.0).abs() < 1e-6));
        let other = fused::dropout(&x.value(), p, Seed::new(3).fold(2).key()).unwrap();
        assert_ne!(other.to_vec::<f32>().unwrap(), kept);
    }
}

on_each_device! {
    fn clip_scale_is_pytorchs_coefficient_over_the_weight(device) {
        let gradients = [vec![3.0f32, 4.0], vec![12.0]].map(|g| Tensor::from_slice(&g, g.len(), device).unwrap());
        let squares = fused::sum_squares(device, 2, gradients.into_iter()).unwrap();
        assert_eq!(squares.to_vec::<f32>().unwrap(), [25.0, 144.0]);
        let weight = Tensor::full(2.0, (), device).unwrap();
        let scalar = |tensor: &Tensor| tensor.to_vec::<f32>().unwrap()[0];
        let (factor, norm) = fused::clip_scale(&squares, &weight, Some(1.0)).unwrap();
        assert!((scalar(&norm) / 6.5 - 1.0).abs() < 1e-6);
        assert!((scalar(&factor) - 0.5 / 6.500001).abs() < 1e-6);
        let (factor, _) = fused::clip_scale(&squares, &weight, Some(100.0)).unwrap();
        assert!((scalar(&factor) / 0.5 - 1.0).abs() < 1e-6);
        let (factor, _) = fused::clip_scale(&squares, &weight, None).unwrap();
        assert!((scalar(&factor) / 0.5 - 1.0).abs() < 1e-6);
        let nothing = Tensor::zeros(2, device).unwrap();
        let none = Tensor::zeros((), device).unwrap();
        let (factor, norm) = fused::clip_scale(&nothing, &none, Some(1.0)).unwrap();
        assert_eq!((scalar(&norm), scalar(&factor) * 0.0), (0.0, 0.0));
    }
}
