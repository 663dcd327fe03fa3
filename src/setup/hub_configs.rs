//! The parts of a data set on the Hub, as its page says: `configs` at the top of `README.md`, as `datasets` reads it.
//!
//! ```yaml
//! configs:
//! - config_name: en
//!   data_files:
//!   - split: train
//!     path: en/*.parquet
//!   default: true
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde::Deserialize;
use tt_config::Node;
use tt_data::{DataFiles, Paths, by_split};

use super::hub::Files;

const README: &str = "README.md";

/// What a page says of the parts of its data set.
pub(super) struct Configs {
    configs: Vec<Config>,
    /// For messages.
    of: String,
}

#[derive(Deserialize)]
struct Config {
    #[serde(rename = "config_name", default = "default_name")]
    name: String,
    #[serde(default)]
    data_files: Option<Patterns>,
    #[serde(default)]
    data_dir: Option<String>,
    #[serde(default, rename = "default")]
    is_default: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Patterns {
    Of(DataFiles),
    Listed(Vec<OfSplit>),
}

#[derive(Deserialize)]
struct OfSplit {
    split: String,
    path: Paths,
}

const DEFAULT: &str = "default";

fn default_name() -> String {
    DEFAULT.to_owned()
}

impl Configs {
    /// None: there is no page, or it says nothing of parts.
    pub(super) fn read(files: &Files<'_>) -> anyhow::Result<Option<Self>> {
        if files.snapshot.file(README).is_none() {
            return Ok(None);
        }
        let path = files.get(README)?;
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let of = files.reference.to_string();
        Ok(parse(&text, &format!("{of}: {README}"))?.map(|configs| Self { configs, of }))
    }

    /// The files of the part `name`, by split; of the default one without a name. `all` are those of the repository.
    pub(super) fn files(
        &self,
        name: Option<&str>,
        all: &[&str],
    ) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
        let config = self.choose(name)?;
        let folder = config.data_dir.as_deref().unwrap_or_default();
        let folder = folder.trim_start_matches("./").trim_end_matches('/');
        let find = |patterns: &Paths| self.find(&config.name, folder, patterns.as_slice(), all);
        let named = |(split, patterns): (&String, &Paths)| Ok((split.clone(), find(patterns)?));
        match &config.data_files {
            // `datasets` goes by names only where no files are named.
            Some(Patterns::Of(DataFiles::Of(patterns))) => {
                Ok(BTreeMap::from([("train".to_owned(), find(patterns)?)]))
            }
            Some(Patterns::Of(DataFiles::BySplit(by_split))) => {
                by_split.iter().map(named).collect()
            }
            Some(Patterns::Listed(listed)) => listed
                .iter()
                .map(|it| named((&it.split, &it.path)))
                .collect(),
            None => {
                let found = find(&Paths::One("**".to_owned()))?;
                Ok(by_split(&found, |path| PathBuf::from(path)))
            }
        }
    }

    fn choose(&self, name: Option<&str>) -> anyhow::Result<&Config> {
        let named = |name: &str| self.configs.iter().find(|config| config.name == name);
        let chosen = match name {
            Some(name) => named(name),
            None => {
                let only = self.configs.first().filter(|_| self.configs.len() == 1);
                let default = self.configs.iter().find(|config| config.is_default);
                default.or_else(|| named(DEFAULT)).or(only)
            }
        };
        if let Some(chosen) = chosen {
            return Ok(chosen);
        }
        let known: Vec<_> = self.configs.iter().map(|it| it.name.as_str()).collect();
        let known = known.join(", ");
        match name {
            Some(name) => bail!("{} has no part `{name}`; it has {known}", self.of),
            None => bail!(
                "{} has several parts, and none by default: choose one with data.dataset.kwargs.name: {known}",
                self.of
            ),
        }
    }

    fn find(
        &self,
        name: &str,
        folder: &str,
        patterns: &[String],
        all: &[&str],
    ) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        for pattern in patterns {
            let pattern = pattern.trim_start_matches("./");
            let pattern = match folder {
                "" => pattern.to_owned(),
                folder => format!("{folder}/{pattern}"),
            };
            // As in a shell, `*` stays within a folder.
            let glob = globset::GlobBuilder::new(&pattern)
                .literal_separator(true)
                .build()
                .with_context(|| format!("{}: {pattern}", self.of))?;
            let glob = glob.compile_matcher();
            let holds_rows = |path: &str| tt_data::holds_rows(&PathBuf::from(path));
            let matching = all
                .iter()
                .filter(|path| glob.is_match(path) && holds_rows(path));
            let before = found.len();
            found.extend(matching.map(ToString::to_string));
            if found.len() == before {
                bail!(
                    "{}: no Parquet, Arrow or JSON file matches `{pattern}` of its part `{name}`",
                    self.of
                );
            }
        }
        Ok(found)
    }
}

/// The front matter of a page: what stands between its first two lines `---`.
fn parse(page: &str, name: &str) -> anyhow::Result<Option<Vec<Config>>> {
    #[derive(Deserialize)]
    struct FrontMatter {
        #[serde(default)]
        configs: Vec<Config>,
    }
    let page = page.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let matter = page.strip_prefix("---\n");
    let Some((matter, _)) = matter.and_then(|rest| rest.split_once("\n---")) else {
        return Ok(None);
    };
    let node = Node::from_yaml(name, matter).map_err(|error| anyhow::anyhow!("{error}"))?;
    if node.is_null() {
        return Ok(None);
    }
    let matter: FrontMatter =
        serde_json::from_value(node.to_json()).with_context(|| format!("{name}: configs"))?;
    Ok((!matter.configs.is_empty()).then_some(matter.configs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configs(page: &str) -> Configs {
        Configs {
            configs: parse(page, "README.md").unwrap().unwrap(),
            of: "hf://datasets/u/n".to_owned(),
        }
    }

    const ALL: &[&str] = &[
        "README.md",
        "en/a.parquet",
        "en/deep/b.parquet",
        "en/test.jsonl",
        "de/train-0.parquet",
        "de/validation-0.parquet",
    ];

    #[test]
    fn parts_are_those_of_datasets() {
        let page = "---\nlicense: mit\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: \"en/*.parquet\"\n  - split: test\n    path: [en/test.jsonl]\n- config_name: de\n  data_dir: de\n  default: true\n---\n# Page\n";
        let configs = configs(page);
        let of = |name| configs.files(name, ALL).unwrap();
        let files = |paths: &[&str]| paths.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of(Some("en"))["train"], files(&["en/a.parquet"]));
        assert_eq!(of(Some("en"))["test"], files(&["en/test.jsonl"]));
        assert_eq!(of(None), of(Some("de")));
        assert_eq!(of(None)["train"], files(&["de/train-0.parquet"]));
        assert_eq!(of(None)["validation"], files(&["de/validation-0.parquet"]));
        let error = configs.files(Some("fr"), ALL).unwrap_err().to_string();
        assert_eq!(error, "hf://datasets/u/n has no part `fr`; it has en, de");
    }

    #[test]
    fn one_part_needs_no_name_and_of_several_one_is_chosen() {
        let one = configs("---\nconfigs:\n- config_name: x\n  data_files: \"en/**\"\n---\n");
        assert_eq!(one.files(None, ALL).unwrap()["train"].len(), 3);
        let by_split = "---\nconfigs:\n- config_name: x\n  data_files:\n    train: en/a.parquet\n- config_name: y\n---\n";
        let several = configs(by_split);
        assert_eq!(
            several.files(Some("x"), ALL).unwrap()["train"],
            ["en/a.parquet"]
        );
        let error = several.files(None, ALL).unwrap_err().to_string();
        assert!(error.ends_with("data.dataset.kwargs.name: x, y"), "{error}");
        let missing = configs("---\nconfigs:\n- data_files: fr/*\n---\n");
        let error = missing.files(None, ALL).unwrap_err().to_string();
        assert!(
            error.contains("matches `fr/*` of its part `default`"),
            "{error}"
        );
    }

    #[test]
    fn pages_without_parts_say_nothing() {
        for page in ["", "# Page", "---\nlicense: mit\n---\n", "---\n---\n"] {
            assert!(parse(page, "README.md").unwrap().is_none(), "{page}");
        }
    }
}
