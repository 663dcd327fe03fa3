//! Requests to W&B: what is asked, who is told the key, and what an answer means.
//!
//! - `POST <base>/graphql` and `POST <base>/files/E/P/R/file_stream` carry `Authorization: Basic base64("api:" + key)`.
//! - `PUT` to an upload address carries none: it is signed, mostly of another host, and refuses a second credential. It has
//!   a `Content-Length`, and the headers that came with the address.
//! - No redirect is followed: the key goes where it was meant to.
//! - An answer of GraphQL may be an error with status 200.
//! - `Retry-After` (seconds or a date) is obeyed, else `RateLimit-Reset`.

use std::io;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::http::Response;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::artifact::{self, Artifact};
use super::digest::md5;
use super::json::parse_line;
use super::record::{Run, level_word};
use super::settings::{ApiKey, Server};
use super::timing::{ALERT_INTERVAL, Timing, seconds};
use crate::alert::Alert;

/// Of an answer; the config and the tail of the history are in one.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// Answers that another attempt does not change.
const FINAL: &[u16] = &[400, 401, 403, 404, 409, 410, 413, 422, 501];

/// Why a request came to nothing.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Trouble {
    /// Another attempt may do better, after this long if the server says so.
    Passing {
        why: String,
        after: Option<Duration>,
        /// Nobody is there.
        is_absent: bool,
    },
    /// The server does not want it.
    Refused { status: u16, why: String },
}

pub(super) struct Client {
    agent: Agent,
    pub(super) server: Server,
    timing: Timing,
}

/// What `UpsertBucket` says of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bucket {
    pub(super) entity: String,
    pub(super) project: String,
    pub(super) display_name: String,
}

/// What the server has of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Stored {
    pub(super) storage_id: Option<String>,
    pub(super) history_lines: u64,
    pub(super) event_lines: u64,
    pub(super) output_lines: u64,
    /// `_step` of the last row.
    pub(super) last_step: Option<u64>,
    /// `_timestamp` of the last line of system metrics.
    pub(super) last_event: Option<f64>,
    pub(super) summary: Option<Value>,
}

/// A file to be sent.
pub(super) struct RunFile {
    pub(super) name: String,
    pub(super) content: Vec<u8>,
}

/// A run to be made, or to be told more of.
pub(super) struct Upsert<'a> {
    pub(super) storage_id: Option<&'a str>,
    pub(super) run: &'a Run,
    pub(super) entity: Option<&'a str>,
    pub(super) project: &'a str,
    /// JSON.
    pub(super) config: &'a str,
    pub(super) program: Option<&'a str>,
}

const UPSERT: &str = "mutation UpsertBucket($id: String, $name: String, $project: String, $entity: String, \
    $groupName: String, $displayName: String, $notes: String, $commit: String, $config: JSONString, $host: String, \
    $program: String, $repo: String, $jobType: String, $tags: [String!]) { \
    upsertBucket(input: {id: $id, name: $name, modelName: $project, entityName: $entity, groupName: $groupName, \
    displayName: $displayName, notes: $notes, commit: $commit, config: $config, host: $host, jobProgram: $program, \
    jobRepo: $repo, jobType: $jobType, tags: $tags}) { \
    bucket { id name displayName historyLineCount project { name entity { name } } } inserted } }";

const RESUME_STATUS: &str = "query RunResumeStatus($project: String, $entity: String, $name: String!) { \
    model(name: $project, entityName: $entity) { bucket(name: $name, missingOk: true) { \
    id name summaryMetrics logLineCount historyLineCount eventsLineCount historyTail eventsTail } } }";

const CREATE_FILES: &str = "mutation CreateRunFiles($entity: String!, $project: String!, $run: String!, \
    $files: [String!]!) { createRunFiles(input: {entityName: $entity, projectName: $project, runName: $run, \
    files: $files}) { runID uploadHeaders files { name uploadUrl } } }";

const ALERT: &str = "mutation NotifyScriptableRunAlert($entityName: String!, $projectName: String!, \
    $runName: String!, $title: String!, $text: String!, $severity: AlertSeverity = INFO, $waitDuration: Duration) { \
    notifyScriptableRunAlert(input: {entityName: $entityName, projectName: $projectName, runName: $runName, \
    title: $title, text: $text, severity: $severity, waitDuration: $waitDuration}) { success } }";

const CREATE_ARTIFACT: &str = "mutation CreateArtifact($input: CreateArtifactInput!) { \
    createArtifact(input: $input) { artifact { id state } } }";

const CREATE_MANIFEST: &str = "mutation CreateArtifactManifest($artifactID: ID!, $name: String!, $digest: String!, \
    $entityName: String!, $projectName: String!, $runName: String!, $manifestType: ArtifactManifestType!, \
    $includeUpload: Boolean!) { createArtifactManifest(input: {artifactID: $artifactID, name: $name, digest: $digest, \
    entityName: $entityName, projectName: $projectName, runName: $runName, type: $manifestType}) { \
    artifactManifest { id file { id uploadUrl @include(if: $includeUpload) \
    uploadHeaders @include(if: $includeUpload) } } } }";

const COMMIT_ARTIFACT: &str = "mutation CommitArtifact($artifactID: ID!) { \
    commitArtifact(input: {artifactID: $artifactID}) { artifact { id digest } } }";

impl Client {
    pub(super) fn new(server: Server, timing: Timing) -> Self {
        // A system without certificates, as of a bare container, has those of the build.
        let has_own = ["SSL_CERT_FILE", "SSL_CERT_DIR"]
            .iter()
            .any(|name| std::env::var_os(name).is_some());
        let known = ["/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/ssl/cert.pem"];
        let has_certificates = has_own
            || cfg!(not(target_os = "linux"))
            || known.iter().any(|path| std::path::Path::new(path).exists());
        let roots = if has_certificates {
            RootCerts::PlatformVerifier
        } else {
            RootCerts::WebPki
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("tpu-train/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(seconds(timing.connect_timeout)))
            .timeout_connect(Some(seconds(timing.connect_timeout)))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build()
            .new_agent();
        Self {
            agent,
            server,
            timing,
        }
    }

    fn key(&self) -> Result<&ApiKey, Trouble> {
        match &self.server.key {
            Ok(found) => Ok(&found.value),
            Err(why) => Err(Trouble::Refused {
                status: 401,
                why: why.clone(),
            }),
        }
    }

    /// What the server has of a run; `None` if it has never heard of it.
    pub(super) fn resume_status(
        &self,
        entity: Option<&str>,
        project: &str,
        id: &str,
    ) -> Result<Option<Stored>, Trouble> {
        let variables = json!({"entity": entity, "project": project, "name": id});
        let data = self.graphql("RunResumeStatus", RESUME_STATUS, variables)?;
        let bucket = &data["model"]["bucket"];
        if bucket.is_null() {
            return Ok(None);
        }
        let count = |name: &str| bucket[name].as_u64().unwrap_or(0);
        // A string of an array of strings, each a line.
        let tail = |name: &str| -> Option<Value> {
            let lines: Vec<String> = serde_json::from_str(bucket[name].as_str()?).ok()?;
            parse_line(lines.last()?)
        };
        let history = tail("historyTail");
        let summary = bucket["summaryMetrics"].as_str().and_then(parse_line);
        let last_step = history
            .as_ref()
            .and_then(|line| line["_step"].as_u64())
            .or_else(|| summary.as_ref()?["_step"].as_u64());
        let history_lines = count("historyLineCount");
        Ok(Some(Stored {
            storage_id: bucket["id"].as_str().map(str::to_owned),
            history_lines,
            event_lines: count("eventsLineCount"),
            output_lines: count("logLineCount"),
            last_step: last_step.filter(|_| history_lines > 0),
            last_event: tail("eventsTail").and_then(|line| line["_timestamp"].as_f64()),
            summary,
        }))
    }

    /// Makes the run, or tells more of it. Names of entity and project are the server's, and go into every later path.
    pub(super) fn upsert(&self, upsert: &Upsert<'_>) -> Result<Bucket, Trouble> {
        let run = upsert.run;
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let variables = json!({
            "id": upsert.storage_id,
            "name": run.id,
            "project": upsert.project,
            "entity": upsert.entity,
            "groupName": text(&run.group),
            "displayName": text(&run.name),
            "notes": text(&run.notes),
            "commit": text(&run.git_commit),
            "config": upsert.config,
            "host": text(&run.host),
            "program": upsert.program,
            "repo": text(&run.git_remote),
            "jobType": text(&run.job_type),
            "tags": (!run.tags.is_empty()).then_some(&run.tags),
        });
        let data = match self.graphql("UpsertBucket", UPSERT, variables) {
            // Two writers at once: the next attempt finds it settled.
            Err(Trouble::Refused { status: 409, why }) => {
                return Err(Trouble::Passing {
                    why,
                    after: None,
                    is_absent: false,
                });
            }
            data => data?,
        };
        let bucket = &data["upsertBucket"]["bucket"];
        let name = |value: &Value| value.as_str().map(str::to_owned);
        let project = &bucket["project"];
        match (name(&project["entity"]["name"]), name(&project["name"])) {
            (Some(entity), Some(project)) => Ok(Bucket {
                entity,
                project,
                display_name: name(&bucket["displayName"]).unwrap_or_default(),
            }),
            _ => Err(Trouble::Refused {
                status: 200,
                why: "the answer to UpsertBucket names no project".into(),
            }),
        }
    }

    /// Sends files, all at once; each has an outcome.
    pub(super) fn put_files(
        &self,
        bucket: &Bucket,
        id: &str,
        files: &[RunFile],
    ) -> Result<Vec<Result<(), Trouble>>, Trouble> {
        let names: Vec<_> = files.iter().map(|file| &file.name).collect();
        let variables = json!({
            "entity": bucket.entity, "project": bucket.project, "run": id, "files": names,
        });
        let data = self.graphql("CreateRunFiles", CREATE_FILES, variables)?;
        let answer = &data["createRunFiles"];
        let headers = upload_headers(answer);
        // By name and not by place. An address is for one use.
        let url = |name: &str| {
            let mut offered = answer["files"].as_array().into_iter().flatten();
            offered.find(|file| file["name"] == name)?["uploadUrl"].as_str()
        };
        let put = |file: &RunFile| match url(&file.name) {
            Some(url) => self.put(url, &headers, &file.content),
            None => Err(Trouble::Refused {
                status: 200,
                why: "the answer to CreateRunFiles has no address for it".into(),
            }),
        };
        Ok(thread::scope(|scope| {
            let puts: Vec<_> = files.iter().map(|file| scope.spawn(|| put(file))).collect();
            let ends = puts.into_iter().map(|put| {
                let passing = |_| Trouble::Passing {
                    why: "its thread panicked".into(),
                    after: None,
                    is_absent: false,
                };
                put.join().map_err(passing).flatten()
            });
            ends.collect()
        }))
    }

    /// Has those called who follow the run. The server passes over one with the title of another in the last minutes.
    pub(super) fn alert(&self, bucket: &Bucket, id: &str, alert: &Alert) -> Result<(), Trouble> {
        let variables = json!({
            "entityName": bucket.entity,
            "projectName": bucket.project,
            "runName": id,
            "title": alert.title,
            "text": alert.text,
            "severity": level_word(alert.level),
            "waitDuration": ALERT_INTERVAL.as_millis() as u64,
        });
        self.graphql("NotifyScriptableRunAlert", ALERT, variables)?;
        Ok(())
    }

    /// Tells the server of a version of an artifact, whose files stay where they are; nothing if it has that content.
    pub(super) fn log_artifact(
        &self,
        bucket: &Bucket,
        id: &str,
        step: Option<u64>,
        artifact: &Artifact,
    ) -> Result<(), Trouble> {
        let aliases: Vec<_> = artifact
            .aliases
            .iter()
            .map(|alias| json!({"artifactCollectionName": artifact.name, "alias": alias}))
            .collect();
        let input = json!({
            "entityName": bucket.entity,
            "projectName": bucket.project,
            "runName": id,
            "artifactTypeName": artifact::KIND,
            "artifactCollectionName": artifact.name,
            "digest": artifact.digest,
            "digestAlgorithm": "MANIFEST_MD5",
            "metadata": artifact.metadata,
            "aliases": aliases,
            "clientID": artifact.client_id,
            "sequenceClientID": artifact.sequence_client_id,
            "enableDigestDeduplication": true,
            "historyStep": step,
        });
        let variables = json!({"input": input});
        let data = self.graphql("CreateArtifact", CREATE_ARTIFACT, variables)?;
        let created = &data["createArtifact"]["artifact"];
        let Some(artifact_id) = created["id"].as_str() else {
            return Err(unnamed("CreateArtifact"));
        };
        if created["state"] == "COMMITTED" {
            return Ok(());
        }
        let content = artifact.manifest().into_bytes();
        let manifest = |digest: &str, is_final: bool| {
            let variables = json!({
                "artifactID": artifact_id,
                "name": "wandb_manifest.json",
                "digest": digest,
                "entityName": bucket.entity,
                "projectName": bucket.project,
                "runName": id,
                "manifestType": "FULL",
                "includeUpload": is_final,
            });
            let mut data = self.graphql("CreateArtifactManifest", CREATE_MANIFEST, variables)?;
            Ok(data["createArtifactManifest"]["artifactManifest"]["file"].take())
        };
        // As the reference client does it: first to have one, which files would be added to.
        manifest("", false)?;
        let digest = md5(content.as_slice()).map_err(|error| Trouble::Refused {
            status: 200,
            why: error.to_string(),
        })?;
        let file = manifest(&artifact::base64(&digest), true)?;
        let Some(url) = file["uploadUrl"].as_str() else {
            return Err(unnamed("CreateArtifactManifest"));
        };
        self.put(url, &upload_headers(&file), &content)?;
        let variables = json!({"artifactID": artifact_id});
        self.graphql("CommitArtifact", COMMIT_ARTIFACT, variables)?;
        Ok(())
    }

    fn put(&self, url: &str, headers: &[(&str, &str)], content: &[u8]) -> Result<(), Trouble> {
        let mut request = self.agent.put(url);
        for (name, value) in headers {
            request = request.header(*name, value.trim());
        }
        let sent = request
            .config()
            .timeout_per_read(Some(seconds(self.timing.stream_timeout)))
            .timeout_per_write(Some(seconds(self.timing.stream_timeout)))
            .build()
            .send(content);
        let mut response = sent.map_err(|error| passing(&error))?;
        match response.status().as_u16() {
            200..=299 => Ok(()),
            status @ (408 | 429) => Err(later(status, &mut response)),
            status @ (300..=499 | 501) => Err(refused(status, &mut response)),
            status => Err(later(status, &mut response)),
        }
    }

    /// One file_stream request, and whether the user has pressed Stop on the site.
    pub(super) fn stream(&self, bucket: &Bucket, id: &str, body: &str) -> Result<bool, Trouble> {
        let [entity, project, id] = [&bucket.entity, &bucket.project, id].map(quoted);
        let path = format!("/files/{entity}/{project}/{id}/file_stream");
        let answer = self.post(&path, body, self.timing.stream_timeout)?;
        Ok(answer["stopped"].as_bool().unwrap_or(false))
    }

    /// Where people look at a run.
    pub(super) fn run_url(&self, bucket: &Bucket, id: &str) -> String {
        let [entity, project, id] = [&bucket.entity, &bucket.project, id].map(quoted);
        format!("{}/{entity}/{project}/runs/{id}", self.server.app_url)
    }

    fn graphql(&self, name: &str, query: &str, variables: Value) -> Result<Value, Trouble> {
        let body = json!({"query": query, "variables": variables, "operationName": name});
        let mut answer = self.post("/graphql", &body.to_string(), self.timing.graphql_timeout)?;
        if let Some(why) = messages(&answer) {
            let status = 200;
            return Err(Trouble::Refused { status, why });
        }
        Ok(answer["data"].take())
    }

    fn post(&self, path: &str, body: &str, timeout: f64) -> Result<Value, Trouble> {
        let authorization = self.key()?.authorization();
        let sent = self
            .agent
            .post(format!("{}{path}", self.server.base_url))
            .config()
            .timeout_global(Some(seconds(timeout)))
            .build()
            .header("authorization", authorization)
            .header("content-type", "application/json")
            .send(body);
        let mut response = sent.map_err(|error| passing(&error))?;
        match response.status().as_u16() {
            200..=299 => {
                let text = text(&mut response).map_err(|error| passing(&error))?;
                Ok(serde_json::from_str(&text).unwrap_or_default())
            }
            status if FINAL.contains(&status) => Err(refused(status, &mut response)),
            status @ 300..=399 => Err(Trouble::Refused {
                status,
                why:
                    "it sends elsewhere, where the key is not for; WANDB_BASE_URL names the server"
                        .into(),
            }),
            status => Err(later(status, &mut response)),
        }
    }
}

/// `Name:value` each, split at the first colon.
fn upload_headers(answer: &Value) -> Vec<(&str, &str)> {
    let headers = answer["uploadHeaders"].as_array().into_iter().flatten();
    headers
        .filter_map(|header| header.as_str()?.split_once(':'))
        .collect()
}

fn unnamed(operation: &str) -> Trouble {
    Trouble::Refused {
        status: 200,
        why: format!("the answer to {operation} does not name what was made"),
    }
}

/// Of a request without an answer. The address is not part of it: that of an upload is a signature.
fn passing(error: &ureq::Error) -> Trouble {
    let is_absent = match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        _ => false,
    };
    Trouble::Passing {
        why: error.to_string(),
        after: None,
        is_absent,
    }
}

fn later(status: u16, response: &mut Response<Body>) -> Trouble {
    let header = |name: &str| response.headers().get(name)?.to_str().ok();
    let after = header("retry-after")
        .and_then(retry_after)
        .or_else(|| match status {
            429 => Some(seconds(header("ratelimit-reset")?.trim().parse().ok()?)),
            _ => None,
        });
    let why = format!("it answers {}", said(status, response));
    Trouble::Passing {
        why,
        after,
        is_absent: false,
    }
}

fn refused(status: u16, response: &mut Response<Body>) -> Trouble {
    let why = said(status, response);
    Trouble::Refused { status, why }
}

/// The status and what the server says of it.
fn said(status: u16, response: &mut Response<Body>) -> String {
    let reason = response.status().canonical_reason().unwrap_or_default();
    let body = text(response).unwrap_or_default();
    let answer: Value = serde_json::from_str(&body).unwrap_or_default();
    let words = messages(&answer).or_else(|| Some(answer["error"].as_str()?.to_owned()));
    match words {
        Some(words) => format!("{status} {reason}: {words}"),
        None => format!("{status} {reason}"),
    }
}

fn messages(answer: &Value) -> Option<String> {
    let errors = answer["errors"].as_array()?.iter();
    let messages: Vec<_> = errors
        .filter_map(|error| error["message"].as_str())
        .collect();
    (!messages.is_empty()).then(|| messages.join("; "))
}

fn text(response: &mut Response<Body>) -> Result<String, ureq::Error> {
    let body = response.body_mut().with_config().limit(MAX_ANSWER_BYTES);
    body.lossy_utf8(true).read_to_string()
}

/// Seconds, or a date.
fn retry_after(value: &str) -> Option<Duration> {
    let value = value.trim();
    if let Ok(number) = value.parse() {
        return Some(seconds(number));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?;
    let left = date.timestamp().duration_since(jiff::Timestamp::now());
    Some(seconds(left.as_secs_f64()))
}

/// As a part of a path.
fn quoted(part: impl AsRef<str>) -> String {
    let mut quoted = String::new();
    for byte in part.as_ref().bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                quoted.push(byte.into());
            }
            _ => quoted.push_str(&format!("%{byte:02X}")),
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(retry_after("2"), Some(Duration::from_secs(2)));
        assert_eq!(retry_after(" 0.5"), Some(Duration::from_millis(500)));
        assert_eq!(retry_after("-1"), Some(Duration::ZERO));
        let past = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(retry_after(past), Some(Duration::ZERO));
        assert_eq!(retry_after("soon"), None);
    }

    #[test]
    fn names_are_quoted_in_paths() {
        assert_eq!(quoted("a b/ü"), "a%20b%2F%C3%BC");
    }
}
