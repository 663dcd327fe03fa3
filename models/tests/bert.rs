//! BERT's config: what a `config.json` says, what is refused, and what is written.

use serde_json::{Value, json};
use tt_models::{BertConfig, BertForMaskedLM, Error, Model, ModelConfig};

fn config(extra: Value) -> Value {
    let mut config = json!({
        "vocab_size": 8, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "model_type": "bert", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    });
    let (Value::Object(all), Value::Object(extra)) = (&mut config, extra) else {
        unreachable!("both are objects")
    };
    all.extend(extra);
    config
}

/// As of the first published files, which leave out what was the same for all.
#[test]
fn a_config_of_a_few_keys_has_the_values_of_the_paper_for_the_others() {
    let read = BertConfig::from_hf(&config(json!({}))).unwrap();
    assert_eq!(read.hidden_act, "gelu");
    assert_eq!(read.max_position_embeddings, 512);
    assert_eq!(read.type_vocab_size, 2);
    assert_eq!(read.layer_norm_eps, 1e-12);
}

#[test]
fn dropout_is_the_runs_to_decide_and_not_the_checkpoints() {
    let theirs = BertConfig::from_hf(&config(json!({}))).unwrap();
    assert_eq!(theirs.hidden_dropout_prob, 0.0);
    assert_eq!(theirs.attention_probs_dropout_prob, 0.0);
    let ours = BertConfig {
        hidden_dropout_prob: 0.2,
        attention_probs_dropout_prob: 0.3,
        ..theirs.clone()
    };
    let trained = theirs.with_training_options(&ours);
    assert_eq!(trained.hidden_dropout_prob, 0.2);
    let written = BertForMaskedLM::new(trained).unwrap().hf_config();
    assert_eq!(written["hidden_dropout_prob"], 0.2);
    assert_eq!(written["attention_probs_dropout_prob"], 0.3);
}

#[test]
fn what_is_written_is_read_back() {
    let extra = json!({"hidden_act": "relu", "type_vocab_size": 1, "max_position_embeddings": 40});
    let read = BertConfig::from_hf(&config(extra)).unwrap();
    let model = BertForMaskedLM::new(read.clone()).unwrap();
    let written = model.hf_config();
    assert_eq!(written["architectures"], json!(["BertForMaskedLM"]));
    assert_eq!(BertConfig::from_hf(&written).unwrap(), read);
    assert_eq!((model.vocab_size(), model.max_positions()), (8, 40));
}

#[test]
fn what_would_change_the_numbers_unseen_is_refused() {
    for (extra, key) in [
        (json!({"model_type": "roberta"}), "model_type"),
        (
            json!({"position_embedding_type": "relative_key"}),
            "position_embedding_type",
        ),
        (json!({"is_decoder": true}), "is_decoder"),
        (json!({"add_cross_attention": true}), "add_cross_attention"),
        (json!({"tie_word_embeddings": false}), "tie_word_embeddings"),
        (json!({"vocab_size": "many"}), "vocab_size"),
    ] {
        let message = BertConfig::from_hf(&config(extra)).unwrap_err();
        assert!(message.to_string().contains(key), "{message}");
    }
}

#[test]
fn sizes_that_do_not_fit_name_their_key() {
    for (extra, expected) in [
        (json!({"num_attention_heads": 3}), "num_attention_heads"),
        (json!({"num_attention_heads": 0}), "num_attention_heads"),
        (json!({"hidden_act": "mish"}), "hidden_act"),
    ] {
        let fits = BertConfig::from_hf(&config(extra)).unwrap();
        let Err(Error::Config { key, .. }) = BertForMaskedLM::new(fits) else {
            panic!("{expected} is wrong")
        };
        assert_eq!(key, expected);
    }
}
