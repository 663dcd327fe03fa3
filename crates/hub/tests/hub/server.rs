//! A Hub on loopback: repositories in memory, large files behind a redirect to a storage of another name, and faults on
//! demand.

#![allow(dead_code)] // the programs that share it use different parts

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

pub const TOKEN: &str = "hf_right";

/// Status, headers and body.
type Reply = (u16, Vec<(&'static str, String)>, Vec<u8>);

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// What happens to the next request whose method and target contain a text.
#[derive(Clone, Debug)]
pub enum Fault {
    Answer(u16, Vec<(&'static str, String)>, &'static str),
    /// The connection ends after so many bytes of the body.
    BreakAfter(usize),
    /// So many bytes of the body, then nothing for this long.
    StallAfter(usize, Duration),
    /// So many bytes at a time, with this pause between.
    Trickle(usize, Duration),
    /// One byte of the body is another.
    Damage,
    /// The whole file, whatever range is asked for.
    IgnoreRange,
    /// A range other than that asked for.
    WrongRange,
    /// The body is so many bytes longer than it should be.
    Longer(usize),
    /// Done, but the answer does not arrive.
    LoseAnswer,
    /// The upload is cut off after so many bytes.
    CutUpload(usize),
    /// Nothing is done before this is true.
    Until(Arc<AtomicBool>),
}

#[derive(Clone)]
pub struct HubFile {
    pub content: Vec<u8>,
    pub is_large: bool,
}

#[derive(Clone, Default)]
pub struct HubRepo {
    pub commit: String,
    pub files: BTreeMap<String, HubFile>,
    pub is_private: bool,
    pub is_gated: bool,
    pub commits: Vec<Value>,
}

#[derive(Default)]
pub struct State {
    pub repos: HashMap<String, HubRepo>,
    pub objects: HashMap<String, Vec<u8>>,
    pub parts: HashMap<String, Vec<u8>>,
    pub requests: Vec<Request>,
    pub faults: Vec<(String, Fault)>,
    /// Of an upload in several parts.
    pub part_bytes: Option<usize>,
    pub page: Option<usize>,
    pub quote_weakly: bool,
    /// Whole large files are sent once this is true; parts of them always.
    pub whole_files: Option<Arc<AtomicBool>>,
}

#[derive(Clone)]
pub struct Server {
    pub port: u16,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            state: Arc::default(),
        };
        let shared = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = shared.clone();
                thread::spawn(move || server.serve(&stream));
            }
        });
        server
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Adds a repository ("models/user/name"), or changes it; its commit follows from its content.
    pub fn repo(&self, name: &str, files: &[(&str, &[u8], bool)]) -> String {
        let mut state = self.state();
        let repo = state.repos.entry(name.to_owned()).or_default();
        let mut hash = Sha1::new();
        for (path, content, is_large) in files {
            hash.update(path);
            hash.update(content);
            let file = HubFile {
                content: content.to_vec(),
                is_large: *is_large,
            };
            repo.files.insert((*path).to_owned(), file);
        }
        repo.commit = hex(&hash.finalize());
        repo.commit.clone()
    }

    pub fn fault(&self, on: &str, fault: Fault) {
        self.state().faults.push((on.to_owned(), fault));
    }

    /// Of the requests whose method and target contain `on`.
    pub fn requests(&self, on: &str) -> Vec<Request> {
        let state = self.state();
        let is_meant =
            |request: &&Request| format!("{} {}", request.method, request.target).contains(on);
        state.requests.iter().filter(is_meant).cloned().collect()
    }

    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(goes_on) = self.one(&mut reader, stream) {
            if !goes_on {
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    /// Whether the connection stays open. None: it was closed.
    fn one(&self, reader: &mut BufReader<TcpStream>, mut stream: &TcpStream) -> Option<bool> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let length = headers
            .get("content-length")
            .map_or(0, |length| length.parse().unwrap());
        let fault = self.take_fault(&format!("{method} {target}"));
        if let Some(Fault::CutUpload(bytes)) = fault {
            let mut body = vec![0; bytes.min(length)];
            reader.read_exact(&mut body).ok()?;
            self.state().requests.push(Request {
                method,
                target,
                headers,
                body,
            });
            return Some(false);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let request = Request {
            method,
            target,
            headers,
            body,
        };
        self.state().requests.push(request.clone());
        if let Some(Fault::Until(is_open)) = &fault {
            while !is_open.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
        }
        let range = request.header("range").unwrap_or("-");
        let gate = self.state().whole_files.clone();
        if let Some(is_open) = gate.filter(|_| request.target.contains("/storage"))
            && range.ends_with('-')
        {
            while !is_open.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
        }
        if let Some(Fault::Answer(status, headers, body)) = fault {
            return Some(write_answer(stream, status, &headers, body.as_bytes()));
        }
        let ignores_range = matches!(fault, Some(Fault::IgnoreRange));
        let (status, mut headers, mut body) = self.answer(&request, ignores_range);
        if request.method == "HEAD" {
            body.clear();
        }
        match fault {
            None | Some(Fault::IgnoreRange | Fault::Until(_)) => {
                Some(write_answer(stream, status, &headers, &body))
            }
            Some(Fault::Answer(..) | Fault::CutUpload(_)) => unreachable!(),
            Some(Fault::LoseAnswer) => Some(false),
            Some(Fault::Damage) => {
                let middle = body.len() / 2;
                body[middle] ^= 1;
                Some(write_answer(stream, status, &headers, &body))
            }
            Some(Fault::WrongRange) => {
                for (name, value) in &mut headers {
                    if *name == "content-range" {
                        *value = "bytes 0-1/7".into();
                    }
                }
                Some(write_answer(stream, status, &headers, &body))
            }
            Some(Fault::Longer(bytes)) => {
                body.extend(vec![0; bytes]);
                Some(write_answer(stream, status, &headers, &body))
            }
            Some(Fault::BreakAfter(bytes)) => {
                write_head(stream, status, &headers, body.len());
                let _ = stream.write_all(&body[..bytes.min(body.len())]);
                Some(false)
            }
            Some(Fault::StallAfter(bytes, pause)) => {
                write_head(stream, status, &headers, body.len());
                let _ = stream.write_all(&body[..bytes.min(body.len())]);
                thread::sleep(pause);
                Some(false)
            }
            Some(Fault::Trickle(bytes, pause)) => {
                write_head(stream, status, &headers, body.len());
                for piece in body.chunks(bytes) {
                    stream.write_all(piece).ok()?;
                    thread::sleep(pause);
                }
                Some(true)
            }
        }
    }

    fn take_fault(&self, request: &str) -> Option<Fault> {
        let mut state = self.state();
        let at = state
            .faults
            .iter()
            .position(|(on, _)| request.contains(on.as_str()))?;
        Some(state.faults.remove(at).1)
    }

    fn answer(&self, request: &Request, ignores_range: bool) -> Reply {
        let (path, query) = request
            .target
            .split_once('?')
            .unwrap_or((&request.target, ""));
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        let mut state = self.state();
        match (request.method.as_str(), parts.as_slice()) {
            (_, ["storage", oid]) => {
                let content = state.objects.get(*oid).cloned();
                match content {
                    Some(content) => ranged(request, content, "\"storage-etag\"", ignores_range),
                    None => refusal(404, "", "no such object"),
                }
            }
            ("PUT", ["put", name]) => {
                state.parts.insert((*name).to_owned(), request.body.clone());
                if name.len() == 64 {
                    state
                        .objects
                        .insert((*name).to_owned(), request.body.clone());
                }
                (200, vec![("etag", format!("\"etag-{name}\""))], vec![])
            }
            ("POST", ["complete", oid]) => {
                let listed = request.json();
                let mut content = Vec::new();
                for part in listed["parts"].as_array().unwrap() {
                    let name = format!("{oid}-{}", part["partNumber"]);
                    assert_eq!(part["etag"], format!("\"etag-{name}\""));
                    content.extend(&state.parts[&name]);
                }
                state.objects.insert((*oid).to_owned(), content);
                (200, vec![], b"{}".to_vec())
            }
            ("POST", ["verify"]) => {
                let oid = request.json()["oid"].as_str().unwrap().to_owned();
                let is_whole = state
                    .objects
                    .get(&oid)
                    .is_some_and(|content| hex(&Sha256::digest(content)) == oid);
                if is_whole {
                    ok(json!({}))
                } else {
                    refusal(422, "", "not what was announced")
                }
            }
            ("POST", ["api", "repos", "create"]) => {
                let body = request.json();
                let owner = body["organization"].as_str().unwrap_or("me");
                let name = format!(
                    "{}s/{owner}/{}",
                    body["type"].as_str().unwrap(),
                    body["name"].as_str().unwrap()
                );
                if request.header("authorization") != Some(&format!("Bearer {TOKEN}")) {
                    return refusal(401, "", "Invalid username or password.");
                }
                if state.repos.contains_key(&name) {
                    return refusal(409, "", "You already created this repo");
                }
                let repo = HubRepo {
                    is_private: body["private"] == true,
                    commit: "0".repeat(40),
                    ..HubRepo::default()
                };
                state.repos.insert(name, repo);
                ok(json!({"url": "x"}))
            }
            (_, ["api", kind @ ("models" | "datasets"), user, name]) => {
                let id = format!("{kind}/{user}/{name}");
                if let Some(refused) = refused(&state, &id, request) {
                    return refused;
                }
                ok(json!({"id": format!("{user}/{name}"), "private": state.repos[&id].is_private}))
            }
            (
                _,
                [
                    "api",
                    kind @ ("models" | "datasets"),
                    user,
                    name,
                    what,
                    rest @ ..,
                ],
            ) => {
                let id = format!("{kind}/{user}/{name}");
                if let Some(refused) = refused(&state, &id, request) {
                    return refused;
                }
                self.api(&mut state, &id, what, rest, query, request)
            }
            (_, [rest @ .., user, git, "info", "lfs", "objects", "batch"]) => {
                let kind = if rest.first() == Some(&"datasets") {
                    "datasets"
                } else {
                    "models"
                };
                let id = format!("{kind}/{user}/{}", git.trim_end_matches(".git"));
                if let Some(refused) = refused(&state, &id, request) {
                    return refused;
                }
                self.batch(&state, request)
            }
            (_, ["datasets", user, name, "resolve", revision, path @ ..]) => self.file(
                &mut state,
                &format!("datasets/{user}/{name}"),
                revision,
                path,
                request,
                ignores_range,
            ),
            (_, [user, name, "resolve", revision, path @ ..]) => self.file(
                &mut state,
                &format!("models/{user}/{name}"),
                revision,
                path,
                request,
                ignores_range,
            ),
            _ => refusal(404, "", "no such page"),
        }
    }

    fn api(
        &self,
        state: &mut State,
        id: &str,
        what: &str,
        rest: &[&str],
        query: &str,
        request: &Request,
    ) -> Reply {
        let repo = state.repos.get_mut(id).unwrap();
        let revision = rest.join("/");
        if what != "commit" && revision != "main" && revision != repo.commit {
            return refusal(404, "RevisionNotFound", "Invalid rev id");
        }
        match what {
            "revision" => ok(
                json!({"id": id.split_once('/').unwrap().1, "sha": repo.commit, "siblings": [], "tags": []}),
            ),
            "tree" => {
                let entries: Vec<_> = repo
                    .files
                    .iter()
                    .map(|(path, file)| entry(path, file))
                    .collect();
                let size = state.page.unwrap_or(1000);
                let page: usize = query
                    .split('&')
                    .find_map(|part| part.strip_prefix("cursor="))
                    .map_or(0, |page| page.parse().unwrap());
                let end = entries.len().min((page + 1) * size);
                let shown = Value::from(entries[page * size..end].to_vec());
                let mut headers = vec![];
                if end < entries.len() {
                    let next = format!(
                        "<https://huggingface.co/api/{id}/tree/{revision}?recursive=true&cursor={}>; rel=\"next\"",
                        page + 1
                    );
                    headers.push(("link", next));
                }
                (200, headers, shown.to_string().into_bytes())
            }
            "preupload" => {
                let asked = request.json();
                let files = asked["files"].as_array().unwrap().iter().map(|file| {
                    let path = file["path"].as_str().unwrap();
                    // Pages stay where the site can show them.
                    let is_large = path.ends_with(".safetensors")
                        || (file["size"].as_u64().unwrap() > 1000 && !path.ends_with(".md"));
                    json!({"path": file["path"], "uploadMode": if is_large { "lfs" } else { "regular" }, "shouldIgnore": false})
                });
                ok(json!({"files": files.collect::<Vec<_>>()}))
            }
            "commit" => {
                let lines = request
                    .body
                    .split(|byte| *byte == b'\n')
                    .filter(|line| !line.is_empty());
                let lines: Vec<Value> = lines
                    .map(|line| serde_json::from_slice(line).unwrap())
                    .collect();
                let parent = lines[0]["value"]["parentCommit"].as_str();
                if parent.is_some_and(|parent| parent != repo.commit) {
                    return refusal(
                        412,
                        "",
                        "A commit has happened since. Please refresh and try again.",
                    );
                }
                for line in &lines[1..] {
                    let value = &line["value"];
                    let path = value["path"].as_str().unwrap().to_owned();
                    let file = match line["key"].as_str().unwrap() {
                        "file" => HubFile {
                            content: STANDARD.decode(value["content"].as_str().unwrap()).unwrap(),
                            is_large: false,
                        },
                        "lfsFile" => match state.objects.get(value["oid"].as_str().unwrap()) {
                            Some(content) => HubFile {
                                content: content.clone(),
                                is_large: true,
                            },
                            None => return refusal(400, "", "object was not uploaded"),
                        },
                        other => panic!("{other}"),
                    };
                    repo.files.insert(path, file);
                }
                repo.commit = hex(&Sha1::digest(
                    [repo.commit.as_bytes(), &request.body].concat(),
                ));
                repo.commits.extend(lines);
                ok(json!({"commitOid": repo.commit, "commitUrl": "x"}))
            }
            _ => refusal(404, "", "no such call"),
        }
    }

    fn batch(&self, state: &State, request: &Request) -> Reply {
        let body = request.json();
        let storage = format!("http://localhost:{}", self.port);
        let objects = body["objects"].as_array().unwrap().iter().map(|object| {
            let oid = object["oid"].as_str().unwrap();
            let size = object["size"].as_u64().unwrap() as usize;
            if state.objects.contains_key(oid) {
                return json!({"oid": oid, "size": size});
            }
            let verify = json!({"href": format!("{}/verify", self.endpoint())});
            let upload = match state.part_bytes {
                Some(bytes) => {
                    let mut header = serde_json::Map::new();
                    header.insert("chunk_size".into(), bytes.to_string().into());
                    for part in 1..=size.div_ceil(bytes) {
                        header.insert(
                            format!("{part:05}"),
                            format!("{storage}/put/{oid}-{part}?Signature=secret").into(),
                        );
                    }
                    json!({"href": format!("{}/complete/{oid}", self.endpoint()), "header": header})
                }
                None => json!({"href": format!("{storage}/put/{oid}?Signature=secret")}),
            };
            json!({"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}})
        });
        ok(json!({"transfer": "basic", "objects": objects.collect::<Vec<_>>()}))
    }

    fn file(
        &self,
        state: &mut State,
        id: &str,
        revision: &str,
        path: &[&str],
        request: &Request,
        ignores_range: bool,
    ) -> Reply {
        if let Some(refused) = refused(state, id, request) {
            return refused;
        }
        let repo = &state.repos[id];
        if repo.is_gated && request.header("authorization") != Some(&format!("Bearer {TOKEN}")) {
            return refusal(401, "GatedRepo", "Access to this model is restricted");
        }
        let commit = repo.commit.clone();
        if revision != commit && revision != "main" {
            return refusal(404, "RevisionNotFound", "Invalid rev id");
        }
        let Some(file) = repo.files.get(&path.join("/").replace("%20", " ")).cloned() else {
            return refusal(404, "EntryNotFound", "Entry not found");
        };
        if file.is_large {
            let oid = hex(&Sha256::digest(&file.content));
            state.objects.insert(oid.clone(), file.content);
            let to = format!(
                "http://localhost:{}/storage/{oid}?Signature=secret",
                self.port
            );
            let headers = vec![
                ("location", to),
                ("x-linked-etag", format!("\"{oid}\"")),
                ("x-repo-commit", commit),
            ];
            return (302, headers, vec![]);
        }
        let oid = git(&file.content);
        let etag = if state.quote_weakly {
            format!("W/\"{oid}\"")
        } else {
            format!("\"{oid}\"")
        };
        let (status, mut headers, body) = ranged(request, file.content, &etag, ignores_range);
        headers.push(("x-repo-commit", commit));
        (status, headers, body)
    }
}

fn refused(state: &State, id: &str, request: &Request) -> Option<Reply> {
    let token = request.header("authorization");
    if token.is_some_and(|token| token != format!("Bearer {TOKEN}")) {
        return Some(refusal(
            401,
            "",
            "Invalid credentials in Authorization header",
        ));
    }
    match state.repos.get(id) {
        Some(repo) if !repo.is_private || token.is_some() => None,
        _ if token.is_some() => Some(refusal(404, "RepoNotFound", "Repository not found")),
        _ => Some(refusal(
            401,
            "RepoNotFound",
            "Invalid username or password.",
        )),
    }
}

fn entry(path: &str, file: &HubFile) -> Value {
    let mut entry = json!({"type": "file", "path": path, "size": file.content.len(), "oid": git(&file.content)});
    if file.is_large {
        entry["oid"] = git(path.as_bytes()).into();
        entry["lfs"] = json!({"oid": hex(&Sha256::digest(&file.content)), "size": file.content.len(), "pointerSize": 134});
    }
    entry
}

fn ranged(request: &Request, content: Vec<u8>, etag: &str, ignores_range: bool) -> Reply {
    let headers = vec![("etag", etag.to_owned())];
    let range = request.header("range").filter(|_| !ignores_range);
    let is_other = request.header("if-range").is_some_and(|tag| tag != etag);
    let part = range.and_then(|range| {
        let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
        let end = match end {
            "" => content.len().saturating_sub(1),
            end => end
                .parse::<usize>()
                .ok()?
                .min(content.len().saturating_sub(1)),
        };
        Some((start.parse::<usize>().ok()?, end))
    });
    match part.filter(|_| !is_other) {
        None => (200, headers, content),
        Some((start, _)) if start >= content.len() => (
            416,
            vec![("content-range", format!("bytes */{}", content.len()))],
            vec![],
        ),
        Some((start, end)) => {
            let range = format!("bytes {start}-{end}/{}", content.len());
            (
                206,
                [headers, vec![("content-range", range)]].concat(),
                content[start..=end].to_vec(),
            )
        }
    }
}

fn ok(body: Value) -> Reply {
    (
        200,
        vec![("content-type", "application/json".into())],
        body.to_string().into_bytes(),
    )
}

fn refusal(status: u16, code: &str, message: &str) -> Reply {
    let headers = vec![
        ("x-error-code", code.to_owned()),
        ("x-error-message", message.to_owned()),
    ];
    (
        status,
        headers,
        json!({"error": message}).to_string().into_bytes(),
    )
}

fn write_head(mut stream: &TcpStream, status: u16, headers: &[(&str, String)], length: usize) {
    let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let _ = stream.write_all(format!("{head}\r\n").as_bytes());
}

fn write_answer(
    mut stream: &TcpStream,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
) -> bool {
    write_head(stream, status, headers, body.len());
    stream.write_all(body).is_ok()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn git(content: &[u8]) -> String {
    let mut hash = Sha1::new_with_prefix(format!("blob {}\0", content.len()));
    hash.update(content);
    hex(&hash.finalize())
}

/// Bytes without a pattern that a fault could hide in.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(next).collect()
}
