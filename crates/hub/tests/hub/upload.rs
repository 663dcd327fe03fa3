//! Uploads to a Hub on loopback that does all that servers and lines do.

use std::cell::RefCell;
use std::fs;
use std::time::{Duration, Instant};

use crate::server::{Fault, Server, TOKEN, noise};
use tt_hub::{
    Hub, HubError, Patience, Reference, Repo, RepoKind, Settings, Token, Upload, UploadSource, Wait,
};

const SIZE: usize = 300_000;
const LARGE: &str = "model.safetensors";

struct World {
    server: Server,
    weights: Vec<u8>,
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self {
            server: Server::start(),
            weights: noise(SIZE),
            folder: tempfile::tempdir().unwrap(),
        };
        fs::write(world.folder.path().join(LARGE), &world.weights).unwrap();
        world
            .server
            .repo("models/u/n", &[("README.md", b"# n", false)]);
        world
    }

    fn settings(&self) -> Settings {
        Settings {
            endpoint: self.server.endpoint(),
            cache: self.folder.path().join("cache"),
            token: Token::new(TOKEN).unwrap(),
            offline: None,
            symlinks: true,
            patience: Patience {
                connect: Duration::from_secs(2),
                read: Duration::from_secs(2),
                attempts: 3,
                delay: Duration::from_millis(5),
                max_delay: Duration::from_secs(2),
                lock: Duration::from_secs(5),
            },
        }
    }

    fn hub(&self) -> Hub {
        Hub::new(self.settings())
    }

    /// Weights from a file and two small files from memory, one of them as it is there.
    fn uploads(&self) -> Vec<Upload> {
        let bytes = |path: &str, content: &[u8]| Upload {
            path: path.to_owned(),
            source: UploadSource::Bytes(content.to_vec()),
        };
        vec![
            Upload {
                path: LARGE.to_owned(),
                source: UploadSource::File(self.folder.path().join(LARGE)),
            },
            bytes("config.json", b"{}"),
            bytes("README.md", b"# n"),
        ]
    }

    fn upload(&self) -> Result<tt_hub::Commit, HubError> {
        self.hub()
            .upload(&reference(), self.uploads(), "step 500", Wait::QUIET)
    }

    fn there(&self, path: &str) -> Vec<u8> {
        self.server.state().repos["models/u/n"].files[path]
            .content
            .clone()
    }

    fn put(&self) -> Vec<crate::server::Request> {
        self.server.requests("PUT /put")
    }
}

fn reference() -> Reference {
    Reference::parse("u/n", RepoKind::Model).unwrap()
}

#[test]
fn what_is_new_is_committed_at_once_and_what_is_there_is_not_sent() {
    let world = World::new();
    let commit = world.upload().unwrap();
    assert_eq!(commit.changed, [LARGE, "config.json"]);
    assert_eq!(world.there(LARGE), world.weights);
    assert_eq!(world.there("config.json"), b"{}");
    let state = world.server.state();
    let repo = &state.repos["models/u/n"];
    assert_eq!(repo.commit, commit.id);
    assert_eq!(repo.commits.len(), 3, "a header and two files");
    assert_eq!(repo.commits[0]["value"]["summary"], "step 500");
    drop(state);

    let again = world.upload().unwrap();
    assert_eq!((again.id, again.changed.len()), (commit.id, 0));
    assert_eq!(world.server.requests("/commit/").len(), 1);
    assert_eq!(world.put().len(), 1);
    assert_eq!(world.server.requests("/preupload/").len(), 1);
}

#[test]
fn an_empty_file_goes_with_the_commit() {
    let world = World::new();
    let empty = Upload {
        path: "empty.safetensors".to_owned(),
        source: UploadSource::Bytes(vec![]),
    };
    world
        .hub()
        .upload(&reference(), vec![empty], "x", Wait::QUIET)
        .unwrap();
    assert_eq!(world.there("empty.safetensors"), b"");
}

#[test]
fn an_upload_that_is_cut_off_is_tried_again_and_a_later_one_goes_on() {
    let world = World::new();
    world.server.fault("PUT /put", Fault::CutUpload(50_000));
    world
        .server
        .fault("PUT /put", Fault::Answer(503, vec![], "slow down"));
    world.upload().unwrap();
    assert_eq!(world.there(LARGE), world.weights);
    assert_eq!(world.put().len(), 3);

    // Nothing is committed, but what the storage has got it keeps.
    let world = World::new();
    for _ in 0..3 {
        world.server.fault(
            "/commit/",
            Fault::Answer(403, vec![], "read-only for a moment"),
        );
    }
    assert!(matches!(world.upload(), Err(HubError::Forbidden { .. })));
    assert_eq!(world.put().len(), 1);
    world.server.state().faults.clear();
    world.upload().unwrap();
    assert_eq!(world.there(LARGE), world.weights);
    assert_eq!(world.put().len(), 1);
}

#[test]
fn a_server_that_wants_parts_gets_parts() {
    let world = World::new();
    world.server.state().part_bytes = Some(80_000);
    world.server.fault("-3?", Fault::CutUpload(10_000));
    world.upload().unwrap();
    assert_eq!(world.there(LARGE), world.weights);
    let sizes: Vec<_> = world
        .put()
        .iter()
        .map(|request| request.header("content-length").unwrap().to_owned())
        .collect();
    assert_eq!(
        sizes,
        ["80000", "80000", "80000", "80000", "60000"],
        "the third twice"
    );
    assert_eq!(world.server.requests("POST /complete").len(), 1);
}

#[test]
fn a_commit_whose_answer_is_lost_is_not_made_twice() {
    let world = World::new();
    world.server.fault("/commit/", Fault::LoseAnswer);
    let commit = world.upload().unwrap();
    assert_eq!(world.server.requests("/commit/").len(), 1);
    assert_eq!(world.server.state().repos["models/u/n"].commit, commit.id);
    assert_eq!(commit.changed, [LARGE, "config.json"]);
}

#[test]
fn a_commit_that_others_came_before_is_made_on_top_of_theirs() {
    let world = World::new();
    world.server.fault(
        "/commit/",
        Fault::Answer(412, vec![], "A commit has happened since"),
    );
    world.upload().unwrap();
    assert_eq!(world.server.requests("/commit/").len(), 2);
    assert_eq!(world.put().len(), 1);
}

#[test]
fn a_repository_is_made_private_and_one_that_is_there_is_left() {
    let world = World::new();
    let repo = |id: &str, kind| Repo {
        kind,
        id: id.to_owned(),
    };
    let hub = world.hub();
    hub.create_repo(&repo("u/new", RepoKind::Model), true, Wait::QUIET)
        .unwrap();
    hub.create_repo(&repo("u/new", RepoKind::Model), false, Wait::QUIET)
        .unwrap();
    hub.create_repo(&repo("u/data", RepoKind::Dataset), false, Wait::QUIET)
        .unwrap();
    let state = world.server.state();
    assert!(state.repos["models/u/new"].is_private);
    assert!(!state.repos["datasets/u/data"].is_private);
    drop(state);
    let mut settings = world.settings();
    settings.token = None;
    let error = Hub::new(settings).create_repo(&repo("u/x", RepoKind::Model), true, Wait::QUIET);
    assert!(error.unwrap_err().to_string().contains("HF_TOKEN"));
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_its_storage() {
    let world = World::new();
    world.upload().unwrap();
    for request in world.server.requests("") {
        let is_storage = request.target.starts_with("/put");
        assert_eq!(
            request.header("authorization").is_none(),
            is_storage,
            "{}",
            request.target
        );
    }
    for _ in 0..9 {
        world
            .server
            .fault("PUT /put", Fault::Answer(500, vec![], "no"));
    }
    fs::write(world.folder.path().join(LARGE), noise(7)).unwrap();
    let error = world.upload().unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(!text.contains("secret") && !text.contains(TOKEN), "{text}");
    assert!(text.contains("the answer is 500"), "{text}");
}

#[test]
fn progress_is_told_and_an_upload_can_be_called_off() {
    let world = World::new();
    let seen = RefCell::new(Vec::new());
    let wait = Wait {
        interrupt: &|| false,
        progress: &|progress| seen.borrow_mut().push((progress.path, progress.done_bytes)),
    };
    world
        .hub()
        .upload(&reference(), world.uploads(), "x", wait)
        .unwrap();
    assert_eq!(seen.borrow().last(), Some(&(LARGE.to_owned(), SIZE as u64)));

    let world = World::new();
    world
        .server
        .fault("/preupload/", Fault::StallAfter(5, Duration::from_secs(30)));
    let start = Instant::now();
    let wait = Wait {
        interrupt: &|| start.elapsed() > Duration::from_millis(300),
        progress: &|_| (),
    };
    let error = world.hub().upload(&reference(), world.uploads(), "x", wait);
    assert!(
        matches!(error, Err(HubError::Interrupted)),
        "{error:?} {:?}",
        start.elapsed()
    );
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn offline_nothing_is_sent() {
    let world = World::new();
    let mut settings = world.settings();
    settings.offline = Some("HF_HUB_OFFLINE");
    let error = Hub::new(settings)
        .upload(&reference(), world.uploads(), "x", Wait::QUIET)
        .unwrap_err();
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    assert!(world.server.requests("").is_empty());
}
