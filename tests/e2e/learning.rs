//! A small model learns the embedded data.

use crate::harness::{Place, RunFolder};

#[test]
fn nano_learns_stories_below_the_unigram_baseline() {
    let place = Place::new();
    place
        .run_nano(&[
            "trainer.max_steps=120",
            "lr=4e-3",
            "data.sequence_length=64",
        ])
        .with_code(0)
        .prints("unigram")
        .prints("bigram");

    let summary = place.run_folder().json("summary.json");
    let loss = summary["final_val_loss"].as_f64().expect("a loss");
    let unigram = summary["unigram_nats"].as_f64().expect("a baseline");
    assert!(loss < 0.9 * unigram, "loss {loss} against {unigram}");
}

/// In one command, with a mask token for the tokenizer that is trained on the data.
#[test]
fn a_small_bert_names_hidden_tokens_far_above_the_unigrams_accuracy() {
    let place = Place::new();
    place
        .run(&[
            "+model=bert",
            "model/size=bert-nano",
            "+trainer=masked_lm",
            "trainer.max_steps=1500",
            "trainer.checkpoint_interval=null",
            "trainer.global_batch_size=8",
            "data.sequence_length=64",
            "lr=3e-3",
        ])
        .with_code(0)
        .prints("of the hidden tokens on validation; the most frequent token would be right for");

    let run = place.run_folder();
    let summary = run.json("summary.json");
    let number = |key: &str| summary[key].as_f64().expect("a number");
    let (accuracy, unigram) = (
        number("final_val_masked_accuracy"),
        number("unigram_accuracy"),
    );
    assert!(accuracy > 3.0 * unigram, "{accuracy} against {unigram}");
    assert!(
        number("final_val_loss") < 0.95 * number("unigram_nats"),
        "{summary}"
    );
    // A checkpoint says what hides tokens.
    let config = run.final_checkpoint().join("tokenizer_config.json");
    let config = std::fs::read_to_string(config).expect("a tokenizer");
    assert!(config.contains(r#""mask_token": "<mask>""#), "{config}");

    let checkpoint = format!("checkpoint={}", run.0.display());
    place
        .run(&["generate", &checkpoint, "prompt=Long ago"])
        .complains("BertForMaskedLM cannot continue a text");
}

/// The commands of docs/preference.md: a model of stories learns which answers of look-ups are right, and that holds for
/// look-ups that it has not seen.
#[test]
#[ignore = "for cargo xtask check --full"]
fn preferences_of_look_ups_hold_for_others_above_90_percent() {
    let place = Place::new();
    let run = |args: &[&str]| {
        let all = [&["+model=qwen2"], args].concat();
        let an_hour = std::time::Duration::from_secs(3600);
        place.start(&all).finish_within(an_hour).with_code(0)
    };
    run(&[
        "+trainer=lm",
        "trainer.max_steps=500",
        "hydra.run.dir=stories",
    ]);
    run(&[
        "+trainer=dpo",
        "data=stories_pairs",
        "model.pretrained_url=stories",
        "lr=2e-4",
        "trainer.global_batch_size=32",
        "trainer.max_steps=250",
        "trainer.eval_interval=25",
        "hydra.run.dir=look-ups",
    ])
    .prints("of the pairs on validation");
    let rows = RunFolder(place.path().join("look-ups")).rows();
    let accuracies = rows
        .iter()
        .filter_map(|row| row["val_rewards/accuracies"].as_f64());
    let accuracies: Vec<f64> = accuracies.collect();
    let (first, last) = (accuracies[0], accuracies[accuracies.len() - 1]);
    assert!(first < 0.85 && last > 0.9, "{accuracies:?}");
}

/// The final losses agree within what the golden case of bf16 allows along its curve.
#[test]
fn bf16_learns_like_f32_and_resumes_exactly() {
    const STEPS: &[&str] = &[
        "trainer.max_steps=40",
        "lr=4e-3",
        "trainer.checkpoint_interval=7",
    ];
    let place = Place::new();
    let run = |precision: &str, folder: &str| {
        let (precision, folder) = (
            format!("precision={precision}"),
            format!("hydra.run.dir={folder}"),
        );
        place
            .run_nano(&[STEPS, &[&precision, &folder]].concat())
            .with_code(0);
    };
    let folder = |name: &str| RunFolder(place.path().join(name));
    let loss = |run: &RunFolder| {
        run.json("summary.json")["final_val_loss"]
            .as_f64()
            .expect("a loss")
    };
    run("f32", "f32");
    run("bf16", "bf16");
    let (f32, bf16) = (loss(&folder("f32")), loss(&folder("bf16")));
    assert_ne!(f32, bf16, "rounding shows");
    assert!(
        (bf16 - f32).abs() <= 0.02 * f32,
        "loss {bf16} in bf16, {f32} in f32"
    );

    let mut running =
        place.start_nano(&[STEPS, &["precision=bf16", "hydra.run.dir=killed"]].concat());
    let killed = folder("killed");
    running.wait_for_rows(&killed, 12);
    running.kill();
    run("bf16", "killed");
    assert_eq!(killed.timeless_rows(), folder("bf16").timeless_rows());
}
