//! GPT-2 against transformers' numbers, and the names of published checkpoints.

use std::sync::Arc;

use candle_core::DType;
use serde_json::Value;
use tt_models::{Gpt2Config, Input, Model, ModelConfig, Result, TensorNames};
use tt_nn::{Forward, ModulePath, ParamSpec, ParamTree};
use tt_tensor::{Device, Seed, Tensor};
use tt_testkit::{on_each_device, relative_l2};
use tt_train::load_params;

use crate::check::Check;
use crate::common;

fn open() -> Check {
    Check::open_model::<Gpt2Config>("gpt2", Device::Cpu)
}

on_each_device! {
    #[full_on_tpu]
    fn golden_gpt2(device) {
        Check::open_model::<Gpt2Config>("gpt2", device).all();
    }
}

/// The case's weights as the files that are published hold them: without the prefix, and with buffers.
fn published(head: impl Fn(&candle_core::Tensor) -> candle_core::Tensor) -> tempfile::TempDir {
    let golden = open().golden.tensors("model");
    let mut tensors: Vec<_> = golden
        .iter()
        .map(|(name, tensor)| {
            let name = name.strip_prefix("transformer.").unwrap();
            (name.to_owned(), tensor.clone())
        })
        .collect();
    let mask = candle_core::Tensor::ones((1, 1, 64, 64), DType::U8, &candle_core::Device::Cpu);
    tensors.push(("h.0.attn.bias".to_owned(), mask.unwrap()));
    let below = candle_core::Tensor::new(-1e4f32, &candle_core::Device::Cpu);
    tensors.push(("h.0.attn.masked_bias".to_owned(), below.unwrap()));
    let head = head(&golden["transformer.wte.weight"]);
    tensors.push(("lm_head.weight".to_owned(), head));
    let dir = tempfile::tempdir().unwrap();
    let tensors = tensors.into_iter().collect();
    candle_core::safetensors::save(&tensors, dir.path().join("model.safetensors")).unwrap();
    dir
}

#[test]
fn published_names_are_those_of_the_same_parameters() {
    let (check, dir) = (open(), published(Clone::clone));
    let weights = tt_checkpoint::Weights::open(dir.path()).unwrap();
    let loaded = load_params(&*check.model, &weights, Device::Cpu).unwrap();
    let expected = check.base();
    for (spec, parameter) in loaded.iter() {
        let expected = expected.get(&spec.path).unwrap().value();
        let values = [parameter.value(), expected].map(|it| it.to_vec::<f32>().unwrap());
        assert_eq!(relative_l2(&values[0], &values[1]), 0.0, "{}", spec.path);
    }
}

#[test]
fn a_tied_head_that_differs_from_the_embedding_is_refused() {
    let (check, dir) = (open(), published(|head| (head * 2.0).unwrap()));
    let weights = tt_checkpoint::Weights::open(dir.path()).unwrap();
    let refused = load_params(&*check.model, &weights, Device::Cpu)
        .err()
        .unwrap();
    let message = refused.to_string();
    for name in ["`lm_head.weight`", "`wte.weight`"] {
        assert!(message.contains(name), "{message}");
    }
}

/// As nanoGPT saves its weights, which are linear layers'. Those that are square have the right shape, but not all are.
#[test]
fn weights_that_lie_the_other_way_are_refused_with_both_shapes() {
    let (check, dir) = (open(), tempfile::tempdir().unwrap());
    let golden = check.golden.tensors("model").into_iter();
    let turned = golden.map(|(name, tensor)| {
        let is_layer = name.contains(".c_") && name.ends_with(".weight");
        let turned = is_layer.then(|| tensor.t().unwrap().contiguous().unwrap());
        (name, turned.unwrap_or(tensor))
    });
    candle_core::safetensors::save(&turned.collect(), dir.path().join("model.safetensors"))
        .unwrap();
    let weights = tt_checkpoint::Weights::open(dir.path()).unwrap();
    let refused = load_params(&*check.model, &weights, Device::Cpu).err();
    let message = refused.unwrap().to_string();
    for named in ["c_attn.weight", "[144, 48]", "[48, 144]"] {
        assert!(message.contains(named), "{message}");
    }
}

/// GPT-2 whose checkpoints have other names than its paths.
struct Renamed(Arc<dyn Model>);

impl Model for Renamed {
    fn params(&self) -> Vec<ParamSpec> {
        self.0.params()
    }
    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        self.0.hidden_states(fwd, input)
    }
    fn head(&self, fwd: &Forward) -> Result<Tensor> {
        self.0.head(fwd)
    }
    fn tensor_names(&self) -> TensorNames {
        TensorNames::default().renamed(|path| path.replacen("transformer", "gpt", 1))
    }
    fn blocks(&self) -> Vec<ModulePath> {
        self.0.blocks()
    }
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }
    fn max_positions(&self) -> usize {
        self.0.max_positions()
    }
    fn hf_config(&self) -> Value {
        self.0.hf_config()
    }
}

#[test]
fn checkpoints_of_a_run_have_the_names_that_the_model_gives() {
    let dir = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "vocab_size": 512, "n_positions": 128, "n_embd": 16, "n_layer": 1, "n_head": 2,
    });
    let config = Gpt2Config::from_hf(&config).unwrap();
    let mut job = common::job(2);
    job.model = Arc::new(Renamed(config.build().unwrap()));
    job.params = ParamTree::init(&job.model.params(), Seed::new(1), Device::Cpu).unwrap();
    job.optimizers = common::optimizers(&job.params, 2);
    let (model, params) = (job.model.clone(), job.params.clone());
    let prepared = job.prepare().unwrap();
    prepared
        .run(dir.path(), common::metrics(dir.path()))
        .unwrap();

    let latest = tt_checkpoint::latest(&dir.path().join("checkpoints")).unwrap();
    let weights = latest.checkpoint.unwrap().model().unwrap();
    assert!(weights.names().all(|name| name.starts_with("gpt.")));
    let loaded = load_params(&*model, &weights, Device::Cpu).unwrap();
    for (spec, trained) in params.iter() {
        let loaded = loaded.get(&spec.path).unwrap().value();
        let values = [loaded, trained.value()].map(|it| it.to_vec::<f32>().unwrap());
        assert_eq!(values[0], values[1], "{}", spec.path);
    }
}
