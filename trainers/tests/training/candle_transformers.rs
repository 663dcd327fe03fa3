//! A checkpoint of ours, loaded by candle-transformers, gives our logits.

use candle_core::{DType, Tensor as CandleTensor};
use candle_nn::VarBuilder;
use candle_transformers::models::qwen2::{Config, ModelForCausalLM};
use tt_checkpoint::Checkpoint;
use tt_models::{Input, Model, ModelConfig, Qwen2Config, Qwen2ForCausalLM};
use tt_nn::Forward;
use tt_tensor::{Device, Tensor};
use tt_train::load_params;

#[test]
fn candle_transformers_gives_our_logits_for_our_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let job = crate::common::job(3).prepare().unwrap();
    let outcome = job
        .run(dir.path(), crate::common::metrics(dir.path()))
        .unwrap();
    let checkpoint = Checkpoint::open(&outcome.checkpoint).unwrap();

    let config = checkpoint.config().unwrap();
    let model = Qwen2ForCausalLM::new(Qwen2Config::from_hf(&config).unwrap()).unwrap();
    let params = load_params(&model, &checkpoint.model().unwrap(), Device::Cpu).unwrap();
    let ids: Vec<u32> = (0..24).map(|i| i * 13 % 500).collect();
    let input = Input::rows(Tensor::from_slice(&ids, (1, 24), Device::Cpu).unwrap()).unwrap();
    let ours = model.logits(&Forward::inference(&params), &input).unwrap();
    let ours = ours.narrow(1, 23, 1).unwrap().to_vec::<f32>().unwrap();

    let config: Config = serde_json::from_value(config).unwrap();
    let cpu = candle_core::Device::Cpu;
    let file = std::fs::read(outcome.checkpoint.join("model.safetensors")).unwrap();
    let vb = VarBuilder::from_buffered_safetensors(file, DType::F32, &cpu).unwrap();
    let mut reference = ModelForCausalLM::new(&config, vb).unwrap();
    let ids = CandleTensor::from_vec(ids, (1, 24), &cpu).unwrap();
    let reference = reference.forward(&ids, 0).unwrap(); // of the last position
    let reference = reference.flatten_all().unwrap().to_vec1::<f32>().unwrap();

    assert_eq!(ours.len(), reference.len());
    let differences = ours.iter().zip(&reference).map(|(a, b)| (a - b).abs());
    let worst = differences.fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst:.1e}");
    assert!(
        ours.iter().any(|logit| logit.abs() > 1e-2),
        "logits of a trained model"
    );
}
