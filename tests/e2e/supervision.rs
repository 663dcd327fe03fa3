//! A TPU that fails: what is left, what is said, and how the run goes on.
//!
//! The faults are injected into the launches of the true device (`crates/tpu/src/fault_injection.rs`); elsewhere the tests are skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::{Finished, NANO, Place, RunFolder, Running, TpuPlace, entries};

const TPU: &[&str] = &[
    "device=tpu",
    "device.cores=1",
    "hydra.run.dir=run",
    "data.sequence_length=8",
    "data.num_val_blocks=1",
    "trainer.global_batch_size=1",
    "trainer.micro_batch_size=1",
    "trainer.checkpoint_interval=1",
    "trainer.log_interval=1",
];
/// Long enough never to end by itself.
const ENDLESS: &str = "trainer.max_steps=1000000";

/// A folder with a run on the TPU in it.
struct Lab {
    at: TpuPlace,
    run: RunFolder,
}

impl Lab {
    /// `None` where there is no TPU.
    fn open() -> Option<Self> {
        let at = TpuPlace::open()?;
        Some(Self {
            run: RunFolder(at.place.path().join("run")),
            at,
        })
    }

    /// Makes the injected fault happen at the next launch.
    fn spring(&self) {
        fs::write(self.at.place.path().join("now"), "").unwrap();
    }

    fn command(&self, more: &[&str]) -> Command {
        self.at.command(&[NANO, TPU, more].concat())
    }

    fn start(&self, more: &[&str]) -> Running {
        Running::start(self.command(more))
    }

    /// Starts a run in which `fault` is injected.
    fn start_faulty(&self, fault: &str, more: &[&str]) -> Running {
        let mut command = self.command(more);
        let now = self.at.place.path().join("now");
        command.env(
            "TPU_TRAIN_INJECT_FAULT",
            format!("{fault}@{}", now.display()),
        );
        Running::start(command)
    }

    /// The process that computes: the child of the one that is the run's, by which the lock calls it.
    #[track_caller]
    fn worker(&self) -> String {
        let run = self.run.read(".lock");
        let threads = std::fs::read_dir(format!("/proc/{run}/task")).expect("a run at work");
        let children = threads.filter_map(|thread| {
            std::fs::read_to_string(thread.ok()?.path().join("children")).ok()
        });
        let children: String = children.collect();
        let mut children = children.split_whitespace();
        let worker = children.next().expect("a worker").to_owned();
        assert_eq!(children.next(), None, "one worker");
        worker
    }

    /// The step of the newest checkpoint.
    fn saved_step(&self) -> Option<u64> {
        let latest = tt_checkpoint::latest(&self.run.join("checkpoints")).ok()?;
        Some(latest.checkpoint?.step())
    }

    #[track_caller]
    fn wait_for_save(&self, running: &mut Running) {
        running.wait_until(|| self.saved_step().is_some());
    }

    /// The run goes on by the same command from where it was saved, and nothing lies about.
    #[track_caller]
    fn goes_on(&self) {
        let step = self.saved_step().expect("a checkpoint");
        let max_steps = format!("trainer.max_steps={}", step + 1);
        let finished = self.start(&[&max_steps]).finish().with_code(0);
        finished.prints(&format!("from step {step}"));
        assert_eq!(entries(&self.at.tmp()), [] as [PathBuf; 0]);
    }
}

fn signal(process: &str, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), process])
        .status();
    assert!(status.expect("kill(1)").success(), "kill -{name} {process}");
}

fn is_alive(process: &str) -> bool {
    // A dead one that nobody has waited for yet has no command line.
    fs::read(Path::new("/proc").join(process).join("cmdline")).is_ok_and(|line| !line.is_empty())
}

#[track_caller]
fn resume_command(finished: &Finished) -> &str {
    let lines: Vec<_> = finished.stderr.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.ends_with("goes on from it:"));
    lines[at.expect("how to go on") + 1].trim()
}

#[test]
fn a_failed_check_in_a_kernel_is_told_with_its_launch_and_the_run_goes_on() {
    let Some(lab) = Lab::open() else { return };
    let mut running = lab.start_faulty("assert", &[ENDLESS]);
    lab.wait_for_save(&mut running);
    lab.spring();
    let finished = running
        .finish()
        .with_code(1)
        .complains("a check in a kernel failed")
        .complains("Assertion")
        .complains("injected_assert")
        .complains("run/device.log");
    assert!(resume_command(&finished).starts_with("tpu-train +model=qwen2"));
    assert!(!finished.stdout.contains("[ap]"), "{}", finished.stdout);
    assert!(!finished.stderr.contains("[ap]"), "{}", finished.stderr);
    assert!(lab.run.read("device.log").contains("[ap]"));
    lab.goes_on();
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn a_hang_is_ended_and_told_with_its_launch() {
    let Some(lab) = Lab::open() else { return };
    let mut running = lab.start_faulty("hang", &[ENDLESS, "device.timeout_seconds=10"]);
    lab.wait_for_save(&mut running);
    lab.spring();
    running
        .finish()
        .with_code(1)
        .complains("the device hangs")
        .complains("injected_hang");
    lab.goes_on();
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn a_worker_that_is_killed_is_told_and_the_run_goes_on() {
    let Some(lab) = Lab::open() else { return };
    let mut running = lab.start(&[ENDLESS]);
    lab.wait_for_save(&mut running);
    signal(&lab.worker(), "KILL");
    let finished = running.finish().with_code(1).complains("killed (signal 9)");
    resume_command(&finished);
    lab.goes_on();
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn a_worker_dies_with_its_supervisor() {
    let Some(lab) = Lab::open() else { return };
    let mut running = lab.start(&[ENDLESS]);
    lab.wait_for_save(&mut running);
    let worker = lab.worker();
    running.kill();
    let killed = Instant::now();
    while is_alive(&worker) {
        assert!(
            killed.elapsed() < Duration::from_secs(5),
            "{worker} lives on"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    // What it left in the temporary folder goes with the next run.
    assert_ne!(entries(&lab.at.tmp()), [] as [PathBuf; 0]);
    lab.goes_on();
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn ctrl_c_saves_and_exits_130() {
    let Some(lab) = Lab::open() else { return };
    let mut running = lab.start(&[ENDLESS]);
    lab.wait_for_save(&mut running);
    // A terminal sends it to both.
    signal(&lab.worker(), "INT");
    running.signal("INT");
    running.finish().with_code(130).prints("continue");
    assert!(!lab.run.join("summary.json").exists());
    lab.goes_on();
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn sigterm_is_passed_on_and_a_second_ctrl_c_ends_even_a_hang() {
    let Some(lab) = Lab::open() else { return };
    let mut running = lab.start_faulty("hang", &[ENDLESS]);
    lab.wait_for_save(&mut running);
    running.signal("TERM");
    running.finish().with_code(75).prints("continue");
    let rows = lab.run.row_count();

    let mut running = lab.start_faulty("hang", &[ENDLESS]);
    running.wait_for_rows(&lab.run, rows + 1);
    lab.spring();
    let now = lab.at.place.path().join("now");
    running.wait_until(|| !now.exists());
    running.signal("INT");
    std::thread::sleep(Duration::from_millis(500));
    assert!(running.is_at_work(), "one signal asks, it does not kill");
    let worker = lab.worker();
    running.signal("INT");
    running.finish().with_code(130);
    assert!(!is_alive(&worker));
    lab.goes_on();
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn a_run_restarts_by_itself_and_makes_the_steps_of_one_that_never_failed() {
    let Some(lab) = Lab::open() else { return };
    let steps = &["trainer.max_steps=4", "device.restart.max=2"];
    let mut running = lab.start_faulty("assert", steps);
    running.wait_for_rows(&lab.run, 1);
    lab.spring();
    running.wait_for_rows(&lab.run, 3);
    lab.spring();
    running
        .finish()
        .with_code(0)
        .prints("starting again, 1 of 2 times")
        .prints("starting again, 2 of 2 times")
        .complains("injected_assert");
    let interrupted = lab.run.timeless_rows();

    let whole = lab.start(&["trainer.max_steps=4", "hydra.run.dir=whole"]);
    whole.finish().with_code(0);
    let whole = RunFolder(lab.at.place.path().join("whole"));
    assert_eq!(interrupted, whole.timeless_rows());
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn a_fault_before_anything_is_saved_is_given_up_after_one_try() {
    let Some(lab) = Lab::open() else { return };
    let mut command = lab.command(&[ENDLESS, "device.restart.max=5"]);
    command.env("TPU_TRAIN_INJECT_FAULT", "assert@5");
    Running::start(command)
        .finish()
        .with_code(1)
        .prints("starting again, 1 of 5 times")
        .complains("nothing was saved since it was started again");
}

/// Needs no TPU: there is none.
#[test]
fn without_the_vendors_libraries_the_error_names_the_missing_file() {
    let place = Place::new();
    let mut command = place.command(&[NANO, TPU].concat());
    command.env("SOPHGO_SDK", "/nowhere");
    Running::start(command)
        .finish()
        .with_code(2)
        .complains("/nowhere/lib/libtpuv7_rt.so");
    assert!(!place.path().join("run").exists());
}
