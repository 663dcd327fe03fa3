//! Writes that fail: where the error surfaces, what it says, what is left behind.

use std::{fs, ops::Range};

use crate::common::{assert_holds, keep_last, latest_step, names, snapshot, write};
use tt_checkpoint::{
    Dtype, Error, HostTensor, Snapshot, SourceError, TensorSource, Writer, latest,
};
use tt_testkit::{SmallDisk, in_own_mounts};

#[test]
fn error_of_a_write_surfaces_on_the_next_submit_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(3), [1]);
    let mut writer = Writer::open(dir.path(), keep_last(3)).unwrap();
    let assets = vec![dir.path().join("no-tokenizer.json")];
    writer
        .submit(Snapshot {
            assets,
            ..snapshot(2)
        })
        .unwrap();
    let error = writer.submit(snapshot(3)).unwrap_err();
    assert!(error.to_string().contains("no-tokenizer.json"), "{error}");

    // The writer is usable again, and the failed step left nothing.
    assert!(writer.submit(snapshot(4)).unwrap().is_none());
    assert_eq!(writer.finish().unwrap().unwrap().step, 4);
    assert_eq!(names(dir.path()), ["step-00000001", "step-00000004"]);
}

#[test]
fn error_of_the_last_write_surfaces_on_finish() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), keep_last(3)).unwrap();
    let mut bad = snapshot(1);
    bad.model["embed.weight"].shape = vec![3];
    writer.submit(bad).unwrap();
    let error = writer.finish().unwrap_err();
    assert!(
        matches!(&error, Error::TensorSize { name, .. } if name == "embed.weight"),
        "{error}"
    );
    assert!(names(dir.path()).is_empty());
}

/// A tensor of which the second half cannot be read.
struct HalfReadable(HostTensor);

impl TensorSource for HalfReadable {
    fn dtype(&self) -> Dtype {
        self.0.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    fn read(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SourceError> {
        if range.end > self.0.bytes.len() / 2 {
            return Err("the device is gone".into());
        }
        self.0.read(range, out)
    }
}

#[test]
fn a_tensor_that_cannot_be_read_is_told_at_once_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(3), [1]);
    let mut writer = Writer::open(dir.path(), keep_last(3)).unwrap();
    let mut unreadable = Snapshot {
        step: 2,
        ..Snapshot::default()
    };
    let large = HostTensor::from_f32([16 << 20], &vec![1.0; 16 << 20]);
    unreadable.model.insert("large".into(), HalfReadable(large));
    let error = writer.submit(unreadable).unwrap_err();
    assert!(matches!(&error, Error::Source { name, .. } if name == "large"));
    let cause = std::error::Error::source(&error).unwrap();
    assert_eq!(cause.to_string(), "the device is gone");
    assert_eq!(names(dir.path()), ["step-00000001"]);

    // The writer is usable again.
    writer.submit(snapshot(3)).unwrap();
    assert_eq!(writer.finish().unwrap().unwrap().step, 3);
}

#[test]
fn each_outcome_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), keep_last(3)).unwrap();
    assert!(writer.poll().unwrap().is_none());
    writer.submit(snapshot(1)).unwrap();
    let saved = writer.submit(snapshot(2)).unwrap().unwrap();
    assert_eq!(saved.step, 1);
    assert_eq!(writer.wait().unwrap().unwrap().step, 2);
    assert!(!writer.is_busy());
    assert!(writer.poll().unwrap().is_none());
    assert!(writer.finish().unwrap().is_none());
}

#[test]
fn dropping_the_writer_completes_the_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path(), keep_last(3)).unwrap();
    writer.submit(snapshot(1)).unwrap();
    drop(writer);
    assert_holds(
        &latest(dir.path()).unwrap().checkpoint.unwrap(),
        &snapshot(1),
    );
}

#[test]
fn folder_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Writer::open(file.join("checkpoints"), keep_last(3)).unwrap_err();
    assert!(error.to_string().contains("file/checkpoints"), "{error}");
}

#[test]
fn asset_may_not_take_a_name_that_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    for name in ["config.json", "manifest.json", "model.safetensors"] {
        let asset = outside.path().join(name);
        fs::write(&asset, "x").unwrap();
        let mut writer = Writer::open(dir.path(), keep_last(3)).unwrap();
        let assets = vec![asset];
        writer
            .submit(Snapshot {
                assets,
                ..snapshot(1)
            })
            .unwrap();
        let error = writer.finish().unwrap_err();
        assert!(matches!(error, Error::AssetName { .. }), "{error}");
    }
}

#[test]
fn full_disk_says_what_was_needed_and_keeps_the_older_checkpoint() {
    let name = "failures::full_disk_says_what_was_needed_and_keeps_the_older_checkpoint";
    in_own_mounts(name, fill_a_disk);
}

fn fill_a_disk() {
    let disk = SmallDisk::mount(256);
    let dir = disk.path();
    write(dir, keep_last(3), [1]);

    let mut large = snapshot(2);
    let values = vec![1.0; 100_000];
    large
        .model
        .insert("large".into(), HostTensor::from_f32([100_000], &values));
    let mut writer = Writer::open(dir, keep_last(3)).unwrap();
    writer.submit(large).unwrap();
    let error = writer.finish().unwrap_err();
    let Error::DiskFull {
        needed_bytes,
        available_bytes,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(*needed_bytes >= 400_000);
    // What the failed write took is free again.
    assert!(
        available_bytes.is_some_and(|n| (100_000..262_144).contains(&n)),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("step-00000002: the checkpoint needs 404.10 kB"),
        "{error}"
    );

    assert_eq!(names(dir), ["step-00000001"]);
    assert_eq!(latest_step(dir), Some(1));
}

#[test]
fn submit_returns_before_the_write_is_done_and_the_next_one_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut large = snapshot(1);
    let values = vec![1.0; 16 << 20];
    large
        .model
        .insert("large".into(), HostTensor::from_f32([16 << 20], &values));
    let mut writer = Writer::open(dir.path(), keep_last(3)).unwrap();
    writer.submit(large).unwrap();
    assert!(!names(dir.path()).contains(&"step-00000001".into()));

    let saved = writer.submit(snapshot(2)).unwrap().unwrap();
    assert!(names(dir.path()).contains(&"step-00000001".into()));
    assert!(saved.num_bytes > 64 << 20);
}
