//! Rows from sources in computed order, tokenizer, packing, prefetch, Cursor.

mod bpe;
mod config;
mod cursor;
mod error;
mod mix;
mod order;
mod prefetch;
mod source;
mod split;
mod stories;
mod text;
mod tokenizer;
mod tokenizer_cache;

pub use config::{CollatorConfig, DataConfig, DatasetConfig, TokenizerConfig, typed_kwargs};
pub use cursor::Cursor;
pub use error::DataError;
pub use order::{Order, Shard};
pub use prefetch::Prefetch;
pub use source::{DATASETS, Dataset, Location, OpenDataset, Row, Source};
pub use stories::StoriesConfig;
pub use text::{Separator, TextConfig};
pub use tokenizer::Tokenizer;
pub use tokenizer_cache::cache_folder;
