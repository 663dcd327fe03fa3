//! The rest of Hydra's flags.

use crate::harness::{Place, RunFolder, nano};

#[test]
fn a_rerun_gives_the_same_losses_in_a_new_folder_whatever_the_files_say_now() {
    let place = Place::new();
    let file = "configs/trainer/mine.yaml";
    place.write(file, "defaults: [lm, _self_]\nmax_steps: 2\n");
    let args = ["+trainer=mine", "seed=7", "hydra.run.dir=first"];
    place.run(&nano(&args)).with_code(0);
    place.write(file, "defaults: [lm, _self_]\nmax_steps: 9\n");
    let first = RunFolder(place.path().join("first"));
    place
        .run(&["--experimental-rerun", "first"])
        .with_code(0)
        .prints("run folder");
    let again = place.run_folder();
    assert_eq!(again.timeless_rows(), first.timeless_rows());
    assert_eq!(
        again.read(".hydra/overrides.yaml"),
        first.read(".hydra/overrides.yaml")
    );
    let (mut now, mut then) = (
        again.json("resolved_config.json"),
        first.json("resolved_config.json"),
    );
    for config in [&mut now, &mut then] {
        config.as_object_mut().expect("an object").remove("resume");
    }
    assert_eq!(now, then);
    place
        .run(&["inspect", "first"])
        .with_code(0)
        .prints("trainer=mine");
}

#[test]
fn a_rerun_of_a_rerun_takes_keys_on_top_and_chooses_its_folder() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=a"])
        .with_code(0);
    place
        .run(&[
            "--experimental-rerun=a/.hydra",
            "hydra.run.dir=b",
            "trainer.max_steps=2",
        ])
        .with_code(0);
    place
        .run(&["--experimental-rerun=b", "hydra.run.dir=c"])
        .with_code(0);
    let c = RunFolder(place.path().join("c"));
    assert_eq!(c.json("resolved_config.json")["trainer"]["max_steps"], 2);
    assert!(
        c.read(".hydra/overrides.yaml")
            .ends_with("- trainer.max_steps=2\n")
    );
    assert!(c.read(".hydra/hydra.yaml").contains("model/size: nano"));
}

#[test]
fn a_rerun_needs_a_run_folder_and_nothing_to_compose() {
    let place = Place::new();
    assert_eq!(
        place
            .run(&["--experimental-rerun=absent"])
            .with_code(2)
            .stderr,
        "error: --experimental-rerun: absent is not a run folder: it has no .hydra/config.yaml\n"
    );
    place
        .run(&["--experimental-rerun=absent", "-m"])
        .with_code(2)
        .complains("exclude each other");
    place
        .run(&["generate", "--experimental-rerun=absent"])
        .with_code(2)
        .complains("`--experimental-rerun` is for `train` and `plan`, not for `generate`");
}

#[test]
fn hydra_help_shows_flags_and_settings_as_the_overrides_make_them() {
    let place = Place::new();
    let help = place
        .run(&["--hydra-help", "hydra.run.dir=here"])
        .with_code(0)
        .prints("--multirun, -m")
        .prints("hydra.run.dir=here ");
    assert!(!help.stdout.contains("--version"), "{}", help.stdout);
}

#[test]
fn info_plugins_lists_what_type_may_name() {
    let place = Place::new();
    place
        .run(&["--info", "plugins"])
        .with_code(0)
        .prints("model.type:\n  bert.BertForMaskedLM ")
        .prints("  llama.LlamaForCausalLM ")
        .prints("trainer.type:\n  lm_trainer.LMTrainer ")
        .prints(
            "  seq_to_seq_lm_trainer.SeqToSeqLMTrainer  an output after its input, by a decoder\n",
        )
        .prints("  preference.PreferenceTrainer ")
        .prints("trainer.optimizer.type:\n  adamw.AdamW   ")
        .prints("trainer.lr_scheduler.type:\n  constant  ")
        .prints("data.collator.type:\n  tokenize.TokenizeCollator ")
        .prints("  chat.ChatCollator ");
}
