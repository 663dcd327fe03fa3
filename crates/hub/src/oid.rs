//! The name that the Hub gives to the content of a file: the SHA-256 of what lies in large file storage, else git's SHA-1.

use std::fmt::{self, Write};
use std::io::{self, Read};

use sha1::Sha1;
use sha2::{Digest, Sha256};

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Oid {
    Sha256(String),
    /// Of `blob LENGTH\0` and the content.
    Git(String),
}

impl Oid {
    /// Reads an ETag, with the quotes and the `W/` that proxies put around it. None: it is of another kind.
    pub(crate) fn from_etag(etag: &str) -> Option<Self> {
        let etag = etag.trim();
        let hex = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
        let is_hex = hex
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match hex.len() {
            64 if is_hex => Some(Self::Sha256(hex.to_owned())),
            40 if is_hex => Some(Self::Git(hex.to_owned())),
            _ => None,
        }
    }

    pub fn hex(&self) -> &str {
        let (Self::Sha256(hex) | Self::Git(hex)) = self;
        hex
    }

    /// Of the same kind, what `content` of `length` bytes is named.
    pub(crate) fn of_same_kind(&self, length: u64, content: impl Read) -> io::Result<Self> {
        match self {
            Self::Sha256(_) => Self::sha256(content),
            Self::Git(_) => Self::git(length, content),
        }
    }

    pub(crate) fn sha256(content: impl Read) -> io::Result<Self> {
        Ok(Self::Sha256(hex_of(Sha256::new(), content)?))
    }

    pub(crate) fn git(length: u64, content: impl Read) -> io::Result<Self> {
        let hash = Sha1::new_with_prefix(format!("blob {length}\0"));
        Ok(Self::Git(hex_of(hash, content)?))
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(hex) => write!(f, "SHA-256 {hex}"),
            Self::Git(hex) => write!(f, "git's SHA-1 {hex}"),
        }
    }
}

fn hex_of(mut hash: impl Digest, mut content: impl Read) -> io::Result<String> {
    let mut buffer = vec![0; 1 << 18];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => hash.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    let mut hex = String::new();
    for byte in hash.finalize() {
        let _ = write!(hex, "{byte:02x}");
    }
    Ok(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_named_as_git_and_sha256sum_name_it() {
        let git = Oid::git(6, &b"hello\n"[..]).unwrap();
        assert_eq!(git.hex(), "ce013625030ba8dba906f756967f9e9ca394464a");
        let sha = Oid::sha256(&b"hello\n"[..]).unwrap();
        assert_eq!(
            sha.hex(),
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
        );
        assert_eq!(git.of_same_kind(6, &b"hello\n"[..]).unwrap(), git);
    }

    #[test]
    fn an_etag_is_read_in_any_dress_and_others_are_left() {
        let hex = "ce013625030ba8dba906f756967f9e9ca394464a";
        for etag in [format!("\"{hex}\""), format!("W/\"{hex}\""), hex.to_owned()] {
            assert_eq!(Oid::from_etag(&etag), Some(Oid::Git(hex.to_owned())));
        }
        assert_eq!(Oid::from_etag("\"66f1-2c\""), None);
    }
}
