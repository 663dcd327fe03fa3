//! What is kept, what goes, and that a good one always stays.

use std::{fs, num::NonZeroU64};

use crate::common::{keep_last, latest_step, names, snapshot, write};
use tt_checkpoint::{CheckpointConfig, Writer};

#[test]
fn last_n_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(2), [10, 20, 30, 40]);
    assert_eq!(names(dir.path()), ["step-00000030", "step-00000040"]);
}

#[test]
fn milestones_are_kept_besides() {
    let dir = tempfile::tempdir().unwrap();
    let config = CheckpointConfig {
        keep_every: NonZeroU64::new(20),
        ..keep_last(1)
    };
    write(dir.path(), config, [10, 20, 30, 40, 50]);
    assert_eq!(
        names(dir.path()),
        ["step-00000020", "step-00000040", "step-00000050"]
    );
}

#[test]
fn null_keeps_all() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(0), 1..=5);
    assert_eq!(names(dir.path()).len(), 5);
}

#[test]
fn removed_ones_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(1), [10]);
    let mut writer = Writer::open(dir.path(), keep_last(1)).unwrap();
    writer.submit(snapshot(20)).unwrap();
    let saved = writer.finish().unwrap().unwrap();
    assert_eq!(saved.removed, [dir.path().join("step-00000010")]);
}

#[test]
fn one_that_is_read_is_left_until_that_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), keep_last(1)).unwrap();
    let mut save = |step| {
        writer.submit(snapshot(step)).unwrap();
        writer.wait().unwrap();
        writer.hold(step)
    };
    let (first, second) = (save(10), save(20));
    drop((save(30), second));
    assert_eq!(
        names(dir.path()),
        ["step-00000010", "step-00000020", "step-00000030"]
    );
    drop(save(40));
    assert_eq!(names(dir.path()), ["step-00000010", "step-00000040"]);
    drop((first, save(50)));
    drop(save(60));
    assert_eq!(names(dir.path()), ["step-00000060"]);
}

#[test]
fn newer_but_damaged_ones_do_not_push_out_the_good_one() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(9), [100, 200, 300]);
    // One that retention can see is bad, one whose size is right.
    fs::remove_file(dir.path().join("step-00000200/manifest.json")).unwrap();
    let config = dir.path().join("step-00000300/config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace('8', "9")).unwrap();
    assert_eq!(latest_step(dir.path()), Some(100));

    write(dir.path(), keep_last(1), [150]);
    assert_eq!(
        names(dir.path()),
        ["step-00000150", "step-00000200", "step-00000300"]
    );
    assert_eq!(latest_step(dir.path()), Some(150));
}
