//! The data sets `parquet`, `arrow`, `jsonl` and `files`: rows in files on this machine, by split.
//!
//! What is given is a file, a glob or a list of them, each a part of the split `train`; or the same by split; or a folder:
//! one that `datasets` has saved, or one of files, whose names say which split they belong to as on the Hub
//! (`data/train-00000-of-00002.parquet`), all to `train` if none does.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::projection::Columns;
use super::split::Split;
use super::{Format, RemoteFiles, find, fingerprint, open};
use crate::concat::concat;
use crate::config::{DataConfig, typed_kwargs};
use crate::error::DataError;
use crate::part::{HeldOut, Slice};
use crate::source::{Dataset, Source};

const TRAIN: &str = "train";
const VALIDATION: &str = "validation";
const SPLIT: &str = "data.dataset.kwargs.split";
const VAL_SPLIT: &str = "data.dataset.kwargs.val_split";

/// `data.dataset.kwargs` of `parquet`, `arrow`, `jsonl` and `files`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FilesConfig {
    /// The files, where `data.path` is not enough: a path, glob or folder, a list of them, or either by split.
    pub data_files: Option<DataFiles>,
    /// What to train on: `train`, `train[:10%]`, `train[1000:]`, `train+test`.
    pub split: String,
    /// What to validate on, as `split`. Without it, the split `validation` if there is one, else `val_fraction` of the
    /// rows.
    pub val_split: Option<String>,
    /// The columns to read; those that the collator uses, if it is null.
    pub columns: Option<Vec<String>>,
}

impl Default for FilesConfig {
    fn default() -> Self {
        Self {
            data_files: None,
            split: TRAIN.to_owned(),
            val_split: None,
            columns: None,
        }
    }
}

impl FilesConfig {
    /// The splits that are read, of those `known`. Errors: one that is not understood, or not there.
    pub fn splits<'a>(
        &self,
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<Vec<String>, DataError> {
        let mut wanted = Vec::new();
        let mut want = |key: &'static str, text: &str| {
            for Split { name, .. } in parse(key, text)? {
                if !known.clone().any(|known| known == name) {
                    return Err(no_split(key, &name, known.clone()));
                }
                wanted.push(name);
            }
            Ok(())
        };
        want(SPLIT, &self.split)?;
        match &self.val_split {
            Some(text) => want(VAL_SPLIT, text)?,
            None if known.clone().any(|known| known == VALIDATION) => want(VAL_SPLIT, VALIDATION)?,
            None => {}
        }
        wanted.sort();
        wanted.dedup();
        Ok(wanted)
    }
}

fn no_split<'a>(key: &'static str, name: &str, known: impl Iterator<Item = &'a str>) -> DataError {
    let known = known.collect::<Vec<_>>().join(", ");
    let message = format!("no split `{name}`; there is {known}");
    DataError::BadValue { key, message }
}

/// `data.dataset.kwargs` of `hf`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HubConfig {
    /// `user/name`, `user/name@revision` or `hf://datasets/user/name`, unless `data.dataset.url` is that.
    pub path: Option<String>,
    /// The part of a data set that has several: one that its page names (`configs` at the top of `README.md`), else the
    /// folder, or the beginning of its files' paths.
    pub name: Option<String>,
    /// Which files; those that hold rows, if it is null: globs within the repository.
    pub data_files: Option<DataFiles>,
    /// As of `files`.
    pub split: Option<String>,
    /// As of `files`.
    pub val_split: Option<String>,
    /// As of `files`.
    pub columns: Option<Vec<String>>,
}

/// What is on the Hub has to be fetched first, which shows how far it is: this crate shows nothing.
pub(crate) fn open_hub(config: &DataConfig) -> Result<Dataset, DataError> {
    Err(DataError::BadValue {
        key: "data.dataset.url",
        message: format!(
            "`{}` has to be fetched from the Hub before",
            config.dataset.url
        ),
    })
}

/// Which files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum DataFiles {
    /// All of the split `train`.
    Of(Paths),
    /// Those of each split.
    BySplit(BTreeMap<String, Paths>),
}

/// One path, glob or folder, or several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Paths {
    /// One.
    One(String),
    /// Several, in order.
    Many(Vec<String>),
}

impl Paths {
    /// Them, in order.
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Many(paths) => paths,
        }
    }
}

pub(crate) fn open_parquet(config: &DataConfig) -> Result<Dataset, DataError> {
    open_dataset(config, Some(Format::Parquet))
}

pub(crate) fn open_arrow(config: &DataConfig) -> Result<Dataset, DataError> {
    open_dataset(config, Some(Format::Arrow))
}

pub(crate) fn open_jsonl(config: &DataConfig) -> Result<Dataset, DataError> {
    open_dataset(config, Some(Format::Json))
}

pub(crate) fn open_files(config: &DataConfig) -> Result<Dataset, DataError> {
    open_dataset(config, None)
}

fn open_dataset(config: &DataConfig, format: Option<Format>) -> Result<Dataset, DataError> {
    const DATA_FILES: &str = "data.dataset.kwargs.data_files";
    let own: FilesConfig = typed_kwargs("data.dataset.kwargs", &config.dataset.kwargs)?;
    let remotes = &config.remote_files;
    let find_files = |key, patterns: &[String]| Files::find(key, patterns, format, remotes);
    let mut files = match (&own.data_files, &config.path) {
        (Some(DataFiles::Of(paths)), _) => find_files(DATA_FILES, paths.as_slice())?,
        (Some(DataFiles::BySplit(splits)), _) => {
            let mut files = Files::default();
            for (name, paths) in splits {
                let found = find_files(DATA_FILES, paths.as_slice())?.all();
                files.0.insert(name.clone(), found);
            }
            files
        }
        (None, Some(path)) => find_files("data.path", std::slice::from_ref(path))?,
        (None, None) => {
            let url = config.dataset.url.clone();
            return Err(DataError::MissingPath { url });
        }
    };
    let mut hasher = blake3::Hasher::new();
    let mut val_split = own.val_split.clone();
    if let Some(path) = &config.val_path {
        if val_split.is_some() {
            return Err(DataError::BadValue {
                key: "data.val_path",
                message:
                    "data.dataset.kwargs.val_split says what to validate on too; leave one out"
                        .to_owned(),
            });
        }
        let found = find_files("data.val_path", std::slice::from_ref(path))?.all();
        files.0.insert(VALIDATION.to_owned(), found);
    }
    let split = parse(SPLIT, &own.split)?;
    let trains_on_it = split.iter().any(|part| part.name == VALIDATION);
    if val_split.is_none() && files.0.contains_key(VALIDATION) && !trains_on_it {
        val_split = Some(VALIDATION.to_owned());
    }
    let columns = Columns::new(own.columns.as_ref(), config.used_columns.as_ref());
    let mut opened = BTreeMap::new();
    let mut read = |key, parts: &[Split]| {
        let how = (format, &columns, remotes);
        files.rows(key, parts, how, &mut hasher, &mut opened)
    };
    let train = read(SPLIT, &split)?;
    let (train, validation): (Arc<dyn Source>, Arc<dyn Source>) = match val_split {
        Some(text) => (train, read(VAL_SPLIT, &parse(VAL_SPLIT, &text)?)?),
        None => match HeldOut::split(&train, config.val_fraction) {
            Some((train, validation)) => (Arc::new(train), Arc::new(validation)),
            None => return Err(files.no_validation(&train)),
        },
    };
    for (source, what) in [(&train, &own.split), (&validation, &VALIDATION.to_owned())] {
        if source.num_rows() == Some(0) {
            let what = format!("the split `{what}` of {}", files.describe());
            return Err(DataError::NoRows { what });
        }
    }
    // Of the same files, other columns make other blocks.
    if let Some(blocks) = train.blocks() {
        blocks.hash(&mut hasher);
    }
    let settings = (&own.split, &own.val_split, config.val_fraction.to_bits());
    hasher.update(format!("{settings:?}").as_bytes());
    Ok(Dataset {
        train,
        validation,
        fingerprint: hasher.finalize().to_hex()[..32].to_owned(),
    })
}

fn parse(key: &'static str, text: &str) -> Result<Vec<Split>, DataError> {
    Split::parse(text).map_err(|message| DataError::BadValue { key, message })
}

/// Files by split.
#[derive(Default)]
struct Files(BTreeMap<String, Vec<PathBuf>>);

impl Files {
    fn find(
        key: &'static str,
        patterns: &[String],
        format: Option<Format>,
        remotes: &RemoteFiles,
    ) -> Result<Self, DataError> {
        let mut files = Self::default();
        for pattern in patterns {
            let path = Path::new(pattern);
            if remotes.contains(path) {
                let train = files.0.entry(TRAIN.to_owned()).or_default();
                train.push(path.to_owned());
            } else if path.is_dir() {
                files.add_folder(key, path, format)?;
            } else {
                let found = find(key, pattern)?;
                files.0.entry(TRAIN.to_owned()).or_default().extend(found);
            }
        }
        Ok(files)
    }

    fn add_folder(
        &mut self,
        key: &'static str,
        folder: &Path,
        format: Option<Format>,
    ) -> Result<(), DataError> {
        if let Some(splits) = saved_splits(folder)? {
            for split in splits {
                let shards = saved_shards(&folder.join(&split))?;
                self.0.entry(split).or_default().extend(shards);
            }
            return Ok(());
        }
        if folder.join(STATE).exists() {
            let shards = saved_shards(folder)?;
            self.0.entry(TRAIN.to_owned()).or_default().extend(shards);
            return Ok(());
        }
        let mut found = Vec::new();
        walk(folder, &mut found)?;
        found.retain(|path| match format {
            Some(wanted) => Format::of(path) == Some(wanted),
            None => holds_rows(path),
        });
        if found.is_empty() {
            let path = folder.to_owned();
            return Err(DataError::NoFiles { key, path });
        }
        found.sort();
        let relative = |path: &PathBuf| path.strip_prefix(folder).unwrap_or(path).to_owned();
        for (split, paths) in by_split(&found, relative) {
            self.0.entry(split).or_default().extend(paths);
        }
        Ok(())
    }

    fn all(self) -> Vec<PathBuf> {
        self.0.into_values().flatten().collect()
    }

    fn rows(
        &self,
        key: &'static str,
        parts: &[Split],
        (format, columns, remotes): (Option<Format>, &Columns, &RemoteFiles),
        hasher: &mut blake3::Hasher,
        opened: &mut BTreeMap<String, Arc<dyn Source>>,
    ) -> Result<Arc<dyn Source>, DataError> {
        let mut sources = Vec::new();
        for part in parts {
            let Some(paths) = self.0.get(&part.name) else {
                return Err(no_split(key, &part.name, self.0.keys().map(String::as_str)));
            };
            fingerprint(paths, remotes, hasher)?;
            // Training and validation may be parts of one split, of which the files are gone through once.
            let whole = match opened.get(&part.name) {
                Some(whole) => Arc::clone(whole),
                None => open(paths, format, columns, remotes)?,
            };
            opened.insert(part.name.clone(), Arc::clone(&whole));
            let num_rows = whole.num_rows().unwrap_or_default();
            let rows = part.rows(num_rows);
            sources.push(if rows == (0..num_rows) {
                whole
            } else {
                Arc::new(Slice::new(whole, rows))
            });
        }
        Ok(concat(sources))
    }

    fn describe(&self) -> String {
        let mut paths = self.0.values().flatten();
        match (paths.next(), paths.count()) {
            (Some(first), 0) => first.display().to_string(),
            (Some(first), more) => format!("{} and {more} more files", first.display()),
            (None, _) => "no file".to_owned(),
        }
    }

    fn no_validation(&self, train: &Arc<dyn Source>) -> DataError {
        let what = self.describe();
        match train.num_rows() {
            Some(0) => DataError::NoRows { what },
            _ => DataError::OneRow { what },
        }
    }
}

const STATE: &str = "state.json";

/// The splits of a folder that `datasets.DatasetDict.save_to_disk` has written; `None` if it is no such folder.
fn saved_splits(folder: &Path) -> Result<Option<Vec<String>>, DataError> {
    #[derive(Deserialize)]
    struct Splits {
        splits: Vec<String>,
    }
    let path = folder.join("dataset_dict.json");
    if !path.exists() {
        return Ok(None);
    }
    Ok(Some(read_json::<Splits>(&path)?.splits))
}

/// The files of a folder that `datasets.Dataset.save_to_disk` has written, in order.
fn saved_shards(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    #[derive(Deserialize)]
    struct State {
        #[serde(rename = "_data_files")]
        data_files: Vec<Shard>,
        /// Rows chosen of those in the files, in a file of their own.
        #[serde(rename = "_indices_files", default)]
        indices_files: Option<Vec<Shard>>,
    }
    #[derive(Deserialize)]
    struct Shard {
        filename: PathBuf,
    }
    let path = folder.join(STATE);
    let state: State = read_json(&path)?;
    if state.indices_files.is_some_and(|files| !files.is_empty()) {
        let message =
            "its rows are those that another file chooses; save it again after `flatten_indices()`";
        return Err(DataError::file(&path, message));
    }
    let shards = state.data_files.into_iter();
    Ok(shards.map(|shard| folder.join(shard.filename)).collect())
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, DataError> {
    tt_disk::read_json(path).map_err(|error| DataError::io(path)(error.into()))
}

/// The files below `folder`, those that begin with a point left out.
fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), DataError> {
    for entry in fs::read_dir(folder).map_err(DataError::io(folder))? {
        let entry = entry.map_err(DataError::io(folder))?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        if path.is_dir() {
            walk(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

/// Whether its name says that it is a file of rows, and not one about them.
pub fn holds_rows(path: &Path) -> bool {
    let about = ["dataset_infos.json", "dataset_info.json", "config.json"];
    Format::of(path).is_some() && !about.iter().any(|name| path.ends_with(name))
}

/// Files by the split that each is of by its name, as the Hub has it; all of `train` if no name says one. Of a name that
/// says none where others do, nothing is read.
pub fn by_split<T: Clone>(files: &[T], name: impl Fn(&T) -> PathBuf) -> BTreeMap<String, Vec<T>> {
    let split_of = |file: &T| split_named(&name(file));
    let is_named = files.iter().any(|file| split_of(file).is_some());
    let mut splits = BTreeMap::<_, Vec<T>>::new();
    for file in files {
        let split = match split_of(file) {
            Some(split) => split,
            None if is_named => continue,
            None => TRAIN,
        };
        splits
            .entry(split.to_owned())
            .or_default()
            .push(file.clone());
    }
    splits
}

/// The split that the name of a file or of its folder says, by the words that the Hub goes by.
fn split_named(path: &Path) -> Option<&'static str> {
    const WORDS: [(&str, &[&str]); 3] = [
        (TRAIN, &["train", "training"]),
        (VALIDATION, &["validation", "valid", "val", "dev"]),
        ("test", &["test", "testing", "eval", "evaluation"]),
    ];
    let parts = path.components().rev();
    let mut parts = parts.map(|part| part.as_os_str().to_string_lossy().to_ascii_lowercase());
    parts.find_map(|part| {
        let words: Vec<&str> = part.split(|c: char| !c.is_ascii_alphabetic()).collect();
        let named = WORDS
            .iter()
            .find(|(_, names)| words.iter().any(|word| names.contains(word)));
        named.map(|(split, _)| *split)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_the_split_as_on_the_hub() {
        for (path, split) in [
            ("data/train-00000-of-00002.parquet", Some("train")),
            ("dev.jsonl", Some("validation")),
            ("my_test_file.json", Some("test")),
            ("validation/part-1.parquet", Some("validation")),
            ("trainer.json", None),
            ("contest/part-1.parquet", None),
            ("train/dev.jsonl", Some("validation")),
        ] {
            assert_eq!(split_named(Path::new(path)), split, "{path}");
        }
    }
}
