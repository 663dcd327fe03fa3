//! Fused operations in bf16 and f16 against themselves in f32 on the same rounded inputs: values and gradients keep
//! their type and are a few roundings away; on every device.

use tt_tensor::{
    CrossEntropyParams, DType, Device, Parameter, Precision, Result, Seed, Tape, Tensor, fused,
};
use tt_testkit::{on_each_device, relative_l2};

/// Half the distance of neighbouring numbers around 1.
fn unit_roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-11),
    }
}

fn random(shape: &[usize], seed: u64, device: Device) -> Tensor {
    Tensor::randn(0.0, 1.0, shape, Seed::new(seed), device).unwrap()
}

/// Of activations and weights.
type Operation<'a> = &'a dyn Fn(&[Tensor], &[Tensor]) -> Result<Tensor>;

/// The value of `f` and the gradients of a weighted sum of it by activations of `dtype` and by f32 weights.
fn run(activations: &[Tensor], weights: &[Tensor], dtype: DType, f: Operation) -> Vec<Vec<f32>> {
    let tape = Tape::new();
    let parameters = |tensors: &[Tensor]| -> Vec<_> {
        let tensors = tensors.iter();
        tensors.map(|t| Parameter::new("p", t.clone())).collect()
    };
    let (of_activations, of_weights) = (parameters(activations), parameters(weights));
    let watch = |p: &_| tape.watch(p);
    // An activation is what a cast makes of a parameter: its gradient passes the cast in its own type.
    let activations: Vec<_> = of_activations
        .iter()
        .map(|p| watch(p).to_dtype(dtype).unwrap())
        .collect();
    let weights: Vec<_> = of_weights.iter().map(watch).collect();
    let y = f(&activations, &weights).unwrap();
    let y = y.to_dtype(DType::F32).unwrap();
    // Sums weighted by powers of two: the gradient that arrives is exact in every type.
    let signs: Vec<f32> = (0..y.elem_count())
        .map(|i| [1.0, -0.5, 0.25, 2.0, -1.0][i % 5])
        .collect();
    let signs = Tensor::from_slice(&signs, y.shape().clone(), y.device()).unwrap();
    tape.backward(&y.mul(&signs).unwrap().sum_all().unwrap())
        .unwrap();
    let gradients = of_activations.iter().chain(&of_weights);
    let mut results = vec![y.to_vec::<f32>().unwrap()];
    results.extend(gradients.map(|p| p.grad().unwrap().to_vec::<f32>().unwrap()));
    results
}

/// Every result is within `roundings` of that in f32, all roundings being of the type's size.
fn check(name: &str, device: Device, shapes: [&[&[usize]]; 2], roundings: f64, f: Operation) {
    for precision in [Precision::Bf16, Precision::F16] {
        let dtype = precision.dtype();
        let mut seed = 0;
        let [activations, weights] = shapes.map(|shapes| -> Vec<Tensor> {
            let rounded = |shape: &&[usize]| {
                seed += 1;
                let x = random(shape, seed, device).to_dtype(dtype).unwrap();
                x.to_dtype(DType::F32).unwrap()
            };
            shapes.iter().map(rounded).collect()
        });
        let ours = run(&activations, &weights, dtype, f);
        let reference = run(&activations, &weights, DType::F32, f);
        for (i, (ours, reference)) in ours.iter().zip(&reference).enumerate() {
            let (error, allowed) = (
                relative_l2(ours, reference),
                roundings * unit_roundoff(dtype),
            );
            assert!(
                error <= allowed,
                "{name} {dtype:?}, result {i}: {error:.1e}, allowed {allowed:.1e}"
            );
        }
    }
}

on_each_device! {
    fn products_keep_the_type_of_their_activation(device) {
        check("linear", device, [&[&[2, 9, 17]], &[&[33, 17], &[33]]], 2.0, &|x, w| {
            let y = fused::linear(&x[0], &w[0], Some(&w[1]))?;
            assert_eq!(y.dtype(), x[0].dtype());
            Ok(y)
        });
        check("linear_in_out", device, [&[&[2, 9, 17]], &[&[17, 33], &[33]]], 2.0, &|x, w| {
            let y = fused::linear_in_out(&x[0], &w[0], Some(&w[1]))?;
            assert_eq!(y.dtype(), x[0].dtype());
            Ok(y)
        });
        check("logits", device, [&[&[2, 9, 17]], &[&[33, 17]]], 2.0, &|x, w| {
            let y = fused::logits(&x[0], &w[0])?;
            assert_eq!(y.dtype(), DType::F32);
            Ok(y)
        });
        check("matmul", device, [&[&[3, 5, 8], &[3, 8, 6]], &[]], 1.0, &|x, _| x[0].matmul(&x[1]));
    }
}

on_each_device! {
    fn element_wise_operations_keep_their_type(device) {
        check("swiglu", device, [&[&[40, 7], &[40, 7]], &[]], 1.0, &|x, _| fused::swiglu(&x[0], &x[1]));
        check("gelu", device, [&[&[40, 7]], &[]], 1.0, &|x, _| x[0].gelu());
        check("gelu_tanh", device, [&[&[40, 7]], &[]], 1.0, &|x, _| x[0].gelu_tanh());
        check("dropout", device, [&[&[400]], &[]], 1.0, &|x, _| fused::dropout(&x[0], 0.25, Seed::new(3).key()));
        check("add", device, [&[&[5, 7], &[5, 7]], &[]], 1.0, &|x, _| x[0].add(&x[1]));
        check("narrow", device, [&[&[5, 8]], &[]], 1.0, &|x, _| x[0].narrow(1, 2, 3)?.contiguous());
        let positions = Tensor::from_slice(&[0u32, 3, 1, 2, 4, 5], (2, 3), device).unwrap();
        let (cos, sin) = fused::rope_tables(&[1.0, 0.3], 6, device).unwrap();
        check("rope", device, [&[&[2, 3, 2, 4]], &[]], 1.0, &|x, _| fused::rope(&x[0], &cos, &sin, &positions));
    }
}

on_each_device! {
    fn a_norm_emits_the_type_it_is_asked_for(device) {
        check("rms_norm", device, [&[&[6, 20]], &[&[20]]], 1.5, &|x, w| {
            let y = fused::rms_norm(&x[0], &w[0], 1e-6, x[0].dtype())?;
            assert_eq!(y.dtype(), x[0].dtype());
            Ok(y)
        });
        check("layer_norm", device, [&[&[6, 20]], &[&[20], &[20]]], 1.5, &|x, w| {
            let y = fused::layer_norm(&x[0], &w[0], &w[1], 1e-5, x[0].dtype())?;
            assert_eq!(y.dtype(), x[0].dtype());
            Ok(y)
        });
        // A bf16 operand and an f32 result: where BERT's residual stream begins.
        check("layer_norm to f32", device, [&[&[6, 20]], &[&[20], &[20]]], 1.5, &|x, w| {
            let y = fused::layer_norm(&x[0], &w[0], &w[1], 1e-5, DType::F32)?;
            assert_eq!(y.dtype(), DType::F32);
            Ok(y)
        });
        let (x, w) = (random(&[6, 20], 1, device), Tensor::ones(20, device).unwrap());
        assert_eq!(fused::rms_norm(&x, &w, 1e-6, DType::BF16).unwrap().dtype(), DType::BF16);
    }
}

on_each_device! {
    fn attention_and_the_loss_take_16_bit_activations(device) {
        let options = fused::Attention { causal: true, ..Default::default() };
        let shapes: &[&[usize]] = &[&[1, 40, 4, 16], &[1, 40, 2, 16], &[1, 40, 2, 16]];
        check("attention", device, [shapes, &[]], 3.0, &|x, _| fused::attention(&x[0], &x[1], &x[2], &options));
        let labels: Vec<i64> = (0..30).map(|i| if i % 4 == 3 { -100 } else { i * 7 % 50 }).collect();
        let labels = Tensor::from_slice(&labels, 30, device).unwrap();
        let params = CrossEntropyParams { ignore_index: -100, label_smoothing: 0.1, z_loss: 1e-3 };
        check("cross-entropy", device, [&[&[30, 16]], &[&[50, 16]]], 2.0, &|x, w| {
            Ok(fused::linear_cross_entropy(&x[0], &w[0], &labels, params)?.sum)
        });
        check("token losses", device, [&[&[30, 16]], &[&[50, 16], &[50]]], 2.0, &|x, w| {
            let head = fused::Head { weight: w[0].clone(), bias: Some(w[1].clone()) };
            fused::linear_token_losses(&x[0], &head, &labels, params)
        });
    }
}

on_each_device! {
    fn a_loss_scale_that_is_told_ahead_changes_no_f32_gradient_and_keeps_small_f16_ones(device) {
        const SCALE: f32 = 4096.0;
        let labels = Tensor::from_slice(&[3i64, -100, 7, 0], 4, device).unwrap();
        let params = CrossEntropyParams { ignore_index: -100, label_smoothing: 0.0, z_loss: 0.0 };
        let gradient = |dtype, is_told: bool| {
            // Logits of 0 and 18: all but one of the probabilities are 1.5e-8, too little for an f16.
            let mut head = vec![0.0f32; 50 * 16];
            head[3 * 16] = 18.0;
            let head = Parameter::new("head", Tensor::from_slice(&head, (50, 16), device).unwrap());
            let hidden = Tensor::ones((4, 16), device).unwrap().to_dtype(dtype).unwrap();
            let tape = Tape::new();
            if is_told {
                tape.set_loss_scale(SCALE);
            }
            let loss = fused::linear_cross_entropy(&hidden, &tape.watch(&head), &labels, params).unwrap();
            tape.backward(&loss.sum.affine(SCALE.into(), 0.0).unwrap()).unwrap();
            head.grad().unwrap().to_vec::<f32>().unwrap()
        };
        let plain = gradient(DType::F32, false);
        assert!(relative_l2(&gradient(DType::F32, true), &plain) < 1e-6);
        // Row 20 is nobody's label.
        let of = |gradient: Vec<f32>| gradient[20 * 16];
        assert!(of(plain.clone()) > 0.0);
        assert_eq!(of(gradient(DType::F16, false)), 0.0);
        let kept = of(gradient(DType::F16, true)) / of(plain);
        assert!((kept - 1.0).abs() < 0.02, "{kept}");
    }
}

on_each_device! {
    fn the_residual_stream_stays_f32(device) {
        let (stream, y) = (random(&[4, 8], 1, device), random(&[4, 8], 2, device));
        let (stream, y) = (Parameter::new("stream", stream), Parameter::new("y", y.to_dtype(DType::BF16).unwrap()));
        let tape = Tape::new();
        let sum = tape.watch(&stream).add(&tape.watch(&y)).unwrap();
        assert_eq!(sum.dtype(), DType::F32);
        tape.backward(&sum.sum_all().unwrap()).unwrap();
        assert_eq!(stream.grad().unwrap().to_vec::<f32>().unwrap(), [1.0; 32]);
        assert_eq!(y.grad().unwrap().dtype(), DType::BF16);
    }
}

on_each_device! {
    fn frozen_weights_may_be_16_bit(device) {
        let (x, w) = (random(&[5, 12], 1, device), random(&[7, 12], 2, device));
        let frozen = w.to_dtype(DType::BF16).unwrap();
        let widened = frozen.to_dtype(DType::F32).unwrap();
        let [ours, reference] = [&frozen, &widened].map(|w| {
            let (x, w) = (Parameter::new("x", x.clone()), Parameter::new("w", w.clone()));
            w.set_trainable(false);
            let tape = Tape::new();
            let y = fused::linear(&tape.watch(&x), &tape.watch(&w), None).unwrap();
            tape.backward(&y.sum_all().unwrap()).unwrap();
            (y.to_vec::<f32>().unwrap(), x.grad().unwrap().to_vec::<f32>().unwrap())
        });
        assert!(relative_l2(&ours.0, &reference.0) < 1e-6);
        assert!(relative_l2(&ours.1, &reference.1) < 1e-6);
        let ids = Tensor::from_slice(&[3u32, 0, 6], 3, device).unwrap();
        let rows = fused::embedding(&frozen, &ids).unwrap();
        assert_eq!(rows.to_vec::<f32>().unwrap(), fused::embedding(&widened, &ids).unwrap().to_vec::<f32>().unwrap());
    }
}
