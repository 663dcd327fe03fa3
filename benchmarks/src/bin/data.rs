//! How fast files become batches: one epoch of `data.path`, as the trainer would read it, timed. `benchmarks/data.py` runs it.
//!
//! `data key=value ...` with the keys of [`Request`]. Prints one line of JSON: seconds, rows, tokens. The clock runs from
//! before the files are opened to the last batch; the tokenizer is loaded before that.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tt_collators::{BatchShape, Loader, TokenizeCollator, TokenizeConfig};
use tt_data::{Cursor, DataConfig, Dataset, Order, Shard, Tokenizer};

/// What to read, and with how many threads.
#[derive(Default)]
struct Request {
    url: String,
    path: String,
    val_path: String,
    separator: Option<String>,
    tokenizer: String,
    num_workers: usize,
}

impl Request {
    fn from_args(args: impl Iterator<Item = String>) -> Result<Self> {
        let mut request = Self::default();
        for arg in args {
            let (key, value) = arg
                .split_once('=')
                .with_context(|| format!("`{arg}`: no `=`"))?;
            let value = value.to_owned();
            match key {
                "url" => request.url = value,
                "path" => request.path = value,
                "val_path" => request.val_path = value,
                "separator" => request.separator = Some(value),
                "tokenizer" => request.tokenizer = value,
                "num_workers" => request.num_workers = value.parse()?,
                _ => bail!(
                    "unknown key `{key}`; keys: url, path, val_path, separator, tokenizer, num_workers"
                ),
            }
        }
        Ok(request)
    }
}

fn main() -> Result<()> {
    let request = Request::from_args(std::env::args().skip(1))?;
    let tokenizer = Arc::new(Tokenizer::load(request.tokenizer.as_ref(), None)?);
    let mut config = DataConfig {
        path: Some(request.path),
        val_path: Some(request.val_path),
        ..DataConfig::default()
    };
    config.dataset.url = request.url;
    if let Some(separator) = request.separator {
        let kwargs = &mut config.dataset.kwargs;
        kwargs.insert("separator".to_owned(), separator.into());
    }

    let start = Instant::now();
    let train = Dataset::open(&config)?.train;
    let rows = train.num_rows().context("the data has no end")?;
    let order = Order::of(0, Shard::default(), &*train)?;
    let shape = BatchShape {
        rows: 4,
        seq_len: 1024,
        pad_id: tokenizer.pad_id(),
        vocab_size: tokenizer.vocab_size(),
    };
    let collator = TokenizeCollator::new(TokenizeConfig::default(), tokenizer);
    let mut loader = Loader::new(
        train,
        order,
        Arc::new(collator),
        shape,
        Cursor::default(),
        Some(1),
        request.num_workers,
    )?;
    let mut tokens = 0;
    while let Some(batch) = loader.next_batch()? {
        let used = batch.segment_ids.iter().filter(|&&segment| segment != 0);
        tokens += used.count() as u64;
        loader.recycle(batch);
    }
    let seconds = start.elapsed().as_secs_f64();
    // The ends of documents are not in the texts.
    let tokens = tokens - rows;
    println!(
        "{}",
        json!({ "seconds": seconds, "rows": rows, "tokens": tokens })
    );
    Ok(())
}
