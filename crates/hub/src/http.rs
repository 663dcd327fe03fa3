//! Requests to the Hub and to the storage behind it: the token for the Hub alone, redirects, patience, and what a refusal
//! means.

use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use ureq::http::{HeaderMap, Response};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, SendBody};

use crate::HubError;
use crate::reference::Repo;
use crate::settings::Settings;
use crate::task::Task;

const MAX_REDIRECTS: usize = 10;
/// Of an answer that is read as a whole: a page of a listing, at most.
const MAX_ANSWER_BYTES: u64 = 256 << 20;
/// Where nobody answers at all, waiting longer seldom helps.
const MAX_ATTEMPTS_WITHOUT_HOST: u32 = 3;

/// The connections of one client.
pub(crate) struct Http {
    pub(crate) settings: Settings,
    agent: Mutex<Agent>,
}

impl Http {
    pub(crate) fn new(settings: Settings) -> Self {
        let agent = Mutex::new(agent(&settings));
        Self { settings, agent }
    }

    /// Ends all that is being sent and received.
    pub(crate) fn hang_up(&self) {
        let mut current = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, agent(&self.settings)).shutdown();
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.settings.endpoint)
    }

    fn agent(&self) -> Agent {
        self.agent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn is_hub(&self, url: &str) -> bool {
        let rest = url.strip_prefix(&self.settings.endpoint);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
    }
}

fn agent(settings: &Settings) -> Agent {
    // A system without certificates, as of a bare container, has those of the build.
    let has_own = ["SSL_CERT_FILE", "SSL_CERT_DIR"]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    let known = ["/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/ssl/cert.pem"];
    let roots = if has_own
        || cfg!(not(target_os = "linux"))
        || known.iter().any(|path| std::path::Path::new(path).exists())
    {
        RootCerts::PlatformVerifier
    } else {
        RootCerts::WebPki
    };
    let patience = &settings.patience;
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("tpu-train/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity")
        .timeout_resolve(Some(patience.connect))
        .timeout_connect(Some(patience.connect))
        .timeout_per_read(Some(patience.read))
        .timeout_per_write(Some(patience.read))
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .build()
        .new_agent()
}

/// What a request is about, for the words of its refusal.
#[derive(Clone)]
pub(crate) struct About {
    pub(crate) repo: Repo,
    pub(crate) revision: String,
    pub(crate) path: Option<String>,
}

/// The body of a request, made anew for every attempt.
pub(crate) enum Content<'a> {
    Bytes(&'a str, &'a [u8]),
    /// Of this many bytes.
    Stream(u64, &'a dyn Fn() -> Result<Box<dyn Read>, HubError>),
}

/// Why an attempt came to nothing.
pub(crate) enum Failure {
    /// Another may do better, after this long if the server says so.
    Passing {
        why: String,
        after: Option<Duration>,
        /// Part of what was asked for has arrived all the same.
        has_progressed: bool,
        /// Nobody is there.
        is_absent: bool,
    },
    Final(HubError),
}

impl Failure {
    pub(crate) fn passing(why: impl Into<String>) -> Self {
        Self::Passing {
            why: why.into(),
            after: None,
            has_progressed: false,
            is_absent: false,
        }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

pub(crate) struct Answer {
    pub(crate) response: Response<Body>,
    /// What the Hub said before it sent us on to its storage.
    pub(crate) hub_headers: HeaderMap,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        text(self.response.headers(), name)
    }

    pub(crate) fn hub_header(&self, name: &str) -> Option<&str> {
        text(&self.hub_headers, name)
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, Failure> {
        let body = self
            .response
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER_BYTES);
        body.read_to_vec().map_err(passing)
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

impl Task {
    /// Tries until it works, fails for good, or has brought nothing new too often.
    pub(crate) fn persist<T>(
        &self,
        url: &str,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, HubError> {
        let patience = &self.http.settings.patience;
        let mut vain = 0;
        loop {
            self.check()?;
            let tried = attempt();
            // What a connection says that was cut off is of no interest.
            self.check()?;
            let (why, after, is_absent) = match tried {
                Ok(done) => return Ok(done),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing {
                    why,
                    after,
                    has_progressed,
                    is_absent,
                }) => {
                    vain = if has_progressed { 1 } else { vain + 1 };
                    (why, after, is_absent)
                }
            };
            let most = if is_absent {
                MAX_ATTEMPTS_WITHOUT_HOST
            } else {
                patience.attempts
            };
            let is_too_long = after.is_some_and(|after| after > patience.max_delay);
            if vain >= most.min(patience.attempts) || is_too_long {
                let why = match after.filter(|_| is_too_long) {
                    Some(after) => format!("{why}, and asks to wait for {} s", after.as_secs()),
                    None => why,
                };
                return Err(HubError::Unreachable {
                    url: shown(url),
                    attempts: vain,
                    why,
                });
            }
            let doubled = patience.delay.saturating_mul(1 << (vain - 1).min(16));
            self.sleep(after.unwrap_or(doubled).min(patience.max_delay))?;
        }
    }

    /// A request whose answer is JSON, with the headers of the answer.
    pub(crate) fn json<T: DeserializeOwned>(
        &self,
        method: &str,
        url: &str,
        content: Option<(&str, &[u8])>,
        about: &About,
    ) -> Result<(T, HeaderMap), HubError> {
        self.persist(url, || {
            let content = content.map(|(kind, bytes)| Content::Bytes(kind, bytes));
            let mut answer = self.send(method, url, &[], content, about)?;
            let bytes = answer.bytes()?;
            let value = serde_json::from_slice(&bytes).map_err(|error| HubError::Answer {
                url: shown(url),
                why: error.to_string(),
            })?;
            Ok((value, answer.response.headers().clone()))
        })
    }

    /// One attempt, through all redirects. `first_headers` are for the Hub alone. What is no success is a failure, but for
    /// 416: a range that the file does not have.
    pub(crate) fn send(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str, For)],
        content: Option<Content<'_>>,
        about: &About,
    ) -> Result<Answer, Failure> {
        let mut url = url.to_owned();
        let mut hub_headers = HeaderMap::new();
        for _ in 0..=MAX_REDIRECTS {
            self.check()?;
            let response = self.send_once(method, &url, headers, content.as_ref())?;
            let status = response.status().as_u16();
            let next = text(response.headers(), "location").map(|next| joined(&url, next));
            if self.http.is_hub(&url) {
                hub_headers.extend(response.headers().clone());
            }
            match (status, next) {
                // With a body only those that promise to take it once more.
                (307 | 308, Some(next)) => url = next,
                (301..=303, Some(next)) if content.is_none() => url = next,
                (200..=299 | 416, _) => {
                    return Ok(Answer {
                        response,
                        hub_headers,
                    });
                }
                _ => return Err(self.refusal(status, &url, response, about)),
            }
        }
        Err(HubError::Answer {
            url: shown(&url),
            why: "it redirects without end".into(),
        }
        .into())
    }

    fn send_once(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str, For)],
        content: Option<&Content<'_>>,
    ) -> Result<Response<Body>, Failure> {
        let is_hub = self.http.is_hub(url);
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        for (name, value, whom) in headers {
            if is_hub || matches!(whom, For::All) {
                request = request.header(*name, *value);
            }
        }
        if let Some(token) = self.http.settings.token.as_ref().filter(|_| is_hub) {
            request = request.header("authorization", token.header());
        }
        let agent = self.http.agent();
        let bad = |error: ureq::http::Error| {
            Failure::Final(HubError::Answer {
                url: shown(url),
                why: error.to_string(),
            })
        };
        let sent = match content {
            None => agent.run(request.body(()).map_err(bad)?),
            Some(Content::Bytes(kind, bytes)) => agent.run(
                request
                    .header("content-type", *kind)
                    .body(*bytes)
                    .map_err(bad)?,
            ),
            Some(Content::Stream(length, open)) => {
                let body = SendBody::from_owned_reader(open()?);
                agent.run(
                    request
                        .header("content-length", *length)
                        .body(body)
                        .map_err(bad)?,
                )
            }
        };
        sent.map_err(|error| match untrusted(url, &error) {
            Some(error) => Failure::Final(error),
            None => passing(error),
        })
    }

    /// What an answer means that is no success.
    fn refusal(
        &self,
        status: u16,
        url: &str,
        mut response: Response<Body>,
        about: &About,
    ) -> Failure {
        let headers = response.headers().clone();
        let code = text(&headers, "x-error-code").unwrap_or_default();
        let said = text(&headers, "x-error-message").map(str::to_owned);
        let body = response
            .body_mut()
            .with_config()
            .limit(64 << 10)
            .read_to_string();
        let why = said.or_else(|| message(&body.unwrap_or_default()));
        let why = why.unwrap_or_else(|| "without a reason".into());
        if matches!(status, 408 | 429 | 500 | 502..=504) {
            return Failure::Passing {
                why: format!("the answer is {status}: {why}"),
                after: wanted_delay(&headers),
                has_progressed: false,
                is_absent: false,
            };
        }
        let About {
            repo,
            revision,
            path,
        } = about.clone();
        let has_token = self.http.settings.token.is_some();
        let endpoint = &self.http.settings.endpoint;
        // Storage knows nothing of repositories: an address of it that has run out is refused with 403.
        if !self.http.is_hub(url) {
            return Failure::passing(format!("the storage answers {status}: {why}"));
        }
        Failure::Final(match (code, status) {
            ("GatedRepo", _) => HubError::Gated {
                page: format!("{endpoint}/{}", repo.address()),
                repo,
                has_token,
            },
            ("RevisionNotFound", _) => HubError::NoRevision { repo, revision },
            ("EntryNotFound", _) => HubError::NoFile {
                repo,
                revision,
                path: path.unwrap_or_default(),
            },
            (_, 401) if has_token => HubError::Unauthorized {
                repo,
                why,
                page: format!("{endpoint}/settings/tokens"),
            },
            ("RepoNotFound", _) | (_, 401) => HubError::NoRepo { repo, has_token },
            (_, 403) => HubError::Forbidden {
                repo,
                why,
                has_token,
            },
            (_, 404) => match path {
                Some(path) => HubError::NoFile {
                    repo,
                    revision,
                    path,
                },
                None => HubError::NoRepo { repo, has_token },
            },
            _ => HubError::Status {
                url: shown(url),
                status,
                why,
            },
        })
    }
}

/// Whom a header is for.
#[derive(Clone, Copy)]
pub(crate) enum For {
    Hub,
    All,
}

/// A server that does not prove who it is will not do so in a moment either.
fn untrusted(url: &str, error: &ureq::Error) -> Option<HubError> {
    let is_meant = match error {
        ureq::Error::Rustls(_) => true,
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::InvalidData,
        _ => false,
    };
    is_meant.then(|| HubError::Untrusted {
        url: shown(url),
        why: error.to_string(),
    })
}

/// What went wrong on the line.
pub(crate) fn passing(error: ureq::Error) -> Failure {
    let is_absent = match &error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Io(error) => {
            let is_refused = matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
            );
            // A name that is not found has no kind of its own in the standard library.
            is_refused || error.to_string().contains("lookup address")
        }
        _ => false,
    };
    Failure::Passing {
        why: error.to_string(),
        after: None,
        has_progressed: false,
        is_absent,
    }
}

/// How long the server asks to wait: `Retry-After` in seconds, or the Hub's `RateLimit: "api";r=0;t=55`.
fn wanted_delay(headers: &HeaderMap) -> Option<Duration> {
    let seconds = |text: &str| text.trim().parse().ok().map(Duration::from_secs);
    if let Some(after) = text(headers, "retry-after").and_then(seconds) {
        return Some(after);
    }
    let limit = text(headers, "ratelimit")?;
    let value = |name| {
        limit
            .split(';')
            .find_map(|part| part.trim().strip_prefix(name))
    };
    // A second more, as both clocks are read in whole ones.
    let reset = seconds(value("t=")?)? + Duration::from_secs(1);
    (value("r=")? == "0").then_some(reset)
}

/// The reason in an answer of the API, else its first line if that is for people.
fn message(body: &str) -> Option<String> {
    let json: Option<serde_json::Value> = serde_json::from_str(body).ok();
    if let Some(error) = json.as_ref().and_then(|json| json.get("error")?.as_str()) {
        return Some(error.to_owned());
    }
    let line = body.lines().next()?.trim();
    (!line.is_empty() && !line.starts_with('<') && line.len() < 300).then(|| line.to_owned())
}

/// An address without its query, which may be a signature.
pub(crate) fn shown(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}

/// Where `Location: next` leads from `url`.
fn joined(url: &str, next: &str) -> String {
    if next.contains("://") {
        return next.to_owned();
    }
    let scheme_end = url.find("://").map_or(0, |at| at + 3);
    if let Some(host) = next.strip_prefix("//") {
        return format!("{}{host}", &url[..scheme_end]);
    }
    let host_end = url[scheme_end..]
        .find(['/', '?'])
        .map_or(url.len(), |at| scheme_end + at);
    format!("{}/{}", &url[..host_end], next.trim_start_matches('/'))
}

/// Percent-encodes all that is not plain in a path, `/` too if `is_one_part`.
pub(crate) fn quoted(text: &str, is_one_part: bool) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric()
            || b"-_.~".contains(&byte)
            || (byte == b'/' && !is_one_part);
        if is_plain {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(
            ureq::http::HeaderName::from_static(name),
            value.parse().unwrap(),
        )])
    }

    #[test]
    fn a_server_says_how_long_to_wait_in_two_ways() {
        let wanted = |name, value| wanted_delay(&headers(name, value)).map(|wait| wait.as_secs());
        assert_eq!(wanted("retry-after", "7"), Some(7));
        assert_eq!(wanted("ratelimit", "\"api\";r=0;t=55"), Some(56));
        assert_eq!(wanted("ratelimit", "\"api\";r=3;t=55"), None);
        assert_eq!(wanted("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT"), None);
    }

    #[test]
    fn a_redirect_leads_to_another_host_or_elsewhere_on_this_one() {
        assert_eq!(joined("http://a:1/x/y?z=1", "/q"), "http://a:1/q");
        assert_eq!(joined("https://a/x", "//b/q"), "https://b/q");
        assert_eq!(joined("https://a/x", "http://c/q?s=1"), "http://c/q?s=1");
        assert_eq!(joined("https://a", "q"), "https://a/q");
    }

    #[test]
    fn an_address_is_shown_without_the_signature_in_it() {
        assert_eq!(shown("https://cdn/x?Signature=secret"), "https://cdn/x");
    }

    #[test]
    fn paths_are_quoted_but_for_their_slashes() {
        assert_eq!(quoted("a b/ü#?.txt", false), "a%20b/%C3%BC%23%3F.txt");
        assert_eq!(quoted("refs/pr/1", true), "refs%2Fpr%2F1");
    }
}
