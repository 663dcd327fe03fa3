//! Training from a GGUF file.

use std::fs;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as Gguf;
use serde_json::Value;
use tt_data::{Tokenizer, TokenizerOrigin};
use tt_testkit::{gguf_metadata, gguf_tokenizer, write_gguf};

use crate::harness::{NANO, Place, RunFolder};

/// Runs the nano model of a family into `dir`.
fn run(place: &Place, model: &str, dir: &str, more: &[&str]) -> RunFolder {
    let (model, run_dir) = (format!("+model={model}"), format!("hydra.run.dir={dir}"));
    let args: Vec<&str> = NANO
        .iter()
        .map(|arg| {
            if arg.starts_with("+model=") {
                &*model
            } else {
                arg
            }
        })
        .chain(["trainer.max_steps=2", &run_dir])
        .chain(more.iter().copied())
        .collect();
    place.run(&args).with_code(0);
    RunFolder(place.path().join(dir))
}

#[test]
fn training_from_gguf_is_training_from_the_checkpoint_it_was_made_of() {
    for model in ["gpt2", "llama", "qwen2", "qwen3"] {
        let place = Place::new();
        let checkpoint = run(&place, model, "first", &["lr=4e-3"]).final_checkpoint();
        let config = fs::read_to_string(checkpoint.join("config.json")).expect("config.json");
        let config: Value = serde_json::from_str(&config).expect("JSON");
        let weights = checkpoint.join("model.safetensors");
        let weights = candle_core::safetensors::load(weights, &candle_core::Device::Cpu);
        let tensors: Vec<_> = weights.expect("weights").into_iter().collect();

        let tokenizer = fs::read(checkpoint.join("tokenizer.json")).expect("tokenizer.json");
        let tokenizer: Value = serde_json::from_slice(&tokenizer).expect("JSON");
        let gguf = place.path().join("model.gguf");
        let metadata = |of_tokenizer| [gguf_metadata(&config), of_tokenizer].concat();
        let write = |of_tokenizer| {
            write_gguf(&gguf, &metadata(of_tokenizer), &tensors, GgmlDType::F32);
        };
        write(gguf_tokenizer(&tokenizer, "qwen2"));

        let from = |path: &std::path::Path, dir: &str| {
            let url = format!("model.pretrained_url={}", path.display());
            run(&place, model, dir, &[&url]).timeless_rows()
        };
        let from_gguf = from(&gguf, "from-gguf");
        assert_eq!(from_gguf, from(&checkpoint, "from-checkpoint"));
        assert!(from_gguf.len() > 1, "{from_gguf:?}");

        // Without a tokenizer that is known, none is made up.
        let url = format!("model.pretrained_url={}", gguf.display());
        for (of_tokenizer, complaint) in [
            (Vec::new(), "there is no"),
            (
                gguf_tokenizer(&tokenizer, "other"),
                "its pre-tokenizer is `other`",
            ),
        ] {
            write(of_tokenizer);
            place
                .run_nano(&[&url, &format!("model={model}")])
                .with_code(2)
                .complains("data.tokenizer.path")
                .complains(complaint);
        }
    }
}

/// SentencePiece's pieces "▁hello", "▁he", "he", "ll", "o", ...: the best score is merged first, unknown characters become
/// bytes, and a text begins with a blank and `<s>`.
#[test]
fn pieces_with_scores_give_the_tokens_that_sentencepiece_gives() {
    let place = Place::new();
    let file = place.path().join("model.gguf");
    let pieces = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("<0x21>", 0.0, 6),
        ("▁", -9.0, 1),
        ("h", -9.1, 1),
        ("e", -9.2, 1),
        ("l", -9.3, 1),
        ("o", -9.4, 1),
        ("he", -2.0, 1),
        ("ll", -1.0, 1),
        ("▁he", -4.0, 1),
        ("ell", -3.0, 1),
        ("llo", -5.0, 1),
    ];
    let text = |text: &str| Gguf::String(text.to_owned());
    let list = |it: Vec<Gguf>| Gguf::Array(it);
    let of_tokenizer = [
        ("model", text("llama")),
        ("tokens", list(pieces.iter().map(|it| text(it.0)).collect())),
        (
            "scores",
            list(pieces.iter().map(|it| Gguf::F32(it.1)).collect()),
        ),
        (
            "token_type",
            list(pieces.iter().map(|it| Gguf::I32(it.2)).collect()),
        ),
        ("bos_token_id", Gguf::U32(1)),
        ("eos_token_id", Gguf::U32(2)),
        ("unknown_token_id", Gguf::U32(0)),
    ];
    let of_tokenizer = of_tokenizer.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value));
    let config = serde_json::json!({
        "model_type": "llama", "num_hidden_layers": 1, "max_position_embeddings": 8, "hidden_size": 8,
        "intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8,
        "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    });
    let metadata = [gguf_metadata(&config), of_tokenizer.into()].concat();
    let cpu = candle_core::Device::Cpu;
    let embedding = candle_core::Tensor::zeros((14, 8), candle_core::DType::F32, &cpu);
    let tensors = [(
        "model.embed_tokens.weight".to_owned(),
        embedding.expect("zeros"),
    )];
    write_gguf(&file, &metadata, &tensors, GgmlDType::F32);

    let files = tt_checkpoint::Weights::open(&file)
        .expect("a file")
        .tokenizer_files();
    let files = files.expect("a kind that is known").expect("a tokenizer");
    let origin = TokenizerOrigin::Within { file, files };
    let tokenizer = Tokenizer::load_from(&origin, None).expect("a tokenizer");
    // h e l l o: "ll" first, then "he", "▁he", "llo"; "ell" has lost its "e".
    assert_eq!(tokenizer.encode("hello").unwrap(), [11, 13]);
    assert_eq!(tokenizer.encode("hello o!").unwrap(), [11, 13, 4, 8, 3]);
    assert_eq!(
        tokenizer.decode(&[1, 11, 13, 4, 8, 3, 2]).unwrap(),
        "hello o!"
    );
    let template = tokenizer.as_hf().encode("hello", true).unwrap();
    assert_eq!(template.get_ids(), [1, 11, 13]);
    assert_eq!(tokenizer.eos_id(), 2);
}

#[test]
fn a_gguf_file_that_cannot_be_used_is_refused_at_the_key() {
    let place = Place::new();
    place.write("model.gguf", "GGUF and nothing of it");
    let run = place.run_nano(&["model.pretrained_url=model.gguf"]);
    run.with_code(2)
        .complains("model.gguf is not a valid GGUF file")
        .complains("model.pretrained_url=model.gguf");
}
