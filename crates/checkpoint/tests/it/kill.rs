//! SIGKILL at random moments of many saves: what is under a final name is always whole, and
//! what was reported as saved is still there.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::common::{assert_holds, keep_last, names, snapshot};
use tt_checkpoint::{Checkpoint, Writer, latest};

const DIR: &str = "TT_TEST_KILL_DIR";

/// The victim: resumes from the latest checkpoint and saves step after step until killed. Every
/// third time it saves a step anew, so that replacing is killed too.
fn save_until_killed(dir: &Path) {
    let mut writer = Writer::open(dir, keep_last(2)).unwrap();
    let found = latest(dir).unwrap();
    assert_eq!(found.skipped, []);
    let mut step = found.checkpoint.map_or(0, |c| c.step());
    let mut out = std::io::stdout();
    for i in 0.. {
        step += u64::from(i % 3 != 2);
        writer.submit(snapshot(step)).unwrap();
        writer.wait().unwrap().unwrap();
        writeln!(out, "saved {step}").unwrap();
    }
}

#[test]
fn killed_at_any_moment_leaves_only_whole_checkpoints() {
    // This same test, started by the one below, is the victim.
    if let Some(dir) = std::env::var_os(DIR) {
        return save_until_killed(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut random = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    println!("seed {random}");
    let mut newest = 0;
    let mut num_interrupted = 0;
    for _ in 0..40 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "kill::killed_at_any_moment_leaves_only_whole_checkpoints",
                "--nocapture",
            ])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut saved = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("saved ")?.parse::<u64>().ok());
        // Counted in saves, not in time, so that a slow machine gets as far.
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let num_saves = (random >> 33) % 4;
        let before_kill = saved.by_ref().take(num_saves as usize).last();
        thread::sleep(Duration::from_micros((random >> 40) % 20_000));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), None, "the child ended by itself");
        let reported = saved.last().or(before_kill).unwrap_or(newest);

        let names = names(dir.path());
        num_interrupted += u64::from(names.iter().any(|n| n.starts_with('.')));
        for name in names.iter().filter(|n| n.starts_with("step-")) {
            let path = dir.path().join(name);
            let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{e}"));
            assert_holds(&checkpoint, &snapshot(checkpoint.step()));
        }
        let found = latest(dir.path()).unwrap();
        assert_eq!(found.skipped, []);
        let step = found.checkpoint.map_or(0, |c| c.step());
        assert!(
            step >= reported,
            "{reported} was reported as saved, the latest is {step}"
        );
        newest = step;
    }
    println!("{newest} steps, {num_interrupted} of 40 kills in the middle of a write");
    assert!(
        newest > 10,
        "too few saves for the test to mean anything: {newest}"
    );
    assert!(
        num_interrupted > 5,
        "too few kills hit a write: {num_interrupted}"
    );
}
