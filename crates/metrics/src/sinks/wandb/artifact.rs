//! Checkpoints as artifacts of the server, by reference: it is told which files there are, their sizes and digests, and
//! where they lie. The files stay where they are.
//!
//! A manifest lists the files: of each its path in the folder, the MD5 of its content in base 64, its size and a
//! `file://` address. The artifact's own digest is the MD5, in hexadecimal, of `wandb-artifact-manifest-v1` and a line
//! `path:digest` for each file, by path. The server takes content that it knows for the same version.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use base64::Engine;
use serde_json::{Map, Value, json};

use super::chance::chance;
use super::digest::{hex, md5};

/// What the server calls the policy by which files are kept; of references nothing is.
pub(super) const STORAGE_POLICY: &str = "wandb-storage-policy-v1";
pub(super) const STORAGE_LAYOUT: &str = "V2";
/// Of artifacts, as the site groups them.
pub(super) const KIND: &str = "model";

/// A version of an artifact.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Artifact {
    /// The run's; for who sends a log. Empty: that of the key.
    pub(super) entity: String,
    /// The run's.
    pub(super) project: String,
    /// All versions of one name belong together.
    pub(super) name: String,
    pub(super) digest: String,
    /// JSON.
    pub(super) metadata: String,
    pub(super) aliases: Vec<String>,
    /// 128 letters and digits by which the server knows a version before it has a name for it.
    pub(super) client_id: String,
    pub(super) sequence_client_id: String,
    /// By path.
    pub(super) files: Vec<Referenced>,
}

/// A file that stays where it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Referenced {
    /// In the artifact.
    pub(super) path: String,
    /// MD5 in base 64.
    pub(super) digest: String,
    pub(super) address: String,
    pub(super) bytes: u64,
}

impl Artifact {
    /// The checkpoint of `step` in `dir`, of no project yet. Reads all of it, unless `is_over` says that nobody waits any more.
    pub(super) fn of_checkpoint(
        run_id: &str,
        step: u64,
        dir: &Path,
        is_over: &dyn Fn() -> bool,
    ) -> io::Result<Self> {
        let dir = std::path::absolute(dir)?;
        let mut files = Vec::new();
        collect(&dir, "", is_over, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let mut lines = "wandb-artifact-manifest-v1\n".to_owned();
        for file in &files {
            lines.push_str(&format!("{}:{}\n", file.path, file.digest));
        }
        let digest = md5(lines.as_bytes())?;
        Ok(Self {
            name: format!("checkpoint-{}", named(run_id)),
            digest: hex(&digest),
            metadata: json!({"step": step}).to_string(),
            aliases: vec!["latest".to_owned(), format!("step-{step}")],
            client_id: client_id(),
            sequence_client_id: client_id(),
            files,
            ..Self::default()
        })
    }

    /// The manifest as a file.
    pub(super) fn manifest(&self) -> String {
        let entry = |file: &Referenced| {
            json!({
                "digest": file.digest, "ref": file.address, "size": file.bytes, "skip_cache": false,
            })
        };
        let files = self.files.iter();
        let contents: Map<String, Value> =
            files.map(|file| (file.path.clone(), entry(file))).collect();
        json!({
            "version": 1,
            "storagePolicy": STORAGE_POLICY,
            "storagePolicyConfig": {"storageLayout": STORAGE_LAYOUT},
            "contents": contents,
        })
        .to_string()
    }
}

fn collect(
    dir: &Path,
    prefix: &str,
    is_over: &dyn Fn() -> bool,
    files: &mut Vec<Referenced>,
) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if path.is_dir() {
            collect(&path, &format!("{name}/"), is_over, files)?;
            continue;
        }
        let file = File::open(&path)?;
        let bytes = file.metadata()?.len();
        let digest = md5(Until { file, is_over })?;
        files.push(Referenced {
            path: name,
            digest: base64(&digest),
            address: format!("file://{}", path.display()),
            bytes,
        });
    }
    Ok(())
}

/// A file that is read for as long as somebody waits for it.
struct Until<'a> {
    file: File,
    is_over: &'a dyn Fn() -> bool,
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if (self.is_over)() {
            return Err(io::Error::other("the process ends"));
        }
        self.file.read(bytes)
    }
}

pub(super) fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// With no character that names of artifacts may not have.
fn named(id: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let chars = id.chars();
    chars.map(|c| if is_allowed(c) { c } else { '-' }).collect()
}

fn client_id() -> String {
    let digit = |_| char::from_digit((chance() * 36.0) as u32, 36).unwrap_or('0');
    (0..128).map(digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_reference_client() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b.bin"), "hello2").unwrap();
        fs::write(dir.path().join("a.txt"), "hello").unwrap();
        let artifact = Artifact::of_checkpoint("a/b", 3, dir.path(), &|| false).unwrap();
        assert_eq!(artifact.digest, "85559b2f7b6f2dfa62a53d3cc2ff2b0e");
        assert_eq!(artifact.name, "checkpoint-a-b");
        assert_eq!(artifact.client_id.len(), 128);
        let manifest: Value = serde_json::from_str(&artifact.manifest()).unwrap();
        let path = dir.path().display();
        let expected = json!({
            "digest": "XUFAKrxLKna5cZ2REBfFkg==", "ref": format!("file://{path}/a.txt"), "size": 5,
            "skip_cache": false,
        });
        assert_eq!(manifest["contents"]["a.txt"], expected);
        assert!(Artifact::of_checkpoint("a", 3, dir.path(), &|| true).is_err());
    }
}
