//! Two steps: the shortest run there is leaves everything a run leaves.

use crate::harness::Place;

#[test]
fn two_steps_leave_a_run_folder() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=2"])
        .with_code(0)
        .prints("loss")
        .prints("unigram")
        .prints("tokens/s")
        .prints("checkpoint");

    let run = place.run_folder();
    let rows = run.rows();
    let steps: Vec<_> = rows
        .iter()
        .filter(|row| row.get("loss").is_some())
        .collect();
    assert_eq!(steps.len(), 2, "{rows:?}");
    for (row, step) in steps.iter().zip(1..) {
        assert_eq!(row["step"], step);
        for key in ["loss", "lr", "grad_norm", "tokens", "tokens_per_second"] {
            assert!(row[key].is_number(), "{key} in {row}");
        }
    }
    assert!(
        rows.iter().any(|row| row["val_loss"].is_number()),
        "{rows:?}"
    );

    let summary = run.json("summary.json");
    for key in [
        "final_val_loss",
        "unigram_nats",
        "tokens_per_second",
        "peak_rss_bytes",
    ] {
        assert!(
            summary[key].as_f64().is_some_and(|v| v > 0.0),
            "{key} in {summary}"
        );
    }
    assert!(summary["peak_rss_bytes"].as_u64().unwrap() < 1 << 30);

    let checkpoint = run.final_checkpoint();
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "trainer_state",
        "manifest.json",
    ] {
        assert!(
            checkpoint.join(name).exists(),
            "no {name} in the checkpoint"
        );
    }
}

#[test]
fn the_run_folder_says_what_was_run() {
    let place = Place::new();
    place
        .run_nano(&["trainer.max_steps=1", "lr=5e-5"])
        .with_code(0);

    let run = place.run_folder();
    // As the user wrote it, as Hydra keeps it, and resolved.
    assert!(run.read(".hydra/overrides.yaml").contains("- lr=5e-5\n"));
    assert!(run.read(".hydra/config.yaml").contains("lr: ${lr}"));
    assert!(run.read(".hydra/hydra.yaml").contains("outputs/"));
    assert!(!run.read("resolved_config.json").contains("${"));
    let environment = run.json("environment.json");
    assert!(environment["version"].is_string(), "{environment}");
    assert!(environment["args"].is_array(), "{environment}");
}

#[test]
fn relative_paths_mean_where_the_user_stood() {
    let place = Place::new();
    let text: String = (0..300)
        .map(|i| format!("Cat {i} sat on mat {}.\n\n", i * 7))
        .collect();
    place.write("texts/one.txt", &text);
    place
        .run_nano(&[
            "data=text",
            "data.dataset.kwargs.separator=blank_line",
            "data.path=texts/*.txt",
            "hydra.run.dir=runs/here",
            "trainer.max_steps=1",
        ])
        .with_code(0);
    assert!(place.path().join("runs/here/summary.json").exists());
    assert!(!place.path().join("outputs").exists());
}

#[test]
fn two_runs_in_one_second_get_two_folders() {
    let place = Place::new();
    let args = ["trainer.max_steps=1", "resume=none"];
    let first = place.start_nano(&args);
    let second = place.start_nano(&args);
    first.finish().with_code(0);
    second.finish().with_code(0);
    assert_eq!(place.run_folders().len(), 2);
}

#[test]
fn output_subdir_names_the_folder_of_the_records_and_null_leaves_it_out() {
    let place = Place::new();
    let one = [
        "trainer.max_steps=1",
        "hydra.run.dir=a",
        "hydra.output_subdir=asked",
    ];
    place.run_nano(&one).with_code(0);
    let asked = place.path().join("a/asked");
    for name in [
        "config.yaml",
        "hydra.yaml",
        "overrides.yaml",
        "origins.json",
    ] {
        assert!(asked.join(name).is_file(), "{name}");
    }
    assert!(!place.path().join("a/.hydra").exists());
    place.run(&["inspect", "a"]).with_code(0);
    let none = [
        "trainer.max_steps=1",
        "hydra.run.dir=b",
        "hydra.output_subdir=null",
    ];
    place.run_nano(&none).with_code(0);
    assert!(!place.path().join("b/.hydra").exists());
    assert!(place.path().join("b/resolved_config.json").is_file());
}
