//! Nothing damaged is ever used, and what is wrong is said.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::common::{assert_holds, keep_last, latest_step, names, snapshot, write};
use tt_checkpoint::{Checkpoint, Error, Problem, Weights, Writer, holds_checkpoints, latest};

/// Two checkpoints, the newer one treated by `harm`; returns the one report of it.
fn problem_after(harm: impl FnOnce(&Path)) -> Problem {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(9), [10, 20]);
    let newer = dir.path().join("step-00000020");
    harm(&newer);

    let found = latest(dir.path()).unwrap();
    assert_holds(&found.checkpoint.unwrap(), &snapshot(10));
    assert_eq!(found.skipped.len(), 1);
    let damage = &found.skipped[0];
    assert!(damage.to_string().contains("step-00000020"), "{damage}");
    assert!(matches!(Checkpoint::open(&newer), Err(Error::Damaged(_))));
    damage.problem.clone()
}

#[test]
fn one_flipped_bit_anywhere_is_noticed() {
    for file in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "trainer_state/optimizer.safetensors",
        "trainer_state/state.json",
    ] {
        let problem = problem_after(|dir| {
            let path = dir.join(file);
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&path, bytes).unwrap();
        });
        assert_eq!(problem, Problem::WrongChecksum(file.into()));
    }
}

#[test]
fn truncated_file_is_reported_with_both_sizes() {
    let mut full = 0;
    let problem = problem_after(|dir| {
        let path = dir.join("model.safetensors");
        full = path.metadata().unwrap().len();
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(full - 1)
            .unwrap();
    });
    assert_eq!(
        problem,
        Problem::WrongSize {
            file: "model.safetensors".into(),
            expected_bytes: full,
            actual_bytes: full - 1,
        }
    );
}

#[test]
fn missing_file_is_named() {
    let problem = problem_after(|dir| fs::remove_file(dir.join("config.json")).unwrap());
    assert_eq!(problem, Problem::FileMissing("config.json".into()));
}

#[test]
fn folder_without_manifest_counts_as_half_written() {
    let problem = problem_after(|dir| fs::remove_file(dir.join("manifest.json")).unwrap());
    assert_eq!(problem, Problem::NoManifest);
}

#[test]
fn damaged_manifest_is_no_manifest() {
    let cut = problem_after(|dir| {
        let path = dir.join("manifest.json");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
    });
    assert!(matches!(cut, Problem::ManifestUnreadable(_)), "{cut:?}");
    let newer = problem_after(|dir| {
        let path = dir.join("manifest.json");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"format\": 1", "\"format\": 9")).unwrap();
    });
    assert!(matches!(newer, Problem::ManifestUnreadable(_)), "{newer:?}");
}

#[test]
fn checkpoint_under_the_name_of_another_step_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(9), [10, 20]);
    fs::rename(
        dir.path().join("step-00000020"),
        dir.path().join("step-00000030"),
    )
    .unwrap();
    let found = latest(dir.path()).unwrap();
    assert_eq!(found.checkpoint.unwrap().step(), 10);
    assert!(
        found.skipped[0].to_string().contains("it is of step 20"),
        "{}",
        found.skipped[0]
    );
}

#[cfg(unix)]
#[test]
fn what_cannot_be_read_is_not_called_damaged() {
    for file in ["manifest.json", "model.safetensors"] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), keep_last(9), [10, 20]);
        let path = dir.path().join("step-00000020").join(file);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap(); // a loop: an I/O error, for root too
        match latest(dir.path()) {
            Err(Error::Io { path: named, .. }) => assert_eq!(named, path),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn all_damaged_means_none_and_every_reason() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(9), [10, 20]);
    for name in names(dir.path()) {
        fs::write(dir.path().join(name).join("config.json"), "{}").unwrap();
    }
    let found = latest(dir.path()).unwrap();
    assert_eq!(found.checkpoint, None);
    assert_eq!(found.skipped.len(), 2);
}

#[test]
fn a_folder_holds_checkpoints_also_if_they_are_damaged() {
    let dir = tempfile::tempdir().unwrap();
    assert!(!holds_checkpoints(&dir.path().join("absent")).unwrap());
    assert!(!holds_checkpoints(dir.path()).unwrap());
    fs::create_dir(dir.path().join("step-00000010")).unwrap();
    assert!(holds_checkpoints(dir.path()).unwrap());
}

#[test]
fn a_folder_that_cannot_be_listed_is_not_called_empty() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("checkpoints");
    fs::write(&file, "").unwrap();
    let error = latest(&file).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn wrong_path_is_not_called_damage() {
    let dir = tempfile::tempdir().unwrap();
    let error = Checkpoint::open(&dir.path().join("absent")).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(error.to_string().contains("absent"), "{error}");
}

#[test]
fn damaged_step_is_replaced_when_training_reaches_it_again() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(9), [10, 20]);
    fs::remove_file(dir.path().join("step-00000020/manifest.json")).unwrap();
    assert_eq!(latest_step(dir.path()), Some(10));
    write(dir.path(), keep_last(9), [20]);
    assert_holds(
        &latest(dir.path()).unwrap().checkpoint.unwrap(),
        &snapshot(20),
    );
}

#[test]
fn remains_of_a_killed_write_are_removed_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(9), [10]);
    for name in [".tmp-step-00000020-77", ".old-step-00000005"] {
        let remains = dir.path().join(name);
        fs::create_dir_all(remains.join("trainer_state")).unwrap();
        fs::write(remains.join("config.json"), "{}").unwrap();
    }
    assert_eq!(latest_step(dir.path()), Some(10));
    Writer::open(dir.path(), keep_last(9)).unwrap();
    assert_eq!(names(dir.path()), ["step-00000010"]);
}

#[test]
fn checkpoint_that_lacked_only_its_name_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(9), [10, 20]);
    let temp = dir.path().join(".tmp-step-00000020-77");
    fs::rename(dir.path().join("step-00000020"), &temp).unwrap();
    Writer::open(dir.path(), keep_last(9)).unwrap();
    assert_eq!(names(dir.path()), ["step-00000010", "step-00000020"]);
    assert_holds(
        &latest(dir.path()).unwrap().checkpoint.unwrap(),
        &snapshot(20),
    );
}

#[test]
fn folder_belongs_to_one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = Writer::open(dir.path(), keep_last(9)).unwrap();
    let second = Writer::open(dir.path(), keep_last(9));
    assert!(matches!(second, Err(Error::InUse { .. })), "{second:?}");
    drop(first);
    Writer::open(dir.path(), keep_last(9)).unwrap();
}

/// The bytes of a good weights file, and a path to write others to.
fn weights_file() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), keep_last(9), [10]);
    let path = dir.path().join("step-00000010/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    (dir, path, bytes)
}

#[test]
fn weights_truncated_anywhere_are_one_error_with_file_and_sizes() {
    let (_dir, path, full) = weights_file();
    let file = fs::File::options().write(true).open(&path).unwrap();
    for len in (0..full.len()).rev() {
        file.set_len(len as u64).unwrap();
        let error = Weights::open(&path).unwrap_err();
        let text = error.to_string();
        let Error::Truncated {
            expected_bytes,
            actual_bytes,
            ..
        } = error
        else {
            panic!("{text}");
        };
        assert_eq!(actual_bytes, len as u64);
        assert!(expected_bytes > actual_bytes);
        assert!(text.contains("model.safetensors is truncated"), "{text}");
    }
}

#[test]
fn what_is_wrong_with_a_weights_file_is_said_as_it_is() {
    let (_dir, path, full) = weights_file();
    let said = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Weights::open(&path).unwrap_err().to_string()
    };
    assert!(said(b"").ends_with("is truncated: the file is empty"));
    let longer = said(&[&full[..], &[0; 3]].concat());
    assert!(longer.contains("and 3 more follow"), "{longer}");
    assert!(!longer.contains("truncated"), "{longer}");

    let header = br#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[8,16]}}"#;
    let length = (header.len() as u64).to_le_bytes();
    let misfit = said(&[&length[..], header, &[0; 16]].concat());
    let expected = "tensor `b`: [2, 3] of F32 takes 24 bytes, and has 8";
    assert!(misfit.ends_with(expected), "{misfit}");
}

#[test]
fn no_byte_of_a_header_can_make_reading_panic() {
    let (_dir, path, full) = weights_file();
    let header_end = 8 + u64::from_le_bytes(full[..8].try_into().unwrap()) as usize;
    let mut num_refused = 0;
    for at in 0..header_end {
        for mask in [1, 2, 0x80] {
            let mut bytes = full.clone();
            bytes[at] ^= mask;
            // Anew each time: to overwrite a file is made slow by some file systems, for safety.
            fs::remove_file(&path).unwrap();
            fs::write(&path, &bytes).unwrap();
            // A changed letter in a name is still a valid file.
            num_refused += match Weights::open(&path) {
                Ok(weights) => usize::from(weights.read_all().is_err()),
                Err(_) => 1,
            };
        }
    }
    assert!(
        num_refused > header_end,
        "{num_refused} of {}",
        3 * header_end
    );
}

#[test]
fn file_of_another_kind_is_not_taken_for_safetensors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights.safetensors");
    for (content, reason) in [
        (
            &b"version https://git-lfs.github.com/spec/v1"[..],
            "git lfs pull",
        ),
        (b"PK\x03\x04\0\0\x08\x08", "PyTorch archive"),
        (b"<!DOCTYPE html>", "web page"),
        (
            b"\xff\xff\xff\xff\xff\xff\xff\xff",
            "a header of 18446744073709551615 bytes",
        ),
        (b"\x10\0\0\0\0\0\0\0not json at all!", "in its header"),
    ] {
        fs::write(&path, content).unwrap();
        let error = Weights::open(&path).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}
