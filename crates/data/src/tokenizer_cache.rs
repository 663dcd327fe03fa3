//! The tokenizer of a data set: given, or trained on a sample of it at first use and kept.
//!
//! A trained tokenizer is a pure function of the sample and the vocabulary size, and a hash of
//! these names its folder: `~/.cache/tpu-train/tokenizers/<hash>/` (`$XDG_CACHE_HOME` counts).
//! Changed data makes another one. Files are written aside and renamed, so processes that train
//! the same one at once do no harm. A cache that cannot be read or written costs seconds, not the run.

use std::env;
use std::path::{Path, PathBuf};

use crate::config::TokenizerConfig;
use crate::error::DataError;
use crate::order::{Order, Shard, permute};
use crate::row::Row;
use crate::source::Source;
use crate::tokenizer::{Tokenizer, boundary_before};

/// To be raised when training changes, so that old files are not taken for its result.
const FORMAT: u64 = 2;
/// Enough for every word of `stories` and the common ones of any text; trains in well under a second.
const SAMPLE_BYTES: usize = 1 << 20;
const SAMPLE_KEY: u64 = 0;

/// The folder for what can be made again: `$XDG_CACHE_HOME/tpu-train`, else `~/.cache/tpu-train`.
pub fn cache_folder() -> Option<PathBuf> {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("tpu-train"))
}

impl Tokenizer {
    /// The tokenizer that `config` names, else the one of the training split `train`, kept in the
    /// folder `cache`.
    pub fn open(
        config: &TokenizerConfig,
        train: &dyn Source,
        cache: Option<&Path>,
    ) -> Result<Self, DataError> {
        Self::open_with(config, train, cache, false)
    }

    /// The same; one that is trained has a token that hides others if `has_mask`, of its `vocab_size` the last.
    pub fn open_with(
        config: &TokenizerConfig,
        train: &dyn Source,
        cache: Option<&Path>,
        has_mask: bool,
    ) -> Result<Self, DataError> {
        let eos_token = config.eos_token.as_deref();
        if let Some(path) = &config.path {
            return Self::load(Path::new(path), eos_token);
        }
        let (least, what) = match has_mask {
            false => (257, "the 256 bytes and the end of text"),
            true => (258, "the 256 bytes, the end of text and the mask"),
        };
        if config.vocab_size < least {
            return Err(DataError::BadValue {
                key: "data.tokenizer.vocab_size",
                message: format!("{} is under {least}, {what}", config.vocab_size),
            });
        }
        let texts = sample(train)?;
        let folder = cache.map(|cache| {
            cache
                .join("tokenizers")
                .join(key(&texts, config.vocab_size, has_mask))
        });
        if let Some(folder) = &folder
            && let Ok(tokenizer) = Self::load(folder, None)
        {
            return Ok(tokenizer);
        }
        let texts = texts.iter().map(String::as_str);
        let tokenizer = Self::train(texts, config.vocab_size, has_mask)?;
        if let Some(folder) = &folder {
            let _ = tokenizer.save(folder);
        }
        Ok(tokenizer)
    }

    /// Writes the files of this tokenizer, each whole or not at all; `tokenizer.json` comes last.
    pub fn save(&self, folder: &Path) -> Result<(), DataError> {
        tt_disk::create_dir(folder).map_err(|error| DataError::io(folder)(error.into()))?;
        let (main, side): (Vec<_>, Vec<_>) = self
            .files()
            .iter()
            .partition(|(name, _)| *name == "tokenizer.json");
        for (name, bytes) in side.into_iter().chain(main) {
            let path = folder.join(name);
            tt_disk::write_file(&path, bytes)
                .map_err(|error| DataError::io(&path)(error.into()))?;
        }
        Ok(())
    }
}

/// Rows from all over the source, the same at every run.
fn sample(source: &dyn Source) -> Result<Vec<String>, DataError> {
    let num_rows = source.num_rows();
    let mut texts = Vec::new();
    let mut bytes = 0;
    let mut row = Row::default();
    // Of rows that lie in blocks, those that are read together.
    let order = match source.blocks() {
        Some(_) => Some(Order::of(SAMPLE_KEY, Shard::default(), source)?),
        None => None,
    };
    for index in 0..num_rows.unwrap_or(u64::MAX) {
        let index = match &order {
            Some(order) => order.row(0, index),
            None => num_rows.map_or(index, |len| permute(SAMPLE_KEY, len, index)),
        };
        source.read(index, &mut row)?;
        row.fields.for_each_text(&mut |text| {
            // Of a book the beginning will do.
            let text = &text[..boundary_before(text, SAMPLE_BYTES)];
            bytes += text.len();
            texts.push(text.to_owned());
        });
        if bytes >= SAMPLE_BYTES {
            break;
        }
    }
    Ok(texts)
}

fn key(texts: &[String], vocab_size: usize, has_mask: bool) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&FORMAT.to_le_bytes());
    hasher.update(&(vocab_size as u64).to_le_bytes());
    if has_mask {
        hasher.update(b"mask");
    }
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}
