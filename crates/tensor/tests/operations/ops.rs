//! Primitive operations: forward against candle, gradients against finite differences, on every device.

use candle_core as candle;
use tt_tensor::{DType, Device, Result, Seed, Tensor};
use tt_testkit::{check_gradients, on_each_device, relative_l2};

fn values(len: usize, seed: u64) -> Vec<f32> {
    let tensor = Tensor::rand(-2.0, 2.0, len, Seed::new(seed), Device::Cpu).unwrap();
    tensor.to_vec().unwrap()
}

/// Values at least 0.3 away from each other's place and from 0, so that differences cross no kink.
fn away_from_kinks(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| ((i * 7 + 3) % 11) as f32 * 0.4 - 2.2 + (i as f32) * 1e-3)
        .collect()
}

type Unary = (
    &'static str,
    fn(&Tensor) -> Result<Tensor>,
    fn(&candle::Tensor) -> candle::Result<candle::Tensor>,
    bool,
);

const UNARY: &[Unary] = &[
    ("neg", Tensor::neg, candle::Tensor::neg, false),
    ("exp", Tensor::exp, candle::Tensor::exp, false),
    ("log", Tensor::log, candle::Tensor::log, true),
    ("sqrt", Tensor::sqrt, candle::Tensor::sqrt, true),
    ("sqr", Tensor::sqr, candle::Tensor::sqr, false),
    ("recip", Tensor::recip, candle::Tensor::recip, true),
    ("abs", Tensor::abs, candle::Tensor::abs, false),
    ("sin", Tensor::sin, candle::Tensor::sin, false),
    ("cos", Tensor::cos, candle::Tensor::cos, false),
    ("tanh", Tensor::tanh, candle::Tensor::tanh, false),
    ("relu", Tensor::relu, candle::Tensor::relu, false),
    ("silu", Tensor::silu, candle::Tensor::silu, false),
    ("gelu", Tensor::gelu, candle::Tensor::gelu_erf, false),
    ("gelu_tanh", Tensor::gelu_tanh, candle::Tensor::gelu, false),
    (
        "affine",
        |x| x.affine(1.5, -0.5),
        |x| x.affine(1.5, -0.5),
        false,
    ),
    ("powf", |x| x.powf(1.7), |x| x.powf(1.7), true),
    ("sigmoid", Tensor::sigmoid, candle_nn::ops::sigmoid, false),
    (
        "softmax",
        |x| x.softmax(1),
        |x| candle_nn::ops::softmax(x, 1),
        false,
    ),
    (
        "log_softmax",
        |x| x.log_softmax(1),
        |x| candle_nn::ops::log_softmax(x, 1),
        false,
    ),
    ("sum", |x| x.sum(&[0]), |x| x.sum(0), false),
    ("mean", |x| x.mean(&[1]), |x| x.mean(1), false),
    ("max", |x| x.max(1), |x| x.max(1), false),
    ("min", |x| x.min(0), |x| x.min(0), false),
    ("transpose", |x| x.t(), |x| x.t(), false),
    (
        "narrow",
        |x| x.narrow(1, 1, 3),
        |x| x.narrow(1, 1, 3),
        false,
    ),
    (
        "reshape",
        |x| x.t()?.reshape((5, 3)),
        |x| x.t()?.reshape((5, 3)),
        false,
    ),
    (
        "expand",
        |x| x.expand((2, 3, 5)),
        |x| x.expand((2, 3, 5)),
        false,
    ),
    (
        "permute",
        |x| x.reshape((3, 5, 1))?.permute(&[2, 0, 1]),
        |x| x.reshape((3, 5, 1))?.permute((2, 0, 1)),
        false,
    ),
];

on_each_device! {
    #[full_on_tpu]
    fn unary_operations_match_candle_and_their_differences(device) {
        for (name, ours, reference, positive) in UNARY {
            let mut input = away_from_kinks(15);
            if *positive {
                input.iter_mut().for_each(|x| *x = x.abs() + 0.3);
            }
            let x = Tensor::from_slice(&input, (3, 5), device).unwrap();
            let y = ours(&x).unwrap();
            let expected = reference(&x.to_candle().unwrap()).unwrap();
            assert_eq!(y.dims(), expected.dims(), "{name}");
            let expected = expected.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let error = relative_l2(&y.to_vec::<f32>().unwrap(), &expected);
            assert!(error < 1e-6, "{name}: {error:.1e}");
            let inputs = [("x", vec![3, 5], input)];
            check_gradients(device, &inputs, 1e-2, 5e-3, |x| ours(&x[0]));
        }
    }
}

type Binary = (
    &'static str,
    fn(&Tensor, &Tensor) -> Result<Tensor>,
    fn(&candle::Tensor, &candle::Tensor) -> candle::Result<candle::Tensor>,
);

const BINARY: &[Binary] = &[
    ("add", Tensor::add, candle::Tensor::broadcast_add),
    ("sub", Tensor::sub, candle::Tensor::broadcast_sub),
    ("mul", Tensor::mul, candle::Tensor::broadcast_mul),
    ("div", Tensor::div, candle::Tensor::broadcast_div),
    (
        "maximum",
        Tensor::maximum,
        candle::Tensor::broadcast_maximum,
    ),
    (
        "minimum",
        Tensor::minimum,
        candle::Tensor::broadcast_minimum,
    ),
];

on_each_device! {
    #[full_on_tpu]
    fn binary_operations_broadcast_like_candle_and_match_their_differences(device) {
        let shapes: [(&[usize], &[usize]); 5] =
            [(&[3, 4], &[3, 4]), (&[3, 4], &[4]), (&[3, 1], &[1, 4]), (&[], &[2, 3]), (&[2, 3, 4], &[3, 1])];
        for (name, ours, reference) in BINARY {
            for (left, right) in shapes {
                let a = away_from_kinks(left.iter().product());
                // Far from 0 for the division, and from `a` for the extrema.
                let b: Vec<f32> = away_from_kinks(right.iter().product()).iter().map(|x| x + x.signum() * 0.6).collect();
                let (x, y) = (
                    Tensor::from_slice(&a, left, device).unwrap(),
                    Tensor::from_slice(&b, right, device).unwrap(),
                );
                let out = ours(&x, &y).unwrap();
                let expected = reference(&x.to_candle().unwrap(), &y.to_candle().unwrap()).unwrap();
                assert_eq!(out.dims(), expected.dims(), "{name}");
                let expected = expected.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                let out = out.to_vec::<f32>().unwrap();
                if device == Device::Cpu {
                    assert_eq!(out, expected, "{name}");
                }
                for (ours, truth) in out.iter().zip(&expected) {
                    // A device's quotient is good to a few units in the last place.
                    assert!((ours - truth).abs() <= 5e-7 * truth.abs(), "{name}: {ours} instead of {truth}");
                }
                let inputs = [("a", left.to_vec(), a), ("b", right.to_vec(), b)];
                check_gradients(device, &inputs, 1e-2, 5e-3, |x| ours(&x[0], &x[1]));
            }
        }
    }
}

on_each_device! {
    #[full_on_tpu]
    fn matmul_takes_transposed_and_batched_operands(device) {
        let (m, k, n) = (3, 4, 5);
        let inputs = [("a", vec![2, m, k], values(2 * m * k, 1)), ("b", vec![2, n, k], values(2 * n * k, 2))];
        check_gradients(device, &inputs, 1e-2, 2e-3, |x| x[0].matmul(&x[1].transpose(1, 2)?));
        let inputs = [("a", vec![k, m], values(m * k, 3)), ("b", vec![k, n], values(n * k, 4))];
        check_gradients(device, &inputs, 1e-2, 2e-3, |x| x[0].t()?.matmul(&x[1]));

        let a = Tensor::from_slice(&values(2 * m * k, 1), (2, m, k), device).unwrap();
        let b = Tensor::from_slice(&values(k * n, 2), (1, k, n), device).unwrap();
        let ours = a.matmul(&b.expand((2, k, n)).unwrap()).unwrap();
        let expected = a.to_candle().unwrap().broadcast_matmul(&b.to_candle().unwrap()).unwrap();
        let expected = expected.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(relative_l2(&ours.to_vec::<f32>().unwrap(), &expected) < 1e-6);
    }
}

on_each_device! {
    #[full_on_tpu]
    fn indexing_matches_candle_and_its_differences(device) {
        let ids = Tensor::from_slice(&[2u32, 0, 2], 3, device).unwrap();
        let inputs = [("x", vec![4, 3], values(12, 5)), ("source", vec![3, 3], values(9, 6))];
        check_gradients(device, &inputs[..1], 1e-2, 2e-3, |x| x[0].index_select(&ids, 0));
        check_gradients(device, &inputs, 1e-2, 2e-3, |x| x[0].index_add(&ids, &x[1], 0));
        let places = Tensor::from_slice(&[3u32, 1, 0, 0, 2, 3], (2, 3), device).unwrap();
        let two = [("x", vec![4, 3], values(12, 5)), ("source", vec![2, 3], values(6, 6))];
        check_gradients(device, &two[..1], 1e-2, 2e-3, |x| x[0].gather(&places, 0));
        check_gradients(device, &two, 1e-2, 2e-3, |x| x[0].scatter_add(&places, &x[1], 0));

        let x = Tensor::from_slice(&values(12, 5), (4, 3), device).unwrap();
        let expected = x.to_candle().unwrap().gather(&places.to_candle().unwrap(), 0).unwrap();
        let ours = x.gather(&places, 0).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(ours, expected.flatten_all().unwrap().to_vec1::<f32>().unwrap());
    }
}

on_each_device! {
    fn choosing_and_joining_pass_gradients_to_their_sources(device) {
        let choose = Tensor::from_slice(&[1u8, 0, 0, 1, 1, 0], (2, 3), device).unwrap();
        let inputs = [("a", vec![2, 3], values(6, 7)), ("b", vec![3], values(3, 8))];
        check_gradients(device, &inputs, 1e-2, 2e-3, |x| choose.where_cond(&x[0], &x[1]));
        let inputs = [("a", vec![2, 3], values(6, 7)), ("b", vec![2, 2], values(4, 8))];
        check_gradients(device, &inputs, 1e-2, 2e-3, |x| Tensor::cat(&[x[0].clone(), x[1].clone(), x[0].clone()], 1));
    }
}

on_each_device! {
    fn casts_round_to_nearest_even_and_pass_gradients_back(device) {
        let x = Tensor::from_slice(&[1.0f32, 1.0 + 1.0 / 256.0, -3.3, 65536.5], 4, device).unwrap();
        let back = x.to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap();
        assert_eq!(back.to_vec::<f32>().unwrap(), [1.0, 1.0, -3.296875, 65536.0]);
        let integers = x.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(integers, [1, 1, -3, 65536]);
    }
}

on_each_device! {
    fn shapes_that_do_not_fit_are_errors_that_name_them(device) {
        let x = Tensor::zeros((2, 3), device).unwrap();
        let y = Tensor::zeros((4, 2), device).unwrap();
        let told = |result: Result<Tensor>, words: &[&str]| {
            let message = result.unwrap_err().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        };
        told(x.add(&y), &["add", "[2, 3]", "[4, 2]"]);
        told(x.matmul(&x), &["matmul", "[2, 3]"]);
        told(x.reshape(7), &["reshape", "[7]"]);
        told(x.sum(&[2]), &["reduce", "2"]);
        told(Tensor::cat(&[x.clone(), y.clone()], 0), &["cat"]);
        told(x.to_dtype(DType::U32).unwrap().add(&x), &["add", "F32", "U32"]);
    }
}
