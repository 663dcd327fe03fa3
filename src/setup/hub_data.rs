//! Data sets that are named on the Hugging Face Hub: the files of the splits that are read are fetched into the cache that
//! Python shares, and the configuration then names them there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tt_config::Table;
use tt_data::{
    DataConfig, DataFiles, DatasetConfig, FilesConfig, HubConfig, MixtureConfig, OpenSource,
    by_split, holds_rows,
};
use tt_hub::{Hub, Reference, RepoKind, Wait};

use super::hub::{Files, may_be_id};
use super::hub_configs::Configs;
use super::hub_stream::Streamed;

/// What `data.dataset.url` calls it.
const HF: &str = "hf";
const MIXTURE: &str = "mixture";

/// The source that `url` means in the table of sources: `hf` for a data set on the Hub.
pub(super) fn source<'a, B: Clone>(url: &'a str, sources: &Table<B>) -> &'a str {
    if sources.get(url).is_ok() {
        return url;
    }
    if Reference::is_url(url) || may_be_id(url) {
        HF
    } else {
        url
    }
}

/// The same data on this machine, that of a mixture too. What is not on the Hub is as it is.
pub(super) fn local(
    config: &DataConfig,
    sources: &Table<OpenSource>,
) -> anyhow::Result<DataConfig> {
    let url = config.dataset.url.as_str();
    if url == MIXTURE {
        return mixture(config, sources);
    }
    if source(url, sources) != HF {
        return Ok(config.clone());
    }
    let own: HubConfig = typed(&config.dataset.kwargs)?;
    let named = match (&own.path, url) {
        (Some(path), HF) => path,
        (None, HF) => bail!("which data set? data.dataset.kwargs.path=user/name"),
        (Some(_), _) => bail!("`data.dataset.kwargs.path` names a data set too; leave one out"),
        (None, url) => url,
    };
    let reference = Reference::parse(named, RepoKind::Dataset)?;
    if reference.repo.kind != RepoKind::Dataset {
        bail!("{reference} is a model; a data set's address is hf://datasets/user/name");
    }
    let hub = Hub::from_env()?;
    let snapshot = hub.resolve(&reference, Wait::QUIET)?;
    let fetch = Files {
        hub: &hub,
        reference: &reference,
        snapshot: &snapshot,
    };
    let files = files_of(&own, &fetch)?;
    let of_files = FilesConfig {
        data_files: None,
        split: own.split.unwrap_or_else(|| FilesConfig::default().split),
        val_split: own.val_split,
        columns: own.columns,
    };
    let wanted = of_files.splits(files.keys().map(String::as_str))?;
    let all = wanted.iter().flat_map(|split| &files[split]);
    let streamed = Streamed::of(all.map(String::as_str), &hub, &snapshot);
    let mut data_files = Map::new();
    for split in &wanted {
        let paths = files[split].iter().map(|path| match streamed.place(path) {
            Some(place) => Ok(place),
            None => fetch.get(path),
        });
        let paths = paths.collect::<anyhow::Result<Vec<_>>>()?;
        data_files.insert(split.clone(), json!(paths));
    }
    let mut kwargs = Map::from_iter([
        ("data_files".to_owned(), Value::Object(data_files)),
        ("split".to_owned(), of_files.split.into()),
    ]);
    if let Some(val_split) = of_files.val_split {
        kwargs.insert("val_split".to_owned(), val_split.into());
    }
    if let Some(columns) = of_files.columns {
        kwargs.insert("columns".to_owned(), json!(columns));
    }
    let mut remote_files = config.remote_files.clone();
    remote_files.extend(streamed.start(&reference)?);
    Ok(DataConfig {
        dataset: DatasetConfig {
            url: "files".to_owned(),
            kwargs,
        },
        remote_files,
        ..config.clone()
    })
}

fn mixture(config: &DataConfig, sources: &Table<OpenSource>) -> anyhow::Result<DataConfig> {
    let mut own: MixtureConfig = typed(&config.dataset.kwargs)?;
    let mut local_config = config.clone();
    for (index, part) in own.sources.iter_mut().enumerate() {
        let of_part = DataConfig {
            dataset: DatasetConfig {
                url: part.url.clone(),
                kwargs: part.kwargs.clone(),
            },
            ..config.clone()
        };
        let found = local(&of_part, sources).with_context(|| format!("source {index}"))?;
        (part.url, part.kwargs) = (found.dataset.url, found.dataset.kwargs);
        local_config.remote_files.extend(found.remote_files);
    }
    if let Value::Object(kwargs) = serde_json::to_value(own)? {
        local_config.dataset.kwargs = kwargs;
    }
    Ok(local_config)
}

fn typed<T: DeserializeOwned>(kwargs: &Map<String, Value>) -> anyhow::Result<T> {
    serde_json::from_value(Value::Object(kwargs.clone())).context("data.dataset.kwargs")
}

/// The files of rows in a repository, by split.
fn files_of(own: &HubConfig, fetch: &Files<'_>) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let Files {
        reference,
        snapshot,
        ..
    } = fetch;
    let all: Vec<&str> = snapshot
        .files
        .iter()
        .map(|file| file.path.as_str())
        .collect();
    let matching = |patterns: &[String]| -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        for pattern in patterns {
            let glob = globset::Glob::new(pattern).with_context(|| pattern.clone())?;
            let glob = glob.compile_matcher();
            let before = found.len();
            found.extend(
                all.iter()
                    .filter(|path| glob.is_match(path))
                    .map(ToString::to_string),
            );
            if found.len() == before {
                bail!("{reference}: no file matches {pattern}");
            }
        }
        Ok(found)
    };
    match &own.data_files {
        Some(DataFiles::Of(paths)) => {
            let found = matching(paths.as_slice())?;
            return Ok(BTreeMap::from([("train".to_owned(), found)]));
        }
        Some(DataFiles::BySplit(splits)) => {
            let splits = splits.iter();
            let found =
                splits.map(|(split, paths)| Ok((split.clone(), matching(paths.as_slice())?)));
            return found.collect();
        }
        None => {}
    }
    if reference.path.is_none()
        && let Some(configs) = Configs::read(fetch)?
    {
        return configs.files(own.name.as_deref(), &all);
    }
    let within = |path: &str, folder: &str| {
        let rest = path.strip_prefix(folder);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '-', '_', '.']))
    };
    let is_wanted = |path: &str| {
        let in_folder = reference
            .path
            .as_deref()
            .is_none_or(|folder| within(path, folder));
        let of_part = own.name.as_deref().is_none_or(|name| {
            // `name/train-..`, or `data/name/..`, as data sets of several parts have them.
            let mut ends = path.match_indices('/').map(|(at, _)| at + 1);
            within(path, name) || ends.any(|at| within(&path[at..], name))
        });
        in_folder && of_part && holds_rows(Path::new(path))
    };
    let found: Vec<String> = all
        .iter()
        .filter(|path| is_wanted(path))
        .map(ToString::to_string)
        .collect();
    // A data set is often there as Parquet too, which is the one to read.
    let is_parquet = |path: &&String| path.ends_with(".parquet");
    let parquet: Vec<String> = found.iter().filter(is_parquet).cloned().collect();
    let found = if parquet.is_empty() { found } else { parquet };
    if found.is_empty() {
        let what = match &own.name {
            Some(name) => format!("no Parquet, Arrow or JSON file of `{name}`"),
            None => "no Parquet, Arrow or JSON file".to_owned(),
        };
        bail!("{reference}: {what}; revision refs/convert/parquet may have it as Parquet");
    }
    Ok(by_split(&found, |path| PathBuf::from(path)))
}
