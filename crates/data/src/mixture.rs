//! The data set `mixture`: several data sets in given proportions.
//!
//! An epoch is as long as it takes to use every source whole at least once: with weights, the source that is rarest for its
//! weight is used once and others are used again, as often as their weights say; `repeats` says instead how often each is
//! used. Which row stands where is computed as for any data set, so a mixture is resumed as exactly, and new weights need
//! nothing to be tokenised anew. Validation is on the validation rows of each, once.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tt_config::Table;

use crate::blocks::Blocks;
use crate::concat::Concat;
use crate::config::{DataConfig, DatasetConfig, typed_kwargs};
use crate::error::DataError;
use crate::part::Slice;
use crate::row::Row;
use crate::source::{Dataset, OpenSource, Part, Source};
use crate::sources::SOURCES;

/// Training rows, validation rows and fingerprint of a source.
type Opened = (Arc<dyn Source>, Arc<dyn Source>, String);

/// What `data.dataset.url` calls it.
pub(crate) const NAME: &str = "mixture";
const KEY: &str = "data.dataset.kwargs.sources";

/// `data.dataset.kwargs` of `mixture`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MixtureConfig {
    /// The data sets.
    pub sources: Vec<MixtureSource>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MixtureSource {
    /// What it is called where its loss is reported; else its `url`, with its number where that is not enough.
    pub name: Option<String>,
    /// As `data.dataset.url`.
    pub url: String,
    /// As `data.dataset.kwargs`.
    pub kwargs: Map<String, Value>,
    /// As `data.path`.
    pub path: Option<String>,
    /// As `data.val_path`.
    pub val_path: Option<String>,
    /// Its share of the rows, beside the weights of the others; all have one, or none has.
    #[schemars(range(min = 0.0))]
    pub weight: Option<f64>,
    /// How often its rows are used in an epoch, where there are no weights: 2, 0.5.
    #[schemars(range(min = 0.0))]
    pub repeats: Option<f64>,
    /// The first rows alone, this many; needed of a source without end.
    pub max_rows: Option<u64>,
}

impl Default for MixtureSource {
    fn default() -> Self {
        Self {
            name: None,
            url: DatasetConfig::default().url,
            kwargs: Map::new(),
            path: None,
            val_path: None,
            weight: None,
            repeats: None,
            max_rows: None,
        }
    }
}

/// A mixture of what this crate brings.
pub(crate) fn open(config: &DataConfig) -> Result<Dataset, DataError> {
    open_from(config, &SOURCES)
}

/// A mixture of what `table` has.
pub(crate) fn open_from(
    config: &DataConfig,
    table: &Table<OpenSource>,
) -> Result<Dataset, DataError> {
    let MixtureConfig { sources } = typed_kwargs("data.dataset.kwargs", &config.dataset.kwargs)?;
    let bad = |message: String| DataError::BadValue { key: KEY, message };
    if sources.is_empty() {
        return Err(bad("a mixture needs sources".to_owned()));
    }
    let mut opened: Vec<Opened> = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let config = DataConfig {
            dataset: DatasetConfig {
                url: source.url.clone(),
                kwargs: source.kwargs.clone(),
            },
            path: source.path.clone(),
            val_path: source.val_path.clone(),
            ..config.clone()
        };
        let of_source = |error: DataError| bad(format!("source {index}: {error}"));
        let dataset = Dataset::open_from(&config, table).map_err(of_source)?;
        let capped = |split: &Arc<dyn Source>| match (split.num_rows(), source.max_rows) {
            (None, None) => Err(bad(format!(
                "source {index}: `{}` has no end; give `max_rows`",
                source.url
            ))),
            (Some(rows), most) if most.is_none_or(|most| most >= rows) => Ok(Arc::clone(split)),
            (rows, most) => {
                let most = most.or(rows).unwrap_or_default();
                Ok(Arc::new(Slice::new(Arc::clone(split), 0..most)) as Arc<dyn Source>)
            }
        };
        let (train, validation) = (capped(&dataset.train)?, capped(&dataset.validation)?);
        opened.push((train, validation, dataset.fingerprint));
    }
    let rows: Vec<u64> = opened
        .iter()
        .map(|(train, ..)| train.num_rows().unwrap_or_default())
        .collect();
    let used = used(&sources, &rows).map_err(bad)?;
    let train = opened.iter().zip(&used).map(|((train, ..), &used)| {
        Arc::new(Repeated::new(Arc::clone(train), used)) as Arc<dyn Source>
    });
    let validation = opened
        .iter()
        .map(|(_, validation, _)| Arc::clone(validation));
    let mut hasher = blake3::Hasher::new();
    for ((.., fingerprint), used) in opened.iter().zip(&used) {
        hasher.update(fingerprint.as_bytes());
        hasher.update(&used.to_le_bytes());
    }
    let parts = |of: fn(&Opened) -> &Arc<dyn Source>| {
        let parts = opened.iter().zip(names(&sources));
        let parts = parts.map(|(it, name)| Part {
            name,
            source: Arc::clone(of(it)),
            fingerprint: it.2.clone(),
        });
        parts.collect()
    };
    Ok(Dataset {
        train: Arc::new(Mixed {
            rows: Concat::mixed(train.collect()),
            parts: parts(|it| &it.0),
        }),
        validation: Arc::new(Mixed {
            rows: Concat::mixed(validation.collect()),
            parts: parts(|it| &it.1),
        }),
        fingerprint: hasher.finalize().to_hex()[..32].to_owned(),
    })
}

/// What sources are called.
fn names(sources: &[MixtureSource]) -> Vec<String> {
    let given = |source: &MixtureSource| source.name.clone().unwrap_or(source.url.clone());
    let all: Vec<String> = sources.iter().map(given).collect();
    let is_alone = |name: &String| all.iter().filter(|other| *other == name).count() == 1;
    let names = all.iter().enumerate();
    names
        .map(|(index, name)| match is_alone(name) {
            true => name.clone(),
            false => format!("{name}_{index}"),
        })
        .collect()
}

/// The rows of sources, each as often as it is used.
struct Mixed {
    rows: Concat,
    parts: Vec<Part>,
}

impl Source for Mixed {
    fn num_rows(&self) -> Option<u64> {
        self.rows.num_rows()
    }

    fn row_bytes(&self) -> Option<Vec<u64>> {
        self.rows.row_bytes()
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.rows.blocks()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.rows.files()
    }

    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn part(&self, index: u64) -> (usize, u64) {
        let (part, row) = self.rows.place(index);
        let once = self.parts[part].source.num_rows().unwrap_or(u64::MAX);
        (part, row % once.max(1))
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        self.rows.read(index, row)
    }
}

/// How many rows of each source make an epoch, of the `rows` that there are.
fn used(sources: &[MixtureSource], rows: &[u64]) -> Result<Vec<u64>, String> {
    let weights: Vec<f64> = sources.iter().filter_map(|source| source.weight).collect();
    let is_positive = |number: &f64| number.is_finite() && *number > 0.0;
    let all_positive = |numbers: &[f64], what: &str| match numbers.iter().all(is_positive) {
        true => Ok(()),
        false => Err(format!("{what} must be over 0")),
    };
    if weights.is_empty() {
        let repeats: Vec<f64> = sources
            .iter()
            .map(|source| source.repeats.unwrap_or(1.0))
            .collect();
        all_positive(&repeats, "`repeats`")?;
        let used = rows
            .iter()
            .zip(repeats)
            .map(|(&rows, repeats)| rows as f64 * repeats);
        return Ok(used.map(at_least_one).collect());
    }
    if weights.len() < sources.len() || sources.iter().any(|source| source.repeats.is_some()) {
        return Err(
            "give every source a `weight` and none `repeats`, or none a `weight`".to_owned(),
        );
    }
    all_positive(&weights, "`weight`")?;
    // The scale at which the source that is rarest for its weight is used once.
    let scales = rows
        .iter()
        .zip(&weights)
        .map(|(&rows, weight)| rows as f64 / weight);
    let scale = scales.fold(0.0, f64::max);
    Ok(weights
        .iter()
        .map(|weight| at_least_one(weight * scale))
        .collect())
}

fn at_least_one(rows: f64) -> u64 {
    rows.round().max(1.0) as u64
}

/// The rows of a source over and over, `num_rows` in all.
struct Repeated {
    source: Arc<dyn Source>,
    once: u64,
    num_rows: u64,
    blocks: Option<Arc<Blocks>>,
}

impl Repeated {
    fn new(source: Arc<dyn Source>, num_rows: u64) -> Self {
        let once = source.num_rows().unwrap_or(1).max(1);
        let blocks = source.blocks().map(|blocks| {
            let passes = num_rows.div_ceil(once) as usize;
            let all = Blocks::concat(std::iter::repeat_n(&*blocks, passes));
            Arc::new(all.map(|row| row.min(num_rows)))
        });
        Self {
            source,
            once,
            num_rows,
            blocks,
        }
    }
}

impl Source for Repeated {
    fn num_rows(&self) -> Option<u64> {
        Some(self.num_rows)
    }

    fn row_bytes(&self) -> Option<Vec<u64>> {
        let once = self.source.row_bytes()?;
        Some(
            once.into_iter()
                .cycle()
                .take(self.num_rows as usize)
                .collect(),
        )
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.blocks.clone()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.source.files()
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        self.source.read(index % self.once, row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(given: &[(Option<f64>, Option<f64>)]) -> Vec<MixtureSource> {
        let source = |&(weight, repeats)| MixtureSource {
            weight,
            repeats,
            ..MixtureSource::default()
        };
        given.iter().map(source).collect()
    }

    /// A source that a program of a user's own has brought.
    fn tens(_: &DataConfig) -> Result<Dataset, DataError> {
        struct Tens;
        impl Source for Tens {
            fn num_rows(&self) -> Option<u64> {
                Some(10)
            }
            fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
                row.text_mut("text").push_str(&index.to_string());
                Ok(())
            }
        }
        Ok(Dataset {
            train: Arc::new(Tens),
            validation: Arc::new(Tens),
            fingerprint: "tens".to_owned(),
        })
    }

    #[test]
    fn a_mixture_is_of_what_the_table_has() {
        let table = SOURCES.with(tt_config::Entry::new::<MixtureConfig>("tens", "", tens));
        let kwargs =
            serde_json::json!({"sources": [{"url": "tens"}, {"url": "stories", "max_rows": 5}]});
        let config = DataConfig {
            dataset: DatasetConfig {
                url: NAME.to_owned(),
                kwargs: kwargs.as_object().cloned().unwrap(),
            },
            ..DataConfig::default()
        };
        let mixed = Dataset::open_from(&config, &table).unwrap();
        assert_eq!(mixed.train.num_rows(), Some(15));
        let unknown = Dataset::open(&config).err().unwrap().to_string();
        assert!(
            unknown.contains("source 0") && unknown.contains("tens"),
            "{unknown}"
        );
    }

    #[test]
    fn an_epoch_uses_every_source_whole() {
        let weights = sources(&[(Some(3.0), None), (Some(1.0), None)]);
        // 3 : 1, and the second once; 3 : 1, and the first once.
        assert_eq!(used(&weights, &[100, 100]).unwrap(), [300, 100]);
        assert_eq!(used(&weights, &[900, 100]).unwrap(), [900, 300]);
        let repeats = sources(&[(None, Some(0.5)), (None, None), (None, Some(2.0))]);
        assert_eq!(used(&repeats, &[10, 10, 10]).unwrap(), [5, 10, 20]);
        for wrong in [
            sources(&[(Some(1.0), None), (None, None)]),
            sources(&[(Some(1.0), Some(2.0))]),
            sources(&[(Some(0.0), None)]),
            sources(&[(None, Some(-1.0))]),
        ] {
            assert!(used(&wrong, &vec![10; wrong.len()]).is_err());
        }
    }
}
