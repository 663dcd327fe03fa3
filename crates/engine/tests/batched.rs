//! What shares a batch has no say in scores and vectors.

use std::sync::Arc;

use serde_json::json;
use tt_engine::{Embedding, Error, Pooling, Request, embed, score};
use tt_models::{Input, Model, TABLE};
use tt_nn::{Forward, ParamTree};
use tt_tensor::{Device, Precision, Seed, Tensor};

fn model() -> (Arc<dyn Model>, ParamTree) {
    let config = json!({"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 24,
        "initializer_range": 0.3});
    let models = TABLE;
    let entry = models.get("qwen2.Qwen2ForCausalLM").unwrap();
    let model = (entry.build.from_hf)(&config).unwrap();
    let params = ParamTree::init(&model.params(), Seed::new(3), Device::Cpu).unwrap();
    (model, params)
}

/// Rows of these lengths.
fn rows(lengths: &[usize]) -> Vec<Vec<u32>> {
    let row =
        |(i, &len): (usize, &usize)| (0..len).map(|at| ((7 * i + 3 * at) % 40) as u32).collect();
    lengths.iter().enumerate().map(row).collect()
}

#[test]
fn scores_are_sums_of_log_probabilities_whatever_the_batches() {
    let (model, params) = model();
    let requests: Vec<Request> = rows(&[5, 21, 2, 9, 9])
        .into_iter()
        .zip([2, 20, 1, 1, 8])
        .map(|(ids, scored)| Request { ids, scored })
        .collect();
    // By logits, each row alone.
    let expected: Vec<f64> = requests
        .iter()
        .map(|Request { ids, scored }| {
            let input = Tensor::from_slice(ids, (1, ids.len()), Device::Cpu).unwrap();
            let fwd = Forward::inference(&params);
            let logits = model.logits(&fwd, &Input::rows(input).unwrap()).unwrap();
            let logits = logits.to_vec::<f32>().unwrap();
            let log_p = |at: usize| {
                let row: Vec<f64> = logits[(at - 1) * 40..at * 40]
                    .iter()
                    .map(|&x| x.into())
                    .collect();
                let sum: f64 = row.iter().map(|x| x.exp()).sum();
                row[ids[at] as usize] - sum.ln()
            };
            (ids.len() - scored..ids.len()).map(log_p).sum()
        })
        .collect();
    for batch_tokens in [1, 20, 1000] {
        let scores = score(&*model, &params, Precision::F32, &requests, batch_tokens).unwrap();
        for (score, expected) in scores.iter().zip(&expected) {
            assert!((score - expected).abs() < 1e-4, "{score} {expected}");
        }
    }
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let (model, params) = model();
    let refused = |len, scored| {
        let ids = rows(&[len]).remove(0);
        let request = Request { ids, scored };
        score(&*model, &params, Precision::F32, &[request], 100).unwrap_err()
    };
    assert!(matches!(refused(3, 3), Error::EmptyPrompt));
    assert!(matches!(
        refused(26, 1),
        Error::PromptTooLong {
            prompt: 25,
            max: 24
        }
    ));
}

#[test]
fn a_vector_is_the_same_alone_and_beside_others() {
    let (model, params) = model();
    let texts = rows(&[3, 24, 1, 0, 11, 3]);
    for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
        let vectors = |batch_size| {
            let options = Embedding {
                pooling,
                normalize: true,
                precision: Precision::F32,
                batch_size,
            };
            embed(&*model, &params, &texts, options, Device::Cpu).unwrap()
        };
        let (alone, together) = (vectors(1), vectors(6));
        for (a, b) in alone.iter().flatten().zip(together.iter().flatten()) {
            assert!((a - b).abs() < 1e-6, "{pooling:?}: {a} {b}");
        }
        for (text, vector) in texts.iter().zip(&together) {
            assert_eq!(vector.len(), 32);
            let norm: f32 = vector.iter().map(|x| x * x).sum();
            let expected = if text.is_empty() { 0.0 } else { 1.0 };
            assert!((norm - expected).abs() < 1e-6, "{norm}");
        }
        assert_ne!(
            together[0], together[5],
            "texts of one length keep their places"
        );
    }
}

#[test]
fn pooling_is_of_the_states_that_the_model_gives() {
    let (model, params) = model();
    let text = rows(&[7]);
    let input = Tensor::from_slice(&text[0], (1, 7), Device::Cpu).unwrap();
    let fwd = Forward::inference(&params);
    let states = model.encode(&fwd, &Input::rows(input).unwrap()).unwrap();
    let states = states.to_vec::<f32>().unwrap();
    let state = |at: usize, dim: usize| states[at * 32 + dim];
    for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
        let options = Embedding {
            pooling,
            normalize: false,
            precision: Precision::F32,
            batch_size: 1,
        };
        let vector = embed(&*model, &params, &text, options, Device::Cpu).unwrap();
        for (dim, x) in vector[0].iter().enumerate() {
            let expected = match pooling {
                Pooling::Mean => (0..7).map(|at| state(at, dim)).sum::<f32>() / 7.0,
                Pooling::First => state(0, dim),
                Pooling::Last => state(6, dim),
            };
            assert!((x - expected).abs() < 1e-5, "{pooling:?}: {x} {expected}");
        }
    }
}
