//! A wrong request: exit code 2 before training starts, one clear error, nothing left behind.

use std::path::PathBuf;

use crate::harness::{Finished, Place, entries};

/// Refuses the request: one error, and no run folder.
#[track_caller]
fn refused(place: &Place, args: &[&str]) -> Finished {
    let finished = place.run(args).with_code(2);
    let errors = finished
        .stderr
        .lines()
        .filter(|l| l.starts_with("error: "))
        .count();
    assert_eq!(errors, 1, "{}", finished.stderr);
    assert!(entries(&place.path().join("outputs")).is_empty());
    finished
}

#[track_caller]
fn nano_refused(place: &Place, more: &[&str]) -> Finished {
    refused(place, &crate::harness::nano(more))
}

#[test]
fn no_model_names_the_choices() {
    let place = Place::new();
    refused(&place, &["+trainer=lm"])
        .complains("model")
        .complains("qwen2");
}

#[test]
fn no_trainer_names_the_choices() {
    let place = Place::new();
    refused(&place, &["+model=qwen2"])
        .complains("trainer")
        .complains("lm");
}

#[test]
fn a_group_that_is_null_is_not_chosen() {
    let place = Place::new();
    let root = "defaults:\n  - default\n  - _self_\ntrainer: null\n";
    place.write("configs/mine.yaml", root);
    refused(&place, &["-cn", "mine", "+model=qwen2"]).complains("no trainer is chosen");
}

#[test]
fn unknown_option_names_the_options() {
    let place = Place::new();
    refused(&place, &["+model=qwen3000", "+trainer=lm"])
        .complains("qwen3000")
        .complains("qwen2");
}

#[test]
fn unknown_group_names_the_nearest_key() {
    let place = Place::new();
    refused(&place, &["+modle=qwen2", "+trainer=lm"])
        .complains("modle")
        .complains("model");
}

#[test]
fn unknown_key_names_the_nearest_key() {
    let place = Place::new();
    nano_refused(&place, &["+trainer.max_stepz=3"])
        .complains("max_stepz")
        .complains("max_steps");
}

#[test]
fn unknown_key_in_a_file_points_at_its_line() {
    let place = Place::new();
    place.write(
        "configs/trainer/optimizer/adamw.yaml",
        "type: adamw.AdamW\nkwargs:\n  lr: ${lr}\n  weight_decy: 0.1\n",
    );
    nano_refused(&place, &[])
        .complains("weight_decy")
        .complains("configs/trainer/optimizer/adamw.yaml:4:3")
        .complains("did you mean `weight_decay`?");
}

#[test]
fn wrong_type_names_key_and_value() {
    let place = Place::new();
    nano_refused(&place, &["trainer.max_steps=many"])
        .complains("max_steps")
        .complains("many");
}

#[test]
fn unknown_type_names_the_registered_ones() {
    let place = Place::new();
    nano_refused(&place, &["trainer.optimizer.type=adamw.AdamWW"]).complains("adamw.AdamW");
}

#[test]
fn syntax_error_points_at_its_line() {
    let place = Place::new();
    place.write(
        "configs/trainer/lm.yaml",
        "type: lm_trainer.LMTrainer\nmax_steps: [1\n",
    );
    nano_refused(&place, &[]).complains("configs/trainer/lm.yaml");
}

#[test]
fn missing_file_is_named() {
    let place = Place::new();
    nano_refused(&place, &["data=text", "data.path=nowhere.txt"]).complains("nowhere.txt");
}

#[test]
fn glob_without_a_match_is_named() {
    let place = Place::new();
    nano_refused(&place, &["data=text", "data.path='nowhere/*.txt'"]).complains("nowhere/*.txt");
}

#[test]
fn empty_data_is_named() {
    let place = Place::new();
    place.write("empty.txt", "");
    nano_refused(&place, &["data=text", "data.path=empty.txt"]).complains("empty.txt");
}

#[test]
fn sequence_longer_than_the_model_allows() {
    let place = Place::new();
    nano_refused(&place, &["data.sequence_length=100000"])
        .complains("data.sequence_length")
        .complains("100000")
        .complains("max_position_embeddings");
}

#[test]
fn numbers_no_machine_has_room_for() {
    let place = Place::new();
    for (key, value) in [
        ("data.sequence_length", "1000000000000"),
        ("data.num_val_blocks", "1000000000000"),
        ("data.num_workers", "100000"),
    ] {
        nano_refused(&place, &[&format!("{key}={value}")])
            .complains(key)
            .complains(value);
    }
}

#[test]
fn a_validation_split_of_nothing_or_everything() {
    let place = Place::new();
    place.write("text.txt", "one\n\ntwo\n\nthree\n");
    for value in ["0", "1"] {
        let fraction = format!("data.val_fraction={value}");
        nano_refused(&place, &["data=text", "data.path=text.txt", &fraction])
            .complains("data.val_fraction");
    }
}

#[test]
fn epochs_of_endless_data_name_the_steps() {
    let place = Place::new();
    nano_refused(&place, &["trainer.num_epochs=2"])
        .complains("trainer.num_epochs")
        .complains("`stories` has no end")
        .complains("trainer.max_steps");
}

#[test]
fn vocabulary_smaller_than_the_tokenizers() {
    let place = Place::new();
    nano_refused(&place, &["model.vocab_size=100"])
        .complains("model.vocab_size")
        .complains("100");
}

#[test]
fn batch_sizes_that_do_not_divide() {
    let place = Place::new();
    nano_refused(&place, &["trainer.global_batch_size=5"])
        .complains("trainer.global_batch_size")
        .complains("trainer.micro_batch_size");
}

#[test]
fn pretrained_weights_that_are_not_there() {
    let place = Place::new();
    nano_refused(&place, &["model.pretrained_url=nowhere"]).complains("nowhere");
}

#[test]
fn truncated_weights_are_named_with_their_sizes() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=whole"])
        .with_code(0);
    let checkpoint = crate::harness::RunFolder(place.path().join("whole")).final_checkpoint();
    let weights = checkpoint.join("model.safetensors");
    let bytes = std::fs::read(&weights).expect("weights");
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).expect("written");

    let url = format!("model.pretrained_url={}", checkpoint.display());
    nano_refused(&place, &[&url])
        .complains("model.safetensors")
        .complains(&(bytes.len() / 2).to_string())
        .complains(&bytes.len().to_string());
}

#[test]
fn a_vocabulary_of_a_checkpoint_smaller_than_the_tokenizers_is_its_config() {
    let place = Place::new();
    place
        .run_nano(&[
            "trainer.max_steps=1",
            "hydra.run.dir=small",
            "model.vocab_size=384",
            "data.tokenizer.vocab_size=384",
        ])
        .with_code(0);
    let checkpoint = crate::harness::RunFolder(place.path().join("small")).final_checkpoint();
    let url = format!("model.pretrained_url={}", checkpoint.display());
    // With its own tokenizer it goes on, though one trained on the data would have 1,024 tokens.
    let run = ["trainer.max_steps=1", "hydra.run.dir=tuned", &url];
    place.run_nano(&run).with_code(0);
    let tuned = crate::harness::RunFolder(place.path().join("tuned")).final_checkpoint();
    let read = |folder: &std::path::Path| {
        std::fs::read_to_string(folder.join("tokenizer.json")).expect("a file")
    };
    assert_eq!(read(&tuned), read(&checkpoint));

    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=large"])
        .with_code(0);
    nano_refused(&place, &[&url, "data.tokenizer.path=large/tokenizer"])
        .complains("model.pretrained_url")
        .complains("config.json: vocab_size 384")
        .complains("1024");
}

/// The checkpoint of a run of one step in `run`, and the override that starts from it.
fn pretrained(place: &Place) -> (PathBuf, String) {
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=run"])
        .with_code(0);
    let checkpoint = crate::harness::RunFolder(place.path().join("run")).final_checkpoint();
    let url = format!("model.pretrained_url={}", checkpoint.display());
    (checkpoint, url)
}

#[test]
fn weights_without_their_tokenizer_are_refused_before_the_data_is_read() {
    let place = Place::new();
    let (checkpoint, url) = pretrained(&place);
    let tokenizer = checkpoint.join("tokenizer.json");
    std::fs::remove_file(&tokenizer).expect("removed");
    for more in [vec![], vec!["data=text", "data.path=nowhere.txt"]] {
        let args = [&[&*url][..], &more].concat();
        nano_refused(&place, &args)
            .complains("data.tokenizer.path")
            .complains(&format!("there is no {}", tokenizer.display()));
    }
    let given = "data.tokenizer.path=run/tokenizer";
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=tuned", &url, given])
        .with_code(0);
}

#[test]
fn a_tied_head_in_the_file_too_must_be_the_embedding() {
    let place = Place::new();
    let (checkpoint, url) = pretrained(&place);
    let file = checkpoint.join("model.safetensors");
    let cpu = candle_core::Device::Cpu;
    let mut tensors = candle_core::safetensors::load(&file, &cpu).expect("weights");
    let mut with_head = |head: candle_core::Tensor| {
        tensors.insert("lm_head.weight".to_owned(), head);
        candle_core::safetensors::save(&tensors, &file).expect("saved");
    };
    let whole = candle_core::safetensors::load(&file, &cpu).expect("weights");
    let embedding = &whole["model.embed_tokens.weight"];

    with_head(embedding.clone());
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=tuned", &url])
        .with_code(0);
    let tuned = crate::harness::RunFolder(place.path().join("tuned")).final_checkpoint();
    let saved = candle_core::safetensors::load(tuned.join("model.safetensors"), &cpu);
    let saved = saved.expect("weights");
    assert!(!saved.contains_key("lm_head.weight"), "stored once");

    with_head((embedding + 1.0).expect("another head"));
    let more = ["trainer.max_steps=1", "hydra.run.dir=other", &url];
    place
        .run_nano(&more)
        .with_code(2)
        .complains("`lm_head.weight` is not `model.embed_tokens.weight`");
}

#[test]
fn unknown_resume_path_is_named() {
    let place = Place::new();
    nano_refused(&place, &["resume=nowhere"]).complains("nowhere");
}

#[test]
fn a_part_of_an_option_that_the_checkpoint_decides_must_agree_with_it() {
    let place = Place::new();
    let nano = |more: &[&str]| {
        let llama = crate::harness::nano(more).into_iter();
        let llama = llama.map(|arg| match arg {
            "+model=qwen2" => "+model=llama",
            other => other,
        });
        llama.map(str::to_owned).collect::<Vec<_>>()
    };
    let run = |more: &[&str]| {
        let args = nano(more);
        place.run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    run(&["trainer.max_steps=1", "hydra.run.dir=base"]).with_code(0);
    let from = "model.pretrained_url=base/checkpoints/step-00000001";
    for given in [
        "model.rope_theta=5",
        "+model.rope_scaling={rope_type: linear, factor: 2.0}",
    ] {
        run(&[from, given, "hydra.run.dir=new"])
            .with_code(2)
            .complains("contradicts the checkpoint");
    }
}

#[test]
fn a_group_that_is_not_there_gets_the_nearest_name() {
    let place = Place::new();
    place
        .run(&["+model=qwen2", "+trainer=lm", "modle/size=nano"])
        .with_code(2)
        .complains("did you mean the config group `model/size`? +model/size=nano");
    place
        .run(&["+model=qwen2", "trainr=lm"])
        .with_code(2)
        .complains("did you mean the config group `trainer`? +trainer=lm");
    // With a plus it would be a key of its own.
    place
        .run(&["+model=qwen2", "+trainer=lm", "+modle/size=nano"])
        .with_code(2)
        .complains("did you mean `model/size`?");
}

#[test]
fn problems_of_names_and_of_values_come_at_once() {
    let place = Place::new();
    place
        .run(&["+modle/size=nano", "trainer.max_stepz=3", "lr=abc"])
        .with_code(2)
        .complains("there is no config group `modle/size`")
        .complains("there is no key `trainer.max_stepz`")
        .complains("`lr` must be a number");
    let found = place
        .run(&[
            "+model=qwen2",
            "+trainer=lm",
            "trainer.max_stepz=3",
            "trainer.optimizer.kwargs.weight_decay=abc",
            "data.sequence_length=x",
        ])
        .with_code(2)
        .complains("did you mean `trainer.max_steps`?")
        .complains("`trainer.optimizer.kwargs.weight_decay` must be a number")
        .complains("`data.sequence_length` must be an integer");
    assert_eq!(
        found.stderr.matches("error:").count(),
        3,
        "{}",
        found.stderr
    );
    place
        .run(&["generate", "checkpont=x", "max_new_tokens=y"])
        .with_code(2)
        .complains("did you mean `checkpoint`?")
        .complains("`max_new_tokens` must be an integer");
}

#[test]
fn an_unknown_option_hides_no_problem_but_what_it_would_decide() {
    let place = Place::new();
    let found = place
        .run(&[
            "+model=qwen2",
            "+trainer=lmm",
            "trainer.max_steps=3",
            "precison=bf16",
            "lr=abc",
        ])
        .with_code(2)
        .complains("there is no config 'trainer/lmm'")
        .complains("did you mean `precision`?")
        .complains("`lr` must be a number");
    assert_eq!(
        found.stderr.matches("error:").count(),
        3,
        "{}",
        found.stderr
    );
}

#[test]
fn a_checkpoint_of_another_model_is_shown_where_it_was_named() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=base"])
        .with_code(0);
    let refused = place.run(&[
        "+model=llama",
        "+trainer=lm",
        "model.pretrained_url=base",
        "hydra.run.dir=new",
    ]);
    refused
        .with_code(2)
        .complains("`model_type`: `qwen2`, this model is `llama`")
        .complains("| model.pretrained_url=base");
}

#[test]
fn control_characters_of_arguments_are_shown_and_not_obeyed() {
    let place = Place::new();
    for args in [
        &["+trainer=l\rm"][..],
        &["se\u{1b}[31med=1"],
        &["inspect", "a\r\u{1b}[2Jb"],
        &["--con\rfig"],
    ] {
        let stderr = place.run(args).with_code(2).stderr;
        let is_plain = |c: char| c == '\n' || !c.is_control();
        assert!(stderr.chars().all(is_plain), "{stderr:?}");
        assert!(
            stderr.contains(r"\r") || stderr.contains(r"\u{1b}"),
            "{stderr}"
        );
    }
}
