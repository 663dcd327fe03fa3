//! Modules from outside: paths, hooks, initial values, what is refused.

use std::sync::{Arc, Mutex};

use tt_nn::{
    Activation, AttentionMask, AttentionOptions, AttentionShape, Embedding, Forward, GatedMlp,
    Hooks, Init, KvCache, LayerNorm, Linear, ModulePath, ParamKind, ParamSpec, ParamTree,
    PositionEmbedding, Positions, Rope, SelfAttention, attend,
};
use tt_tensor::{Seed, Tape, Tensor};
use tt_testkit::{on_each_device, relative_l2};

fn path(name: &str) -> ModulePath {
    ModulePath::root().join(name)
}

fn positions(rows: usize, start: u32, len: usize, device: tt_tensor::Device) -> Positions {
    let ids: Vec<u32> = (0..rows).flat_map(|_| start..start + len as u32).collect();
    Positions {
        position_ids: Tensor::from_slice(&ids, (rows, len), device).unwrap(),
        bound: start as usize + len,
        segment_ids: None,
    }
}

on_each_device! {
    fn initial_values_depend_on_seed_and_path_only(device) {
        let linear = |name| Linear::new(path(name), 8, 4).with_bias();
        let (a, b) = (linear("a"), linear("b"));
        let mut both = a.params();
        both.extend(b.params());
        let value = |params: &ParamTree, name: &str| params.get(name).unwrap().value().to_vec::<f32>().unwrap();
        let alone = ParamTree::init(&b.params(), Seed::new(5), device).unwrap();
        let together = ParamTree::init(&both, Seed::new(5), device).unwrap();
        assert_eq!(value(&alone, "b.weight"), value(&together, "b.weight"));
        assert_ne!(value(&together, "a.weight"), value(&together, "b.weight"));
        let other = ParamTree::init(&both, Seed::new(6), device).unwrap();
        assert_ne!(value(&other, "a.weight"), value(&together, "a.weight"));
    }
}

on_each_device! {
    fn linear_weights_are_normal_with_the_given_deviation(device) {
        let linear = Linear::new(path("w"), 300, 200).with_std(0.05).with_bias();
        let params = ParamTree::init(&linear.params(), Seed::new(1), device).unwrap();
        let values = params.get("w.weight").unwrap().value().to_vec::<f32>().unwrap();
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let square = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 1e-3 && (square.sqrt() - 0.05).abs() < 1e-3, "{mean} {square}");
        let bias = params.get("w.bias").unwrap().value().to_vec::<f32>().unwrap();
        assert!(bias.iter().all(|b| *b == 0.0));
    }
}

#[derive(Default)]
struct Log {
    events: Mutex<Vec<String>>,
    /// The tensor that comes with each event.
    tensors: Mutex<Vec<Option<Vec<f32>>>>,
}

impl Log {
    fn note(&self, event: &str, module: &ModulePath, tensor: Option<&Tensor>) {
        let values = tensor.map(|tensor| tensor.detach().to_vec().unwrap());
        self.events
            .lock()
            .unwrap()
            .push(format!("{event} {module}"));
        self.tensors.lock().unwrap().push(values);
    }
}

impl Hooks for Log {
    fn enter_forward(&self, module: &ModulePath, input: &Tensor) -> tt_nn::Result<()> {
        self.note("forward>", module, Some(input));
        Ok(())
    }
    fn exit_forward(&self, module: &ModulePath, output: &Tensor) -> tt_nn::Result<()> {
        self.note("forward<", module, Some(output));
        Ok(())
    }
    fn enter_backward(&self, module: &ModulePath, grad: Option<&Tensor>) -> tt_tensor::Result<()> {
        self.note("backward>", module, grad);
        Ok(())
    }
    fn exit_backward(&self, module: &ModulePath, grad: Option<&Tensor>) -> tt_tensor::Result<()> {
        self.note("backward<", module, grad);
        Ok(())
    }
}

on_each_device! {
    fn hooks_enter_modules_in_order_and_backward_in_reverse(device) {
        let mlp = GatedMlp::new(path("mlp"), 4, 8, 0.5);
        let params = ParamTree::init(&mlp.params(), Seed::new(1), device).unwrap();
        let (tape, log) = (Tape::new(), Arc::new(Log::default()));
        let fwd = Forward::training(&params, &tape, Seed::new(0)).with_hooks(log.clone());
        let y = mlp.forward(&fwd, &Tensor::ones((2, 4), device).unwrap()).unwrap();
        tape.backward(&y.sum_all().unwrap()).unwrap();
        let modules = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
        let mut expected = vec!["forward> mlp".to_owned()];
        for module in modules {
            expected.extend([format!("forward> {module}"), format!("forward< {module}")]);
        }
        expected.extend(["forward< mlp".to_owned(), "backward> mlp".to_owned()]);
        for module in modules.iter().rev() {
            expected.extend([format!("backward> {module}"), format!("backward< {module}")]);
        }
        expected.push("backward< mlp".to_owned());
        assert_eq!(*log.events.lock().unwrap(), expected);
    }
}

/// Events of one of several hooks, in the log that they share.
struct Named(&'static str, Arc<Log>);

impl Named {
    fn note(&self, event: &str, module: &ModulePath) {
        self.1.note(&format!("{} {event}", self.0), module, None);
    }
}

impl Hooks for Named {
    fn enter_forward(&self, module: &ModulePath, _: &Tensor) -> tt_nn::Result<()> {
        self.note("forward>", module);
        Ok(())
    }
    fn exit_forward(&self, module: &ModulePath, _: &Tensor) -> tt_nn::Result<()> {
        self.note("forward<", module);
        Ok(())
    }
    fn enter_backward(&self, module: &ModulePath, _: Option<&Tensor>) -> tt_tensor::Result<()> {
        self.note("backward>", module);
        Ok(())
    }
    fn exit_backward(&self, module: &ModulePath, _: Option<&Tensor>) -> tt_tensor::Result<()> {
        self.note("backward<", module);
        Ok(())
    }
}

/// Runs every module again.
struct All;

impl tt_nn::Recompute for All {
    fn recomputes(&self, _: &ModulePath, _: &'static str) -> bool {
        true
    }
}

on_each_device! {
    #[full_on_tpu]
    fn several_hooks_wrap_one_another(device) {
        let linear = Linear::new(path("w"), 2, 2);
        let params = ParamTree::init(&linear.params(), Seed::new(1), device).unwrap();
        let events = |recompute: bool| {
            let (tape, log) = (Tape::new(), Arc::new(Log::default()));
            let mut fwd = Forward::training(&params, &tape, Seed::new(0))
                .with_hooks(Arc::new(Named("outer", log.clone())))
                .with_hooks(Arc::new(Named("inner", log.clone())));
            if recompute {
                fwd = fwd.with_recompute(Arc::new(All));
            }
            let y = linear.forward(&fwd, &Tensor::ones((1, 2), device).unwrap()).unwrap();
            tape.backward(&y.sum_all().unwrap()).unwrap();
            log.events.lock().unwrap().clone()
        };
        let forward = ["outer forward> w", "inner forward> w", "inner forward< w", "outer forward< w"];
        let backward = ["outer backward> w", "inner backward> w", "inner backward< w", "outer backward< w"];
        assert_eq!(events(false), [forward, backward].concat());
        assert_eq!(events(true), [forward, forward, backward].concat());
    }
}

on_each_device! {
    fn hooks_are_given_inputs_outputs_and_their_gradients(device) {
        let linear = Linear::new(path("w"), 2, 2);
        let params = ParamTree::build(&linear.params(), |_| {
            Ok(Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], (2, 2), device)?)
        }).unwrap();
        let (tape, log) = (Tape::new(), Arc::new(Log::default()));
        let fwd = Forward::training(&params, &tape, Seed::new(0)).with_hooks(log.clone());
        let y = linear.forward(&fwd, &Tensor::ones((1, 2), device).unwrap()).unwrap();
        let y = linear.forward(&fwd, &y).unwrap().mul(&y).unwrap();
        tape.backward(&y.sum_all().unwrap()).unwrap();
        let expected = [
            Some(vec![1.0, 1.0]), // into the first layer, and out of it
            Some(vec![3.0, 7.0]),
            Some(vec![3.0, 7.0]),
            Some(vec![17.0, 37.0]),
            Some(vec![3.0, 7.0]), // of the second layer's output: the other factor
            Some(vec![41.0, 71.0]), // of its input: (17, 37), what its other use gave, and (3, 7) W
            Some(vec![41.0, 71.0]),
            None, // nobody asks for the gradient of the first input
        ];
        assert_eq!(*log.tensors.lock().unwrap(), expected);
    }
}

on_each_device! {
    fn attention_with_a_cache_continues_attention_without(device) {
        let shape = AttentionShape {
            kv_heads: 2, qkv_bias: true, qk_norm_eps: Some(1e-6), init_std: 0.3, ..AttentionShape::new(32, 4, 8)
        };
        let attention = SelfAttention::new(path("self_attn"), &shape);
        let params = ParamTree::init(&attention.params(), Seed::new(2), device).unwrap();
        let (fwd, rope) = (Forward::inference(&params), Rope::new(8, 10_000.0, 64));
        let x = Tensor::randn(0.0, 1.0, (2, 9, 32), Seed::new(3), device).unwrap();
        let whole = attention.forward(&fwd, &x, &rope, &positions(2, 0, 9, device)).unwrap();
        let cache = KvCache::new();
        let fwd = fwd.with_cache(&cache);
        let mut parts = Vec::new();
        for (start, len) in [(0, 5), (5, 1), (6, 3)] {
            let part = x.narrow(1, start, len).unwrap();
            let at = positions(2, start as u32, len, device);
            parts.push(attention.forward(&fwd, &part, &rope, &at).unwrap());
        }
        assert_eq!(cache.len(), 9);
        let parts = Tensor::cat(&parts, 1).unwrap().to_vec::<f32>().unwrap();
        assert!(relative_l2(&parts, &whole.to_vec::<f32>().unwrap()) < 1e-5);
    }
}

on_each_device! {
    #[full_on_tpu]
    fn attention_both_ways_sees_all_of_its_segment_and_no_padding(device) {
        let (b, t, h, d) = (2, 5, 2, 4);
        let params = ParamTree::init(&[], Seed::new(0), device).unwrap();
        let fwd = Forward::inference(&params);
        let random = |seed| Tensor::randn(0.0, 1.0, (b, t, h, d), Seed::new(seed), device).unwrap();
        let qkv = [random(1), random(2), random(3)];
        // Five tokens; three and padding.
        let ids = [1u32, 1, 1, 1, 1, 1, 1, 1, 0, 0];
        let mut at = positions(b, 0, t, device);
        at.segment_ids = Some(Tensor::from_slice(&ids, (b, t), device).unwrap());
        let ours = attend(&fwd, &path("attn"), qkv.clone(), &at, AttentionMask::BIDIRECTIONAL).unwrap();
        let ours = ours.to_vec::<f32>().unwrap();
        let [q, k, v] = qkv.map(|tensor| tensor.to_vec::<f32>().unwrap());
        for (row, len) in [(0, 5), (1, 3)] {
            for (query, head) in (0..len).flat_map(|query| (0..h).map(move |head| (query, head))) {
                let at = |token: usize| ((row * t + token) * h + head) * d;
                let dot = |key| (0..d).map(|i| q[at(query) + i] * k[at(key) + i]).sum::<f32>();
                let weights: Vec<f32> = (0..len).map(|key| (dot(key) / (d as f32).sqrt()).exp()).collect();
                let total: f32 = weights.iter().sum();
                let of = |i| (0..len).map(|key| weights[key] / total * v[at(key) + i]).sum::<f32>();
                let expected: Vec<f32> = (0..d).map(of).collect();
                assert!(relative_l2(&ours[at(query)..at(query) + d], &expected) < 1e-5);
            }
        }
    }
}

/// Attention of 2 rows of 6 tokens, and the gradients of a sum of it that tells all its elements apart.
fn attention_and_gradients(
    device: tt_tensor::Device,
    positions: &Positions,
    options: AttentionOptions,
    seed: u64,
) -> [Vec<f32>; 4] {
    let specs = [("q", 4), ("k", 2), ("v", 2)].map(|(name, heads)| ParamSpec {
        path: name.into(),
        shape: vec![2, 6, heads, 4],
        init: Init::Normal { std: 1.0 },
        kind: ParamKind::Vector,
    });
    let params = ParamTree::init(&specs, Seed::new(1), device).unwrap();
    let tape = Tape::new();
    let fwd = Forward::training(&params, &tape, Seed::new(seed));
    let root = ModulePath::root();
    let qkv = ["q", "k", "v"].map(|name| fwd.param(&root, name).unwrap());
    let y = attend(&fwd, &path("attn"), qkv, positions, options).unwrap();
    let weights = Tensor::randn(0.0, 1.0, (2, 6, 4, 4), Seed::new(2), device).unwrap();
    tape.backward(&y.mul(&weights).unwrap().sum_all().unwrap())
        .unwrap();
    let gradient = |name| params.get(name).unwrap().grad().unwrap().to_vec().unwrap();
    [
        y.to_vec().unwrap(),
        gradient("q"),
        gradient("k"),
        gradient("v"),
    ]
}

on_each_device! {
    /// A dropout too small to hit anything shows that the scores which are held whole are the fused kernel's: masks, scale
    /// and groups of heads alike.
    fn attention_with_dropout_is_attention_of_which_a_part_falls_out(device) {
        let alone = positions(2, 0, 6, device);
        let mut packed = positions(2, 0, 6, device);
        let (at, segments) = ([0u32, 1, 2, 0, 1, 2, 0, 1, 2, 3, 0, 0], [1u32, 1, 1, 2, 2, 2, 1, 1, 1, 1, 0, 0]);
        packed.position_ids = Tensor::from_slice(&at, (2, 6), device).unwrap();
        packed.segment_ids = Some(Tensor::from_slice(&segments, (2, 6), device).unwrap());
        let causal = AttentionMask::CAUSAL;
        for (mask, scale) in [
            (causal, None),
            (AttentionMask { window: Some(2), ..causal }, Some(0.7)),
            (AttentionMask::BIDIRECTIONAL, Some(1.0)),
        ] {
            for positions in [&alone, &packed] {
                let with = |dropout| {
                    let options = AttentionOptions { mask, scale, dropout };
                    attention_and_gradients(device, positions, options, 3)
                };
                for (whole, fused) in with(1e-9).iter().zip(&with(0.0)) {
                    let difference = relative_l2(whole, fused);
                    assert!(difference < 1e-5, "{mask:?} {scale:?}: {difference:.1e}");
                }
            }
        }
    }
}

#[test]
fn dropout_of_attention_keeps_its_mean_and_is_drawn_by_the_pass() {
    let device = tt_tensor::Device::Cpu;
    let at = positions(2, 0, 6, device);
    let given = |dropout, seed| {
        let options = AttentionOptions {
            dropout,
            ..AttentionMask::CAUSAL.into()
        };
        attention_and_gradients(device, &at, options, seed)
    };
    assert_eq!(given(0.3, 1), given(0.3, 1));
    assert_ne!(given(0.3, 1), given(0.3, 2));
    let plain = given(0.0, 0);
    let mut means = plain.clone().map(|values| vec![0.0; values.len()]);
    const DRAWS: u64 = 4000;
    for seed in 0..DRAWS {
        for (mean, drawn) in means.iter_mut().zip(given(0.3, seed)) {
            for (mean, drawn) in mean.iter_mut().zip(drawn) {
                *mean += drawn / DRAWS as f32;
            }
        }
    }
    for (mean, plain) in means.iter().zip(&plain) {
        let difference = relative_l2(mean, plain);
        assert!(difference < 0.05, "{difference:.3}");
    }
}

#[test]
fn what_a_cache_cannot_continue_is_refused_with_its_path() {
    let device = tt_tensor::Device::Cpu;
    let params = ParamTree::init(&[], Seed::new(0), device).unwrap();
    let cache = KvCache::new();
    let fwd = Forward::inference(&params).with_cache(&cache);
    let x = Tensor::ones((1, 2, 1, 4), device).unwrap();
    let qkv = || [x.clone(), x.clone(), x.clone()];
    let mut at = positions(1, 0, 2, device);
    let refusal = |at: &Positions, mask| {
        let refused = attend(&fwd, &path("attn"), qkv(), at, mask);
        refused.unwrap_err().to_string()
    };
    let message = refusal(&at, AttentionMask::BIDIRECTIONAL);
    assert!(
        message.contains("`attn`") && message.contains("ahead"),
        "{message}"
    );
    at.segment_ids = Some(Tensor::from_slice(&[1u32, 2], (1, 2), device).unwrap());
    let message = refusal(&at, AttentionMask::CAUSAL);
    assert!(
        message.contains("`attn`") && message.contains("segments"),
        "{message}"
    );
    assert!(cache.is_empty());
}

on_each_device! {
    #[full_on_tpu]
    fn layers_of_gpt2_and_bert_have_their_shapes_and_types(device) {
        let norm = LayerNorm::new(path("norm"), 6, 1e-5);
        let linear = Linear::new(path("fc"), 6, 10).with_bias().with_weight_in_out();
        let table = PositionEmbedding::new(path("wpe"), 8, 6, 0.02);
        let specs = [norm.params(), linear.params(), table.params()].concat();
        let shapes: Vec<_> = specs.iter().map(|spec| (spec.path.as_str(), spec.shape.clone(), spec.kind)).collect();
        assert_eq!(shapes, [
            ("norm.weight", vec![6], ParamKind::Vector),
            ("norm.bias", vec![6], ParamKind::Vector),
            ("fc.weight", vec![6, 10], ParamKind::LinearInOut),
            ("fc.bias", vec![10], ParamKind::Vector),
            ("wpe.weight", vec![8, 6], ParamKind::Embedding),
        ]);
        let params = ParamTree::init(&specs, Seed::new(1), device).unwrap();
        let fwd = Forward::inference(&params).with_precision(tt_tensor::Precision::Bf16);
        let x = table.forward(&fwd, &positions(2, 0, 3, device)).unwrap();
        assert_eq!((x.dims(), x.dtype()), (&[2, 3, 6][..], tt_tensor::DType::F32));
        let y = norm.forward(&fwd, &x).unwrap();
        assert_eq!((y.dims(), y.dtype()), (&[2, 3, 6][..], tt_tensor::DType::BF16));
        assert_eq!(norm.forward_f32(&fwd, &x).unwrap().dtype(), tt_tensor::DType::F32);
        let y = Activation::GeluTanh.apply(&linear.forward(&fwd, &y).unwrap()).unwrap();
        assert_eq!((y.dims(), y.dtype()), (&[2, 3, 10][..], tt_tensor::DType::BF16));
        let message = table.forward(&fwd, &positions(1, 6, 3, device)).unwrap_err().to_string();
        assert!(message.contains('9') && message.contains('8'), "{message}");
    }
}

on_each_device! {
    fn what_does_not_fit_is_refused_with_its_path(device) {
        let embedding = Embedding::new(path("embed"), 3, 2, 0.02);
        let mut specs = embedding.params();
        let wrong = ParamTree::build(&specs, |_| Ok(Tensor::zeros((2, 3), device)?));
        let message = wrong.err().unwrap().to_string();
        assert!(message.contains("embed.weight") && message.contains("[2, 3]"), "{message}");
        specs.push(ParamSpec { path: "embed.weight".into(), shape: vec![1], init: Init::Ones, kind: ParamKind::Vector });
        let message = ParamTree::init(&specs, Seed::new(0), device).err().unwrap().to_string();
        assert!(message.contains("two parameters"), "{message}");
        specs.pop();
        let params = ParamTree::init(&specs, Seed::new(0), device).unwrap();
        let message = Forward::inference(&params).param(&path("embed"), "bias").unwrap_err().to_string();
        assert!(message.contains("embed.bias"), "{message}");
        let x = Tensor::ones((1, 9, 1, 4), device).unwrap();
        let message = Rope::new(4, 10_000.0, 8).apply(&x, &positions(1, 0, 9, device)).unwrap_err().to_string();
        assert!(message.contains('9') && message.contains('8'), "{message}");
    }
}
