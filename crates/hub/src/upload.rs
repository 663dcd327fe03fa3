//! Files into a repository: what is there already is not sent, what is large goes to the Hub's storage first, and one commit
//! at the end makes all of it visible at once.
//!
//! An upload that breaks off is gone on with by doing it again: the storage has the objects that it got whole, and a commit
//! whose answer was lost shows in the next comparison.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use ureq::http::HeaderMap;

use crate::HubError;
use crate::http::{About, Content, Failure, quoted, shown};
use crate::oid::Oid;
use crate::reference::{Reference, Repo, check_path};
use crate::snapshot::{HubFile, about, head, list};
use crate::task::{Meter, Task};

const SAMPLE_BYTES: u64 = 512;
/// Of the files that the Hub is asked about in one request.
const BATCH: usize = 256;
const JSON: &str = "application/json";
const LFS: &str = "application/vnd.git-lfs+json";
/// How often a commit is begun anew that others came before.
const ROUNDS: usize = 5;

/// A file to be in a repository.
#[derive(Clone, Debug)]
pub struct Upload {
    /// Within the repository, parts joined by `/`.
    pub path: String,
    pub source: UploadSource,
}

#[derive(Clone, Debug)]
pub enum UploadSource {
    File(PathBuf),
    Bytes(Vec<u8>),
}

/// What an upload has come to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Commit {
    /// The one made, or the one that had everything.
    pub id: String,
    /// The paths that were new or different.
    pub changed: Vec<String>,
}

/// Who sees a repository.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Visibility {
    /// Its owner, and whom the owner lets.
    Private,
    Public,
}

/// An upload with what the Hub has to know of it.
struct Item {
    upload: Upload,
    size: u64,
    sha256: Option<Oid>,
}

impl Item {
    fn new(upload: &Upload) -> Result<Self, HubError> {
        check_path(&upload.path).map_err(|why| HubError::Reference {
            text: upload.path.clone(),
            why: why.to_owned(),
        })?;
        let size = match &upload.source {
            UploadSource::Bytes(bytes) => bytes.len() as u64,
            UploadSource::File(path) => std::fs::metadata(path)
                .map_err(HubError::disk("read", path))?
                .len(),
        };
        Ok(Self {
            upload: upload.clone(),
            size,
            sha256: None,
        })
    }

    /// A part of the content. What is not there any more is an error.
    fn open(&self, start: u64, length: u64) -> io::Result<Box<dyn Read>> {
        Ok(match &self.upload.source {
            UploadSource::Bytes(bytes) => {
                let mut content = Cursor::new(bytes.clone());
                content.set_position(start);
                Box::new(content.take(length))
            }
            UploadSource::File(path) => {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(start))?;
                Box::new(Exactly {
                    inner: file,
                    left: length,
                })
            }
        })
    }

    fn content(&self) -> Result<Box<dyn Read>, HubError> {
        self.open(0, self.size)
            .map_err(|error| self.unreadable(error))
    }

    fn bytes(&self, length: u64) -> Result<Vec<u8>, HubError> {
        let mut bytes = Vec::new();
        let read = self
            .open(0, length)
            .and_then(|mut content| content.read_to_end(&mut bytes));
        read.map_err(|error| self.unreadable(error))?;
        Ok(bytes)
    }

    /// Whether the file is still as long as it was.
    fn check(&self) -> Result<(), HubError> {
        let now = Self::new(&self.upload)?;
        if now.size != self.size {
            return Err(self.unreadable(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }

    fn unreadable(&self, error: io::Error) -> HubError {
        let path = match &self.upload.source {
            UploadSource::File(path) => path.clone(),
            UploadSource::Bytes(_) => PathBuf::from(&self.upload.path),
        };
        match error.kind() {
            io::ErrorKind::UnexpectedEof => HubError::Changed { path },
            _ => HubError::disk("read", &path)(error),
        }
    }

    fn sha256(&mut self) -> Result<Oid, HubError> {
        if let Some(oid) = &self.sha256 {
            return Ok(oid.clone());
        }
        let oid = Oid::sha256(self.content()?).map_err(|error| self.unreadable(error))?;
        self.sha256 = Some(oid.clone());
        Ok(oid)
    }

    /// Whether the repository has the same content at the same path.
    fn is(&mut self, there: &HubFile) -> Result<bool, HubError> {
        Ok(match &there.oid {
            _ if there.size != self.size => false,
            Some(Oid::Sha256(_)) => Some(self.sha256()?) == there.oid,
            Some(Oid::Git(_)) => {
                let oid = Oid::git(self.size, self.content()?);
                Some(oid.map_err(|error| self.unreadable(error))?) == there.oid
            }
            None => false,
        })
    }
}

/// As many bytes as were promised, or an error: a shorter file would leave the server waiting.
struct Exactly<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let count = self.inner.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// Tells how much of a file has been read.
struct Counted<R> {
    inner: R,
    done_bytes: u64,
    meter: Meter,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.done_bytes += count as u64;
        self.meter.at(self.done_bytes);
        Ok(count)
    }
}

/// Makes a repository, if there is none.
pub(crate) fn create_repo(
    task: &Task,
    repo: &Repo,
    is_private: bool,
) -> Result<Visibility, HubError> {
    let url = task.http.url("api/repos/create");
    let (organization, name) = match repo.id.split_once('/') {
        Some((user, name)) => (Some(user), name),
        None => (None, repo.id.as_str()),
    };
    let body = json!({
        "name": name,
        "organization": organization,
        "type": repo.kind.singular(),
        "private": is_private,
    });
    let body = body.to_string();
    let made = task.persist(&url, || {
        let content = Content::Bytes(JSON, body.as_bytes());
        task.send("POST", &url, &[], Some(content), &about(repo, ""))
    });
    match made {
        Ok(_) if is_private => Ok(Visibility::Private),
        Ok(_) => Ok(Visibility::Public),
        Err(HubError::Status { status: 409, .. }) => visibility(task, repo),
        // A token for this repository alone may not make others.
        Err(error @ HubError::Forbidden { .. }) => visibility(task, repo).map_err(|_| error),
        Err(error) => Err(error),
    }
}

fn visibility(task: &Task, repo: &Repo) -> Result<Visibility, HubError> {
    #[derive(Deserialize)]
    struct Info {
        private: bool,
    }
    let url = task.http.url(&repo.api());
    let (info, _): (Info, _) = task.json("GET", &url, None, &about(repo, ""))?;
    Ok(if info.private {
        Visibility::Private
    } else {
        Visibility::Public
    })
}

/// The first question of an upload, which the Hub answers only to those who may make one.
pub(crate) fn check_writable(task: &Task, reference: &Reference) -> Result<(), HubError> {
    let sample = Item::new(&Upload {
        path: "config.json".to_owned(),
        source: UploadSource::Bytes(b"{}".to_vec()),
    })?;
    Sender { task, reference }.modes(&[&sample]).map(drop)
}

/// Makes `uploads` files of the branch that `reference` names, in one commit.
pub(crate) fn upload(
    task: &Task,
    reference: &Reference,
    uploads: &[Upload],
    summary: &str,
) -> Result<Commit, HubError> {
    let mut items = uploads
        .iter()
        .map(Item::new)
        .collect::<Result<Vec<_>, _>>()?;
    let mut changed = Vec::new();
    let mut round = 0;
    loop {
        let parent = head(task, reference)?;
        let there = list(task, &reference.repo, &reference.revision, &parent)?;
        let there: BTreeMap<_, _> = there
            .iter()
            .map(|file| (file.path.as_str(), file))
            .collect();
        let mut new = Vec::new();
        for item in &mut items {
            task.check()?;
            let is_there = match there.get(item.upload.path.as_str()) {
                Some(there) => item.is(there)?,
                None => false,
            };
            if !is_there {
                new.push(item);
            }
        }
        if round == 0 {
            changed = new.iter().map(|item| item.upload.path.clone()).collect();
        }
        if new.is_empty() {
            return Ok(Commit {
                id: parent,
                changed,
            });
        }
        let sender = Sender { task, reference };
        let failure = match sender.send(&mut new, &parent, summary) {
            Ok(id) => return Ok(Commit { id, changed }),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Passing { why, .. }) => why,
        };
        round += 1;
        if round == ROUNDS {
            return Err(HubError::Unreachable {
                url: sender.commit_url(),
                attempts: ROUNDS as u32,
                why: failure,
            });
        }
        task.sleep(task.http.settings.patience.delay)?;
    }
}

#[derive(Deserialize)]
struct Preupload {
    files: Vec<Mode>,
}

#[derive(Deserialize)]
struct Mode {
    path: String,
    #[serde(rename = "uploadMode")]
    mode: String,
    #[serde(default, rename = "shouldIgnore")]
    is_ignored: bool,
}

#[derive(Deserialize)]
struct Batch {
    objects: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    oid: String,
    actions: Option<Actions>,
    error: Option<ObjectError>,
}

#[derive(Deserialize)]
struct ObjectError {
    message: String,
}

#[derive(Deserialize)]
struct Actions {
    upload: Option<Action>,
    verify: Option<Action>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    #[serde(default)]
    header: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct Made {
    #[serde(rename = "commitOid")]
    id: String,
}

/// Sends files to one branch.
struct Sender<'a> {
    task: &'a Task,
    reference: &'a Reference,
}

impl Sender<'_> {
    fn repo(&self) -> &Repo {
        &self.reference.repo
    }

    fn about(&self, path: Option<&str>) -> About {
        About {
            path: path.map(str::to_owned),
            ..about(self.repo(), &self.reference.revision)
        }
    }

    fn api(&self, what: &str) -> String {
        let revision = quoted(&self.reference.revision, true);
        self.task
            .http
            .url(&format!("{}/{what}/{revision}", self.repo().api()))
    }

    fn commit_url(&self) -> String {
        self.api("commit")
    }

    /// A passing failure is one after which to compare anew.
    fn send(
        &self,
        items: &mut [&mut Item],
        parent: &str,
        summary: &str,
    ) -> Result<String, Failure> {
        let asked: Vec<&Item> = items.iter().map(|item| &**item).collect();
        let modes = self.modes(&asked)?;
        let header = json!({"summary": summary, "description": "", "parentCommit": parent});
        let mut lines = vec![json!({"key": "header", "value": header})];
        let mut large = Vec::new();
        for item in items.iter_mut() {
            let mode = modes.get(&item.upload.path).map(String::as_str);
            // Storage takes no empty objects.
            let is_large = mode == Some("lfs") && item.size > 0;
            let oid = if is_large { Some(item.sha256()?) } else { None };
            let item = &**item;
            let path = &item.upload.path;
            if let Some(oid) = oid {
                let value =
                    json!({"path": path, "algo": "sha256", "oid": oid.hex(), "size": item.size});
                lines.push(json!({"key": "lfsFile", "value": value}));
                large.push(item);
            } else if mode.is_some() {
                let content = STANDARD.encode(item.bytes(item.size)?);
                let value = json!({"path": path, "encoding": "base64", "content": content});
                lines.push(json!({"key": "file", "value": value}));
            }
        }
        for some in large.chunks(BATCH) {
            self.store(some)?;
        }
        if lines.len() == 1 {
            return Ok(parent.to_owned()); // the repository ignores all of them
        }
        let mut body = Vec::new();
        for line in lines {
            body.extend(line.to_string().into_bytes());
            body.push(b'\n');
        }
        self.commit(&body)
    }

    /// How the Hub wants each file to come: "regular" or "lfs". Those that the repository ignores are left out.
    fn modes(&self, items: &[&Item]) -> Result<BTreeMap<String, String>, HubError> {
        let url = self.api("preupload");
        let mut modes = BTreeMap::new();
        for some in items.chunks(BATCH) {
            let mut files = Vec::new();
            for item in some {
                let sample = STANDARD.encode(item.bytes(item.size.min(SAMPLE_BYTES))?);
                files.push(json!({"path": item.upload.path, "size": item.size, "sample": sample}));
            }
            let body = json!({"files": files}).to_string();
            let content = Some((JSON, body.as_bytes()));
            let (answer, _): (Preupload, _) =
                self.task.json("POST", &url, content, &self.about(None))?;
            let wanted = answer.files.into_iter().filter(|file| !file.is_ignored);
            modes.extend(wanted.map(|file| (file.path, file.mode)));
        }
        Ok(modes)
    }

    /// Brings what the storage does not have.
    fn store(&self, items: &[&Item]) -> Result<(), HubError> {
        let url = self.task.http.url(&format!(
            "{}.git/info/lfs/objects/batch",
            self.repo().address()
        ));
        let mut wanted: BTreeMap<&str, &Item> = BTreeMap::new();
        for item in items {
            if let Some(oid) = &item.sha256 {
                wanted.insert(oid.hex(), item);
            }
        }
        let object = |(oid, item): (&&str, &&Item)| json!({"oid": oid, "size": item.size});
        let body = json!({
            "operation": "upload",
            "transfers": ["basic", "multipart"],
            "hash_algo": "sha256",
            "ref": {"name": self.reference.revision},
            "objects": wanted.iter().map(object).collect::<Vec<_>>(),
        });
        let body = body.to_string();
        let (batch, _): (Batch, _) = self.task.json(
            "POST",
            &url,
            Some((LFS, body.as_bytes())),
            &self.about(None),
        )?;
        for object in batch.objects {
            let wrong = |why: String| HubError::Answer {
                url: shown(&url),
                why,
            };
            let item = wanted.get(object.oid.as_str());
            let item = item.ok_or_else(|| wrong(format!("nobody asked for {}", object.oid)))?;
            if let Some(error) = object.error {
                return Err(wrong(format!("{}: {}", item.upload.path, error.message)));
            }
            let mut meter = self.task.meter(&item.upload.path, item.size);
            if let Some(Actions {
                upload: Some(upload),
                verify,
            }) = object.actions
            {
                self.put(item, &upload, &object.oid, &mut meter)?;
                if let Some(verify) = verify {
                    let body = json!({"oid": object.oid, "size": item.size}).to_string();
                    self.post(&verify.href, &body, &item.upload.path)?;
                }
            }
            meter.at(item.size);
        }
        Ok(())
    }

    fn put(
        &self,
        item: &Item,
        action: &Action,
        oid: &str,
        meter: &mut Meter,
    ) -> Result<(), HubError> {
        let header = action.header.clone().unwrap_or_default();
        let Some(part_bytes) = header.get("chunk_size") else {
            self.put_part(&action.href, item, 0, item.size, meter)?;
            return Ok(());
        };
        let wrong = |why: &str| HubError::Answer {
            url: shown(&action.href),
            why: format!("{}: {why}", item.upload.path),
        };
        let part_bytes = part_bytes
            .as_u64()
            .or_else(|| part_bytes.as_str()?.parse().ok());
        let part_bytes = part_bytes
            .filter(|bytes| *bytes > 0)
            .ok_or_else(|| wrong("parts of no size"))?;
        let mut parts = BTreeMap::new();
        for (name, url) in &header {
            if let (Ok(number), Some(url)) = (name.parse::<u64>(), url.as_str()) {
                parts.insert(number, url);
            }
        }
        if parts.len() as u64 != item.size.div_ceil(part_bytes) {
            return Err(wrong("another number of parts than the file has"));
        }
        let mut done = Vec::new();
        for (index, url) in parts.values().enumerate() {
            let start = index as u64 * part_bytes;
            let length = part_bytes.min(item.size - start);
            let headers = self.put_part(url, item, start, length, meter)?;
            let etag = headers.get("etag").and_then(|etag| etag.to_str().ok());
            let etag = etag.ok_or_else(|| wrong("a part was taken without an ETag"))?;
            done.push(json!({"partNumber": index + 1, "etag": etag}));
        }
        let body = json!({"oid": oid, "parts": done}).to_string();
        self.post(&action.href, &body, &item.upload.path)
    }

    fn put_part(
        &self,
        url: &str,
        item: &Item,
        start: u64,
        length: u64,
        meter: &mut Meter,
    ) -> Result<HeaderMap, HubError> {
        let about = self.about(Some(&item.upload.path));
        self.task.persist(url, || {
            let open = || {
                let inner = item
                    .open(start, length)
                    .map_err(|error| item.unreadable(error))?;
                let counted = Counted {
                    inner,
                    done_bytes: start,
                    meter: meter.clone(),
                };
                Ok(Box::new(counted) as Box<dyn Read>)
            };
            let answer = self.task.send(
                "PUT",
                url,
                &[],
                Some(Content::Stream(length, &open)),
                &about,
            );
            if answer.is_err() {
                item.check()?; // of a shorter file the rest is waited for in vain
            }
            Ok(answer?.response.headers().clone())
        })
    }

    fn post(&self, url: &str, body: &str, path: &str) -> Result<(), HubError> {
        self.task.persist(url, || {
            let content = Content::Bytes(LFS, body.as_bytes());
            self.task
                .send("POST", url, &[], Some(content), &self.about(Some(path)))
                .map(|_| ())
        })
    }

    /// Once: whether a commit whose answer was lost was made, only a new comparison tells.
    fn commit(&self, body: &[u8]) -> Result<String, Failure> {
        let url = self.commit_url();
        let content = Content::Bytes("application/x-ndjson", body);
        let sent = self
            .task
            .send("POST", &url, &[], Some(content), &self.about(None));
        let mut answer = match sent {
            // Others were first.
            Err(Failure::Final(HubError::Status {
                status: 409 | 412,
                why,
                ..
            })) => return Err(Failure::passing(why)),
            sent => sent?,
        };
        let made: Made =
            serde_json::from_slice(&answer.bytes()?).map_err(|error| HubError::Answer {
                url,
                why: error.to_string(),
            })?;
        Ok(made.id)
    }
}
