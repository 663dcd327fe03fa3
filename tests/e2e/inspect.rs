//! What is told of runs by what they have recorded.

use crate::harness::{Place, RunFolder};

const SHORT: &[&str] = &["trainer.max_steps=1", "resume=none"];

fn trained(place: &Place, folder: &str, more: &[&str]) -> RunFolder {
    let dir = format!("hydra.run.dir={folder}");
    let mut args = SHORT.to_vec();
    args.push(&dir);
    args.extend(more);
    place.run_nano(&args).with_code(0);
    RunFolder(place.path().join(folder))
}

#[test]
fn inspect_of_two_runs_tells_each_difference_and_the_override_behind_it() {
    let place = Place::new();
    trained(&place, "a", &["lr=5e-4"]);
    place.write(
        "configs/trainer/lr_scheduler/late.yaml",
        "defaults: [cosine, _self_]
num_warmup_steps: 3
",
    );
    trained(&place, "b", &["trainer/lr_scheduler=late"]);
    let compared = place.run(&["inspect", "a", "b"]).with_code(0);
    let told = |key: &str| {
        let after = compared.stdout.split_once(&format!("\n{key}\n"));
        let (_, after) = after.unwrap_or_else(|| panic!("no {key} in:\n{}", compared.stdout));
        let mut lines = after.lines().map(str::to_owned);
        [lines.next().unwrap(), lines.next().unwrap()]
    };
    let [a, b] = told("lr");
    assert_eq!(a, "  A  0.0005  from argument lr=5e-4");
    assert!(
        b.starts_with("  B  0.001  from configs/default.yaml:"),
        "{b}"
    );
    let [a, _] = told("trainer.optimizer.kwargs.lr");
    assert!(
        a.contains("adamw.yaml") && a.contains("-> argument lr=5e-4"),
        "{a}"
    );
    let [_, b] = told("trainer.lr_scheduler.num_warmup_steps");
    assert!(
        b.contains("chosen by `trainer/lr_scheduler=late` on the command line"),
        "{b}"
    );
    assert!(
        b.starts_with("  B  3  from configs/trainer/lr_scheduler/late.yaml:2:"),
        "{b}"
    );
    let first = compared.stdout.lines().next().unwrap();
    assert!(
        first.starts_with("A  a  ") && first.contains("+model=qwen2"),
        "{first}"
    );
    assert!(!compared.stdout.contains("\nseed\n"), "{}", compared.stdout);
}

#[test]
fn inspect_of_a_run_tells_what_it_was_and_how_far_it_came() {
    let place = Place::new();
    trained(&place, "a", &[]);
    place
        .run(&["inspect", "a"])
        .with_code(0)
        .prints("a, finished")
        .prints("model=qwen2 model/size=nano")
        .prints("trainer.max_steps=1")
        .prints("at step 1\n")
        .prints("a/checkpoints/step-00000001");
    place
        .run(&["inspect", "a", "a"])
        .with_code(0)
        .prints("the configs are equal");
}

#[test]
fn what_is_no_run_folder_is_refused_by_name() {
    let place = Place::new();
    place.write("empty/note.txt", "");
    for (args, error) in [
        (
            &["inspect", "absent"][..],
            "error: there is no folder absent\n",
        ),
        (
            &["inspect", "empty"],
            "error: empty is not a run folder: it has no resolved_config.json\n",
        ),
        (
            &["inspect"],
            "error: inspect takes one run folder, or two to compare: tpu-train inspect RUN_A RUN_B\n",
        ),
        (
            &["inspect", "empty", "--cfg=job"],
            "error: `inspect` composes no config: it takes neither --cfg nor --info\n",
        ),
    ] {
        assert_eq!(place.run(args).with_code(2).stderr, error);
    }
}
