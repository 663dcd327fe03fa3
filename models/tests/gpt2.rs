//! GPT-2's config: what a `config.json` says, what is refused, and what is written; and how weights begin.

use serde_json::{Value, json};
use tt_models::{Error, Gpt2Config, Gpt2LMHeadModel, Model, ModelConfig};
use tt_nn::Init;

fn config(extra: Value) -> Value {
    let mut config =
        json!({"vocab_size": 8, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2});
    let (Value::Object(all), Value::Object(extra)) = (&mut config, extra) else {
        unreachable!("both are objects")
    };
    all.extend(extra);
    config
}

fn read(extra: Value) -> Gpt2Config {
    Gpt2Config::from_hf(&config(extra)).unwrap()
}

#[test]
fn what_would_change_the_numbers_unseen_is_refused_by_name() {
    for (extra, key) in [
        (
            json!({"activation_function": "quick_gelu"}),
            "activation_function",
        ),
        (json!({"add_cross_attention": true}), "add_cross_attention"),
        (json!({"model_type": "gpt_bigcode"}), "gpt_bigcode"),
        (json!({"n_layer": "many"}), "n_layer"),
        (json!({"n_embd": null}), "n_embd"),
        (json!({"scale_attn_weights": "no"}), "scale_attn_weights"),
    ] {
        let message = Gpt2Config::from_hf(&config(extra)).unwrap_err().to_string();
        assert!(message.contains(key), "{message}");
    }
}

#[test]
fn sizes_that_do_not_fit_name_their_key() {
    for (wrong, expected) in [
        (
            Gpt2Config {
                num_attention_heads: 3,
                ..read(json!({}))
            },
            "num_attention_heads",
        ),
        (
            Gpt2Config {
                num_key_value_heads: Some(1),
                ..read(json!({}))
            },
            "num_key_value_heads",
        ),
        (
            Gpt2Config {
                attn_pdrop: 1.0,
                ..read(json!({}))
            },
            "attn_pdrop",
        ),
        (
            Gpt2Config {
                activation_function: "tanh".into(),
                ..read(json!({}))
            },
            "activation_function",
        ),
    ] {
        let Err(Error::Config { key, .. }) = Gpt2LMHeadModel::new(wrong) else {
            panic!("{expected} is wrong")
        };
        assert_eq!(key, expected);
    }
}

#[test]
fn the_config_json_that_is_written_reads_back_equal() {
    for extra in [
        json!({}),
        json!({
            "n_inner": 24, "activation_function": "gelu", "layer_norm_epsilon": 1e-6, "initializer_range": 0.01,
            "embd_pdrop": 0.2, "attn_pdrop": 0.3, "resid_pdrop": 0.4, "scale_attn_weights": false,
            "scale_attn_by_inverse_layer_idx": true, "reorder_and_upcast_attn": true, "tie_word_embeddings": false,
        }),
    ] {
        let read = read(extra);
        let written = Gpt2LMHeadModel::new(read.clone()).unwrap().hf_config();
        assert_eq!(Gpt2Config::from_hf(&written).unwrap(), read);
    }
    // As transformers' `GPT2Config(hidden_size=8)` takes them, too.
    let common = json!({
        "vocab_size": 8, "max_position_embeddings": 16, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    });
    assert_eq!(Gpt2Config::from_hf(&common).unwrap(), read(json!({})));
}

#[test]
fn dropout_is_the_runs_and_not_the_checkpoints() {
    let ours = Gpt2Config {
        resid_pdrop: 0.0,
        attn_pdrop: 0.2,
        ..read(json!({}))
    };
    let theirs = read(json!({"resid_pdrop": 0.1, "n_layer": 3})).with_training_options(&ours);
    assert_eq!((theirs.resid_pdrop, theirs.attn_pdrop), (0.0, 0.2));
    assert_eq!(theirs.num_hidden_layers, 3);
}

/// As transformers' `GPT2PreTrainedModel._init_weights` and Megatron's `scaled_init_method_normal`.
#[test]
fn projections_onto_the_residual_stream_begin_smaller() {
    let model = Gpt2LMHeadModel::new(read(json!({}))).unwrap();
    let std = |path: &str| {
        let mut specs = model.params().into_iter();
        match specs.find(|spec| spec.path == path).unwrap().init {
            Init::Normal { std } => std,
            other => panic!("{path}: {other:?}"),
        }
    };
    for path in ["wte", "wpe", "h.1.attn.c_attn", "h.1.mlp.c_fc"] {
        assert_eq!(std(&format!("transformer.{path}.weight")), 0.02);
    }
    for path in ["h.1.attn.c_proj", "h.1.mlp.c_proj"] {
        assert!(
            (std(&format!("transformer.{path}.weight")) - 0.01).abs() < 1e-8,
            "0.02 / sqrt(2 * 2)"
        );
    }
}
