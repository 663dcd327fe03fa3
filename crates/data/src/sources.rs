//! The sources there are.

use tt_config::{Entry, Table};

use crate::config::DataConfig;
use crate::error::DataError;
use crate::files::{self, FilesConfig, HubConfig};
use crate::mixture::{self, MixtureConfig};
use crate::source::{Dataset, OpenSource};
use crate::stories::{Stories, StoriesConfig, StoriesPairs, StoriesPairsConfig};
use crate::text::{Text, TextConfig};

/// What `data.dataset.url` may name.
pub const SOURCES: Table<OpenSource> = Table::new(
    "data set",
    &[
        Entry::new::<StoriesConfig>(
            "stories",
            "short stories, sums and look-ups, made by the program",
            Stories::open,
        ),
        Entry::new::<StoriesPairsConfig>(
            "stories_pairs",
            "look-ups of stories, each with a right and a wrong answer",
            StoriesPairs::open,
        ),
        Entry::new::<TextConfig>("text", "plain text files", Text::open),
        Entry::new::<FilesConfig>("parquet", "Parquet files", files::open_parquet),
        Entry::new::<FilesConfig>(
            "arrow",
            "Arrow files and streams, and folders that `datasets` has saved",
            files::open_arrow,
        ),
        Entry::new::<FilesConfig>(
            "jsonl",
            "JSON: an object a line, or one array; plain, gzip or zstd",
            files::open_jsonl,
        ),
        Entry::new::<FilesConfig>(
            "files",
            "Parquet, Arrow and JSON, by the names of the files",
            files::open_files,
        ),
        Entry::new::<HubConfig>("hf", "a data set of the Hugging Face Hub", files::open_hub),
        Entry::new::<MixtureConfig>(
            mixture::NAME,
            "several data sets in given proportions",
            mixture::open,
        ),
    ],
);

impl Dataset {
    /// Opens the data set that `config.dataset.url` names in [`SOURCES`].
    pub fn open(config: &DataConfig) -> Result<Self, DataError> {
        Self::open_from(config, &SOURCES)
    }

    /// Opens the data set that `config.dataset.url` names in `sources`.
    pub fn open_from(config: &DataConfig, sources: &Table<OpenSource>) -> Result<Self, DataError> {
        let url = config.dataset.url.as_str();
        let entry = sources.get(url).map_err(|_| DataError::UnknownDataset {
            url: url.to_owned(),
            known: sources.names().join(", "),
        })?;
        // Of what the table has, not of what is built in alone; unless the table has another source of that name.
        if std::ptr::fn_addr_eq(entry.build, mixture::open as OpenSource) {
            return mixture::open_from(config, sources);
        }
        (entry.build)(config)
    }
}
