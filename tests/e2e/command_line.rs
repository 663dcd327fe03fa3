//! Flags, and what is printed without training.

use crate::harness::{Place, entries};

const RUN: &[&str] = &["+model=qwen2", "+trainer=lm", "lr=5e-5"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    RUN.iter().chain(more).copied().collect()
}

#[test]
fn help_lists_flags_commands_and_groups() {
    let place = Place::new();
    let help = place.run(&["--help"]).with_code(0);
    let mut help = help.prints("usage: tpu-train");
    for text in [
        "--cfg",
        "--config-name",
        "--config-dir",
        "--resolve",
        "train",
        "model",
        "qwen2",
        "exit codes",
    ] {
        help = help.prints(text);
    }
    assert_eq!(help.stderr, "");
}

#[test]
fn version_is_the_packages() {
    let place = Place::new();
    place
        .run(&["--version"])
        .with_code(0)
        .prints(&format!("tpu-train {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn cfg_job_prints_the_composed_config_unresolved() {
    let place = Place::new();
    let printed = place
        .run(&with(&["--cfg", "job"]))
        .with_code(0)
        .prints("lr: ${lr}");
    assert!(!printed.stdout.contains("\nhydra:"), "{}", printed.stdout);
}

#[test]
fn cfg_job_resolve_prints_values() {
    let place = Place::new();
    let printed = place
        .run(&with(&["--cfg", "job", "--resolve"]))
        .with_code(0)
        .prints("\nlr: 5.0e-05\n".trim_start_matches('\n'));
    assert!(!printed.stdout.contains("${"), "{}", printed.stdout);
}

#[test]
fn cfg_package_prints_one_part() {
    let place = Place::new();
    let printed = place
        .run(&with(&["--cfg=job", "--package=trainer.optimizer"]))
        .with_code(0)
        .prints("adamw.AdamW");
    assert!(
        !printed.stdout.contains("lr_scheduler"),
        "{}",
        printed.stdout
    );
}

#[test]
fn cfg_hydra_prints_the_hydra_node() {
    let place = Place::new();
    place
        .run(&with(&["-c", "hydra"]))
        .with_code(0)
        .prints("outputs/");
}

#[test]
fn info_origins_tells_where_each_value_is_from() {
    let place = Place::new();
    place
        .run(&with(&["--info", "origins", "-p", "trainer.optimizer"]))
        .with_code(0)
        .prints("configs/trainer/optimizer/adamw.yaml")
        .prints("lr=5e-5");
}

#[test]
fn info_defaults_lists_the_files() {
    let place = Place::new();
    place
        .run(&with(&["--info=defaults"]))
        .with_code(0)
        .prints("model/size/small")
        .prints("trainer/lr_scheduler/cosine");
}

#[test]
fn plus_and_plain_select_a_group_alike() {
    let place = Place::new();
    let plus = place
        .run(&["+model=qwen2", "+trainer=lm", "--cfg", "job"])
        .with_code(0);
    let plain = place
        .run(&["model=qwen2", "trainer=lm", "--cfg", "job"])
        .with_code(0);
    assert_eq!(plus.stdout, plain.stdout);
}

#[test]
fn train_is_the_default_command() {
    let place = Place::new();
    let named = place.run(&with(&["--cfg", "job"])).with_code(0);
    let mut args = vec!["train"];
    args.extend(with(&["--cfg", "job"]));
    assert_eq!(place.run(&args).with_code(0).stdout, named.stdout);
}

#[test]
fn printing_leaves_nothing_behind() {
    let place = Place::new();
    place.run(&with(&["--cfg", "all"])).with_code(0);
    assert_eq!(entries(place.path()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn files_on_disk_take_precedence() {
    let place = Place::new();
    place.write(
        "configs/model/mine.yaml",
        "defaults:\n  - qwen2\n  - _self_\nhidden_size: 96\n",
    );
    place
        .run(&["+model=mine", "+trainer=lm", "--cfg", "job", "-p", "model"])
        .with_code(0)
        .prints("hidden_size: 96");
}

#[test]
fn config_dir_adds_a_folder() {
    let place = Place::new();
    place.write(
        "elsewhere/trainer/short.yaml",
        "defaults:\n  - lm\n  - _self_\nmax_steps: 7\n",
    );
    place
        .run(&[
            "+model=qwen2",
            "+trainer=short",
            "--config-dir",
            "elsewhere",
            "-c",
            "job",
        ])
        .with_code(0)
        .prints("max_steps: 7");
}

#[test]
fn config_name_chooses_the_root_file() {
    let place = Place::new();
    place.write(
        "configs/mine.yaml",
        "defaults:\n  - default\n  - _self_\nseed: 7\n",
    );
    place
        .run(&with(&["-cn", "mine", "--cfg", "job"]))
        .with_code(0)
        .prints("seed: 7");
}

#[cfg(not(feature = "mpi"))]
#[test]
fn without_mpi_a_program_started_by_mpirun_says_so_once_and_trains_nothing() {
    use crate::harness::Running;

    let place = Place::new();
    let as_rank = |rank: &str| {
        let mut command = place.command(&with(&["+model=qwen2", "+trainer=lm"]));
        command.env("OMPI_COMM_WORLD_RANK", rank);
        command.env("OMPI_COMM_WORLD_SIZE", "4");
        Running::start(command)
    };
    let (first, other) = (as_rank("0"), as_rank("3"));
    first.finish().with_code(2).complains(
        "error: mpirun of Open MPI has started 4 processes, for one run: MPI: this program was built without it; \
         cargo build --release --features mpi makes one that has it; on one machine device.ranks=4 needs no MPI",
    );
    let other = other.finish().with_code(2);
    assert_eq!((&*other.stdout, &*other.stderr), ("", ""));
    let several_chips = [
        "+model=qwen2",
        "+trainer=lm",
        "device=tpu",
        "device.ranks=2",
    ];
    place
        .run(&with(&several_chips))
        .with_code(2)
        .complains("each TPU takes a process, and they need MPI");
    assert!(place.run_folders().is_empty());
}

#[test]
fn unknown_flag_is_refused_with_the_nearest() {
    let place = Place::new();
    place
        .run(&with(&["--config-nam=x"]))
        .with_code(2)
        .complains("error: unknown flag `--config-nam`")
        .complains("--config-name");
}

#[test]
fn unknown_command_is_refused_with_the_nearest() {
    let place = Place::new();
    place
        .run(&["trian", "+model=qwen2"])
        .with_code(2)
        .complains("error: unknown command `trian`")
        .complains("train");
}

#[test]
fn malformed_override_is_refused() {
    let place = Place::new();
    place.run(&with(&["lr=[1"])).with_code(2).complains("lr=[1");
}
