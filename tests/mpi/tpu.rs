//! Ranks that have a TPU each: `device=tpu device.ranks=2` starts `mpirun` itself, and looks after it.

use std::process::Command;

use crate::harness::{NANO, RunFolder, Running, TpuPlace};
use crate::{assert_gone, pids, ranks_at_work, signal};

/// A rounding of f32 sums in another order, and what a few steps make of it.
const F32_REL: f64 = 1e-4;

const RUN: &[&str] = &[
    "data.sequence_length=8",
    "data.num_val_blocks=1",
    "trainer.global_batch_size=2",
    "trainer.micro_batch_size=1",
    "trainer.checkpoint_interval=1",
    "trainer.log_interval=1",
    "trainer.sample.count=0",
    "model/sharding=zero3",
    "hydra.run.dir=run",
];
const TPUS: &[&str] = &["device=tpu", "device.cores=1", "device.ranks=2"];

fn command(at: &TpuPlace, more: &[&str]) -> Command {
    at.command(&[NANO, RUN, more].concat())
}

fn losses(run: &RunFolder) -> Vec<f64> {
    let rows = run.rows();
    rows.iter()
        .filter_map(|row| row.get("loss")?.as_f64())
        .collect()
}

#[test]
fn a_rank_that_is_killed_is_started_again_with_all_and_the_curve_is_that_of_the_cpu() {
    let Some(at) = TpuPlace::open() else { return };
    let run = RunFolder(at.place.path().join("run"));
    let steps = ["trainer.max_steps=4", "device.restart.max=1"];
    let mut running = Running::start(command(&at, &[TPUS, &steps].concat()));
    running.wait_for_rows(&run, 2);
    let killed = pids(&at.place, 2);
    signal(killed[1], "KILL");
    let finished = running.finish().with_code(0).complains("was killed");
    finished
        .prints("starting again, 1 of 1 times")
        .prints("from step ");
    assert_gone(&killed);
    let at_two = losses(&run);

    let other = ["device.ranks=1", "trainer.max_steps=4", "hydra.run.dir=cpu"];
    let finished = Running::start(command(&at, &other)).finish();
    finished.with_code(0);
    let alone = losses(&RunFolder(at.place.path().join("cpu")));
    assert_eq!(at_two.len(), alone.len());
    for (a, b) in at_two.iter().zip(&alone) {
        assert!((a - b).abs() < F32_REL * b, "{at_two:?} {alone:?}");
    }
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn ctrl_c_saves_on_all_and_nobody_is_left() {
    let Some(at) = TpuPlace::open() else { return };
    let run = RunFolder(at.place.path().join("run"));
    let mut running = Running::start(command(&at, &[TPUS, &["trainer.max_steps=1000"]].concat()));
    running.wait_for_rows(&run, 1);
    let ranks = pids(&at.place, 2);
    running.signal("INT");
    running
        .finish()
        .with_code(130)
        .complains("saving and stopping");
    assert_gone(&ranks);
    assert!(ranks_at_work(&at.place).is_empty());
    let saved = run.join("checkpoints").read_dir().unwrap().count();
    assert!(saved > 0, "nothing was saved");
}

/// What goes over the chips' links, with a GiB of memory for each.
const LINKED: &[&str] = &[
    "device=tpu",
    "device.cores=1",
    "device.memory_gb=1",
    "dist.backend=c2c",
];

#[test]
#[ignore = "for cargo xtask check --full"]
fn two_and_four_linked_chips_follow_one() {
    let Some(at) = TpuPlace::open() else { return };
    let losses = |ranks: usize| {
        let folder = format!("of-{ranks}");
        let args = [
            &*format!("hydra.run.dir={folder}"),
            &*format!("device.ranks={ranks}"),
            "trainer.global_batch_size=4",
            "trainer.max_steps=3",
            "profile=chrome",
            "profile.first_step=2",
            "profile.num_steps=1",
        ];
        Running::start(command(&at, &[LINKED, &args].concat()))
            .finish()
            .with_code(0);
        let run = RunFolder(at.place.path().join(folder));
        let traces = run.join("profile").read_dir().unwrap().flatten();
        let traces = traces.map(|it| std::fs::read_to_string(it.path()).unwrap());
        let trace: String = traces.collect();
        for kernel in ["c2c_all_gather", "c2c_reduce_scatter"] {
            assert_eq!(trace.contains(kernel), ranks > 1, "{kernel} of {ranks}");
        }
        losses(&run)
    };
    let alone = losses(1);
    assert_eq!(alone.len(), 3);
    for ranks in [2, 4] {
        let linked = losses(ranks);
        assert_eq!(linked.len(), alone.len());
        for (a, b) in linked.iter().zip(&alone) {
            assert!((a - b).abs() < F32_REL * b, "{ranks}: {linked:?} {alone:?}");
        }
    }
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn a_linked_chip_whose_process_is_killed_leaves_none_waiting() {
    let Some(at) = TpuPlace::open() else { return };
    let run = RunFolder(at.place.path().join("run"));
    let steps = [
        "trainer.max_steps=4",
        "device.ranks=2",
        "device.restart.max=1",
    ];
    let mut running = Running::start(command(&at, &[LINKED, &steps].concat()));
    running.wait_for_rows(&run, 2);
    let killed = pids(&at.place, 2);
    signal(killed[1], "KILL");
    let finished = running.finish().with_code(0).complains("was killed");
    finished.prints("starting again, 1 of 1 times");
    assert_gone(&killed);
    assert_eq!(losses(&run).len(), 4);
}

#[test]
fn without_mpirun_it_says_what_is_missing() {
    let Some(at) = TpuPlace::open() else { return };
    let mut command = command(&at, TPUS);
    command.env("TT_MPIRUN", "no-such-mpirun");
    let finished = Running::start(command).finish().with_code(2);
    finished
        .complains("ranks on TPUs are started by the mpirun of an MPI on this machine")
        .complains("cannot start no-such-mpirun");
}
