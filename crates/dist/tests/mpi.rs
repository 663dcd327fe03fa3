//! What any group of ranks does, by processes under a real `mpirun`.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Built with this test.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(|deps| deps.parent()).unwrap();
    target.join("examples").join("rank")
}

/// `TT_MPIRUN` names the one of another MPI than the system's first.
fn mpirun(ranks: usize, case: &str) -> Child {
    let program_of_mpi = std::env::var("TT_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
    let version = Command::new(&program_of_mpi).arg("--version").output();
    let version = version.expect("mpirun: apt-get install openmpi-bin");
    let mut command = Command::new(program_of_mpi);
    if String::from_utf8_lossy(&version.stdout).contains("Open MPI") {
        command.args(["--oversubscribe", "--allow-run-as-root"]);
    }
    command
        .args(["-n", &ranks.to_string()])
        .arg(program())
        .arg(case)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mpirun starts")
}

/// What it has printed, and whether it ended well. It must end in time.
fn finished(mut child: Child, limit: Duration) -> (String, bool) {
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > limit {
            let _ = child.kill();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let (mut out, mut err) = (String::new(), String::new());
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    (format!("{out}{err}"), status.success())
}

#[test]
fn what_any_group_of_ranks_does_processes_do() {
    for ranks in [2, 4] {
        let (said, is_well) = finished(mpirun(ranks, "facts"), Duration::from_secs(240));
        assert!(is_well, "{said}");
        assert!(said.contains("rank 1: mail and what all do"), "{said}");
        assert!(said.contains("rank 1: links"), "{said}");
    }
}

#[test]
fn a_failure_reaches_all_and_nobody_stays() {
    for (case, told) in [("failure", 4), ("timeout", 4), ("out of step", 4)] {
        let (said, is_well) = finished(mpirun(4, case), Duration::from_secs(60));
        assert!(!is_well, "{case}");
        assert_eq!(said.matches(": told").count(), told, "{case}: {said}");
    }
}

#[test]
fn of_a_rank_that_is_killed_no_other_is_left() {
    let mut child = mpirun(4, "waiting");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut pids = Vec::new();
    while pids.len() < 4 {
        let line = lines.next().unwrap().unwrap();
        if let Some((_, pid)) = line.split_once("pid ") {
            pids.push(pid.to_owned());
        }
    }
    let killed = Command::new("kill").args(["-9", &pids[2]]).status();
    assert!(killed.unwrap().success());
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it hangs");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!child.wait().unwrap().success());
    let is_there = |pid: &&String| PathBuf::from(format!("/proc/{pid}")).exists();
    while let Some(pid) = pids.iter().find(is_there) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{pid} is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}
