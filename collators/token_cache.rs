//! Tokens that are kept on disk, in the place of text: a source that gives them, a collator that takes them, and what makes
//! those that are missing.
//!
//! A row that has no tokens in the cache, or damaged ones, is read and encoded as without a cache, so a cache changes no
//! batch, whatever is in it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tt_data::{
    CacheKey, DataConfig, DataError, Dataset, Fields, Location, Part, Row, Source, TokenCache,
    TokenCacheConfig, Tokenizer, Value,
};

use crate::inner::{encode_parts, hand_on};
use crate::{Collator, Examples, Layout, PipelineOptions};

/// The column that tokens are handed on in; no file has one of this name.
const COLUMN: &str = "\0tokens";
/// Tokens of a row that are handed out at a time.
const TOKENS_PER_PART: usize = 1 << 14;
const REPORT_INTERVAL: Duration = Duration::from_millis(20);

/// How far the making of tokens is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenProgress {
    /// Rows whose tokens are there.
    pub rows: u64,
    /// All rows.
    pub num_rows: u64,
}

/// What the cache holds once it is whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokenized {
    /// Its rows, each of which counts once.
    pub rows: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Rows that were encoded for it now.
    pub made_rows: u64,
    /// Where it is: one folder for each data set of a mixture.
    pub folders: Vec<PathBuf>,
}

/// The caches of a training split: one of each part of a mixture, so that other weights need no other tokens.
pub(crate) struct TokenCaches {
    parts: Vec<Part>,
    caches: Vec<TokenCache>,
}

impl TokenCaches {
    /// What there is; `None` if the configuration wants no cache. Errors: a collator or a source without tokens to keep.
    pub(crate) fn open(
        config: &DataConfig,
        options: &PipelineOptions,
        dataset: &Dataset,
        tokenizer: &Tokenizer,
        collator: &dyn Collator,
    ) -> Result<Option<Self>, DataError> {
        const KEY: &str = "data.token_cache";
        let bad = |message: String| DataError::BadValue { key: KEY, message };
        let root = match &config.token_cache {
            TokenCacheConfig::Switch(false) => return Ok(None),
            TokenCacheConfig::Folder(folder) => PathBuf::from(folder),
            TokenCacheConfig::Switch(true) => {
                let cache = options.cache.as_ref().map(|cache| cache.join("tokens"));
                cache.ok_or_else(|| {
                    bad("there is no cache folder without $HOME; name a folder".to_owned())
                })?
            }
        };
        let Some(how) = collator.keeps() else {
            return Err(bad(format!(
                "{} does not make the tokens of one column of text, which are what can be kept",
                collator.name()
            )));
        };
        let mut parts = dataset.train.parts().to_vec();
        if parts.is_empty() {
            parts.push(Part {
                name: config.dataset.url.clone(),
                source: Arc::clone(&dataset.train),
                fingerprint: dataset.fingerprint.clone(),
            });
        }
        let open = |part: &Part| {
            let num_rows = part.source.num_rows().ok_or_else(|| {
                bad(format!(
                    "data set `{}` has no end, so it cannot be kept",
                    part.name
                ))
            })?;
            let key = CacheKey::of(&*part.source, &part.fingerprint, tokenizer, &how)?;
            TokenCache::open(&root, key, num_rows, tokenizer.vocab_size())
        };
        let caches = parts.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Some(Self { parts, caches }))
    }

    /// Whether some tokens are not there.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.caches.iter().any(|cache| !cache.missing().is_empty())
    }

    pub(crate) fn summary(&self) -> Tokenized {
        let caches = self.caches.iter();
        Tokenized {
            rows: caches.clone().map(TokenCache::num_rows).sum(),
            tokens: caches.clone().map(TokenCache::num_tokens).sum(),
            made_rows: 0,
            folders: caches.map(|cache| cache.folder().to_owned()).collect(),
        }
    }

    /// Makes what is missing, on `num_threads`, and gives how many rows that were. `go_on` is asked all the time.
    pub(crate) fn fill(
        &self,
        collator: &dyn Collator,
        num_threads: usize,
        go_on: &dyn Fn(TokenProgress) -> bool,
    ) -> Result<u64, DataError> {
        let missing: Vec<(usize, u64)> = (self.caches.iter().enumerate())
            .flat_map(|(part, cache)| cache.missing().into_iter().map(move |file| (part, file)))
            .collect();
        let rows_of = |&(part, file): &(usize, u64)| {
            let rows = self.caches[part].rows(file);
            rows.end - rows.start
        };
        let to_make: u64 = missing.iter().map(rows_of).sum();
        let num_rows = self.caches.iter().map(TokenCache::num_rows).sum();
        self.caches.iter().for_each(TokenCache::clean);
        let (next, rows) = (AtomicUsize::new(0), AtomicU64::new(num_rows - to_make));
        let (stop, failed) = (AtomicBool::new(false), Mutex::new(None));
        let work = || {
            while let Some(&(part, file)) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                let source = &*self.parts[part].source;
                let mut row = Row::default();
                let mut examples = Examples::new(&[], usize::MAX);
                let made = self.caches[part].write(file, |index, ids| {
                    if stop.load(Ordering::Relaxed) {
                        return Err(DataError::Interrupted);
                    }
                    source.read(index, &mut row)?;
                    encode(collator, &row, &mut examples, ids)?;
                    rows.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                });
                if let Err(error) = made {
                    stop.store(true, Ordering::Relaxed);
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(error);
                    break;
                }
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..num_threads.max(1)).map(|_| scope.spawn(work)).collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                let rows = rows.load(Ordering::Relaxed);
                if !go_on(TokenProgress { rows, num_rows }) {
                    stop.store(true, Ordering::Relaxed);
                }
                thread::sleep(REPORT_INTERVAL);
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(to_make),
        }
    }

    fn read(&self, (part, row): (usize, u64), ids: &mut Vec<u32>) -> bool {
        self.caches[part].read(row, ids)
    }
}

/// All tokens of a row.
fn encode(
    collator: &dyn Collator,
    row: &Row,
    examples: &mut Examples,
    ids: &mut Vec<u32>,
) -> Result<(), DataError> {
    let mut from = Some(0);
    while let Some(here) = from {
        examples.begin(0);
        let next = collator.encode_part(row, here, examples);
        from = next.map_err(|error| error.of_collator(collator.name(), Some(&row.at)))?;
        for example in examples.as_slice() {
            ids.extend_from_slice(&example.input_ids);
        }
    }
    Ok(())
}

/// A source whose rows are tokens where the cache has them.
pub(crate) struct CachedSource {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) caches: Arc<TokenCaches>,
}

impl Source for CachedSource {
    fn num_rows(&self) -> Option<u64> {
        self.source.num_rows()
    }

    fn blocks(&self) -> Option<Arc<tt_data::Blocks>> {
        self.source.blocks()
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        let mut ids = Vec::new();
        let place = self.source.part(index);
        // A row without a token has something to say: that it is null, for one.
        if self.caches.read(place, &mut ids) && !ids.is_empty() {
            row.fields = Fields::default();
            *row.fields.entry(COLUMN) = Value::Ints(ids.into_iter().map(i64::from).collect());
            row.at = Location::Unknown;
            return Ok(());
        }
        if row.fields.get(COLUMN).is_some() {
            *row = Row::default();
        }
        self.source.read(index, row)
    }
}

/// A collator that takes tokens where there are some, and else does as it is used to.
pub(crate) struct CachedCollator(pub(crate) Arc<dyn Collator>);

#[deny(clippy::missing_trait_methods)] // one that is not handed on would be the trait's
impl Collator for CachedCollator {
    hand_on!();

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        encode_parts(self, row, examples)
    }

    fn encode_part(
        &self,
        row: &Row,
        from: usize,
        examples: &mut Examples,
    ) -> Result<Option<usize>, DataError> {
        let Some(Value::Ints(ids)) = row.fields.get(COLUMN) else {
            return self.0.encode_part(row, from, examples);
        };
        let is_fitted = matches!(self.0.layout(), Layout::Fitted(_));
        let end = match is_fitted {
            true => ids.len(), // cut where rows end, not where parts do
            false => ids.len().min(from + TOKENS_PER_PART),
        };
        let example = examples.last_or_add();
        example
            .input_ids
            .extend(ids[from..end].iter().map(|&id| id as u32));
        example.label_all();
        if is_fitted {
            examples.split_last();
        }
        Ok((end < ids.len()).then_some(end))
    }
}
