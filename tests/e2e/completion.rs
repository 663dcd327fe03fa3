//! Completion in a shell, by the code that the binary prints for it.

use std::path::Path;
use std::process::Command;

use crate::harness::{Place, Running};

/// Where readline breaks words unless told otherwise.
const WORDBREAKS: &str = " \t\n\"'@><=;|&(:";

/// What bash offers at the end of a line.
fn offered(place: &Place, line: &str) -> Vec<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_tpu-train"));
    let folder = program.parent().expect("a folder").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let script = "eval \"$(tpu-train -sc install=bash)\"
        COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDBREAKS=$2
        set -- $(complete -p tpu-train | sed 's/.* -F //')
        \"$1\" tpu-train
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", script, "bash", line, WORDBREAKS])
        .current_dir(place.path())
        .env("PATH", format!("{folder}:{path}"));
    let finished = Running::start(bash).finish().with_code(0);
    assert_eq!(finished.stderr, "");
    finished.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_groups_options_and_keys() {
    let place = Place::new();
    for (line, expected) in [
        ("tpu-train mod", &["model/size=", "model="][..]),
        ("tpu-train +tra", &["+trainer="]),
        // What stands before the `=` has been typed: only what follows is replaced.
        ("tpu-train +model=qw", &["qwen2"]),
        ("tpu-train +trainer=lm trainer.opt", &["trainer.optimizer."]),
        (
            "tpu-train +trainer=lm trainer.optimizer.kwargs.w",
            &["trainer.optimizer.kwargs.weight_decay="],
        ),
        ("tpu-train hydra.ru", &["hydra.run.", "hydra.runtime."]),
        ("tpu-train see", &["seed="]),
        ("tpu-train bench ch", &["checkpoint"]),
        ("tpu-train bench bench=", &["l", "m", "s"]),
        ("tpu-train precision=", &["f32", "bf16", "fp16"]),
        ("tpu-train -m precision=f32,b", &["f32,bf16"]),
        ("tpu-train debug=t", &["true"]),
        (
            "tpu-train +trainer=lm trainer.bad_steps.action=",
            &["stop", "skip"],
        ),
        (
            "tpu-train +trainer=lm trainer.spike_guard.action=",
            &["warn", "null"],
        ),
        (
            "tpu-train +trainer=lm trainer.optimizer.type=a",
            &["adamw.AdamW"],
        ),
        // An option of what the other words choose.
        (
            "tpu-train +trainer=lm trainer/optimizer=muon trainer.optimizer.kwargs.nesterov=",
            &["true", "false"],
        ),
        (
            "tpu-train +model=qwen2 model.tie_word_embeddings=f",
            &["false"],
        ),
        ("tpu-train +data=text data.dataset.url=", &["text"]),
    ] {
        let offered = offered(&place, line);
        for candidate in expected {
            assert!(
                offered.iter().any(|offer| offer == candidate),
                "{line}: {offered:?}"
            );
        }
    }
    assert_eq!(
        offered(&place, "tpu-train +trainer=lm trainer.max_st"),
        ["trainer.max_steps="]
    );
}

#[test]
fn bash_completes_commands_flags_and_their_values() {
    let place = Place::new();
    assert_eq!(offered(&place, "tpu-train insp"), ["inspect"]);
    assert_eq!(offered(&place, "tpu-train --config-n"), ["--config-name"]);
    assert_eq!(offered(&place, "tpu-train --cfg h"), ["hydra"]);
    assert_eq!(offered(&place, "tpu-train diff --b prec"), ["precision="]);
    assert_eq!(
        offered(&place, "tpu-train generate max_new"),
        ["max_new_tokens="]
    );
    assert_eq!(offered(&place, "tpu-train emb"), ["embed"]);
    assert_eq!(offered(&place, "tpu-train eval max_b"), ["max_batches="]);
    assert_eq!(
        offered(&place, "tpu-train eval data=sto"),
        ["stories", "stories_pairs"]
    );
}

#[test]
fn completion_reads_the_configs_that_the_flags_name() {
    let place = Place::new();
    place.write(
        "more/trainer/mine.yaml",
        "type: lm.LmTrainer\nmax_steps: 1\n",
    );
    assert_eq!(offered(&place, "tpu-train -cd more +trainer=mi"), ["mine"]);
}

#[test]
fn nothing_is_offered_or_said_for_what_is_wrong() {
    let place = Place::new();
    for line in [
        "tpu-train nothing_begins_so",
        "tpu-train -cd absent +trainer=",
        "tpu-train [ zzz",
        "tpu-train 'a",
    ] {
        let query = ["--shell-completion", "query=bash"];
        let mut command = place.command(&query);
        command.env("COMP_LINE", line);
        let finished = Running::start(command).finish().with_code(0);
        assert_eq!(
            (finished.stdout.as_str(), finished.stderr.as_str()),
            ("", ""),
            "{line}"
        );
    }
}

#[test]
fn uninstalling_leaves_no_trace_in_bash() {
    let place = Place::new();
    let install = place.run(&["-sc", "install=bash"]).with_code(0).stdout;
    let uninstall = place.run(&["-sc", "uninstall=bash"]).with_code(0).stdout;
    let script = format!("{install}\n{uninstall}\ndeclare -F; complete -p");
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &script]);
    let finished = Running::start(bash).finish().with_code(0);
    assert_eq!(
        (finished.stdout.as_str(), finished.stderr.as_str()),
        ("", "")
    );
}

#[test]
fn a_shell_that_is_not_known_is_refused() {
    let place = Place::new();
    place
        .run(&["-sc", "install=csh"])
        .with_code(2)
        .complains("`install=csh` is not a value of `-sc`");
}
