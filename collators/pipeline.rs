//! The front door of the data side: a config in, batches out.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tt_config::Table;
use tt_data::{
    Cursor, DataConfig, DataError, Dataset, Location, Nulls, OpenSource, Order, Row, SOURCES,
    Shard, Source, Tokenizer, TokenizerFiles, TokenizerOrigin, cache_folder,
};

use crate::baselines::{Baselines, Bigrams, Unigram};
use crate::batch::Batch;
use crate::example::Examples;
use crate::field::Field;
use crate::layout::Layout;
use crate::loader::{BatchShape, Loader};
use crate::row_values::{RowField, RowValues};
use crate::skip_nulls::SkipNulls;
use crate::spec::BatchSpec;
use crate::start::Batching;
use crate::token_cache::{TokenCaches, TokenProgress, Tokenized};
use crate::{BuildCollator, Collator, KeptTokens, TABLE};

/// Tokens of the training split that the bigram baseline counts.
const BIGRAM_TOKENS: usize = 1 << 18;
/// The order of validation, and of the sample for baselines, whatever the run's seed.
const FIXED_SEED: u64 = 0;

/// What a pipeline takes besides its config.
#[derive(Debug, Clone)]
pub struct PipelineOptions {
    /// Decides the order of the training data.
    pub seed: u64,
    /// Rows of data in a batch; rows of the batch too, unless the collator makes several of each.
    pub micro_batch_size: usize,
    /// Passes over the training data; endless if `None`.
    pub num_epochs: Option<u64>,
    /// Batches that the training data would have before the first: those of `data.start_step` steps.
    pub start_batches: u64,
    /// This process's share of the training data.
    pub shard: Shard,
    /// Where a trained tokenizer is kept.
    pub cache: Option<PathBuf>,
    /// The tokenizer that comes with the model: taken where the config names none, instead of training one.
    pub tokenizer: Option<TokenizerOrigin>,
    /// Tokens that the model knows; those of the tokenizer if `None`.
    pub vocab_size: Option<usize>,
    /// What `data.dataset.url` may name.
    pub sources: Table<OpenSource>,
    /// What `data.collator.type` may name.
    pub collators: Table<BuildCollator>,
}

/// A part of the data that is held apart from the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// What is trained on.
    Train,
    /// What is validated on.
    Validation,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            micro_batch_size: 4,
            num_epochs: None,
            start_batches: 0,
            shard: Shard::default(),
            cache: cache_folder(),
            tokenizer: None,
            vocab_size: None,
            sources: SOURCES,
            collators: TABLE,
        }
    }
}

/// Data, ready to be trained on.
pub struct Pipeline {
    config: DataConfig,
    options: PipelineOptions,
    dataset: Dataset,
    tokenizer: Arc<Tokenizer>,
    collator: Arc<dyn Collator>,
    caches: Option<Arc<TokenCaches>>,
    row_field: Option<RowField>,
    validation: Vec<Batch>,
}

impl Pipeline {
    /// Opens the data and makes the validation batches, so that what is wrong with the data shows
    /// before training starts.
    pub fn open(config: &DataConfig, options: &PipelineOptions) -> Result<Self, DataError> {
        for (key, value, least) in [
            ("data.sequence_length", config.sequence_length, 2),
            ("data.num_val_blocks", config.num_val_blocks, 1),
            ("trainer.micro_batch_size", options.micro_batch_size, 1),
        ] {
            if value < least {
                let message = format!("{value} is under {least}");
                return Err(DataError::BadValue { key, message });
            }
        }
        // The collator comes first, as it says which columns are read; a tokenizer that is to be trained is stood in for.
        let given = given_tokenizer(config, options)?.map(Arc::new);
        let planned = match &given {
            Some(tokenizer) => Arc::clone(tokenizer),
            None => Arc::new(Tokenizer::stand_in()?),
        };
        let planned = build_collator(config, &options.collators, &planned)?;
        let config = &DataConfig {
            used_columns: planned.columns(),
            ..config.clone()
        };
        let dataset = Dataset::open_from(config, &options.sources)?;
        if options.num_epochs.is_some() && dataset.train.num_rows().is_none() {
            return Err(DataError::BadValue {
                key: "trainer.num_epochs",
                message: format!(
                    "data set `{}` has no end, hence no epochs; give trainer.max_steps instead",
                    config.dataset.url
                ),
            });
        }
        let (tokenizer, mut collator) = match given {
            Some(tokenizer) => (tokenizer, planned),
            None => {
                let (train, cache) = (dataset.train.as_ref(), options.cache.as_deref());
                let has_mask = planned.hides_tokens();
                let trained = Tokenizer::open_with(&config.tokenizer, train, cache, has_mask)?;
                let tokenizer = Arc::new(with_mask(trained, config)?);
                let collator = build_collator(config, &options.collators, &tokenizer)?;
                (tokenizer, collator)
            }
        };
        for split in [&dataset.train, &dataset.validation] {
            check_tokenizer(&tokenizer, split.as_ref())?;
        }
        if config.nulls == Nulls::Skip {
            collator = Arc::new(SkipNulls(collator));
        }
        let caches = TokenCaches::open(config, options, &dataset, &tokenizer, &*collator)?;
        let mut pipeline = Self {
            config: config.clone(),
            options: options.clone(),
            dataset,
            tokenizer,
            collator,
            caches: caches.map(Arc::new),
            row_field: None,
            validation: Vec::new(),
        };
        pipeline.validation = pipeline.read_validation()?;
        pipeline.check_targets()?;
        Ok(pipeline)
    }

    /// Makes the tokens that `data.token_cache` is to have and has not. `go_on` is called all the time; what has been made
    /// when it says no stays. `None` if the configuration wants no cache.
    pub fn fill_token_cache(
        &mut self,
        go_on: &dyn Fn(TokenProgress) -> bool,
    ) -> Result<Option<Tokenized>, DataError> {
        let Some(caches) = &self.caches else {
            return Ok(None);
        };
        let mut made_rows = 0;
        if caches.is_incomplete() {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            made_rows = caches.fill(&*self.collator, threads, go_on)?;
        }
        let (config, options) = (&self.config, &self.options);
        let (dataset, collator) = (&self.dataset, &*self.collator);
        let caches = TokenCaches::open(config, options, dataset, &self.tokenizer, collator)?;
        self.caches = caches.map(Arc::new);
        let summary = self.caches.as_ref().map(|caches| caches.summary());
        Ok(summary.map(|summary| Tokenized {
            made_rows,
            ..summary
        }))
    }

    /// Gives each row of the batches to come, and of the validation batches, its number of `values` in the field `name`. A row
    /// that has none is an error when its turn comes. Error: rows are not of one example each.
    pub fn add_row_values(
        &mut self,
        name: &'static str,
        values: RowValues,
    ) -> Result<(), DataError> {
        self.row_field = Some(RowField {
            field: Field::per_row(name, 0.0f32),
            values: Arc::new(values),
        });
        self.batch_spec()?;
        self.validation = self.read_validation()?;
        Ok(())
    }

    /// All training rows once, in an order that no seed changes. Error: there is no end of them.
    pub fn each_once(&self) -> Result<Loader, DataError> {
        let train = &self.dataset.train;
        if train.num_rows().is_none() {
            return Err(DataError::BadValue {
                key: "data.dataset.url",
                message: format!("data set `{}` has no end", self.config.dataset.url),
            });
        }
        let order = Order::of(FIXED_SEED, Shard::default(), train.as_ref())?;
        self.loader(train, order, Cursor::default(), Some(1))
    }

    /// What made the tokens.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The files of the tokenizer for a checkpoint, with the chat template that the data is written by.
    pub fn tokenizer_files(&self) -> TokenizerFiles {
        let mut files = self.tokenizer.files().clone();
        if let Some(template) = self.collator.chat_template() {
            files.insert("chat_template.jinja".to_owned(), template.into_bytes());
        }
        files
    }

    /// The token that ends an answer, where the data is conversations.
    pub fn answer_end(&self) -> Option<u32> {
        self.collator.answer_end()
    }

    /// What the data holds and in which order, in short: a [`Cursor`] is of use with equal ones.
    pub fn fingerprint(&self) -> &str {
        &self.dataset.fingerprint
    }

    /// How many documents and tokens there are, and how long documents are, in a line; `None` for a source that does not know.
    /// Tokens are counted in a sample, and reckoned from bytes.
    pub fn summary(&self) -> Result<Option<String>, DataError> {
        let (Some(mut train), Some(validation)) = (
            self.dataset.train.row_bytes(),
            self.dataset.validation.row_bytes(),
        ) else {
            return Ok(None);
        };
        let Some(bytes_per_token) = self.bytes_per_token(&train)? else {
            return Ok(None);
        };
        train.sort_unstable();
        let tokens = |bytes: u64| about((bytes as f64 / bytes_per_token) as u64 + 1);
        let total = |rows: &[u64]| tokens(rows.iter().sum());
        let (median, longest) = (train[train.len() / 2], train[train.len() - 1]);
        let documents = |count| match count {
            1 => "1 document".to_owned(),
            count => format!("{count} documents"),
        };
        Ok(Some(format!(
            "{} of about {} tokens to train on (median {}, longest {}), {} of {} for validation",
            documents(train.len()),
            total(&train),
            tokens(median),
            tokens(longest),
            documents(validation.len()),
            total(&validation),
        )))
    }

    /// Of some training rows, which have so many bytes each; `None` if those have no tokens. Of text the beginning will do; else
    /// it is for the collator to say what is made of a row: a conversation with all that its template puts around it.
    fn bytes_per_token(&self, row_bytes: &[u64]) -> Result<Option<f64>, DataError> {
        const ROWS: u64 = 64;
        const BYTES: usize = 2048;
        let train = &self.dataset.train;
        let order = Order::of(FIXED_SEED, Shard::default(), train.as_ref())?;
        let kept = self.collator.keeps();
        let is_text = kept.is_some_and(|it| it.what == KeptTokens::All);
        let spec = BatchSpec::of(&*self.collator)?;
        let mut examples = Examples::new(&spec.fields, usize::MAX);
        let mut row = Row::default();
        let (mut bytes, mut tokens) = (0, 0);
        for position in 0..ROWS.min(order.rows_per_epoch()) {
            let index = order.row(0, position);
            train.read(index, &mut row)?;
            let mut texts = Vec::new();
            if is_text {
                row.fields
                    .for_each_text(&mut |text| texts.push(beginning(text, BYTES)));
            }
            for text in &texts {
                bytes += text.len() as u64;
                tokens += self.tokenizer.encode(text)?.len();
            }
            if texts.is_empty() {
                examples.begin(0);
                // What is wrong with a row is said when its turn comes.
                if self.collator.encode(&row, &mut examples).is_ok() {
                    bytes += row_bytes[index as usize];
                    tokens += examples.num_tokens();
                }
            }
        }
        Ok((tokens > 0).then(|| bytes as f64 / tokens as f64))
    }

    /// What the batches have.
    pub fn batch_spec(&self) -> Result<BatchSpec, DataError> {
        let spec = BatchSpec::of(&*self.collator)?;
        match &self.row_field {
            Some(row_field) => spec.with_field(row_field.field),
            None => Ok(spec),
        }
    }

    /// Tokens in a row of a batch.
    pub fn sequence_length(&self) -> usize {
        self.config.sequence_length
    }

    /// The training batches from `cursor` on, or from the start.
    pub fn train(&self, cursor: Option<Cursor>) -> Result<Loader, DataError> {
        let cursor = match cursor {
            Some(cursor) => cursor,
            None => self.start()?,
        };
        self.loader(
            &self.dataset.train,
            self.order()?,
            cursor,
            self.options.num_epochs,
        )
    }

    /// Where training begins: with the first row, or where `data.start_step` says. Errors: that is not known without making
    /// the batches before it, or beyond the data.
    pub fn start(&self) -> Result<Cursor, DataError> {
        let bad = |message: String| DataError::BadValue {
            key: "data.start_step",
            message,
        };
        let PipelineOptions {
            start_batches,
            micro_batch_size,
            num_epochs,
            ..
        } = self.options;
        let train = &self.dataset.train;
        let caches = self.caches.as_ref().filter(|it| !it.is_incomplete());
        let length =
            caches.map(|it| move |row| it.num_tokens_of(train.part(row)).unwrap_or_default());
        let batching = Batching {
            layout: self.collator.layout(),
            rows: micro_batch_size as u64,
            seq_len: self.config.sequence_length as u64,
            may_leave_out: self.collator.may_leave_out(),
            lengths: length.as_ref().map(|it| it as &dyn Fn(u64) -> u64),
        };
        let start = batching
            .after(start_batches, &self.order()?)
            .map_err(|why| bad(format!("where that step begins is not known: {why}")))?;
        match num_epochs {
            Some(epochs) if start.epoch >= epochs => Err(bad(format!(
                "it would begin after {} epochs, and trainer.num_epochs is {epochs}",
                start.epoch
            ))),
            _ => Ok(start),
        }
    }

    fn order(&self) -> Result<Order, DataError> {
        let PipelineOptions { seed, shard, .. } = self.options;
        Order::of(seed, shard, self.dataset.train.as_ref())
    }

    /// Batches of all epochs from the start on, or `at_most` if there are more; `None` if there is no end. Encodes the data once, or as much
    /// of it, as how many rows it fills depends on the length of each example.
    pub fn num_batches(&self, at_most: Option<u64>) -> Result<Option<u64>, DataError> {
        let PipelineOptions {
            num_epochs: Some(num_epochs),
            micro_batch_size,
            start_batches,
            ..
        } = self.options
        else {
            return Ok(None);
        };
        let (train, order) = (&self.dataset.train, self.order()?);
        let at_most = at_most.map(|most| most.saturating_add(start_batches));
        let seq_len = self.config.sequence_length;
        let spec = BatchSpec::of(&*self.collator)?;
        // What fits together in a window is another matter in each epoch.
        let epochs = match spec.layout {
            Layout::Fitted(_) => num_epochs,
            _ => 1,
        };
        let mut loader = self.loader(train, order, Cursor::default(), Some(epochs))?;
        let batches = |rows: u64, tokens: u64| {
            let rows = match spec.layout {
                // Rows are filled across the end of an epoch.
                Layout::Packed => (tokens * num_epochs).div_ceil(seq_len as u64),
                Layout::Fitted(_) => rows,
                Layout::Padded | Layout::Grouped(_) => {
                    rows / spec.rows_of_each() as u64 * num_epochs
                }
            };
            let all = rows.div_ceil(micro_batch_size as u64);
            at_most.map_or(all, |most| most.min(all))
        };
        let (mut rows, mut tokens) = (0u64, 0u64);
        while at_most.is_none_or(|most| batches(rows, tokens) < most)
            && let Some(batch) = loader.next_batch()?
        {
            for segments in batch.segment_ids.chunks(seq_len) {
                let filled = segments.iter().filter(|&&segment| segment != 0).count();
                rows += u64::from(filled > 0);
                tokens += filled as u64;
            }
            loader.recycle(batch);
        }
        Ok(Some(batches(rows, tokens).saturating_sub(start_batches)))
    }

    /// Where the training rows between two cursors stand, for messages: `from` is in the first, `to` before or in the
    /// last.
    pub fn documents(&self, from: Cursor, to: Cursor) -> Result<Vec<Location>, DataError> {
        let source = &self.dataset.train;
        let order = self.order()?;
        let mut row = Row::default();
        let mut found = Vec::new();
        let mut at = Cursor { token: 0, ..from };
        let mut to = to;
        if let Layout::Fitted(window) = self.collator.layout()
            && to.token > 0
        {
            // A row of the batch may hold any row of the window.
            to.row = (to.row + window as u64).min(order.rows_per_epoch());
            to.token = 0;
        }
        while at < to {
            source.read(order.row(at.epoch, at.row), &mut row)?;
            found.push(row.at.clone());
            at.row += 1;
            if at.row == order.rows_per_epoch() {
                at.row = 0;
                at.epoch += 1;
            }
        }
        Ok(found)
    }

    /// The validation batches: the same for every seed, rank and step. Rows beyond
    /// `data.num_val_blocks` are padding.
    pub fn validation(&self) -> &[Batch] {
        &self.validation
    }

    /// What the data sets of a mixture are called; none of other data.
    pub fn validation_parts(&self) -> impl Iterator<Item = &str> {
        let parts = self.dataset.validation.parts().iter();
        parts.map(|part| part.name.as_str())
    }

    /// One pass over a split that nothing is learned from, the same for every seed, of a mixture each part by itself: `visit` gets
    /// each batch, and no further one once it says no. Of validation these are the batches of [`Pipeline::validation`]. Error:
    /// the training split has no end, and `at_most` batches of each part are not given.
    pub fn look_through<E: From<DataError>>(
        &self,
        split: Split,
        at_most: Option<u64>,
        mut visit: impl FnMut(&Batch) -> Result<bool, E>,
    ) -> Result<(), E> {
        let at_most = at_most.unwrap_or(u64::MAX);
        if split == Split::Validation {
            let mut seen: Vec<u64> = vec![0; 1 + self.validation_parts().count()];
            for batch in &self.validation {
                let seen = &mut seen[batch.part.map_or(0, |part| part + 1)];
                *seen += 1;
                if *seen <= at_most && !visit(batch)? {
                    break;
                }
            }
            return Ok(());
        }
        let whole = &self.dataset.train;
        let parts: Vec<_> = match whole.parts() {
            [] => vec![(None, whole)],
            parts => {
                let parts = parts.iter().enumerate();
                parts.map(|(at, part)| (Some(at), &part.source)).collect()
            }
        };
        for (part, source) in parts {
            if source.num_rows().is_none() && at_most == u64::MAX {
                let why = format!("data set `{}` has no end", self.config.dataset.url);
                return Err(DataError::other(why).into());
            }
            let order = Order::of(FIXED_SEED, Shard::default(), source.as_ref())?;
            let mut loader = self.loader(source, order, Cursor::default(), Some(1))?;
            for _ in 0..at_most {
                let Some(mut batch) = loader.next_batch()? else {
                    break;
                };
                batch.part = part;
                if !visit(&batch)? {
                    return Ok(());
                }
                loader.recycle(batch);
            }
        }
        Ok(())
    }

    /// What a model has to beat on the validation batches.
    pub fn baselines(&self) -> Result<Baselines, DataError> {
        let vocab_size = self.vocab_size();
        let train = &self.dataset.train;
        let order = Order::of(FIXED_SEED, Shard::default(), train.as_ref())?;
        let mut loader = self.loader(train, order, Cursor::default(), Some(1))?;
        let mut bigrams = Bigrams::new(vocab_size);
        let tokens_per_batch = self.options.micro_batch_size * self.config.sequence_length;
        for _ in 0..BIGRAM_TOKENS.div_ceil(tokens_per_batch) {
            let Some(batch) = loader.next_batch()? else {
                break;
            };
            bigrams.add(&batch);
            loader.recycle(batch);
        }
        let Unigram { nats, accuracy } = Unigram::of(&self.validation, vocab_size);
        Ok(Baselines {
            unigram_nats: nats,
            unigram_accuracy: accuracy,
            bigram_nats: bigrams.nats(&self.validation),
        })
    }

    /// Tokens and labels are under this.
    fn vocab_size(&self) -> usize {
        // A model with fewer tokens than the tokenizer is refused as such.
        let of_model = self.options.vocab_size.unwrap_or_default();
        of_model.max(self.tokenizer.vocab_size())
    }

    /// Refuses a split in which there is nothing to predict: all of the validation batches, the beginning of training.
    fn check_targets(&self) -> Result<(), DataError> {
        let refuse = |split: &'static str, source: &dyn Source, seed| {
            let mut first = Row::default();
            let order = Order::of(seed, Shard::default(), source)?;
            source.read(order.row(0, 0), &mut first)?;
            Err(DataError::NothingToPredict {
                split,
                collator: self.collator.name().to_owned(),
                at: first.at,
                sequence_length: self.config.sequence_length,
            })
        };
        let Dataset {
            train, validation, ..
        } = &self.dataset;
        if self.validation.iter().all(|batch| batch.num_targets == 0) {
            return refuse("validation", validation.as_ref(), FIXED_SEED);
        }
        let mut loader = self.train(Some(Cursor::default()))?;
        let tokens_per_batch = self.options.micro_batch_size * self.config.sequence_length;
        for _ in 0..BIGRAM_TOKENS.div_ceil(tokens_per_batch) {
            match loader.next_batch()? {
                Some(batch) if batch.num_targets == 0 => loader.recycle(batch),
                Some(_) => return Ok(()),
                None => break,
            }
        }
        refuse("training", train.as_ref(), self.options.seed)
    }

    /// Of a mixture each batch is of one part, so that each has a loss of its own; a part has as many blocks as is its share of
    /// the rows, and at least one.
    fn read_validation(&self) -> Result<Vec<Batch>, DataError> {
        let source = &self.dataset.validation;
        let num_blocks = self.config.num_val_blocks;
        let parts = source.parts();
        if parts.is_empty() {
            return self.validation_of(source, num_blocks);
        }
        let rows = |source: &Arc<dyn Source>| source.num_rows().unwrap_or_default() as f64;
        let mut batches = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let share = rows(&part.source) / rows(source).max(1.0);
            let blocks = (num_blocks as f64 * share).round().max(1.0);
            for mut batch in self.validation_of(&part.source, blocks as usize)? {
                batch.part = Some(number);
                batches.push(batch);
            }
        }
        Ok(batches)
    }

    fn validation_of(
        &self,
        source: &Arc<dyn Source>,
        num_blocks: usize,
    ) -> Result<Vec<Batch>, DataError> {
        let order = Order::of(FIXED_SEED, Shard::default(), source.as_ref())?;
        let mut loader = self.loader(source, order, Cursor::default(), Some(1))?;
        let mut batches = Vec::new();
        let mut missing = num_blocks;
        while missing > 0 {
            let rows = missing.min(self.options.micro_batch_size);
            let Some(batch) = loader.next_batch_of(rows)? else {
                break;
            };
            batches.push(batch);
            missing -= rows;
        }
        Ok(batches)
    }

    fn loader(
        &self,
        source: &Arc<dyn Source>,
        order: Order,
        cursor: Cursor,
        num_epochs: Option<u64>,
    ) -> Result<Loader, DataError> {
        let shape = BatchShape {
            rows: self.options.micro_batch_size,
            seq_len: self.config.sequence_length,
            pad_id: self.tokenizer.pad_id(),
            vocab_size: self.vocab_size(),
        };
        let (mut source, mut collator) = (Arc::clone(source), Arc::clone(&self.collator));
        if let Some(caches) = &self.caches
            && Arc::ptr_eq(&source, &self.dataset.train)
        {
            source = caches.source(source, self.config.sequence_length);
            collator = caches.collator(collator);
        }
        let loader = Loader::new(
            source,
            order,
            collator,
            shape,
            cursor,
            num_epochs,
            self.config.num_workers,
        )?;
        match &self.row_field {
            Some(row_field) => loader.with_row_field(row_field.clone()),
            None => Ok(loader),
        }
    }
}

impl BatchSpec {
    /// What the batches of `config` have, without opening its data: a tokenizer that is still to be trained is stood in
    /// for by one of single bytes, which has the same special tokens.
    pub fn planned(config: &DataConfig, options: &PipelineOptions) -> Result<Self, DataError> {
        let eos_token = config.tokenizer.eos_token.as_deref();
        let configured = config.tokenizer.path.as_deref().map(Path::new);
        let tokenizer = match (configured, &options.tokenizer) {
            (Some(path), _) if path.exists() => Tokenizer::load(path, eos_token)?,
            (None, Some(origin)) => Tokenizer::load_from(origin, eos_token)?,
            _ => Tokenizer::stand_in()?,
        };
        let tokenizer = Arc::new(with_mask(tokenizer, config)?);
        let collator = build_collator(config, &options.collators, &tokenizer)?;
        Self::of(&*collator)
    }
}

fn build_collator(
    config: &DataConfig,
    collators: &Table<BuildCollator>,
    tokenizer: &Arc<Tokenizer>,
) -> Result<Arc<dyn Collator>, DataError> {
    let name = &config.collator.r#type;
    let entry = collators
        .get(name)
        .map_err(|_| DataError::UnknownCollator {
            name: name.clone(),
            known: collators.names().join(", "),
        })?;
    Ok(Arc::from((entry.build)(
        &config.collator.kwargs,
        tokenizer,
    )?))
}

/// The first `bytes` of a text, and the rest of the character that they end in.
fn beginning(text: &str, bytes: usize) -> &str {
    let beginning = text.char_indices().take_while(|(at, _)| *at < bytes);
    let end = beginning.last().map_or(0, |(at, c)| at + c.len_utf8());
    &text[..end]
}

/// A count to two digits, with a unit where it is large.
fn about(count: u64) -> String {
    let digits = count.checked_ilog10().unwrap_or(0);
    let step = 10_u64.pow(digits.saturating_sub(1));
    let rounded = (count + step / 2) / step * step;
    match rounded {
        0..1_000 => rounded.to_string(),
        1_000..1_000_000 => format!("{} k", rounded as f64 / 1e3),
        _ => format!("{} M", rounded as f64 / 1e6),
    }
}

/// Refuses a tokenizer that makes nothing of the first texts of a split.
fn check_tokenizer(tokenizer: &Tokenizer, source: &dyn Source) -> Result<(), DataError> {
    const TEXTS: u64 = 100;
    const BYTES: usize = 4096;
    let num_rows = source.num_rows().unwrap_or(TEXTS).min(TEXTS);
    let mut row = Row::default();
    let mut num_texts = 0;
    for index in 0..num_rows {
        source.read(index, &mut row)?;
        let mut texts = Vec::new();
        row.fields
            .for_each_text(&mut |text| texts.push(beginning(text, BYTES)));
        for text in texts {
            if !text.is_empty() {
                num_texts += 1;
                if !tokenizer.encode(text)?.is_empty() {
                    return Ok(());
                }
            }
        }
    }
    match num_texts {
        0 => Ok(()), // whatever the collator reads, it is no text
        num_texts => Err(tokenizer.makes_nothing_of(num_texts, &row.at)),
    }
}

/// The tokenizer that there is already; `None` where one is to be trained on the data.
fn given_tokenizer(
    config: &DataConfig,
    options: &PipelineOptions,
) -> Result<Option<Tokenizer>, DataError> {
    let eos_token = config.tokenizer.eos_token.as_deref();
    let tokenizer = match (&config.tokenizer.path, &options.tokenizer) {
        (Some(path), _) => Tokenizer::load(Path::new(path), eos_token)?,
        (None, Some(origin)) => Tokenizer::load_from(origin, eos_token)?,
        (None, None) => return Ok(None),
    };
    let tokenizer = with_mask(tokenizer, config)?;
    Ok(Some(if config.tokenizer.add_special_tokens {
        tokenizer
    } else {
        tokenizer.without_document_start()
    }))
}

/// With the token that hides others which the config names, if it does.
fn with_mask(tokenizer: Tokenizer, config: &DataConfig) -> Result<Tokenizer, DataError> {
    match &config.tokenizer.mask_token {
        Some(token) => tokenizer.with_mask_token(token),
        None => Ok(tokenizer),
    }
}
