//! `trainer.checkpoint.hub`: checkpoints sent to a Hub, here one on loopback, while a run goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{Finished, Place, RunFolder, Running, nano};
use crate::hub_server::{Fault, HubRepo, Server, TOKEN};

const REPO: &str = "models/u/n";
const WEIGHTS: &str = "model.safetensors";

struct World {
    place: Place,
    server: Server,
}

impl World {
    fn new() -> Self {
        Self {
            place: Place::new(),
            server: Server::start(),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command
            .env("HF_ENDPOINT", self.server.endpoint())
            .env("HF_HOME", self.place.path().join("hf"))
            .env("HF_TOKEN", TOKEN);
        for name in ["HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
        command
    }

    /// A run in the folder `run` that sends its checkpoints to `u/n`.
    fn training(&self, more: &[&str]) -> Command {
        let args = ["trainer.checkpoint.hub=u/n", "hydra.run.dir=run"];
        self.command(&nano(&[&args, more].concat()))
    }

    fn train(&self, more: &[&str]) -> Finished {
        Running::start(self.training(more)).finish()
    }

    fn run_folder(&self) -> RunFolder {
        RunFolder(self.place.path().join("run"))
    }

    fn checkpoint(&self, step: u64) -> PathBuf {
        let name = format!("checkpoints/step-{step:08}");
        self.run_folder().join(&name)
    }

    fn repo(&self) -> HubRepo {
        let state = self.server.state();
        state.repos.get(REPO).cloned().unwrap_or_default()
    }

    /// What the commits say of themselves.
    fn summaries(&self) -> Vec<String> {
        let commits = self.repo().commits;
        let of = |line: &serde_json::Value| {
            let summary = line["value"]["summary"].as_str()?;
            Some(summary.to_owned())
        };
        commits.iter().filter_map(of).collect()
    }

    /// What is there is what is in `folder`, but for the page, the manifest and the trainer's state.
    #[track_caller]
    fn assert_has(&self, folder: &Path) {
        let repo = self.repo();
        assert_eq!(
            repo.files[WEIGHTS].content,
            fs::read(folder.join(WEIGHTS)).unwrap()
        );
        let mut here: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !["manifest.json", "trainer_state"].contains(&name.as_str()))
            .chain(["README.md".to_owned()])
            .collect();
        here.sort();
        let there: Vec<_> = repo.files.keys().cloned().collect();
        assert_eq!(there, here);
    }
}

#[test]
fn each_checkpoint_is_a_commit_to_a_private_repository() {
    let world = World::new();
    let steps = ["trainer.max_steps=2", "trainer.checkpoint_interval=1"];
    let first = world.training(&[&steps[..], &["trainer.max_steps=1"]].concat());
    let done = Running::start(first).finish().with_code(0);
    assert!(world.repo().is_private);
    assert!(!format!("{done:?}").contains(TOKEN), "{done:?}");
    done.prints("step 1 sent to ");
    world.assert_has(&world.checkpoint(1));
    let page = String::from_utf8(world.repo().files["README.md"].content.clone()).unwrap();
    assert!(page.contains("## Loss"), "{page}");

    // Gone on with, the checkpoint that is there already is not sent again; one with another name of the same weights
    // would not be either.
    let puts = world.server.requests("PUT ").len();
    world.train(&steps).with_code(0).prints("step 2 sent to ");
    world.assert_has(&world.checkpoint(2));
    let targets: Vec<_> = world
        .server
        .requests("PUT ")
        .into_iter()
        .map(|it| it.target)
        .collect();
    assert_eq!(targets.len(), puts + 1, "{targets:?}");
    for name in ["console.log", "resolved_config.json"] {
        assert!(!world.run_folder().read(name).contains(TOKEN));
    }
}

/// Steps are counted while the Hub does nothing at all: none waits for it, and no more than one checkpoint waits for its
/// turn. What is being sent is not removed, though only the last is kept.
#[test]
fn a_hub_that_stands_still_holds_no_step_and_gets_the_newest_next() {
    let world = World::new();
    let is_open = Arc::new(AtomicBool::new(false));
    world
        .server
        .fault("PUT /put", Fault::Until(is_open.clone()));
    let mut run = Running::start(world.training(&[
        "trainer.max_steps=12",
        "trainer.checkpoint_interval=3",
        "trainer.checkpoint.keep_last=1",
        "trainer.eval_interval=null",
    ]));
    // The report of a run that has finished.
    run.wait_for_print("sending step 3 to hf://u/n, for at most 1800 s");
    assert_eq!(world.run_folder().json("summary.json")["steps"], 12);
    assert!(world.summaries().is_empty());
    assert!(world.checkpoint(3).is_dir() && !world.checkpoint(6).exists());
    let third = fs::read(world.checkpoint(3).join(WEIGHTS)).unwrap();
    is_open.store(true, Ordering::SeqCst);
    run.finish()
        .with_code(0)
        .prints("note: step 6 is not sent to the Hub: step 9 was there before its turn came")
        .prints("note: step 9 is not sent")
        .prints("step 12 sent to ");
    assert_eq!(world.summaries(), ["Step 3", "Step 12"]);
    world.assert_has(&world.checkpoint(12));
    let state = world.server.state();
    assert!(state.objects.values().any(|content| *content == third));
}

#[test]
fn what_breaks_on_the_way_is_gone_on_with() {
    let world = World::new();
    world.server.fault("PUT /put", Fault::CutUpload(1000));
    world
        .server
        .fault("/commit/", Fault::Answer(503, vec![], "busy"));
    world.server.fault("/commit/", Fault::LoseAnswer);
    world
        .train(&["trainer.max_steps=1"])
        .with_code(0)
        .prints("step 1 ");
    assert_eq!(world.summaries(), ["Step 1"]);
    world.assert_has(&world.checkpoint(1));
}

/// Killed with a file half sent, nothing is visible yet.
#[test]
fn a_run_killed_while_it_sends_sends_when_it_goes_on() {
    let world = World::new();
    let never = Arc::new(AtomicBool::new(false));
    let start = |max_steps: u64| {
        let put = world.server.requests("PUT /put").len();
        world
            .server
            .fault("PUT /put", Fault::Until(Arc::clone(&never)));
        let max_steps = format!("trainer.max_steps={max_steps}");
        let more = [max_steps.as_str(), "trainer.checkpoint_interval=2"];
        let mut run = Running::start(world.training(&more));
        run.wait_until(|| world.server.requests("PUT /put").len() > put);
        run
    };
    start(1_000_000).kill();
    assert!(world.summaries().is_empty());
    let newest = crate::harness::entries(&world.run_folder().join("checkpoints"));
    let newest = newest
        .iter()
        .rev()
        .find(|path| path.join("manifest.json").is_file());
    let name = newest.unwrap().file_name().unwrap().to_str().unwrap();
    let step: u64 = name.strip_prefix("step-").unwrap().parse().unwrap();

    // The one that it goes on from is sent first; and what is killed at its end has finished.
    let last = step + 2;
    let mut run = start(last);
    run.wait_for_print("sending step ");
    run.kill();
    assert!(world.summaries().is_empty());
    let max_steps = format!("trainer.max_steps={last}");
    let done = world.train(&[&max_steps, "trainer.checkpoint_interval=2"]);
    done.with_code(0)
        .prints("has finished already")
        .prints(&format!("step {last} sent to "));
    assert_eq!(world.summaries(), [format!("Step {last}")]);
    world.assert_has(&world.checkpoint(last));
}

/// What the process before could not send is sent when a run goes on, not only what comes then.
#[test]
fn the_checkpoint_that_a_run_goes_on_from_is_sent() {
    let world = World::new();
    world
        .train(&["trainer.max_steps=1", "trainer.checkpoint.hub=null"])
        .with_code(0);
    let mut run = Running::start(world.training(&["trainer.max_steps=1000000"]));
    run.wait_until(|| world.summaries() == ["Step 1"]);
}

#[test]
fn a_hub_that_is_not_there_costs_no_run_and_the_command_for_later_is_given() {
    let world = World::new();
    let mut run = world.training(&["trainer.max_steps=1"]);
    run.env("HF_ENDPOINT", "http://127.0.0.1:9");
    let done = Running::start(run).finish().with_code(0);
    for text in [
        "warning: `trainer.checkpoint.hub`: http://127.0.0.1:9/",
        "the run goes on, and each checkpoint tries again",
        "warning: step 1 is not on the Hub yet: http://127.0.0.1:9/",
    ] {
        assert!(done.stdout.contains(text), "no {text} in {}", done.stdout);
    }
    let command = done.stdout.lines().last().unwrap().trim();
    let args: Vec<_> = command.split(' ').skip(1).collect();
    assert_eq!(args[0], "upload");
    Running::start(world.command(&args)).finish().with_code(0);
    world.assert_has(&world.checkpoint(1));
}

#[test]
fn the_end_of_a_run_waits_so_long_and_no_longer() {
    let world = World::new();
    let never = Arc::new(AtomicBool::new(false));
    world.server.fault("PUT /put", Fault::Until(never.clone()));
    world
        .train(&[
            "trainer.max_steps=1",
            "trainer.checkpoint.hub_wait_seconds=1",
        ])
        .with_code(0)
        .prints(
            "warning: step 1 is not on the Hub yet; this sends it:\n  tpu-train upload checkpoint=",
        );

    world.server.fault("PUT /put", Fault::Until(never));
    let mut run = Running::start(world.training(&["trainer.max_steps=2"]));
    // The one that it went on from; the last waits for its turn.
    run.wait_for_print("sending step 1 to ");
    run.signal("INT");
    run.finish()
        .with_code(130)
        .prints("warning: step 2 is not on the Hub yet; this sends it:");
    // Nothing of the run is lost by it.
    assert_eq!(world.run_folder().json("summary.json")["steps"], 2);
}

#[test]
fn what_the_hub_will_refuse_each_time_refuses_the_run() {
    let world = World::new();
    let refused = |token: Option<&str>, more: &[&str]| {
        let mut run = world.training(&[&["trainer.max_steps=1"], more].concat());
        match token {
            Some(token) => run.env("HF_TOKEN", token),
            None => run.env_remove("HF_TOKEN"),
        };
        let done = Running::start(run).finish().with_code(2);
        assert!(!world.run_folder().0.exists());
        assert!(!format!("{done:?}").contains("hf_wrong"));
        done
    };
    refused(Some("hf_wrong"), &[])
        .complains("`trainer.checkpoint.hub`: hf://u/n: the Hub does not accept the token")
        .complains("trainer.checkpoint.hub=u/n");
    refused(None, &[]).complains("the Hub takes nothing without a token");
    refused(Some(TOKEN), &["trainer.checkpoint.hub=a/b/c"])
        .complains("`trainer.checkpoint.hub`: `a/b/c` names nothing on the Hub");
    refused(Some(TOKEN), &["trainer.checkpoint.hub=u/n@draft"])
        .complains("there is no revision `draft`");
    // One that may read.
    world.server.fault(
        "/preupload/",
        Fault::Answer(403, vec![], "{\"error\": \"no write\"}"),
    );
    refused(Some(TOKEN), &[]).complains("the token in use lacks the right to do this");
    // Other commands have nothing to do with it.
    let before = world.server.requests("").len();
    let plan = nano(&["trainer.checkpoint.hub=u/n"]);
    let plan = [&["plan"], &plan[..]].concat();
    Running::start(world.command(&plan)).finish().with_code(0);
    assert_eq!(world.server.requests("").len(), before);
}

/// A repository that was there keeps its visibility, which may not be what is wanted.
#[test]
fn a_public_repository_is_said_to_be_one() {
    let world = World::new();
    world.server.repo(REPO, &[]);
    let warning = "warning: hf://u/n is public: everybody sees what is sent there";
    world
        .train(&["trainer.max_steps=1"])
        .with_code(0)
        .prints(warning);
    let upload = |more: &[&str]| {
        let args = ["upload", "checkpoint=run", "repo=u/n"];
        let command = world.command(&[&args, more].concat());
        Running::start(command).finish().with_code(0)
    };
    upload(&[]).complains(warning);
    assert!(!upload(&["private=false"]).stderr.contains("public"));
}
