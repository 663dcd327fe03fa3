//! Weights, adapters and tokenizers, by the names that users give them: a run, a checkpoint, a folder, a file, or a
//! repository on the Hugging Face Hub, of which the files that are needed are fetched into the cache that Python shares.
//!
//! What is there as a file or a folder is that, whatever it is called.

use std::cell::RefCell;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use tt_hub::{Hub, HubError, Progress, Reference, RepoKind, Snapshot, Wait};
use tt_run::run_dir::weights_folder;

use crate::out;

/// What describes a model and its tokenizer.
const DESCRIPTIONS: &[&str] = &[
    "config.json",
    "generation_config.json",
    ADAPTER_CONFIG,
    "1_Pooling/config.json",
];
const TOKENIZERS: &[&str] = &[
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
];
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Where this is, the weights are an adapter's, in peft's layout.
const ADAPTER_CONFIG: &str = "adapter_config.json";
const ADAPTER: &str = "adapter_model.safetensors";
/// Files that take long enough for one to wonder.
const SHOWN_BYTES: u64 = 4 << 20;

/// How much of a model is needed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Need {
    Tokenizer,
    /// All but the weights.
    Description,
    Weights,
}

/// What `text` names on the Hub: `hf://...`, or `user/name` unless it is a path here.
pub(crate) fn named(text: &str) -> Option<Result<Reference, HubError>> {
    if Reference::is_url(text) {
        return Some(Reference::parse(text, RepoKind::Model));
    }
    let is_file = [".safetensors", ".gguf", ".json"]
        .iter()
        .any(|end| text.ends_with(end));
    let is_id = may_be_id(text) && !is_file && !Path::new(text).exists();
    let reference = is_id.then(|| Reference::parse(text, RepoKind::Model));
    reference.filter(Result::is_ok)
}

/// Whether `text` has the form of `user/name`, which a path may have too.
pub(super) fn may_be_id(text: &str) -> bool {
    text.matches('/').count() == 1 && !text.starts_with(['.', '/', '~'])
}

/// The folder, or the file, that `text` means: the newest checkpoint of a run, what it names on the Hub, or else itself.
pub(crate) fn local(text: &str, need: Need) -> anyhow::Result<PathBuf> {
    let Some(reference) = named(text) else {
        let path = Path::new(text);
        return Ok(if path.is_file() {
            path.to_owned()
        } else {
            weights_folder(path)?
        });
    };
    let reference = reference?;
    let fetched = fetch(&reference, need);
    if Reference::is_url(text) {
        return fetched;
    }
    fetched.with_context(|| format!("there is no {text} here, so the Hub was asked"))
}

fn fetch(reference: &Reference, need: Need) -> anyhow::Result<PathBuf> {
    if reference.repo.kind != RepoKind::Model {
        bail!("{reference} is data, not a model");
    }
    let hub = Hub::from_env()?;
    let snapshot = hub.resolve(reference, Wait::QUIET)?;
    let files = Files {
        hub: &hub,
        reference,
        snapshot: &snapshot,
    };
    let path = reference.path.as_deref();
    // A file of several in one repository, as GGUF files are.
    let file = path.filter(|path| snapshot.file(path).is_some());
    let folder = match file {
        Some(file) => file.rsplit_once('/').map_or("", |(folder, _)| folder),
        None => path.unwrap_or_default(),
    };
    let within = |name: &str| match folder {
        "" => name.to_owned(),
        folder => format!("{folder}/{name}"),
    };
    let described = if need == Need::Tokenizer {
        &[]
    } else {
        DESCRIPTIONS
    };
    let has_json = snapshot.file(&within(TOKENIZERS[0])).is_some();
    for name in described.iter().chain(TOKENIZERS) {
        // What a tokenizer.json is made of is of use without one alone.
        let is_older = [
            "vocab.json",
            "merges.txt",
            "vocab.txt",
            "added_tokens.json",
            "tokenizer.model",
        ]
        .contains(name);
        let name = within(name);
        if snapshot.file(&name).is_some() && !(is_older && has_json) {
            files.get(&name)?;
        }
    }
    let root = hub.folder(&snapshot);
    // A GGUF file describes itself, so it is needed whole.
    if let Some(file) = file {
        return if need == Need::Weights || file.ends_with(".gguf") {
            files.get(file)
        } else {
            Ok(root.join(folder))
        };
    }
    if need == Need::Weights {
        files.get_weights(&within)?;
    }
    let path = root.join(folder);
    if !path.is_dir() {
        bail!("{reference} has neither a configuration nor a tokenizer");
    }
    Ok(path)
}

/// The files of a snapshot, shown while they are fetched.
pub(super) struct Files<'a> {
    pub(super) hub: &'a Hub,
    pub(super) reference: &'a Reference,
    pub(super) snapshot: &'a Snapshot,
}

impl Files<'_> {
    pub(super) fn get(&self, path: &str) -> anyhow::Result<PathBuf> {
        let shown = Shown::new("downloading");
        let wait = Wait {
            interrupt: &|| false, // until a run has something to save, a signal ends the process
            progress: &|progress| shown.at(self.reference, progress),
        };
        let done = self.hub.download(self.snapshot, path, wait);
        shown.end();
        Ok(done?)
    }

    fn get_weights(&self, within: &dyn Fn(&str) -> String) -> anyhow::Result<()> {
        if self.snapshot.file(&within(ADAPTER_CONFIG)).is_some() {
            let adapter = within(ADAPTER);
            if self.snapshot.file(&adapter).is_none() {
                bail!("{} has no {ADAPTER}{}", self.reference, self.others());
            }
            self.get(&adapter)?;
            return Ok(());
        }
        let (weights, index) = (within(WEIGHTS), within(INDEX));
        if self.snapshot.file(&weights).is_some() {
            self.get(&weights)?;
            return Ok(());
        }
        if self.snapshot.file(&index).is_none() {
            bail!("{} has no {WEIGHTS}{}", self.reference, self.others());
        }
        let path = self.get(&index)?;
        let index: Value = tt_disk::read_json(&path)?;
        let shards = index["weight_map"].as_object();
        let shards = shards.with_context(|| format!("{}: no weight_map", path.display()))?;
        let mut names: Vec<_> = shards.values().filter_map(Value::as_str).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            self.get(&within(name))?;
        }
        Ok(())
    }

    /// What else could be meant.
    fn others(&self) -> String {
        let of = |end: &str| {
            let files = self.snapshot.files.iter();
            let mut found = files.filter(|file| file.path.ends_with(end));
            found.next().map(|file| file.path.as_str())
        };
        if let Some(gguf) = of(".gguf") {
            return format!(
                "; name one of its GGUF files, such as {}/{gguf}",
                self.snapshot.repo
            );
        }
        match of(".bin") {
            Some(file) => format!(
                ": weights as in {file} are programs in Python's pickle format, which are not run; convert them with save_pretrained(..., safe_serialization=True)"
            ),
            None => String::new(),
        }
    }
}

/// A bar for a person, a line for a log.
pub(crate) struct Shown {
    /// "downloading".
    doing: &'static str,
    /// Of the file of this path.
    bar: RefCell<Option<(String, ProgressBar)>>,
}

impl Shown {
    pub(crate) fn new(doing: &'static str) -> Self {
        Self {
            doing,
            bar: RefCell::default(),
        }
    }

    pub(crate) fn at(&self, reference: &Reference, progress: Progress) {
        let Progress {
            path,
            done_bytes,
            total_bytes,
        } = progress;
        let is_other = |bar: &Option<(String, _)>| bar.as_ref().is_none_or(|(of, _)| *of != path);
        if is_other(&self.bar.borrow()) {
            self.end();
            if total_bytes < SHOWN_BYTES || done_bytes == total_bytes {
                return;
            }
            let bar = self.begin(reference, &path, total_bytes);
            self.bar.replace(Some((path, bar)));
        }
        if let Some((_, bar)) = &*self.bar.borrow() {
            bar.set_position(done_bytes);
        }
    }

    fn begin(&self, reference: &Reference, path: &str, total_bytes: u64) -> ProgressBar {
        if io::stderr().is_terminal() {
            let template = "{msg} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
            let style = ProgressStyle::with_template(template);
            let bar = ProgressBar::new(total_bytes);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(path.to_owned());
            return bar;
        }
        let (doing, megabytes) = (self.doing, total_bytes / 1_000_000);
        out::error_line(format_args!(
            "{doing} {path} of {reference} ({megabytes} MB)"
        ));
        ProgressBar::hidden()
    }

    pub(crate) fn end(&self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
