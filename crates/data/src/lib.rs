//! From files to rows in order: sources, data order, tokenizer, prefetch, and the [`Cursor`].
//!
//! A row's place in the run is computed, never remembered: [`Order`] gives the row at any position
//! of any epoch at the same cost, [`Source`] reads it, [`Prefetch`] works ahead. Nothing here knows
//! tensors; collators turn rows into batches.
//!
//! ```
//! use tt_data::{DataConfig, Dataset, Order, Row, Shard, Tokenizer};
//!
//! let config = DataConfig::default(); // stories
//! let dataset = Dataset::open(&config)?;
//! let tokenizer = Tokenizer::open(&config.tokenizer, dataset.train.as_ref(), None)?;
//!
//! let order = Order::new(42, Shard::default(), dataset.train.num_rows())?;
//! let mut row = Row::default();
//! dataset.train.read(order.row(0, 1_000_000), &mut row)?;
//! let ids = tokenizer.encode(row.text("text")?)?;
//! assert_eq!(tokenizer.decode(&ids)?, row.text("text")?);
//! # Ok::<(), tt_data::DataError>(())
//! ```

#![warn(missing_docs)]
// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod block_cache;
mod blocks;
mod bpe;
mod byte_level;
mod concat;
mod config;
mod cursor;
mod error;
mod files;
mod location;
mod mix;
mod mixture;
mod order;
mod part;
mod prefetch;
mod row;
mod source;
mod sources;
mod split;
mod stories;
mod text;
mod text_index;
mod token_bytes;
mod token_cache;
mod token_cache_prune;
mod tokenizer;
mod tokenizer_cache;
mod value;
mod vocab_merges;
mod vocab_txt;
mod words;

pub use blocks::Blocks;
pub use config::{
    CollatorConfig, DataConfig, DatasetConfig, Nulls, TokenCacheConfig, TokenizerConfig,
    typed_kwargs,
};
pub use cursor::Cursor;
pub use error::DataError;
pub use files::{
    DataFiles, FilesConfig, HubConfig, Paths, RemoteFile, RemoteFiles, by_split, check_files,
    holds_rows,
};
pub use location::Location;
pub use mix::mix_all;
pub use mixture::{MixtureConfig, MixtureSource};
pub use order::{Order, Shard, WINDOW_BYTES};
pub use prefetch::{Ahead, Made, Prefetch};
pub use row::Row;
pub use source::{Dataset, OpenSource, Part, Source};
pub use sources::SOURCES;
pub use stories::{StoriesConfig, StoriesPairsConfig};
pub use text::{Separator, TextConfig};
pub use token_bytes::TokenBytes;
pub use token_cache::{CacheKey, TokenCache};
pub use token_cache_prune::{PrunedCache, prune_token_caches};
pub use tokenizer::{Tokenizer, TokenizerFiles, TokenizerOrigin};
pub use tokenizer_cache::cache_folder;
pub use value::{Fields, Value};
pub use words::Words;
