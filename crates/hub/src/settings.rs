//! What a Hub client goes by, from the variables that Python's `huggingface_hub` reads.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::HubError;

const ENDPOINT: &str = "https://huggingface.co";

/// A secret that no message, log or debug print shows.
#[derive(Clone, Eq, PartialEq)]
pub struct Token(String);

impl Token {
    /// Without the blanks and line ends that come along from files and secrets. None: nothing is left.
    pub fn new(text: &str) -> Result<Option<Self>, &'static str> {
        let text = text.trim();
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a token is one word of ASCII");
        }
        Ok((!text.is_empty()).then(|| Self(text.to_owned())))
    }

    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// How long to wait, and how often.
#[derive(Clone, Debug)]
pub struct Patience {
    pub connect: Duration,
    /// Between one piece of an answer and the next.
    pub read: Duration,
    /// Attempts in a row that bring nothing new.
    pub attempts: u32,
    /// Before the second attempt; doubled before each further one.
    pub delay: Duration,
    /// The longest of these, and the longest that a server may ask for.
    pub max_delay: Duration,
    /// For another process that downloads the same file and gets nothing done.
    pub lock: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            read: Duration::from_secs(30),
            attempts: 6,
            delay: Duration::from_secs(1),
            // The Hub counts requests in windows of five minutes.
            max_delay: Duration::from_secs(320),
            lock: Duration::from_secs(900),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Without a slash at its end.
    pub endpoint: String,
    /// The folder of the repositories' folders.
    pub cache: PathBuf,
    pub token: Option<Token>,
    /// The variable that forbids requests.
    pub offline: Option<&'static str>,
    /// Off: files lie in the snapshots themselves.
    pub symlinks: bool,
    pub patience: Patience,
}

impl Settings {
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_vars(&|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn from_vars(var: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let user = var("HOME").map(PathBuf::from);
        let path = |name| var(name).map(|value| expanded(Path::new(&value), user.as_deref()));
        let caches = path("XDG_CACHE_HOME").or_else(|| Some(user.as_ref()?.join(".cache")));
        let home = path("HF_HOME").or_else(|| Some(caches?.join("huggingface")));
        let within_home = |name, variable| match &home {
            Some(home) => Ok(home.join(name)),
            None => Err(HubError::Setting {
                variable,
                why: "is not set, nor are HF_HOME and HOME".into(),
            }),
        };
        let cache = match path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE")) {
            Some(cache) => cache,
            None => within_home("hub", "HF_HUB_CACHE")?,
        };
        let is_on = |name: &&'static str| {
            let value = var(name).map(|value| value.to_string_lossy().to_uppercase());
            value.is_some_and(|value| matches!(value.as_str(), "1" | "ON" | "YES" | "TRUE"))
        };
        let mut patience = Patience::default();
        let timeout = "HF_HUB_DOWNLOAD_TIMEOUT";
        if let Some(value) = var(timeout) {
            let seconds = value.to_str().and_then(|value| value.parse().ok());
            let seconds = seconds.filter(|seconds| *seconds > 0);
            patience.read = Duration::from_secs(seconds.ok_or_else(|| HubError::Setting {
                variable: timeout,
                why: format!("`{}` is no number of seconds", value.display()),
            })?);
        }
        Ok(Self {
            endpoint: endpoint(var("HF_ENDPOINT"))?,
            cache,
            token: token(
                var,
                path("HF_TOKEN_PATH").or_else(|| Some(home.as_ref()?.join("token"))),
            )?,
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
                .into_iter()
                .find(is_on),
            symlinks: !is_on(&"HF_HUB_DISABLE_SYMLINKS"),
            patience,
        })
    }
}

fn endpoint(value: Option<OsString>) -> Result<String, HubError> {
    let Some(value) = value else {
        return Ok(ENDPOINT.to_owned());
    };
    let refuse = |why: String| HubError::Setting {
        variable: "HF_ENDPOINT",
        why,
    };
    let text = value.to_string_lossy();
    let text = text.trim().trim_end_matches('/');
    let host = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    match host {
        // It goes into messages, so it may hold no password.
        Some(host) if host.contains('@') => Err(refuse(
            "may not hold a user or a password; use HF_TOKEN".into(),
        )),
        Some(host) if !host.is_empty() && !host.contains(['?', '#', ' ']) => Ok(text.to_owned()),
        _ => Err(refuse(format!("`{text}` is no address such as {ENDPOINT}"))),
    }
}

/// The variable's, else the one that `hf auth login` has left.
fn token(
    var: &dyn Fn(&str) -> Option<OsString>,
    file: Option<PathBuf>,
) -> Result<Option<Token>, HubError> {
    for variable in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        let Some(value) = var(variable) else { continue };
        let read = Token::new(&value.to_string_lossy());
        let token = read.map_err(|why| HubError::Setting {
            variable,
            why: why.to_owned(),
        })?;
        if token.is_some() {
            return Ok(token);
        }
    }
    let Some(text) = file.and_then(|file| std::fs::read_to_string(file).ok()) else {
        return Ok(None);
    };
    Token::new(&text).map_err(|why| HubError::Setting {
        variable: "HF_TOKEN_PATH",
        why: why.to_owned(),
    })
}

/// `~` as a shell would take it.
fn expanded(path: &Path, user: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), user) {
        (Ok(rest), Some(user)) => user.join(rest),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(vars: &[(&str, &str)]) -> Result<Settings, HubError> {
        Settings::from_vars(&|name| {
            let found = vars
                .iter()
                .find(|(other, value)| *other == name && !value.is_empty());
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_cache_is_where_python_has_it() {
        for (vars, cache) in [
            (&[("HOME", "/u")][..], "/u/.cache/huggingface/hub"),
            (
                &[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")],
                "/x/huggingface/hub",
            ),
            (&[("HOME", "/u"), ("HF_HOME", "~/hf")], "/u/hf/hub"),
            (
                &[("HF_HOME", "/hf"), ("HUGGINGFACE_HUB_CACHE", "/old")],
                "/old",
            ),
            (
                &[
                    ("HF_HOME", "/hf"),
                    ("HUGGINGFACE_HUB_CACHE", "/old"),
                    ("HF_HUB_CACHE", "/new"),
                ],
                "/new",
            ),
        ] {
            assert_eq!(settings(vars).unwrap().cache, Path::new(cache));
        }
        assert!(
            settings(&[])
                .unwrap_err()
                .to_string()
                .contains("HF_HUB_CACHE")
        );
    }

    #[test]
    fn a_token_is_taken_without_its_line_end_and_shown_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let home = folder.path().to_str().unwrap();
        for (variable, kept) in [
            ("hf_secret\r\n", "hf_secret"),
            ("", "hf_file"),
            (" \n", "hf_file"),
        ] {
            let settings = settings(&[("HF_HOME", home), ("HF_TOKEN", variable)]).unwrap();
            assert_eq!(settings.token.as_ref().unwrap().0, kept);
            assert!(!format!("{settings:?}").contains("hf_"), "{settings:?}");
        }
        let error = settings(&[("HF_HOME", home), ("HF_TOKEN", "hf_two words")]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hf_two"));
        std::fs::write(folder.path().join("other"), "hf_other").unwrap();
        let path = folder.path().join("other");
        let vars = [("HF_HOME", home), ("HF_TOKEN_PATH", path.to_str().unwrap())];
        assert_eq!(settings(&vars).unwrap().token.unwrap().0, "hf_other");
    }

    #[test]
    fn an_endpoint_that_is_no_address_is_refused() {
        let of = |value| settings(&[("HF_HOME", "/hf"), ("HF_ENDPOINT", value)]);
        assert_eq!(
            of("http://127.0.0.1:8000/").unwrap().endpoint,
            "http://127.0.0.1:8000"
        );
        assert_eq!(of("").unwrap().endpoint, ENDPOINT);
        for wrong in [
            "huggingface.co",
            "ftp://x",
            "https://",
            "https://user:hunter2@x",
        ] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(
                error.starts_with("HF_ENDPOINT") && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn offline_says_which_variable_forbids() {
        let of = |name, value| {
            settings(&[("HF_HOME", "/hf"), (name, value)])
                .unwrap()
                .offline
        };
        assert_eq!(of("HF_HUB_OFFLINE", "1"), Some("HF_HUB_OFFLINE"));
        assert_eq!(
            of("TRANSFORMERS_OFFLINE", "yes"),
            Some("TRANSFORMERS_OFFLINE")
        );
        assert_eq!(of("HF_HUB_OFFLINE", "0"), None);
    }
}
