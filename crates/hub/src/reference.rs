//! What names a repository on the Hub, and a file in it.
//!
//! `hf://user/name` and `hf://models/user/name` are models, `hf://datasets/user/name` data; `@revision` (a branch, a tag or
//! a commit) follows the name, a path follows that. A plain `user/name[@revision]` is what the place it stands in is about,
//! so its kind is given to [`Reference::parse`]. A `/` within a revision is written `%2F`, as in Python's `hf://`; of
//! `refs/pr/1` and `refs/convert/parquet`, which the Hub itself makes, it may stand as it is.

use std::fmt;

use crate::HubError;

/// The revision of a reference that names none.
pub const DEFAULT_REVISION: &str = "main";

const SCHEME: &str = "hf://";

/// What a repository holds.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum RepoKind {
    Model,
    Dataset,
}

impl RepoKind {
    /// As in the API's addresses and the cache's folders: "models".
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }

    /// As in the body of a request: "model".
    pub(crate) fn singular(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "dataset",
        }
    }
}

/// A repository: `user/name`, or the bare `name` of one of the Hub's first.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Repo {
    pub kind: RepoKind,
    pub id: String,
}

impl Repo {
    /// As in the addresses of pages and files, where models go without a prefix.
    pub(crate) fn address(&self) -> String {
        match self.kind {
            RepoKind::Model => self.id.clone(),
            RepoKind::Dataset => format!("datasets/{}", self.id),
        }
    }

    /// As in the addresses of the API.
    pub(crate) fn api(&self) -> String {
        format!("api/{}/{}", self.kind.plural(), self.id)
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.address())
    }
}

/// A repository at a revision, and perhaps a path or a pattern within it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Reference {
    pub repo: Repo,
    /// A branch, a tag or a commit.
    pub revision: String,
    pub path: Option<String>,
}

impl Reference {
    /// Whether `text` can only mean the Hub.
    pub fn is_url(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Reads `hf://...`, or an id of a repository of `kind`.
    pub fn parse(text: &str, kind: RepoKind) -> Result<Self, HubError> {
        let refuse = |why: &str| HubError::Reference {
            text: text.to_owned(),
            why: why.to_owned(),
        };
        let url = text.strip_prefix(SCHEME);
        if url.is_none() && text.contains("://") {
            return Err(refuse("the Hub is named by hf://"));
        }
        let (kind, rest) = match url {
            Some(url) => {
                kind_of(url).ok_or_else(|| refuse("only models and datasets can be read"))?
            }
            None => (kind, text),
        };
        let (name, revision, path) = parts(rest);
        let path = path.filter(|path| !path.is_empty());
        if url.is_none() && path.is_some() {
            return Err(refuse(
                "an id is user/name or user/name@revision; a file in it is named hf://...",
            ));
        }
        let revision = match revision {
            Some(revision) => {
                decoded(revision).ok_or_else(|| refuse("the revision is not UTF-8"))?
            }
            None => DEFAULT_REVISION.to_owned(),
        };
        check_id(name).map_err(refuse)?;
        check_path(&revision).map_err(|_| refuse("that is no name of a revision"))?;
        if let Some(path) = path {
            check_path(path).map_err(refuse)?;
        }
        Ok(Self {
            repo: Repo {
                kind,
                id: name.to_owned(),
            },
            revision,
            path: path.map(str::to_owned),
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repo)?;
        if self.revision != DEFAULT_REVISION {
            write!(f, "@{}", self.revision.replace('/', "%2F"))?;
        }
        if let Some(path) = &self.path {
            write!(f, "/{path}")?;
        }
        Ok(())
    }
}

/// The kind that a URL without its scheme begins with, and the rest. None: a kind that is not read here.
fn kind_of(url: &str) -> Option<(RepoKind, &str)> {
    let (first, rest) = url.split_once('/').unwrap_or((url, ""));
    match first {
        "datasets" => Some((RepoKind::Dataset, rest)),
        "models" => Some((RepoKind::Model, rest)),
        "spaces" | "buckets" | "kernels" => None,
        _ => Some((RepoKind::Model, url)),
    }
}

/// The id, the revision and the path.
fn parts(text: &str) -> (&str, Option<&str>, Option<&str>) {
    let at = text.find('@');
    // A path may hold an `@` too: the revision's comes before the second slash.
    let second_slash = text.match_indices('/').nth(1).map(|(at, _)| at);
    match at.filter(|at| second_slash.is_none_or(|slash| *at < slash)) {
        Some(at) => {
            let (name, rest) = (&text[..at], &text[at + 1..]);
            let special = ["refs/pr/", "refs/convert/"]
                .into_iter()
                .find(|special| rest.starts_with(special));
            let from = special.map_or(0, str::len);
            match rest[from..].find('/') {
                Some(slash) => {
                    let slash = from + slash;
                    (name, Some(&rest[..slash]), Some(&rest[slash + 1..]))
                }
                None => (name, Some(rest), None),
            }
        }
        None => match second_slash {
            Some(slash) => (&text[..slash], None, Some(&text[slash + 1..])),
            None => (text.trim_end_matches('/'), None, None),
        },
    }
}

/// Percent-decoding of a revision.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = match (first, tail) {
            (b'%', [high, low, ..]) => std::str::from_utf8(&[*high, *low])
                .ok()
                .and_then(|hex| u8::from_str_radix(hex, 16).ok()),
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = &tail[if code.is_some() { 2 } else { 0 }..];
    }
    String::from_utf8(bytes).ok()
}

/// The Hub's own rules for ids.
fn check_id(id: &str) -> Result<(), &'static str> {
    let parts: Vec<_> = id.split('/').collect();
    if parts.len() > 2 || parts.iter().any(|part| part.is_empty()) {
        return Err("a repository is named user/name");
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_edge = |c: char| matches!(c, '-' | '.');
    for part in parts {
        if !part.chars().all(is_plain) {
            return Err("a name on the Hub has letters, digits and -_. only");
        }
        // `--` parts user from name in the cache's folders.
        if part.starts_with(is_edge)
            || part.ends_with(is_edge)
            || part.contains("--")
            || part.contains("..")
        {
            return Err(
                "a name on the Hub neither begins nor ends with - or ., nor has -- or .. in it",
            );
        }
    }
    Ok(())
}

/// Whether a path stays within the folder it is put in: the server's listing is not trusted either.
pub(crate) fn check_path(path: &str) -> Result<(), &'static str> {
    let is_inside = |part: &str| !matches!(part, "" | "." | "..");
    if path.split('/').all(is_inside) && !path.contains(['\\', '\0', '\r', '\n']) {
        Ok(())
    } else {
        Err("a path in a repository has no empty part, `.`, `..` or `\\`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Reference {
        Reference::parse(text, RepoKind::Model).unwrap()
    }

    fn why(text: &str) -> String {
        Reference::parse(text, RepoKind::Model)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_url_says_kind_id_revision_and_path() {
        let table = [
            ("hf://datasets/u/n", RepoKind::Dataset, "u/n", "main", None),
            ("hf://u/n/", RepoKind::Model, "u/n", "main", None),
            ("hf://models/u/n@v1.0", RepoKind::Model, "u/n", "v1.0", None),
            (
                "hf://datasets/u/n@v1/data/*.parquet",
                RepoKind::Dataset,
                "u/n",
                "v1",
                Some("data/*.parquet"),
            ),
            (
                "hf://u/n/a@b.txt",
                RepoKind::Model,
                "u/n",
                "main",
                Some("a@b.txt"),
            ),
            (
                "hf://u/n@feature%2Fx/a",
                RepoKind::Model,
                "u/n",
                "feature/x",
                Some("a"),
            ),
            (
                "hf://datasets/u/n@refs/convert/parquet/x/0.parquet",
                RepoKind::Dataset,
                "u/n",
                "refs/convert/parquet",
                Some("x/0.parquet"),
            ),
            (
                "hf://datasets/u/n@refs/pr/12",
                RepoKind::Dataset,
                "u/n",
                "refs/pr/12",
                None,
            ),
            ("hf://gpt2", RepoKind::Model, "gpt2", "main", None),
            (
                "Qwen/Qwen2-0.5B",
                RepoKind::Model,
                "Qwen/Qwen2-0.5B",
                "main",
                None,
            ),
            (
                "Qwen/Qwen2-0.5B@abc",
                RepoKind::Model,
                "Qwen/Qwen2-0.5B",
                "abc",
                None,
            ),
        ];
        for (text, kind, id, revision, path) in table {
            let reference = parsed(text);
            assert_eq!(
                (reference.repo.kind, reference.repo.id.as_str()),
                (kind, id),
                "{text}"
            );
            assert_eq!(
                (reference.revision.as_str(), reference.path.as_deref()),
                (revision, path),
                "{text}"
            );
            assert_eq!(parsed(&reference.to_string()), reference, "{text}");
        }
        let plain = Reference::parse("u/n", RepoKind::Dataset).unwrap();
        assert_eq!(plain.to_string(), "hf://datasets/u/n");
    }

    #[test]
    fn what_names_no_repository_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "user/name"),
            ("hf://", "user/name"),
            ("hf://datasets", "user/name"),
            ("u//n", "user/name"),
            ("a/b/c", "hf://"),
            ("hf://u/n/../x", "`..`"),
            ("hf://u/n@", "revision"),
            ("hf://u/n@../../x", "revision"),
            ("hf://spaces/u/n", "only models and datasets"),
            ("https://example.org/u/n", "hf://"),
            ("u/na me", "letters"),
            ("u/-n", "begins"),
            ("u/n--m", "begins"),
        ] {
            let why = why(text);
            assert!(why.contains(reason) && why.contains(text), "{text}: {why}");
        }
    }
}
