//! Downloads from a Hub on loopback that does all that servers and lines do.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::server::{Fault, Server, TOKEN, noise};
use tt_hub::{Hub, HubError, Patience, Reference, RepoKind, Settings, Snapshot, Token, Wait};

const SIZE: usize = 600_000;

/// A Hub with one model, and a client with an empty cache.
struct World {
    server: Server,
    content: Vec<u8>,
    commit: String,
    folder: tempfile::TempDir,
}

impl World {
    /// Where a part of the large file is kept; its folder is there.
    fn partial(&self, snapshot: &Snapshot) -> PathBuf {
        let oid = snapshot.file(LARGE).unwrap().oid.as_ref().unwrap();
        let blobs = self.folder.path().join("models--u--n/blobs");
        fs::create_dir_all(&blobs).unwrap();
        blobs.join(format!("{}.incomplete", oid.hex()))
    }

    fn new() -> Self {
        let server = Server::start();
        let content = noise(SIZE);
        let commit = server.repo(
            "models/u/n",
            &[
                ("config.json", b"{}", false),
                ("sub dir/deep/notes.txt", b"notes", false),
                ("model.safetensors", &content, true),
            ],
        );
        Self {
            server,
            content,
            commit,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            endpoint: self.server.endpoint(),
            cache: self.folder.path().to_owned(),
            token: None,
            offline: None,
            symlinks: true,
            patience: Patience {
                connect: Duration::from_secs(2),
                read: Duration::from_millis(500),
                attempts: 4,
                delay: Duration::from_millis(5),
                max_delay: Duration::from_secs(2),
                lock: Duration::from_secs(5),
            },
        }
    }

    fn hub(&self) -> Hub {
        Hub::new(self.settings())
    }

    fn with(&self, change: impl FnOnce(&mut Settings)) -> Hub {
        let mut settings = self.settings();
        change(&mut settings);
        Hub::new(settings)
    }

    fn blob(&self) -> PathBuf {
        let state = self.server.state();
        let oid = state.objects.keys().next().unwrap();
        self.folder.path().join("models--u--n/blobs").join(oid)
    }
}

fn reference() -> Reference {
    Reference::parse("u/n", RepoKind::Model).unwrap()
}

fn fetched(hub: &Hub, path: &str) -> Result<PathBuf, HubError> {
    let snapshot = hub.resolve(&reference(), Wait::QUIET)?;
    hub.download(&snapshot, path, Wait::QUIET)
}

const LARGE: &str = "model.safetensors";
const STORAGE: &str = "GET /storage";

#[test]
fn files_land_in_the_layout_that_python_has() {
    let world = World::new();
    let hub = world.hub();
    let snapshot = hub.resolve(&reference(), Wait::QUIET).unwrap();
    assert_eq!(snapshot.commit, world.commit);
    for file in &snapshot.files {
        hub.download(&snapshot, &file.path, Wait::QUIET).unwrap();
    }
    let root = world.folder.path().join("models--u--n");
    assert_eq!(
        fs::read_to_string(root.join("refs/main")).unwrap(),
        world.commit
    );
    let link = root
        .join("snapshots")
        .join(&world.commit)
        .join("sub dir/deep/notes.txt");
    let target = fs::read_link(&link).unwrap();
    assert_eq!(
        target,
        Path::new("../../../../blobs").join(crate::server::git(b"notes"))
    );
    assert_eq!(fs::read(link).unwrap(), b"notes");
    assert_eq!(
        fs::read(hub.folder(&snapshot).join(LARGE)).unwrap(),
        world.content
    );
    let blobs: Vec<_> = fs::read_dir(root.join("blobs")).unwrap().collect();
    assert_eq!(blobs.len(), 3, "no partial file is left");
}

#[test]
fn what_is_in_the_cache_is_not_asked_for_again() {
    let world = World::new();
    let path = fetched(&world.hub(), LARGE).unwrap();
    let before = world.server.requests("").len();
    assert_eq!(fetched(&world.hub(), LARGE).unwrap(), path);
    // Only what `main` means may have changed since.
    assert_eq!(world.server.requests("").len(), before + 1);
    let pinned = Reference::parse(&format!("u/n@{}", world.commit), RepoKind::Model).unwrap();
    let snapshot = world.hub().resolve(&pinned, Wait::QUIET).unwrap();
    world.hub().download(&snapshot, LARGE, Wait::QUIET).unwrap();
    assert_eq!(world.server.requests("").len(), before + 1);
}

#[test]
fn two_revisions_share_what_is_the_same_in_them() {
    let world = World::new();
    fetched(&world.hub(), LARGE).unwrap();
    world
        .server
        .repo("models/u/n", &[("config.json", b"{ }", false)]);
    fetched(&world.hub(), LARGE).unwrap();
    assert_eq!(
        fs::read(fetched(&world.hub(), "config.json").unwrap()).unwrap(),
        b"{ }"
    );
    assert_eq!(world.server.requests(STORAGE).len(), 1);
}

#[test]
fn a_broken_download_goes_on_where_it_broke_off_in_this_process_and_the_next() {
    let world = World::new();
    for _ in 0..3 {
        world.server.fault(STORAGE, Fault::BreakAfter(150_000));
    }
    // Three breaks with something new each are not too many of four.
    let path = fetched(&world.hub(), LARGE).unwrap();
    assert_eq!(fs::read(path).unwrap(), world.content);
    let ranges: Vec<_> = world
        .server
        .requests(STORAGE)
        .iter()
        .map(|request| request.header("range").map(str::to_owned))
        .collect();
    assert_eq!(
        ranges,
        [
            None,
            Some("bytes=150000-".into()),
            Some("bytes=300000-".into()),
            Some("bytes=450000-".into())
        ]
    );

    let world = World::new();
    let hub = world.with(|settings| settings.patience.attempts = 1);
    world.server.fault(STORAGE, Fault::BreakAfter(200_000));
    let error = fetched(&hub, LARGE).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("broken off at 200000 of 600000 bytes"),
        "{error}"
    );
    assert_eq!(
        fs::read(fetched(&world.hub(), LARGE).unwrap()).unwrap(),
        world.content
    );
    let last = world.server.requests(STORAGE).pop().unwrap();
    assert_eq!(last.header("range"), Some("bytes=200000-"));
}

#[test]
fn small_files_go_on_too_under_the_condition_that_they_are_the_same() {
    let world = World::new();
    let content = noise(5000);
    world
        .server
        .repo("models/u/n", &[("a.txt", &content, false)]);
    world.server.fault("/a.txt", Fault::BreakAfter(1000));
    assert_eq!(
        fs::read(fetched(&world.hub(), "a.txt").unwrap()).unwrap(),
        content
    );
    let last = world.server.requests("/a.txt").pop().unwrap();
    assert_eq!(last.header("range"), Some("bytes=1000-"));
    assert_eq!(
        last.header("if-range"),
        Some(format!("\"{}\"", crate::server::git(&content)).as_str())
    );
}

#[test]
fn a_server_that_knows_no_ranges_or_gives_others_sends_the_file_from_its_start() {
    for fault in [
        Fault::IgnoreRange,
        Fault::WrongRange,
        Fault::Answer(416, vec![], ""),
    ] {
        let world = World::new();
        world.server.fault(STORAGE, Fault::BreakAfter(100_000));
        world.server.fault(STORAGE, fault);
        let path = fetched(&world.hub(), LARGE).unwrap();
        assert_eq!(fs::read(path).unwrap(), world.content);
    }
}

#[test]
fn what_arrives_damaged_is_fetched_once_more_and_then_refused_and_never_published() {
    let world = World::new();
    world.server.fault(STORAGE, Fault::Damage);
    assert_eq!(
        fs::read(fetched(&world.hub(), LARGE).unwrap()).unwrap(),
        world.content
    );

    for path in [LARGE, "config.json"] {
        let world = World::new();
        let on = if path == LARGE {
            STORAGE
        } else {
            "/config.json"
        };
        for _ in 0..2 {
            world.server.fault(on, Fault::Damage);
        }
        let error = fetched(&world.hub(), path).unwrap_err();
        assert!(matches!(error, HubError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("the Hub says"), "{error}");
        let root = world.folder.path().join("models--u--n");
        assert!(!root.join("snapshots").exists());
        assert_eq!(fs::read_dir(root.join("blobs")).unwrap().count(), 0);
    }
}

#[test]
fn a_partial_file_of_something_else_costs_one_more_download() {
    for left in [
        noise(1000).iter().map(|byte| byte ^ 1).collect(),
        vec![0; SIZE],
        vec![0; SIZE + 5],
    ] {
        let world = World::new();
        let snapshot = world.hub().resolve(&reference(), Wait::QUIET).unwrap();
        let partial = world.partial(&snapshot);
        fs::write(partial, left).unwrap();
        let path = world.hub().download(&snapshot, LARGE, Wait::QUIET).unwrap();
        assert_eq!(fs::read(path).unwrap(), world.content);
    }
}

#[test]
fn more_or_fewer_bytes_than_were_listed_are_refused() {
    let world = World::new();
    world.server.fault(STORAGE, Fault::Longer(7));
    let error = fetched(&world.hub(), LARGE).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("600000 bytes are missing, 600007 are offered"),
        "{error}"
    );
    // As from the login page of a network, which answers everything with 200.
    world.server.fault(
        "/config.json",
        Fault::Answer(200, vec![], "<html>log in</html>"),
    );
    let error = fetched(&world.hub(), "config.json").unwrap_err();
    assert!(matches!(error, HubError::Corrupt { .. }), "{error}");
    world.server.fault(
        "/revision/",
        Fault::Answer(200, vec![], "<html>log in</html>"),
    );
    let error = fetched(&world.hub(), "config.json").unwrap_err();
    assert!(matches!(error, HubError::Answer { .. }), "{error}");
}

#[test]
fn a_file_that_was_changed_under_its_commit_is_refused() {
    let world = World::new();
    let snapshot = world.hub().resolve(&reference(), Wait::QUIET).unwrap();
    let mut state = world.server.state();
    state
        .repos
        .get_mut("models/u/n")
        .unwrap()
        .files
        .get_mut("config.json")
        .unwrap()
        .content = b"[]".to_vec();
    drop(state);
    let error = world
        .hub()
        .download(&snapshot, "config.json", Wait::QUIET)
        .unwrap_err();
    assert!(error.to_string().contains("is sent with"), "{error}");
}

#[test]
fn an_etag_in_the_dress_of_a_proxy_is_the_same_etag() {
    let world = World::new();
    world.server.state().quote_weakly = true;
    assert_eq!(
        fs::read(fetched(&world.hub(), "config.json").unwrap()).unwrap(),
        b"{}"
    );
}

#[test]
fn busy_and_failing_servers_are_tried_again_and_given_the_time_they_ask_for() {
    let world = World::new();
    let busy = |status, headers| Fault::Answer(status, headers, "busy");
    for status in [500, 502, 503, 504, 408] {
        world.server.fault("/revision/", busy(status, vec![]));
        fetched(&world.hub(), "config.json").unwrap();
    }
    world
        .server
        .fault("/revision/", busy(429, vec![("retry-after", "1".into())]));
    let start = Instant::now();
    fetched(&world.hub(), "config.json").unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));
    world.server.fault(
        "/revision/",
        busy(429, vec![("ratelimit", "\"api\";r=0;t=299".into())]),
    );
    let error = fetched(&world.hub(), "config.json")
        .unwrap_err()
        .to_string();
    assert!(error.contains("429") && error.contains("300 s"), "{error}");
    for _ in 0..4 {
        world.server.fault("/revision/", busy(503, vec![]));
    }
    let error = fetched(&world.hub(), "config.json")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("503: busy, in each of 4 attempts"),
        "{error}"
    );
    world.server.fault("/revision/", busy(418, vec![]));
    assert!(matches!(
        fetched(&world.hub(), "config.json"),
        Err(HubError::Status { status: 418, .. })
    ));
}

#[test]
fn a_signature_of_the_storage_that_has_run_out_is_made_anew() {
    let world = World::new();
    world.server.fault(
        STORAGE,
        Fault::Answer(403, vec![], "<Error>Request has expired</Error>"),
    );
    assert_eq!(
        fs::read(fetched(&world.hub(), LARGE).unwrap()).unwrap(),
        world.content
    );
    assert_eq!(world.server.requests("/resolve/").len(), 2);
    for _ in 0..4 {
        world
            .server
            .fault(STORAGE, Fault::Answer(403, vec![], "no"));
    }
    fs::remove_dir_all(world.folder.path().join("models--u--n")).unwrap();
    let error = fetched(&world.hub(), LARGE).unwrap_err();
    assert!(
        !format!("{error} {error:?}").contains("Signature"),
        "{error:?}"
    );
}

#[test]
fn a_line_that_falls_silent_is_given_up_and_one_that_is_slow_is_not() {
    let world = World::new();
    world
        .server
        .fault(STORAGE, Fault::StallAfter(100_000, Duration::from_secs(3)));
    world
        .server
        .fault(STORAGE, Fault::Trickle(100_000, Duration::from_millis(200)));
    let start = Instant::now();
    assert_eq!(
        fs::read(fetched(&world.hub(), LARGE).unwrap()).unwrap(),
        world.content
    );
    assert!(
        start.elapsed() > Duration::from_millis(1300),
        "silence, then five pauses"
    );
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn nobody_at_the_address_is_said_after_a_few_attempts() {
    let world = World::new();
    for endpoint in ["http://127.0.0.1:1", "http://hub.invalid"] {
        let hub = world.with(|settings| settings.endpoint = endpoint.into());
        let error = fetched(&hub, "config.json").unwrap_err().to_string();
        let url = format!("{endpoint}/api/models/u/n/revision/main: ");
        assert!(error.starts_with(&url), "{error}");
        assert!(error.ends_with("in each of 3 attempts"), "{error}");
    }
}

#[test]
fn a_server_without_encryption_is_no_https_server_and_is_asked_once() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let hub = world.with(|settings| settings.endpoint = format!("https://{address}"));
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 this is plain HTTP\r\n\r\n");
        let _ = stream.read(&mut [0; 1 << 12]);
        stream
    });
    let error = fetched(&hub, "config.json").unwrap_err();
    assert!(matches!(error, HubError::Untrusted { .. }), "{error}");
    server.join().unwrap();
}

#[test]
fn refusals_say_what_to_do() {
    let world = World::new();
    let with_token =
        |token: &str| world.with(|settings| settings.token = Token::new(token).unwrap());
    let of = |hub: &Hub, text: &str| {
        let reference = Reference::parse(text, RepoKind::Model).unwrap();
        let path = reference.path.clone().unwrap_or("config.json".into());
        let snapshot = hub.resolve(&reference, Wait::QUIET)?;
        hub.download(&snapshot, &path, Wait::QUIET)
    };
    let error = of(&world.hub(), "u/missing").unwrap_err();
    assert!(
        matches!(error, HubError::NoRepo { .. }) && error.to_string().contains("set HF_TOKEN"),
        "{error}"
    );
    let error = of(&with_token(TOKEN), "u/missing").unwrap_err();
    assert!(
        matches!(
            error,
            HubError::NoRepo {
                has_token: true,
                ..
            }
        ),
        "{error}"
    );
    let error = of(&world.hub(), "u/n@v9").unwrap_err();
    assert_eq!(error.to_string(), "hf://u/n: there is no revision `v9`");
    let error = of(&world.hub(), "hf://u/n/missing.json").unwrap_err();
    assert_eq!(
        error.to_string(),
        "hf://u/n: there is no file `missing.json` at revision `main`"
    );
    let error = of(&with_token("hf_wrong"), "u/n").unwrap_err();
    assert!(
        matches!(error, HubError::Unauthorized { .. })
            && error.to_string().contains("/settings/tokens"),
        "{error}"
    );

    let mut state = world.server.state();
    state.repos.get_mut("models/u/n").unwrap().is_gated = true;
    drop(state);
    let error = of(&world.hub(), "u/n").unwrap_err();
    assert!(matches!(error, HubError::Gated { .. }), "{error}");
    let page = format!(
        "accept the terms on {}/u/n, then set HF_TOKEN",
        world.server.endpoint()
    );
    assert!(error.to_string().contains(&page), "{error}");
    of(&with_token(TOKEN), "u/n").unwrap();
    world.server.fault(
        "/revision/",
        Fault::Answer(403, vec![("x-error-message", "no right".into())], ""),
    );
    let error = of(&with_token(TOKEN), "u/n").unwrap_err();
    assert!(
        matches!(error, HubError::Forbidden { .. }) && error.to_string().contains("no right"),
        "{error}"
    );
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let world = World::new();
    world
        .server
        .state()
        .repos
        .get_mut("models/u/n")
        .unwrap()
        .is_private = true;
    let hub = world.with(|settings| settings.token = Token::new(TOKEN).unwrap());
    fetched(&hub, LARGE).unwrap();
    let expected = format!("Bearer {TOKEN}");
    for request in world.server.requests("") {
        let is_storage = request.target.starts_with("/storage");
        assert_eq!(
            request.header("authorization"),
            (!is_storage).then_some(expected.as_str()),
            "{request:?}"
        );
    }
    assert!(!format!("{hub:?}").contains(TOKEN));
}

#[test]
fn a_renamed_repository_is_followed_and_a_circle_is_not() {
    let world = World::new();
    world.server.fault(
        "/api/models/u/n/revision/",
        Fault::Answer(
            307,
            vec![("location", "/api/models/u/n/revision/main".into())],
            "",
        ),
    );
    fetched(&world.hub(), "config.json").unwrap();
    for _ in 0..20 {
        world.server.fault(
            "/revision/",
            Fault::Answer(
                302,
                vec![("location", "/api/models/u/n/revision/main".into())],
                "",
            ),
        );
    }
    let error = fetched(&world.hub(), "config.json")
        .unwrap_err()
        .to_string();
    assert!(error.contains("redirects without end"), "{error}");
}

#[test]
fn long_listings_come_in_pages_also_from_a_mirror() {
    let world = World::new();
    world.server.state().page = Some(2);
    let snapshot = world.hub().resolve(&reference(), Wait::QUIET).unwrap();
    assert_eq!(snapshot.files.len(), 3);
    assert_eq!(world.server.requests("/tree/").len(), 2);
}

#[test]
fn a_listing_that_leads_out_of_the_cache_is_refused() {
    let world = World::new();
    world
        .server
        .repo("models/u/n", &[("../../evil", b"x", false)]);
    let error = fetched(&world.hub(), "config.json")
        .unwrap_err()
        .to_string();
    assert!(error.contains("`../../evil`"), "{error}");
}

#[test]
fn offline_what_is_there_is_used_and_what_is_not_is_named() {
    let world = World::new();
    let offline = world.with(|settings| settings.offline = Some("HF_HUB_OFFLINE"));
    let error = fetched(&offline, "config.json").unwrap_err().to_string();
    assert!(
        error.contains("hf://u/n at revision `main` is not in the cache")
            && error.contains("HF_HUB_OFFLINE forbids"),
        "{error}"
    );
    let path = fetched(&world.hub(), "config.json").unwrap();
    let before = world.server.requests("").len();
    assert_eq!(fetched(&offline, "config.json").unwrap(), path);
    let error = fetched(&offline, LARGE).unwrap_err().to_string();
    assert!(error.contains("model.safetensors of hf://u/n"), "{error}");
    // A cache that older programs have filled has no listing.
    fs::remove_dir_all(world.folder.path().join("models--u--n/trees")).unwrap();
    assert_eq!(fetched(&offline, "config.json").unwrap(), path);
    assert_eq!(world.server.requests("").len(), before);
}

#[test]
fn many_at_once_download_a_file_once() {
    let world = Arc::new(World::new());
    world
        .server
        .fault(STORAGE, Fault::Trickle(100_000, Duration::from_millis(100)));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let world = Arc::clone(&world);
            thread::spawn(move || fs::read(fetched(&world.hub(), LARGE).unwrap()).unwrap())
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), world.content);
    }
    assert_eq!(world.server.requests(STORAGE).len(), 1);
}

#[test]
fn two_processes_share_a_download_and_a_killed_one_leaves_the_rest_to_the_other() {
    if is_child() {
        let path = fetched(&Hub::from_env().unwrap(), LARGE).unwrap();
        assert_eq!(fs::metadata(path).unwrap().len(), SIZE as u64);
        return;
    }
    let world = World::new();
    world
        .server
        .fault(STORAGE, Fault::Trickle(100_000, Duration::from_millis(400)));
    let start = || {
        let name = "two_processes_share_a_download_and_a_killed_one_leaves_the_rest_to_the_other";
        let mut child = child(name, &world);
        child.env("HF_ENDPOINT", world.server.endpoint());
        child.spawn().unwrap()
    };
    let mut first = start();
    while world.server.requests(STORAGE).is_empty() {
        thread::sleep(Duration::from_millis(20));
    }
    let mut second = start();
    thread::sleep(Duration::from_millis(700));
    assert_eq!(world.server.requests(STORAGE).len(), 1, "the second waits");
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(second.wait().unwrap().success());
    let requests = world.server.requests(STORAGE);
    assert_eq!(requests.len(), 2);
    assert!(requests[1].header("range").is_some());
    assert_eq!(fs::read(world.blob()).unwrap(), world.content);
}

#[test]
fn another_that_holds_the_lock_and_does_nothing_is_not_waited_for_without_end() {
    let world = World::new();
    let hub = world.with(|settings| settings.patience.lock = Duration::from_millis(300));
    let snapshot = hub.resolve(&reference(), Wait::QUIET).unwrap();
    let oid = snapshot
        .file(LARGE)
        .unwrap()
        .oid
        .as_ref()
        .unwrap()
        .hex()
        .to_owned();
    let locks = world.folder.path().join(".locks/models--u--n");
    fs::create_dir_all(&locks).unwrap();
    let lock = fs::File::create(locks.join(format!("{oid}.lock"))).unwrap();
    lock.lock().unwrap();
    let error = hub.download(&snapshot, LARGE, Wait::QUIET).unwrap_err();
    assert!(
        error.to_string().contains(&format!("{oid}.lock")),
        "{error}"
    );
}

#[test]
fn a_download_that_is_called_off_ends_at_once_and_can_be_gone_on_with() {
    let world = World::new();
    let hub = world.with(|settings| settings.patience.read = Duration::from_secs(60));
    let snapshot = hub.resolve(&reference(), Wait::QUIET).unwrap();
    world
        .server
        .fault(STORAGE, Fault::StallAfter(200_000, Duration::from_secs(60)));
    let start = Instant::now();
    let wait = Wait {
        interrupt: &|| start.elapsed() > Duration::from_millis(700),
        progress: &|_| (),
    };
    assert!(matches!(
        hub.download(&snapshot, LARGE, wait),
        Err(HubError::Interrupted)
    ));
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    hub.download(&snapshot, LARGE, Wait::QUIET).unwrap();
    assert_eq!(
        world.server.requests(STORAGE)[1].header("range"),
        Some("bytes=200000-")
    );

    // Also between two attempts.
    let hub = world.with(|settings| settings.patience.delay = Duration::from_secs(60));
    world
        .server
        .fault("/revision/", Fault::Answer(503, vec![], ""));
    let start = Instant::now();
    let wait = Wait {
        interrupt: &|| start.elapsed() > Duration::from_millis(300),
        progress: &|_| (),
    };
    assert!(matches!(
        hub.resolve(&reference(), wait),
        Err(HubError::Interrupted)
    ));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn progress_grows_from_what_is_there_to_the_whole() {
    let world = World::new();
    let hub = world.hub();
    let snapshot = hub.resolve(&reference(), Wait::QUIET).unwrap();
    world.server.fault(STORAGE, Fault::BreakAfter(100_000));
    world
        .server
        .fault(STORAGE, Fault::Trickle(100_000, Duration::from_millis(120)));
    let seen = RefCell::new(Vec::new());
    let wait = Wait {
        interrupt: &|| false,
        progress: &|progress| {
            assert_eq!(
                (progress.path.as_str(), progress.total_bytes),
                (LARGE, SIZE as u64)
            );
            seen.borrow_mut().push(progress.done_bytes);
        },
    };
    hub.download(&snapshot, LARGE, wait).unwrap();
    let seen = seen.into_inner();
    assert!(seen.len() > 4 && seen.is_sorted(), "{seen:?}");
    assert_eq!((seen[0], *seen.last().unwrap()), (0, SIZE as u64));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said_with_the_file() {
    let world = World::new();
    let snapshot = world.hub().resolve(&reference(), Wait::QUIET).unwrap();
    let partial = world.partial(&snapshot);
    std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
    let error = world
        .hub()
        .download(&snapshot, LARGE, Wait::QUIET)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(partial.to_str().unwrap()) && error.contains("the disk is full"),
        "{error}"
    );
}

#[test]
fn without_symlinks_the_files_lie_in_the_snapshot() {
    let world = World::new();
    let hub = world.with(|settings| settings.symlinks = false);
    let path = fetched(&hub, LARGE).unwrap();
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(fs::read(&path).unwrap(), world.content);
    assert_eq!(fetched(&hub, LARGE).unwrap(), path);
    assert_eq!(world.server.requests(STORAGE).len(), 1);
}

#[cfg(unix)]
#[test]
fn a_cache_that_cannot_be_written_serves_what_it_has() {
    use std::os::unix::fs::symlink;
    let world = World::new();
    let path = fetched(&world.hub(), "config.json").unwrap();
    // Who is root may write everywhere, but to no place in /proc.
    let root = world.folder.path();
    for (name, is_listing) in [("refs", false), ("trees", true)] {
        let folder = root.join("models--u--n").join(name);
        let kept = if is_listing {
            None
        } else {
            Some(fs::read(folder.join("main")).unwrap())
        };
        fs::remove_dir_all(&folder).unwrap();
        symlink("/proc/self/nothing", &folder).unwrap();
        assert!(kept.is_none_or(|kept| kept == world.commit.as_bytes()));
    }
    assert_eq!(fetched(&world.hub(), "config.json").unwrap(), path);
    fs::remove_dir_all(root.join(".locks")).unwrap();
    symlink("/proc/self/nothing", root.join(".locks")).unwrap();
    let error = fetched(&world.hub(), LARGE).unwrap_err().to_string();
    assert!(error.contains(".locks"), "{error}");
}

#[test]
fn a_proxy_is_gone_through_but_not_for_those_it_is_not_for() {
    if is_child() {
        let result = Hub::from_env().unwrap().resolve(&reference(), Wait::QUIET);
        assert_eq!(result.is_ok(), std::env::var_os("NO_PROXY").is_some());
        return;
    }
    let world = World::new();
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let name = "a_proxy_is_gone_through_but_not_for_those_it_is_not_for";
    let start = |endpoint: &str| {
        let mut child = child(name, &world);
        child
            .env("HF_ENDPOINT", endpoint)
            .env("HTTP_PROXY", &address);
        child
    };
    let mut through = start("http://hub.invalid").spawn().unwrap();
    let (stream, _) = proxy.accept().unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    assert!(line.contains("hub.invalid"), "{line}");
    drop((stream, proxy));
    assert!(through.wait().unwrap().success());
    let past = start(&world.server.endpoint())
        .env("NO_PROXY", "127.0.0.1")
        .status();
    assert!(past.unwrap().success());
}

const CHILD: &str = "TT_HUB_TEST_CHILD";

/// Whether this process is one that a test has started, of the same test.
fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The test `name` of this file in a process of its own.
fn child(name: &str, world: &World) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("download::{name}"), "--include-ignored"])
        .env(CHILD, "")
        .env("HF_HUB_CACHE", world.folder.path());
    for name in [
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_TOKEN",
        "NO_PROXY",
        "no_proxy",
    ] {
        command.env_remove(name);
    }
    command
}

/// None where there is no Python with `huggingface_hub`, which `CI` forbids.
fn python() -> Option<PathBuf> {
    let python = std::env::var_os("TT_PYTHON").map(PathBuf::from);
    assert!(
        python.is_some() || std::env::var_os("CI").is_none(),
        "TT_PYTHON is not set"
    );
    python
}

fn run_python(program: &str, world: &World, arguments: &[&str]) -> String {
    let output = Command::new(python().unwrap())
        .args(["-c", program])
        .args(arguments)
        .env("HF_HUB_CACHE", world.folder.path())
        .env("HF_ENDPOINT", world.server.endpoint())
        .env("HF_HUB_DISABLE_XET", "1")
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn all(hub: &Hub) -> Snapshot {
    let snapshot = hub.resolve(&reference(), Wait::QUIET).unwrap();
    for file in &snapshot.files {
        hub.download(&snapshot, &file.path, Wait::QUIET).unwrap();
    }
    snapshot
}

#[test]
fn python_finds_what_was_downloaded_here() {
    if python().is_none() {
        return;
    }
    let world = World::new();
    let snapshot = all(&world.hub());
    let program = "import sys
from huggingface_hub import snapshot_download, try_to_load_from_cache, scan_cache_dir
folder = snapshot_download('u/n', local_files_only=True)
assert try_to_load_from_cache('u/n', 'sub dir/deep/notes.txt') == folder + '/sub dir/deep/notes.txt'
report = scan_cache_dir()
assert not report.warnings, report.warnings
assert [len(revision.files) for repo in report.repos for revision in repo.revisions] == [3]
print(folder)";
    let folder = run_python(program, &world, &[]);
    assert_eq!(Path::new(&folder), world.hub().folder(&snapshot));
}

#[test]
fn what_python_downloaded_is_found_here() {
    if python().is_none() {
        return;
    }
    let world = World::new();
    let program = "from huggingface_hub import snapshot_download; print(snapshot_download('u/n'))";
    let folder = run_python(program, &world, &[]);
    let before = world.server.requests(STORAGE).len();
    let offline = world.with(|settings| settings.offline = Some("HF_HUB_OFFLINE"));
    for hub in [world.hub(), offline] {
        let snapshot = all(&hub);
        assert_eq!(hub.folder(&snapshot), Path::new(&folder));
        assert_eq!(snapshot.files.len(), 3);
    }
    assert_eq!(world.server.requests(STORAGE).len(), before);
}

/// Whatever the line and the server do to it, and without a trace in the cache.
#[test]
fn a_part_of_a_file_comes_without_the_rest() {
    let world = World::new();
    let hub = world.hub();
    let snapshot = hub.resolve(&reference(), Wait::QUIET).unwrap();
    let part = |start: u64, length| hub.read_at(&snapshot, LARGE, start, length, Wait::QUIET);
    world.server.fault(STORAGE, Fault::BreakAfter(100));
    world.server.fault(STORAGE, Fault::IgnoreRange);
    world.server.fault(STORAGE, Fault::WrongRange);
    assert_eq!(part(1000, 500).unwrap(), world.content[1000..1500]);
    assert_eq!(world.server.requests(STORAGE).len(), 4);
    assert_eq!(part(SIZE as u64 - 3, 3).unwrap(), world.content[SIZE - 3..]);
    let beyond = part(SIZE as u64 - 3, 4).unwrap_err();
    assert!(matches!(beyond, HubError::Corrupt { .. }), "{beyond}");
    assert_eq!(hub.find(&snapshot, LARGE), None);
    let whole = hub.download(&snapshot, LARGE, Wait::QUIET).unwrap();
    assert_eq!(hub.find(&snapshot, LARGE), Some(whole));
}
