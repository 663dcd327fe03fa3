//! One file of a commit, into the cache: broken downloads are gone on with, and nothing is published but what the Hub says
//! the file is, to the byte.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::HubError;
use crate::cache::RepoCache;
use crate::http::{About, Answer, Failure, For, quoted, shown};
use crate::oid::Oid;
use crate::snapshot::{HubFile, Snapshot};
use crate::task::{Meter, Task};

const CHUNK_BYTES: usize = 1 << 17;

/// The path of the file, which stays what it is; others may read it while it is there.
pub(crate) fn download(task: &Task, snapshot: &Snapshot, path: &str) -> Result<PathBuf, HubError> {
    let settings = &task.http.settings;
    let Snapshot { repo, commit, .. } = snapshot;
    let file = listed(snapshot, path)?;
    let cache = RepoCache::new(&settings.cache, repo);
    let pointer = cache.snapshot(commit).join(path);
    let mut meter = task.meter(path, file.size);
    if is_of_size(&pointer, file.size) {
        meter.at(file.size);
        return Ok(pointer);
    }
    let source = Source::new(task, snapshot, file)?;
    let oid = source.oid;
    let blob = cache.blob(oid);
    tt_disk::create_dir(tt_disk::parent(&blob))?;
    let lock = cache.lock(task, oid)?;
    // Whoever had the lock may have been after the same file.
    if is_of_size(&pointer, file.size) {
        meter.at(file.size);
        return Ok(pointer);
    }
    if !is_of_size(&blob, file.size) {
        let partial = lock.partial(&blob);
        source.fetch(&partial, &mut meter)?;
        fs::rename(&partial, &blob).map_err(HubError::disk("write", &blob))?;
        tt_disk::sync_dir(tt_disk::parent(&blob))?;
    }
    meter.at(file.size);
    cache.link(commit, path, oid, settings.symlinks)
}

/// A part of the file. It is not kept, nor can it be verified: only the whole has a hash.
pub(crate) fn read_at(
    task: &Task,
    snapshot: &Snapshot,
    path: &str,
    start: u64,
    length: usize,
) -> Result<Vec<u8>, HubError> {
    let source = Source::new(task, snapshot, listed(snapshot, path)?)?;
    task.persist(&source.url, || source.part(start, length))
}

fn listed<'a>(snapshot: &'a Snapshot, path: &str) -> Result<&'a HubFile, HubError> {
    snapshot.file(path).ok_or_else(|| HubError::NoFile {
        repo: snapshot.repo.clone(),
        revision: snapshot.revision.clone(),
        path: path.to_owned(),
    })
}

/// What was cut short by others, or by a full disk, is not the file.
pub(crate) fn is_of_size(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
}

/// Where a file comes from, and what it has to be.
struct Source<'a> {
    task: &'a Task,
    url: String,
    about: About,
    file: &'a HubFile,
    oid: &'a Oid,
}

impl<'a> Source<'a> {
    /// Error: the Hub is not to be asked.
    fn new(task: &'a Task, snapshot: &Snapshot, file: &'a HubFile) -> Result<Self, HubError> {
        let settings = &task.http.settings;
        let Snapshot { repo, commit, .. } = snapshot;
        let path = &file.path;
        let (None, Some(oid)) = (settings.offline, &file.oid) else {
            return Err(HubError::Offline {
                what: format!("{path} of {repo} at revision `{}`", snapshot.revision),
                cache: settings.cache.clone(),
                variable: settings.offline.unwrap_or("HF_HUB_OFFLINE"),
            });
        };
        Ok(Self {
            task,
            url: task.http.url(&format!(
                "{}/resolve/{commit}/{}",
                repo.address(),
                quoted(path, false)
            )),
            about: About {
                repo: repo.clone(),
                revision: snapshot.revision.clone(),
                path: Some(path.clone()),
            },
            file,
            oid,
        })
    }

    /// One attempt at `length` bytes from `start` on.
    fn part(&self, start: u64, length: usize) -> Result<Vec<u8>, Failure> {
        let (size, end) = (self.file.size, start + length as u64);
        if length == 0 {
            return Ok(Vec::new());
        }
        if end > size {
            return Err(self
                .corrupt(format!("it has {size} bytes, {start} to {end} are wanted"))
                .into());
        }
        let range = format!("bytes={start}-{}", end - 1);
        let headers = [("range", range.as_str(), For::All)];
        let mut answer = self
            .task
            .send("GET", &self.url, &headers, None, &self.about)?;
        self.check_tag(&answer)?;
        let offered = answer.header("content-range").unwrap_or_default();
        let is_meant = offered.starts_with(&format!("bytes {start}-{}/", end - 1));
        let is_whole = answer.status() == 200 && start == 0 && end == size;
        if !is_whole && (answer.status() != 206 || !is_meant) {
            return Err(Failure::passing(format!(
                "bytes {start} to {end} were asked for, the answer is {} with `{offered}`",
                answer.status()
            )));
        }
        let body = answer.response.body_mut().with_config().limit(u64::MAX);
        let mut bytes = Vec::with_capacity(length);
        let read = body.reader().take(length as u64).read_to_end(&mut bytes);
        match read {
            Ok(count) if count == length => Ok(bytes),
            Ok(count) => Err(Failure::passing(format!(
                "broken off after {count} of {length} bytes"
            ))),
            Err(error) => Err(Failure::passing(format!("broken off: {error}"))),
        }
    }

    /// Makes `partial` the whole file, durably.
    fn fetch(&self, partial: &Path, meter: &mut Meter) -> Result<(), HubError> {
        let mut is_second_try = false;
        loop {
            let before = fs::metadata(partial).map_or(0, |metadata| metadata.len());
            self.task
                .persist(&self.url, || self.go_on(partial, meter))?;
            let found = self.name(partial)?;
            if &found == self.oid {
                let file = File::open(partial);
                let synced = file.and_then(|file| file.sync_all());
                return synced.map_err(HubError::disk("write", partial));
            }
            fs::remove_file(partial).map_err(HubError::disk("remove", partial))?;
            // What an earlier process left behind may have been at fault.
            if before == 0 && is_second_try {
                return Err(
                    self.corrupt(format!("the Hub says {}, what came has {found}", self.oid))
                );
            }
            is_second_try = true;
        }
    }

    /// The name of what is there, read back: what was sent may not be what was written.
    fn name(&self, partial: &Path) -> Result<Oid, HubError> {
        let read = || {
            let file = File::open(partial)?;
            let content = Checked {
                task: self.task,
                inner: BufReader::new(file),
            };
            self.oid.of_same_kind(self.file.size, content)
        };
        let name = read();
        self.task.check()?;
        name.map_err(HubError::disk("read", partial))
    }

    fn corrupt(&self, why: String) -> HubError {
        HubError::Corrupt {
            url: shown(&self.url),
            why,
        }
    }

    /// One attempt at all that is missing.
    fn go_on(&self, partial: &Path, meter: &mut Meter) -> Result<(), Failure> {
        let disk = |error| HubError::disk("write", partial)(error);
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(partial);
        let mut out = opened.map_err(disk)?;
        let size = self.file.size;
        let mut have = out.seek(SeekFrom::End(0)).map_err(disk)?;
        if have > size {
            have = restart(&mut out).map_err(disk)?;
        }
        meter.at(have);
        if have == size {
            return Ok(());
        }
        let range = format!("bytes={have}-");
        let tag = format!("\"{}\"", self.oid.hex());
        // Storage has ETags of its own, so the condition is for the Hub alone.
        let headers = [
            ("range", range.as_str(), For::All),
            ("if-range", tag.as_str(), For::Hub),
        ];
        let headers = if have == 0 { &[][..] } else { &headers[..] };
        let mut answer = self
            .task
            .send("GET", &self.url, headers, None, &self.about)?;
        self.check_tag(&answer)?;
        match answer.status() {
            206 if is_rest(&answer, have, size) => (),
            200 if have == 0 => (),
            200 => have = restart(&mut out).map_err(disk)?,
            status => {
                restart(&mut out).map_err(disk)?;
                return Err(Failure::passing(format!(
                    "bytes from {have} on were asked for, the answer is {status} with `{}`",
                    answer.header("content-range").unwrap_or_default()
                )));
            }
        }
        let announced = answer
            .header("content-length")
            .and_then(|length| length.parse::<u64>().ok());
        if let Some(length) = announced.filter(|length| *length != size - have) {
            return Err(self
                .corrupt(format!(
                    "{} bytes are missing, {length} are offered",
                    size - have
                ))
                .into());
        }
        self.copy(&mut answer, &mut out, have, partial, meter)
    }

    /// Whether the answer is about the content that was listed.
    fn check_tag(&self, answer: &Answer) -> Result<(), HubError> {
        let tag = answer
            .hub_header("x-linked-etag")
            .or_else(|| answer.hub_header("etag"));
        let other = tag.and_then(Oid::from_etag).filter(|tag| tag != self.oid);
        match other {
            // Of a large file the Hub may name the pointer.
            Some(Oid::Git(_)) if matches!(self.oid, Oid::Sha256(_)) => Ok(()),
            Some(other) => Err(self.corrupt(format!(
                "it was listed with {}, and is sent with {other}",
                self.oid
            ))),
            None => Ok(()),
        }
    }

    fn copy(
        &self,
        answer: &mut Answer,
        out: &mut File,
        mut have: u64,
        partial: &Path,
        meter: &mut Meter,
    ) -> Result<(), Failure> {
        let start = have;
        let size = self.file.size;
        let mut body = answer
            .response
            .body_mut()
            .with_config()
            .limit(u64::MAX)
            .reader();
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            self.task.check()?;
            let read = body.read(&mut buffer);
            let why = match read {
                Ok(0) if have == size => return Ok(()),
                Ok(0) => "the connection was closed".to_owned(),
                Ok(count) => {
                    have += count as u64;
                    if have > size {
                        let _ = restart(out);
                        return Err(self
                            .corrupt(format!("it has {size} bytes, and more are sent"))
                            .into());
                    }
                    out.write_all(&buffer[..count])
                        .map_err(HubError::disk("write", partial))?;
                    meter.at(have);
                    continue;
                }
                Err(error) => error.to_string(),
            };
            let why = format!("broken off at {have} of {size} bytes: {why}");
            return Err(Failure::Passing {
                why,
                after: None,
                has_progressed: have > start,
                is_absent: false,
            });
        }
    }
}

/// Whether a partial answer is what is missing.
fn is_rest(answer: &Answer, have: u64, size: u64) -> bool {
    let expected = [
        format!("bytes {have}-{}/{size}", size - 1),
        format!("bytes {have}-{}/*", size - 1),
    ];
    answer
        .header("content-range")
        .is_some_and(|range| expected.iter().any(|is| is == range.trim()))
}

fn restart(out: &mut File) -> std::io::Result<u64> {
    out.set_len(0)?;
    out.seek(SeekFrom::Start(0))
}

/// Reads until the work is called off.
struct Checked<'a, R> {
    task: &'a Task,
    inner: R,
}

impl<R: Read> Read for Checked<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.task.check().map_err(std::io::Error::other)?;
        self.inner.read(buffer)
    }
}
