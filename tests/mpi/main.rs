//! The built binary under a real `mpirun`: ranks that are processes, against ranks that are threads.
//!
//! Needs the feature `mpi` and Open MPI or MPICH; `cargo xtask check --full` runs it.

#[expect(dead_code, reason = "made for the tests of one process")]
#[path = "../e2e/harness.rs"]
mod harness;

mod tpu;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{Finished, Place, Running, nano};

const STEPS: [&str; 3] = [
    "trainer.max_steps=20",
    "trainer.micro_batch_size=1",
    "trainer.eval_interval=10",
];

/// What begins the command line of `ranks` processes on this machine. `TT_MPIRUN` names the program of another MPI than the
/// system's first.
fn launcher(ranks: usize) -> String {
    let program = std::env::var("TT_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
    let version = Command::new(&program).arg("--version").output();
    let version = version.expect("mpirun: apt-get install openmpi-bin");
    let is_open_mpi = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
    let more = if is_open_mpi {
        "--oversubscribe --allow-run-as-root"
    } else {
        ""
    };
    format!("{program} -n {ranks} {more}")
}

fn start(place: &Place, ranks: usize, args: &[&str]) -> Running {
    let script = format!("exec {} \"$@\"", launcher(ranks));
    Running::start(place.shell(&script, args))
}

fn run(place: &Place, ranks: usize, args: &[&str]) -> Finished {
    start(place, ranks, args).finish()
}

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    nano(&[&STEPS, more].concat())
}

/// The rows of the same run on threads.
fn rows_on_threads(ranks: usize, more: &[&str]) -> Vec<String> {
    let place = Place::new();
    let ranks = format!("device.ranks={ranks}");
    let args = [more, &[&*ranks]].concat();
    place.run(&small(&args)).with_code(0);
    place.run_folder().timeless_rows()
}

/// The processes that work in a folder, by rank.
fn pids(place: &Place, ranks: usize) -> Vec<u32> {
    let found = ranks_at_work(place);
    assert_eq!(found.len(), ranks, "{found:?}");
    found.into_iter().map(|(_, pid)| pid).collect()
}

fn ranks_at_work(place: &Place) -> Vec<(usize, u32)> {
    let folder = place.path().canonicalize().unwrap();
    let rank_of = |pid: u32| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        if std::fs::read_link(process.join("cwd")).ok()? != folder {
            return None;
        }
        let variables = std::fs::read(process.join("environ")).ok()?;
        let variables = String::from_utf8_lossy(&variables).into_owned();
        let mut variables = variables.split('\0');
        let is_rank =
            |it: &&str| it.starts_with("OMPI_COMM_WORLD_RANK=") || it.starts_with("PMI_RANK=");
        let (_, rank) = variables.find(is_rank)?.split_once('=')?;
        Some((rank.parse::<usize>().ok()?, pid))
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|it| it.file_name().to_str()?.parse().ok());
    let mut found: Vec<(usize, u32)> = all.filter_map(rank_of).collect();
    found.sort();
    found
}

fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    kill.args([format!("-{name}"), pid.to_string()]);
    assert!(kill.status().unwrap().success());
}

/// None of them is left, soon.
fn assert_gone(pids: &[u32]) {
    let begun = Instant::now();
    let is_there = |pid: &&u32| PathBuf::from(format!("/proc/{pid}")).exists();
    while let Some(pid) = pids.iter().find(is_there) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{pid} is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn processes_make_the_steps_that_threads_make() {
    let of_two = ["replicated", "zero1", "zero2", "zero3", "qwen2-fsdp"];
    let of_four = [
        "replicated",
        "zero3",
        "hybrid ici_mesh.data=2 ici_mesh.fsdp=2",
    ];
    let of_two = of_two.map(|preset| (2, preset));
    for (ranks, preset) in of_two.into_iter().chain(of_four.map(|preset| (4, preset))) {
        let preset = format!("model/sharding={preset}");
        let preset: Vec<&str> = preset.split(' ').collect();
        let place = Place::new();
        let finished = run(&place, ranks, &small(&preset)).with_code(0);
        assert_eq!(finished.stdout.matches("run folder").count(), 1);
        assert_eq!(finished.stderr, "", "followers say nothing");
        assert!(!finished.stdout.contains('\x1b'), "plain lines");
        let rows = place.run_folder().timeless_rows();
        assert!(rows.len() > 20);
        assert_eq!(rows, rows_on_threads(ranks, &preset), "{ranks} {preset:?}");
    }
}

#[test]
fn one_rank_that_is_preempted_saves_on_all_and_the_run_goes_on() {
    let place = Place::new();
    let args = small(&["model/sharding=zero3"]);
    let mut running = start(&place, 2, &args);
    running.wait_until(|| place.run_folders().iter().any(|it| it.row_count() > 3));
    let pids = pids(&place, 2);
    signal(pids[1], "TERM");
    let finished = running.finish().with_code(75);
    assert!(
        !finished.stderr.contains("MPI_ABORT"),
        "{}",
        finished.stderr
    );
    assert_gone(&pids);
    run(&place, 2, &args).with_code(0);
    let rows = place.run_folder().timeless_rows();
    assert_eq!(rows, rows_on_threads(2, &["model/sharding=zero3"]));
}

#[test]
fn a_rank_that_is_killed_takes_all_with_it_and_the_run_goes_on() {
    let place = Place::new();
    let args = small(&["model/sharding=zero3", "trainer.checkpoint_interval=2"]);
    let mut running = start(&place, 4, &args);
    running.wait_until(|| place.run_folders().iter().any(|it| it.row_count() > 5));
    let pids = pids(&place, 4);
    signal(pids[2], "KILL");
    let finished = running.finish();
    assert_ne!(finished.code, Some(0), "{finished:?}");
    assert_gone(&pids);
    run(&place, 4, &args).with_code(0);
    let rows = place.run_folder().timeless_rows();
    assert_eq!(rows, rows_on_threads(4, &["model/sharding=zero3"]));
}

#[test]
fn a_rank_that_stands_still_is_named() {
    let place = Place::new();
    let args = small(&["trainer.max_steps=100000", "dist.timeout_seconds=3"]);
    let mut running = start(&place, 2, &args);
    running.wait_until(|| place.run_folders().iter().any(|it| it.row_count() > 3));
    let pids = pids(&place, 2);
    signal(pids[1], "STOP");
    let begun = Instant::now();
    let finished = running.finish();
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_ne!(finished.code, Some(0));
    let said = finished.stderr.matches("error: ").count();
    assert_eq!(said, 1, "{}", finished.stderr);
    let finished = finished.complains("for 3 s, in ");
    let finished = finished.complains("nothing was heard of rank 1 (");
    finished.complains("step ");
    assert_gone(&pids);
}

#[test]
fn a_rank_without_its_data_is_named_once() {
    let place = Place::new();
    let text = "a line to learn from\n".repeat(2000);
    place.write("text.txt", &text);
    place.write("elsewhere/.keep", "");
    // Another machine, on which the file is not.
    let script = format!(
        "exec {} bash -c 'if [[ ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} == 1 ]]; then cd elsewhere; fi; exec \"$@\"' bash \"$@\"",
        launcher(4)
    );
    let args = small(&["data=text", "data.path=text.txt"]);
    let finished = Running::start(place.shell(&script, &args)).finish();
    assert_ne!(finished.code, Some(0));
    let said = finished.stderr.matches("error: ").count();
    assert_eq!(said, 1, "{}", finished.stderr);
    let finished = finished.complains("error: rank 1 (");
    finished.complains("no such file: text.txt, in the configuration of rank 0");
}

#[test]
fn a_step_that_is_not_finite_is_explained_once() {
    let place = Place::new();
    let diverging = [
        "lr=1e30",
        "trainer.lr_scheduler.num_warmup_steps=0",
        "model/sharding=zero3",
    ];
    let finished = run(&place, 3, &small(&diverging)).with_code(1);
    let said = finished.stderr.matches("error: ").count();
    assert_eq!(said, 1, "{}", finished.stderr);
    finished
        .complains("error: step 2: the loss is NaN")
        .complains("micro-batch 0 on rank 0, row 0")
        .complains("bad_steps/step-00000002");
}

#[test]
fn what_several_processes_cannot_do_is_refused_once() {
    let place = Place::new();
    for (args, why) in [
        (
            [&["plan"], &*small(&[])].concat(),
            "`plan` works in one process, and 2 were started",
        ),
        (
            small(&["--multirun", "lr=1e-3,1e-4"]),
            "a sweep works in one process",
        ),
        (
            small(&["device.ranks=3"]),
            "`device.ranks`: 3, and 2 processes were started",
        ),
        (small(&["trainer.max_steps=many"]), "max_steps"),
    ] {
        let finished = run(&place, 2, &args).with_code(2).complains(why);
        assert_eq!(finished.stderr.matches("error: ").count(), 1, "{why}");
        assert!(
            !finished.stderr.contains("MPI_ABORT"),
            "{}",
            finished.stderr
        );
    }
    assert!(place.run_folders().is_empty());
}
