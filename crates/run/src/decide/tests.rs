//! Decisions over run folders as runs leave them.

use std::fs;

use serde_json::json;
use tt_checkpoint::{CheckpointConfig, HostTensor, Snapshot, Writer};

use super::*;
use crate::output_dir::OutputDir;

/// A run folder as a killed run leaves it, with a checkpoint at `step`.
fn leave_run(root: &Path, name: &str, config: &Value, step: Option<u64>) -> PathBuf {
    let run = RunDir::open(&root.join("outputs").join(name)).unwrap();
    run.write(RESOLVED_CONFIG, &config.to_string()).unwrap();
    run.write("metrics.jsonl", "").unwrap();
    if let Some(step) = step {
        let mut snapshot = Snapshot {
            step,
            ..Snapshot::default()
        };
        let tensor = HostTensor::from_f32([1], &[1.0]);
        snapshot.model.insert("w".into(), tensor);
        let mut writer = Writer::open(run.checkpoints(), CheckpointConfig::default()).unwrap();
        writer.submit(snapshot).unwrap();
        writer.finish().unwrap();
    }
    run.path().to_owned()
}

fn auto(root: &Path, config: &Value) -> Start {
    let run_dir = root.join("outputs/2026-06-01/00-00-00");
    let output_dir = OutputDir {
        path: &run_dir,
        folders_by_clock: 2,
    };
    let request = RunRequest {
        output_dir,
        ..in_folder(&run_dir, config, Resume::Auto)
    };
    started(decide(&request).unwrap())
}

/// A run whose folder the user has named.
fn in_folder<'a>(path: &'a Path, config: &'a Value, resume: Resume) -> RunRequest<'a> {
    RunRequest {
        output_dir: OutputDir {
            path,
            folders_by_clock: 0,
        },
        config,
        resume,
        max_steps: None,
    }
}

fn started(decision: Decision) -> Start {
    match decision {
        Decision::Start(start) => start,
        Decision::Finished(folder) => panic!("{} has finished", folder.display()),
    }
}

#[test]
fn the_newest_unfinished_run_of_the_same_config_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"lr": 0.1, "resume": "auto", "hydra": {"run": {"dir": "a"}}});
    let same = json!({"lr": 0.1, "resume": "none", "hydra": {"run": {"dir": "b"}}});
    leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(9));
    let newest = leave_run(root.path(), "2026-01-02/00-00-00", &same, Some(5));
    leave_run(
        root.path(),
        "2026-01-03/00-00-00",
        &json!({"lr": 0.2}),
        Some(7),
    );
    leave_run(root.path(), "2026-01-04/00-00-00", &config, None);
    let finished = leave_run(root.path(), "2026-01-05/00-00-00", &config, Some(8));
    fs::write(finished.join("summary.json"), "{}").unwrap();

    let start = auto(root.path(), &config);
    assert_eq!(start.folder.path(), newest);
    assert_eq!(start.checkpoint.unwrap().step(), 5);
    assert!(
        start
            .messages
            .iter()
            .any(|message| message.contains("step 5")),
        "{:?}",
        start.messages
    );
}

/// Cuts a file of each checkpoint short.
fn damage(run: &Path) {
    for step in subfolders(&run_dir::checkpoints(run)).unwrap() {
        fs::write(step.join("model.safetensors"), "").unwrap();
    }
}

#[test]
fn a_run_whose_checkpoints_are_all_damaged_is_not_started_over() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    damage(&run);
    for resume in [Resume::Auto, Resume::From(run.clone())] {
        let error = decide(&in_folder(&run, &config, resume))
            .unwrap_err()
            .to_string();
        assert!(error.contains("model.safetensors has 0 bytes"), "{error}");
        assert!(error.contains("resume=none"), "{error}");
    }
}

#[test]
fn an_earlier_run_with_damage_alone_is_passed_over_with_its_damage() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    damage(&run);
    let start = auto(root.path(), &config);
    assert_ne!(start.folder.path(), run);
    assert!(
        start.messages[0].contains("0 bytes"),
        "{:?}",
        start.messages
    );
    assert!(
        start.messages[1].contains("not resuming"),
        "{:?}",
        start.messages
    );
}

#[cfg(unix)]
#[test]
fn a_checkpoint_that_cannot_be_read_is_not_taken_for_damaged() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    let file = run_dir::checkpoints(&run).join("step-00000003/model.safetensors");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&file, &file).unwrap(); // a loop: an I/O error for root too
    let error = decide(&in_folder(&run, &config, Resume::Auto)).unwrap_err();
    assert!(matches!(error, ResumeError::Unreadable { .. }), "{error}");
}

#[test]
fn a_run_in_use_is_passed_over_with_a_note() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"lr": 0.1});
    let used = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(9));
    let _held = RunDir::open(&used).unwrap();
    let start = auto(root.path(), &config);
    assert!(start.checkpoint.is_none());
    assert_ne!(start.folder.path(), used);
    assert!(start.messages[0].contains("in use"), "{:?}", start.messages);
}

#[test]
fn a_run_that_cannot_be_opened_is_passed_over_with_a_note() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"lr": 0.1});
    let older = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(9));
    let barred = leave_run(root.path(), "2026-01-02/00-00-00", &config, Some(9));
    fs::remove_file(barred.join(".lock")).unwrap();
    fs::create_dir(barred.join(".lock")).unwrap(); // not to be written, not by root either
    let start = auto(root.path(), &config);
    assert_eq!(start.folder.path(), older);
    assert!(start.messages[0].contains("01-02"), "{:?}", start.messages);
}

#[test]
fn a_checkpoint_of_another_run_starts_a_new_folder() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    let run_dir = root.path().join("branch");
    let start = started(decide(&in_folder(&run_dir, &config, Resume::From(run))).unwrap());
    assert_eq!(start.folder.path(), run_dir);
    assert_eq!(start.checkpoint.unwrap().step(), 3);
}

#[test]
fn a_finished_run_is_not_done_again_but_may_be_extended() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"trainer": {"max_steps": 3}});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    fs::write(run.join("summary.json"), "{}").unwrap();
    let decide_with = |config| decide(&in_folder(&run, config, Resume::Auto)).unwrap();
    assert!(matches!(decide_with(&config), Decision::Finished(folder) if folder == run));
    let longer = started(decide_with(&json!({"trainer": {"max_steps": 5}})));
    assert_eq!(longer.checkpoint.unwrap().step(), 3);
    assert!(
        longer
            .messages
            .iter()
            .any(|message| message.contains("trainer.max_steps: 3 -> 5"))
    );
}

#[test]
fn a_run_named_both_to_resume_and_to_work_in_goes_on_there() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    let decide_from =
        |path: &Path| decide(&in_folder(&run, &config, Resume::From(path.to_owned())));
    let start = started(decide_from(&run).unwrap());
    assert_eq!(start.folder.path(), run);
    drop(start);
    let error = decide_from(&run.join("checkpoints/step-00000003")).unwrap_err();
    assert!(matches!(error, ResumeError::InsideRunDir { .. }), "{error}");
}

#[test]
fn a_path_with_nothing_there_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({});
    let path = root.path().join("nowhere");
    let run = root.path().join("run");
    let error = decide(&in_folder(&run, &config, Resume::From(path))).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert!(!run.exists(), "nothing made");
}

#[test]
fn a_decision_can_be_sent_to_another_process_and_writes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"lr": 0.1});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    fs::remove_file(run.join(".lock")).unwrap();
    let decision = decide(&in_folder(&run, &config, Resume::Auto)).unwrap();
    let sent = serde_json::to_string(&decision).unwrap();
    assert_eq!(serde_json::from_str::<Decision>(&sent).unwrap(), decision);
    assert!(!run.join(".lock").exists());
}

#[test]
fn a_finished_run_that_is_long_enough_has_nothing_left_to_do() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"trainer": {"max_steps": 3}});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    fs::write(run.join("summary.json"), "{}").unwrap();
    let other = json!({"trainer": {"max_steps": 2}});
    let decide_with = |max_steps| {
        let request = in_folder(&run, &other, Resume::Auto);
        decide(&RunRequest {
            max_steps,
            ..request
        })
        .unwrap()
    };
    assert!(matches!(decide_with(Some(2)), Decision::Finished(folder) if folder == run));
    assert_eq!(started(decide_with(Some(5))).first_step(), 3);
}

#[test]
fn a_run_that_goes_on_is_held_until_it_is_let_go() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    let request = in_folder(&run, &config, Resume::Auto);
    let (decision, held) = decide_and_hold(&request).unwrap();
    assert!(matches!(RunDir::open(&run), Err(RunDirError::InUse { .. })));
    let entered = held.enter(&started(decision).folder).unwrap();
    assert_eq!(
        (entered.run_dir.path(), entered.moved_aside),
        (run.as_path(), None)
    );
}

/// Makes the run's checkpoint at `step` one that was killed before it got its name.
fn take_its_name(run: &Path, step: u64) {
    let checkpoints = run_dir::checkpoints(run);
    let name = format!("step-{step:08}");
    let temp = checkpoints.join(format!(".tmp-{name}-1"));
    fs::rename(checkpoints.join(name), temp).unwrap();
}

#[test]
fn a_checkpoint_that_lacks_only_its_name_is_the_newest() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({});
    let name = "2026-01-01/00-00-00";
    let run = leave_run(root.path(), name, &config, Some(200));
    leave_run(root.path(), name, &config, Some(300));
    take_its_name(&run, 300);
    for resume in [Resume::Auto, Resume::From(run.clone())] {
        let (decision, held) = decide_and_hold(&in_folder(&run, &config, resume)).unwrap();
        assert_eq!(started(decision).first_step(), 300);
        drop(held);
        take_its_name(&run, 300);
    }
}

#[test]
fn a_run_whose_only_checkpoint_lacks_its_name_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    take_its_name(&run, 3);
    let run_dir = root.path().join("outputs/2026-06-01/00-00-00");
    let output_dir = OutputDir {
        path: &run_dir,
        folders_by_clock: 2,
    };
    let request = RunRequest {
        output_dir,
        ..in_folder(&run_dir, &config, Resume::Auto)
    };
    let (decision, _held) = decide_and_hold(&request).unwrap();
    let start = started(decision);
    assert_eq!(
        (start.folder.path(), start.first_step()),
        (run.as_path(), 3)
    );
}

#[test]
fn another_experiment_does_not_go_on_in_a_named_folder() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"lr": 0.1, "trainer": {"max_steps": 3}});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    let other = json!({"lr": 0.2, "model": {"hidden_size": 8}, "trainer": {"max_steps": 5}});
    for is_finished in [false, true] {
        if is_finished {
            fs::write(run.join("summary.json"), "{}").unwrap();
        }
        let before = fs::read_dir(&run).unwrap().count();
        let error = decide_and_hold(&in_folder(&run, &other, Resume::Auto)).unwrap_err();
        let text = error.to_string();
        for said in [
            "lr: 0.1 -> 0.2",
            "model: (absent) -> ",
            "resume=none",
            "hydra.run.dir=",
        ] {
            assert!(text.contains(said), "{text}");
        }
        assert!(
            text.contains(&format!("resume={}", run.display())),
            "{text}"
        );
        assert!(!text.contains("max_steps: 3"), "{text}");
        assert_eq!(fs::read_dir(&run).unwrap().count(), before);

        // On purpose it does.
        let named = in_folder(&run, &other, Resume::From(run.clone()));
        let start = started(decide(&named).unwrap());
        assert!(
            start
                .messages
                .contains(&"config changed since: lr: 0.1 -> 0.2".to_owned())
        );
    }
}

#[test]
fn a_run_that_never_saved_stands_in_nobodys_way() {
    let root = tempfile::tempdir().unwrap();
    let run = leave_run(
        root.path(),
        "2026-01-01/00-00-00",
        &json!({"lr": 0.1}),
        None,
    );
    let other = json!({"lr": 0.2});
    let request = in_folder(&run, &other, Resume::Auto);
    let (decision, held) = decide_and_hold(&request).unwrap();
    let start = started(decision);
    assert_eq!(start.folder, FolderChoice::Given(run.clone()));
    let entered = held.enter(&start.folder).unwrap();
    assert!(entered.moved_aside.is_some());
}

#[test]
fn a_config_that_cannot_be_read_is_not_taken_for_another() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"lr": 0.1});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, Some(3));
    fs::write(run.join(RESOLVED_CONFIG), "{\"lr\":").unwrap();
    let error = decide(&in_folder(&run, &config, Resume::Auto)).unwrap_err();
    assert!(error.to_string().contains(RESOLVED_CONFIG), "{error}");

    // One that was merely found is passed over, and not in silence.
    let start = auto(root.path(), &config);
    assert!(start.checkpoint.is_none());
    let [message] = &start.messages[..] else {
        panic!("{:?}", start.messages);
    };
    assert!(message.contains(RESOLVED_CONFIG), "{message}");

    fs::remove_file(run.join(RESOLVED_CONFIG)).unwrap();
    let error = decide(&in_folder(&run, &config, Resume::Auto)).unwrap_err();
    assert!(
        error.to_string().contains("has no resolved_config"),
        "{error}"
    );
    let named = decide(&in_folder(&run, &config, Resume::From(run.clone())));
    assert_eq!(started(named.unwrap()).first_step(), 3);
}

/// A run that began from `origin`.
fn leave_branch(root: &Path, name: &str, config: &Value, step: u64, origin: &Path) -> PathBuf {
    let run = leave_run(root, name, config, Some(step));
    let origin = origin.canonicalize().unwrap();
    let dir = RunDir::open(&run).unwrap();
    dir.set_origin(Some(&origin)).unwrap();
    run
}

#[test]
fn a_branch_begins_at_its_origin_once_and_goes_on_after() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"lr": 0.1});
    let origin = leave_run(root.path(), "a/1", &config, Some(3));
    let path = root.path().join("outputs/b/1");
    let from = || decide(&in_folder(&path, &config, Resume::From(origin.clone())));
    let start = started(from().unwrap());
    assert_eq!(start.folder, FolderChoice::Given(path.clone()));
    assert_eq!(start.origin, Some(origin.canonicalize().unwrap()));
    let [message] = &start.messages[..] else {
        panic!("{:?}", start.messages);
    };
    assert!(message.contains("starting from step 3"), "{message}");

    leave_branch(root.path(), "b/1", &config, 5, &origin);
    let start = started(from().unwrap());
    assert_eq!(start.folder, FolderChoice::Earlier(path.clone()));
    assert_eq!(start.first_step(), 5);
    // Not so one that began elsewhere.
    let elsewhere = leave_run(root.path(), "c/1", &config, Some(4));
    let start = decide(&in_folder(&path, &config, Resume::From(elsewhere)));
    let start = started(start.unwrap());
    assert_eq!(start.folder, FolderChoice::Given(path.clone()));
    assert_eq!(start.first_step(), 4);
}

#[test]
fn a_checkpoint_named_again_goes_on_with_the_run_that_began_from_it() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"lr": 0.1});
    let checkpoint = |run: &Path| run_dir::checkpoints(run).join("step-00000003");
    let origin = checkpoint(&leave_run(
        root.path(),
        "2026-01-01/00-00-00",
        &config,
        Some(3),
    ));
    let other = checkpoint(&leave_run(
        root.path(),
        "2026-01-02/00-00-00",
        &config,
        Some(3),
    ));
    let own = leave_branch(root.path(), "2026-01-03/00-00-00", &config, 5, &origin);
    leave_branch(root.path(), "2026-01-04/00-00-00", &config, 6, &other);
    let path = root.path().join("outputs/2026-06-01/00-00-00");
    let request = RunRequest {
        output_dir: OutputDir {
            path: &path,
            folders_by_clock: 2,
        },
        ..in_folder(&path, &config, Resume::From(origin))
    };
    let start = started(decide(&request).unwrap());
    assert_eq!((start.folder.path(), start.first_step()), (&*own, 5));
}

#[test]
fn a_run_that_never_saved_starts_over_where_it_is() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"lr": 0.1});
    let run = leave_run(root.path(), "a/1", &config, None);
    let start = started(decide(&in_folder(&run, &config, Resume::Auto)).unwrap());
    assert_eq!(start.folder, FolderChoice::Earlier(run));
    assert!(start.messages[0].contains("over"), "{:?}", start.messages);
}

#[test]
fn a_branch_may_lie_inside_the_run_that_it_leaves_but_not_around_it() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"lr": 0.1});
    let run = leave_run(root.path(), "a/1", &config, Some(3));
    let within = run.join("branch");
    fs::create_dir(&within).unwrap();
    let from_run = |path: &Path| decide(&in_folder(path, &config, Resume::From(run.clone())));
    let start = started(from_run(&within).unwrap());
    assert_eq!(start.folder, FolderChoice::Given(within.clone()));
    let error = from_run(&root.path().join("outputs/a")).unwrap_err();
    assert!(matches!(error, ResumeError::InsideRunDir { .. }), "{error}");
}

#[test]
fn a_run_that_never_saved_is_passed_over_in_silence_if_its_config_cannot_be_read() {
    let root = tempfile::tempdir().unwrap();
    let config = json!({"lr": 0.1});
    let run = leave_run(root.path(), "2026-01-01/00-00-00", &config, None);
    fs::write(run.join(RESOLVED_CONFIG), "{\"lr\":").unwrap();
    assert_eq!(auto(root.path(), &config).messages, [""; 0]);
}
