//! BERT against transformers' `BertForMaskedLM`: attention both ways with padding, token types, the head with its transform
//! and bias, and the loss over hidden tokens.

use tt_checkpoint::Weights;
use tt_collators::{Batch, Field, Prediction, Values};
use tt_engine::{Limits, Sampler, Sampling, generate};
use tt_models::BertConfig;
use tt_nn::Forward;
use tt_tensor::{Device, Seed, Tensor};
use tt_testkit::{Tensors, on_each_device};
use tt_train::{DeviceBatch, IGNORE, Trainer, load_params};
use tt_trainers::{MaskedLMTrainer, MaskedLMTrainerOptions};

use crate::batches::{flat, micro_batches};
use crate::check::Check;

pub fn open(device: Device) -> Check {
    Check::open_model::<BertConfig>("bert_mlm", device)
}

pub fn trainer() -> MaskedLMTrainer {
    MaskedLMTrainer::new(&MaskedLMTrainerOptions::default())
}

/// The case's batch, whose labels stand in their place, with its token types.
pub fn batch(tensors: &Tensors) -> Batch {
    let [mut batch] = <[Batch; 1]>::try_from(micro_batches(tensors)).expect("one");
    let types = &tensors["token_type_ids"];
    let types = types.flatten_all().unwrap().to_vec1::<i64>().unwrap();
    let types = types.into_iter().map(|id| id as u32).collect();
    batch.fields = vec![(Field::per_token("token_type_ids", 0u32), Values::U32(types))];
    batch.prediction = Prediction::SameToken;
    let targets = batch.labels.iter().filter(|label| **label != IGNORE);
    batch.num_targets = targets.count();
    batch
}

on_each_device! {
    fn golden_bert_mlm(device) {
        let check = open(device);
        check.decay_rule();
        logits(&check);
        let trainer = trainer();
        let mut training = check.training();
        let inputs = batch(&check.golden.tensors("inputs"));
        let totals = training.accumulate(std::slice::from_ref(&inputs), |fwd, model, batch| {
            trainer.loss(fwd, model, batch)
        });
        let totals = totals.unwrap();
        let [sum, weight] = [&totals.loss, &totals.weight].map(|it| it.to_scalar::<f32>().unwrap());
        assert_eq!(weight, inputs.num_targets as f32);
        check.loss_and_gradients(&training.params, sum, weight);
        // A step on the TPU is a step of the curve; all twenty take minutes on its emulator.
        let steps = if device == Device::Cpu { usize::MAX } else { 2 };
        let one = |tensors: &Tensors| vec![batch(tensors)];
        check.curve_by(&mut self::trainer(), check.training(), one, steps);
    }
}

/// At positions that are not padding.
fn logits(check: &Check) {
    let params = check.params();
    let host = batch(&check.golden.tensors("inputs"));
    let input = DeviceBatch::upload(&host, check.device).unwrap().input;
    let fwd = Forward::inference(&params);
    let logits = check.model.logits(&fwd, &input).unwrap();
    let logits = logits.to_vec::<f32>().unwrap();
    let expected = flat(&check.golden.tensors("expected")["logits"]);
    let vocab = check.model.vocab_size();
    let rows = logits.chunks(vocab).zip(expected.chunks(vocab));
    let real = rows
        .zip(&host.segment_ids)
        .filter(|(_, segment)| **segment == 1);
    let differences = real.flat_map(|((ours, theirs), _)| ours.iter().zip(theirs));
    let worst = differences.fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
    let allowed = check.case.tolerances.logits_max_abs.unwrap();
    assert!(f64::from(worst) <= allowed, "logits differ by {worst:.2e}");
}

/// Documents of a packed row, whose positions count from 0 each, have the hidden states that each has alone.
#[test]
fn documents_in_one_row_do_not_see_each_other() {
    let check = open(Device::Cpu);
    let params = check.params();
    let encode = |ids: &[u32], segments: &[u32], positions: &[u32]| {
        let batch = Batch {
            rows: 1,
            seq_len: ids.len(),
            input_ids: ids.to_vec(),
            labels: vec![IGNORE; ids.len()],
            segment_ids: segments.to_vec(),
            position_ids: positions.to_vec(),
            prediction: Prediction::SameToken,
            ..Batch::default()
        };
        let input = DeviceBatch::upload(&batch, Device::Cpu).unwrap().input;
        let hidden = check.model.encode(&Forward::inference(&params), &input);
        hidden.unwrap().to_vec::<f32>().unwrap()
    };
    let (a, b) = ([5, 9, 11, 80], [7, 8, 100]);
    let packed = encode(
        &[&a[..], &b].concat(),
        &[1, 1, 1, 1, 2, 2, 2],
        &[0, 1, 2, 3, 0, 1, 2],
    );
    let alone = [
        encode(&a, &[1; 4], &[0, 1, 2, 3]),
        encode(&b, &[1; 3], &[0, 1, 2]),
    ]
    .concat();
    let worst = packed.iter().zip(&alone).map(|(a, b)| (a - b).abs());
    assert!(worst.fold(0f32, f32::max) < 1e-5);
    // The head's transform comes after, and is no part of what texts are embedded by.
    let ids = Tensor::from_slice(&a, (1, 4), Device::Cpu).unwrap();
    let input = tt_models::Input::rows(ids).unwrap();
    let transformed = check
        .model
        .hidden_states(&Forward::inference(&params), &input);
    assert_ne!(
        transformed.unwrap().to_vec::<f32>().unwrap(),
        alone[..4 * 48]
    );
}

/// As `bert-base` was published: LayerNorm's parameters by their former names, the decoder a second time, and what other
/// objectives look at. A `BertModel` has no `bert.` before its names.
#[test]
fn files_of_every_age_are_read() {
    let check = open(Device::Cpu);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let read = |rename: &dyn Fn(&str) -> String, more: &[(&str, &str)]| {
        let tensors = candle_core::safetensors::load(
            check.golden.dir.join("model.safetensors"),
            &candle_core::Device::Cpu,
        );
        let tensors = tensors.unwrap();
        let renamed = tensors
            .iter()
            .map(|(name, tensor)| (rename(name), tensor.clone()));
        let mut renamed: Tensors = renamed.collect();
        for (name, of) in more {
            renamed.insert((*name).to_owned(), tensors[*of].clone());
        }
        candle_core::safetensors::save(&renamed, &path).unwrap();
        let params = load_params(&*check.model, &Weights::open(&path).unwrap(), Device::Cpu);
        params.map(|params| {
            let values = params
                .iter()
                .map(|(_, it)| it.value().to_vec::<f32>().unwrap());
            values.collect::<Vec<_>>()
        })
    };
    let same = read(&str::to_owned, &[]).unwrap();
    let published = |name: &str| {
        let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
        name.replace("LayerNorm.bias", "LayerNorm.beta")
    };
    const WORDS: &str = "bert.embeddings.word_embeddings.weight";
    const SQUARE: &str = "bert.encoder.layer.0.attention.self.query.weight";
    let more = [
        ("cls.predictions.decoder.weight", WORDS),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
        ("bert.pooler.dense.weight", SQUARE),
        ("bert.embeddings.position_ids", "cls.predictions.bias"),
        ("cls.seq_relationship.weight", SQUARE),
    ];
    assert_eq!(read(&published, &more).unwrap(), same);
    let bare = |name: &str| published(name).trim_start_matches("bert.").to_owned();
    assert_eq!(
        read(&bare, &[("pooler.dense.weight", SQUARE)]).unwrap(),
        same
    );

    // A decoder of its own is not what the model computes with.
    let other = [(
        "cls.predictions.decoder.bias",
        "cls.predictions.transform.dense.bias",
    )];
    let refused = read(&str::to_owned, &other).unwrap_err().to_string();
    assert!(
        refused.contains("cls.predictions.decoder.bias"),
        "{refused}"
    );
}

#[test]
fn what_a_model_that_looks_ahead_cannot_do_is_refused_by_name() {
    let check = open(Device::Cpu);
    let mut training = check.training();
    let mut sampler = Sampler::new(Sampling::Greedy, Seed::new(0));
    let limits = Limits {
        max_new_tokens: 4,
        ends: Vec::new(),
    };
    let (model, params) = (&*check.model, check.params());
    let refused = generate(model, &params, &[1, 2], &mut sampler, &limits);
    let message = refused.unwrap_err().to_string();
    assert_eq!(message, "BertForMaskedLM cannot continue a text");

    let refused = check.trainer().post_init(&mut training);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("lm_trainer.LMTrainer"), "{message}");
    trainer().post_init(&mut training).unwrap();
    // A loss that knows no bias does not leave it out unseen.
    assert!(model.head(&Forward::inference(&params)).is_err());
}

#[test]
fn a_model_that_looks_back_only_is_refused_by_masked_language_modelling() {
    let check = Check::open::<tt_models::Qwen2Config>("qwen2_tied", Device::Cpu);
    let refused = trainer().post_init(&mut check.training());
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("looks back only"), "{message}");
}
