//! The programs of docs/plug-ins.md: each runs as the page says, and the page shows each as it is.

use std::path::Path;
use std::process::Command;

const NANO: &[&str] = &[
    "+trainer=lm",
    "data.sequence_length=64",
    "data.tokenizer.vocab_size=300",
    "trainer.global_batch_size=2",
    "trainer.max_steps=3",
    "trainer.sample.count=1",
    "trainer.sample.prompt_tokens=4",
    "trainer.sample.max_new_tokens=4",
    "hydra.run.dir=run",
];
const QWEN2: &[&str] = &["+model=qwen2", "model/size=nano"];

/// Runs in `dir`; what is printed, and whether it went well.
fn start(dir: &Path, program: &str, args: &[&[&str]]) -> (bool, String) {
    let output = Command::new(program)
        .args(args.concat())
        .args(NANO)
        .current_dir(dir)
        .env("WANDB_MODE", "disabled") // whatever keys a developer has
        .env(
            "XDG_CACHE_HOME",
            concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"),
        )
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8(printed).unwrap();
    (output.status.success(), printed)
}

/// Trains three steps, and prints the last one and a sample.
fn trains(dir: &Path, program: &str, args: &[&[&str]]) -> String {
    let (is_well, printed) = start(dir, program, args);
    assert!(is_well, "{printed}");
    for line in ["step=3/3", "loss", "> "] {
        assert!(printed.contains(line), "no {line:?} in {printed}");
    }
    printed
}

fn refuses(program: &str, args: &[&[&str]], message: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (is_well, printed) = start(dir.path(), program, args);
    assert!(!is_well && printed.contains(message), "{printed}");
}

#[test]
fn the_model_trains_and_points_at_the_key_it_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_my-model");
    trains(dir.path(), program, &[&["+model=bigram"]]);
    let many = &["+model=bigram", "model.num_layers=9"][..];
    refuses(program, &[many], "`model.num_layers`: a bigram needs");
}

#[test]
fn the_optimizer_trains_and_goes_on_as_if_never_stopped() {
    let program = env!("CARGO_BIN_EXE_my-optimizer");
    let heavy: &[&str] = &[
        "trainer/optimizer=heavy",
        "lr=1e-4",
        "trainer.checkpoint_interval=2",
    ];
    let last_row = |dir: &Path| {
        let rows = std::fs::read_to_string(dir.join("run/metrics.jsonl")).unwrap();
        let row = rows.lines().find(|row| row.contains("\"step\":3,\"loss\""));
        let row = row.expect("a third step").to_owned();
        row.split(",\"tokens_per_second\"")
            .next()
            .unwrap()
            .to_owned()
    };
    let dir = tempfile::tempdir().unwrap();
    trains(dir.path(), program, &[QWEN2, heavy]);
    let at_once = last_row(dir.path());
    // As if it had been killed before the last checkpoint.
    std::fs::remove_dir_all(dir.path().join("run/checkpoints/step-00000003")).unwrap();
    std::fs::remove_file(dir.path().join("run/summary.json")).unwrap();
    trains(dir.path(), program, &[QWEN2, heavy]);
    assert_eq!(last_row(dir.path()), at_once);
}

#[test]
fn the_collator_trains_and_points_at_the_key_it_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_my-collator");
    trains(dir.path(), program, &[QWEN2, &["data=answers"]]);
    let no_end = &["data=answers", "data.collator.kwargs.prompt_end=''"][..];
    let message = "`data.collator.kwargs.prompt_end`: must not be empty";
    refuses(program, &[QWEN2, no_end], message);
}

#[test]
fn the_source_trains() {
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_my-source");
    let printed = trains(dir.path(), program, &[QWEN2, &["data=squares"]]);
    assert!(printed.contains("The square of"), "{printed}");
}

#[test]
fn the_sink_writes_a_line_a_step() {
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_my-sink");
    trains(dir.path(), program, &[QWEN2, &["logging=csv"]]);
    let table = std::fs::read_to_string(dir.path().join("run/losses.csv")).unwrap();
    let lines: Vec<_> = table.lines().collect();
    assert_eq!((lines[0], lines.len()), ("step,loss", 4));
    assert!(lines[3].starts_with("3,"), "{table}");
}

/// What is shown is what was built; what is built is short enough to be shown.
#[test]
fn the_page_shows_every_program_as_it_is() {
    let page = include_str!("../../../docs/plug-ins.md");
    let programs = [
        include_str!("../../custom_trainer/src/main.rs"),
        include_str!("../src/bin/my-model.rs"),
        include_str!("../src/bin/my-optimizer.rs"),
        include_str!("../src/bin/my-collator.rs"),
        include_str!("../src/bin/my-source.rs"),
        include_str!("../src/bin/my-sink.rs"),
    ];
    for program in programs {
        let name = program.lines().next().unwrap();
        let is_code = |line: &&str| !line.is_empty() && !line.trim_start().starts_with("//");
        assert!(
            program.lines().filter(is_code).count() < 60,
            "{name} is long"
        );
        let shown = format!("```rust,ignore\n{program}```\n");
        assert!(page.contains(&shown), "{name} is shown otherwise");
    }
    for file in [
        include_str!("../src/bin/bigram.yaml"),
        include_str!("../../custom_trainer/src/focal.yaml"),
    ] {
        assert!(page.contains(&format!("```yaml\n{file}```\n")), "{file}");
    }
}
