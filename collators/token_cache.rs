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
    Tokenizer, Value,
};

use crate::example::Example;
use crate::inner::{encode_parts, hand_on};
use crate::{Collator, Examples, IGNORE, Kept, KeptTokens, Layout, PipelineOptions};

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
    what: KeptTokens,
}

impl KeptTokens {
    /// Numbers of which one is kept for each token.
    fn num_numbers(self, vocab_size: usize) -> usize {
        match self {
            Self::All => vocab_size,
            Self::Labelled => 2 * vocab_size,
        }
    }

    fn extend(self, numbers: &mut Vec<u32>, example: &Example) {
        match self {
            Self::All => numbers.extend_from_slice(&example.input_ids),
            Self::Labelled => {
                let tokens = example.input_ids.iter().zip(&example.labels);
                numbers.extend(tokens.map(|(id, label)| 2 * id + u32::from(*label != IGNORE)));
            }
        }
    }

    fn put(self, number: i64, example: &mut Example) {
        let (id, is_labelled) = match self {
            Self::All => (number, true),
            Self::Labelled => (number / 2, number % 2 == 1),
        };
        example.input_ids.push(id as u32);
        if is_labelled {
            example.label_all();
        } else {
            example.label_none();
        }
    }
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
        let Some(root) = config.token_cache.root(options.cache.as_deref())? else {
            return Ok(None);
        };
        let Some(Kept { how, what }) = collator.keeps() else {
            return Err(bad(format!(
                "{} does not make tokens of text, which are what can be kept",
                collator.name()
            )));
        };
        let num_numbers = what.num_numbers(tokenizer.vocab_size());
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
            TokenCache::open(&root, key, num_rows, num_numbers)
        };
        let caches = parts.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Some(Self {
            parts,
            caches,
            what,
        }))
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
                    encode((collator, self.what), &row, &mut examples, ids)?;
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

    /// Tokens of a row; `None` if they are not there.
    pub(crate) fn num_tokens_of(&self, (part, row): (usize, u64)) -> Option<u64> {
        self.caches[part].num_tokens_of(row)
    }

    /// `source`, of whose rows the tokens are taken where they are there.
    pub(crate) fn source(
        self: &Arc<Self>,
        source: Arc<dyn Source>,
        sequence_length: usize,
    ) -> Arc<dyn Source> {
        Arc::new(CachedSource {
            source,
            caches: Arc::clone(self),
            most: match self.what {
                KeptTokens::All => usize::MAX,
                KeptTokens::Labelled => sequence_length,
            },
        })
    }

    /// `collator`, which takes those tokens.
    pub(crate) fn collator(&self, collator: Arc<dyn Collator>) -> Arc<dyn Collator> {
        Arc::new(CachedCollator(collator, self.what))
    }

    fn read(&self, (part, row): (usize, u64), ids: &mut Vec<u32>) -> bool {
        self.caches[part].read(row, ids)
    }
}

/// All tokens of a row.
fn encode(
    (collator, what): (&dyn Collator, KeptTokens),
    row: &Row,
    examples: &mut Examples,
    numbers: &mut Vec<u32>,
) -> Result<(), DataError> {
    let mut from = Some(0);
    while let Some(here) = from {
        examples.begin(0);
        let next = collator.encode_part(row, here, examples);
        from = next.map_err(|error| error.of_collator(collator.name(), Some(&row.at)))?;
        for example in examples.as_slice() {
            what.extend(numbers, example);
        }
    }
    Ok(())
}

/// A source whose rows are tokens where the cache has them.
struct CachedSource {
    source: Arc<dyn Source>,
    caches: Arc<TokenCaches>,
    /// Rows of more are encoded again.
    most: usize,
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
        if self.caches.read(place, &mut ids) && (1..=self.most).contains(&ids.len()) {
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
struct CachedCollator(Arc<dyn Collator>, KeptTokens);

#[deny(clippy::missing_trait_methods)] // one that is not handed on would be the trait's
impl Collator for CachedCollator {
    hand_on!();

    fn may_leave_out(&self) -> bool {
        self.0.may_leave_out()
    }

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
        ids[from..end]
            .iter()
            .for_each(|&number| self.1.put(number, example));
        if is_fitted {
            examples.split_last();
        }
        Ok((end < ids.len()).then_some(end))
    }
}
