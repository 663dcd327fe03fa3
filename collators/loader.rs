//! Batches in order: rows read and encoded ahead on workers, then laid out here.
//!
//! Laying out is sequential, for where a packed row begins depends on all before it; it only
//! copies. Its whole state is the [`Cursor`], which travels with each batch, so the batches after a
//! restored cursor are those of a run never interrupted.
//!
//! A long row of data is encoded in parts, each when the part before is in use, and nothing after it is begun before its
//! last: how much is encoded ahead is bounded in tokens, and a document is encoded once for each time that it is used.

use std::sync::Arc;

use tt_data::{Ahead, Cursor, DataError, Made, Order, Prefetch, Row, Source};

use crate::Collator;
use crate::batch::Batch;
use crate::example::{Before, Example, Examples, LeftOut};
use crate::fit::fit;
use crate::layout::Layout;
use crate::row_values::RowField;
use crate::spec::BatchSpec;

/// Rows that a worker encodes at a time: enough to make waking it cheap.
const ROWS_PER_JOB: usize = 8;
/// A worker hands over its rows, or a part of one, when it has made as many tokens.
const TOKENS_PER_PART: usize = 1 << 14;
/// Jobs begun and not used, and the tokens that wait with which no other is begun.
const AHEAD: Ahead = Ahead {
    depth: 8,
    weight: 1 << 16,
};
/// Rows without a token, one after another, after which an endless source is taken to have none.
const MOST_EMPTY_ROWS: u64 = 100_000;

/// The shape of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Rows of the batch; of a collator that makes several of a row of data, rows of data.
    pub rows: usize,
    /// Tokens of a row.
    pub seq_len: usize,
    /// What stands where there is no token.
    pub pad_id: u32,
    /// Tokens and labels are under this.
    pub vocab_size: usize,
}

/// The batches of one rank, from a cursor on.
pub struct Loader {
    prefetch: Prefetch<Job, Rest>,
    job: Option<Job>,
    /// Of `job`, the row that the cursor is in.
    row: usize,
    /// Tokens of that row in the parts before.
    earlier: u64,
    /// What is packed together, of a layout that fits.
    window: Option<Window>,
    /// Of rows that are over, what no batch has said yet.
    left_out: LeftOut,
    cursor: Cursor,
    rows_per_epoch: u64,
    num_epochs: Option<u64>,
    collator: &'static str,
    spec: BatchSpec,
    shape: BatchShape,
    row_field: Option<RowField>,
    spare: Vec<Batch>,
}

/// Encoded rows in order, and the buffers to make them.
#[derive(Default)]
struct Job {
    row: Row,
    /// Of each row; those in use come first.
    examples: Vec<Examples>,
    num_rows: usize,
    /// The last of them goes on in the next part.
    is_cut: bool,
}

/// Where the next part of a job begins.
#[derive(Default)]
struct Rest {
    /// Rows of the job that are whole.
    num_rows: usize,
    /// The row after them if it has been begun, and where the collator goes on in it.
    row: Option<(Row, usize)>,
    /// What the parts of that row have left.
    before: Before,
}

impl Loader {
    /// Batches of `source` in `order`, from `cursor` to the end of epoch `num_epochs` if given.
    ///
    /// Errors: a cursor beyond the data; fields that cannot be; no room for the workers' threads.
    pub fn new(
        source: Arc<dyn Source>,
        order: Order,
        collator: Arc<dyn Collator>,
        shape: BatchShape,
        cursor: Cursor,
        num_epochs: Option<u64>,
        num_workers: usize,
    ) -> Result<Self, DataError> {
        let rows_per_epoch = order.rows_per_epoch();
        if cursor.row >= rows_per_epoch {
            return Err(outside(cursor));
        }
        let spec = BatchSpec::of(&*collator)?;
        let encoder = Encoder {
            first: cursor.epoch * rows_per_epoch + cursor.row,
            source,
            order,
            collator: Arc::clone(&collator),
            spec: spec.clone(),
            shape,
        };
        let encode = move |n, job: &mut Job, rest: &mut Rest| encoder.encode(n, job, rest);
        Ok(Self {
            prefetch: Prefetch::new(num_workers, AHEAD, encode)?,
            job: None,
            row: 0,
            earlier: 0,
            window: None,
            left_out: LeftOut::default(),
            cursor,
            rows_per_epoch,
            num_epochs,
            collator: collator.name(),
            spec,
            shape,
            row_field: None,
            spare: Vec::new(),
        })
    }

    /// Adds a field to its batches. Error: their rows are of several examples.
    pub(crate) fn with_row_field(mut self, row_field: RowField) -> Result<Self, DataError> {
        self.spec = self.spec.with_field(row_field.field)?;
        self.row_field = Some(row_field);
        Ok(self)
    }

    /// The next batch; `None` once all epochs are over. The last one may end in padding.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, DataError> {
        self.next_batch_of(self.shape.rows)
    }

    /// A batch of which `rows` of the rows that its shape has are filled.
    pub(crate) fn next_batch_of(&mut self, rows: usize) -> Result<Option<Batch>, DataError> {
        let BatchShape {
            rows: all_rows,
            seq_len,
            pad_id,
            ..
        } = self.shape;
        let each = self.spec.rows_of_each();
        let mut batch = self.spare.pop().unwrap_or_default();
        batch.clear((all_rows * each, seq_len), pad_id, &self.spec);
        let mut is_empty = true;
        for row in 0..rows {
            let start = self.cursor;
            let filled = match self.spec.layout {
                Layout::Packed => self.pack_row(&mut batch, row)?,
                Layout::Fitted(window) => self.fit_row(&mut batch, row, window as u64)?,
                Layout::Padded | Layout::Grouped(_) => self.fill_rows(&mut batch, row * each)?,
            };
            if filled {
                batch.starts.extend(std::iter::repeat_n(start, each));
                is_empty = false;
            }
        }
        if is_empty {
            return Ok(None);
        }
        if let Some(row_field) = &self.row_field {
            let filled = row_field.fill(&mut batch);
            filled.map_err(|error| error.of_collator(self.collator, None))?;
        }
        batch.cursor = self.cursor;
        batch.left_out = self.take_left_out();
        Ok(Some(batch))
    }

    /// Whether rows may end in padding before the data does.
    pub fn may_pad(&self) -> bool {
        self.spec.layout != Layout::Packed
    }

    /// What was left out of the rows after the last batch, once.
    pub fn take_left_out(&mut self) -> LeftOut {
        std::mem::take(&mut self.left_out)
    }

    /// Waiting for data ends with the error `Interrupted` when `interrupt` says so; the loader is of no use then.
    pub fn interrupt_if(&mut self, interrupt: impl Fn() -> bool + Send + 'static) {
        self.prefetch.interrupt_if(interrupt);
    }

    /// Gives a batch's buffers back, to be written again.
    pub fn recycle(&mut self, batch: Batch) {
        self.spare.push(batch);
    }

    /// Packs row `row`; false if there was nothing left for it.
    fn pack_row(&mut self, batch: &mut Batch, row: usize) -> Result<bool, DataError> {
        let seq_len = self.shape.seq_len;
        let mut filled = 0;
        let mut segment = 0;
        // Tokens in the row of an example of which the next part is to come.
        let mut begun = 0;
        while filled < seq_len {
            let Some(part) = self.part()? else {
                break;
            };
            let (example, from) = part.examples.after(part.used);
            let take = (example.input_ids.len() - from).min(seq_len - filled);
            if begun == 0 {
                segment += 1;
            }
            let start = row * seq_len + filled;
            batch.put(start, (segment, begun), example, from..from + take);
            filled += take;
            let is_last = part.used + take == part.examples.num_tokens();
            begun = if is_last && part.is_cut {
                begun + take
            } else {
                0
            };
            match (is_last, part.is_cut) {
                (true, true) => self.next_part(),
                (true, false) => self.next_row(),
                (false, _) => self.cursor.token += take as u64,
            }
        }
        Ok(filled > 0)
    }

    /// Fills the rows from `first` on with the examples of one row of data; false if there is none left.
    fn fill_rows(&mut self, batch: &mut Batch, first: usize) -> Result<bool, DataError> {
        let seq_len = self.shape.seq_len;
        let Some(part) = self.part()? else {
            return Ok(false);
        };
        for (row, example) in (first..).zip(part.examples.as_slice()) {
            let len = example.input_ids.len().min(seq_len);
            batch.put(row * seq_len, (1, 0), example, 0..len);
        }
        self.next_row();
        Ok(true)
    }

    /// Fills row `row` with whole examples of the window that the cursor is in, whose `token` counts rows made of it; false if
    /// there is none left.
    fn fit_row(&mut self, batch: &mut Batch, row: usize, num_rows: u64) -> Result<bool, DataError> {
        let window = match self.window.take() {
            Some(window) => window,
            None => match self.read_window(num_rows)? {
                Some(window) => window,
                None => return Ok(false),
            },
        };
        let mut start = row * self.shape.seq_len;
        let Some(examples) = window.rows.get(self.cursor.token as usize) else {
            return Err(outside(self.cursor));
        };
        for (segment, &example) in (1..).zip(examples) {
            let example = &window.examples[example];
            let len = example.input_ids.len().min(self.shape.seq_len);
            batch.put(start, (segment, 0), example, 0..len);
            start += len;
        }
        self.cursor.token += 1;
        if self.cursor.token == window.rows.len() as u64 {
            self.cursor = window.end;
            self.left_out += window.left_out;
        } else {
            self.window = Some(window);
        }
        Ok(true)
    }

    /// The window that begins at the cursor's row, or the first one after it that has tokens; `None` once all epochs are over.
    fn read_window(&mut self, num_rows: u64) -> Result<Option<Window>, DataError> {
        let mut start = self.cursor;
        let mut empty_rows = 0;
        let left_out = std::mem::take(&mut self.left_out);
        let window = loop {
            if self.num_epochs.is_some_and(|end| start.epoch >= end) {
                self.left_out += left_out;
                return Ok(None);
            }
            self.cursor.token = 0;
            let mut examples = Vec::new();
            for _ in 0..num_rows.min(self.rows_per_epoch - start.row) {
                let job = match self.job.take() {
                    Some(job) => job,
                    None => self.prefetch.next_item()?,
                };
                let job = self.job.insert(job);
                let of_row = job.examples[self.row].as_slice().iter();
                examples.extend(of_row.filter(|it| !it.input_ids.is_empty()).cloned());
                empty_rows += 1;
                let at = job.row.at.clone();
                self.next_row();
                let most = (2 * self.rows_per_epoch - 1).min(MOST_EMPTY_ROWS);
                if examples.is_empty() && empty_rows >= most {
                    return Err(DataError::NoTokens {
                        collator: self.collator.to_owned(),
                        rows: empty_rows,
                        at,
                    });
                }
            }
            if !examples.is_empty() {
                let lengths = examples.iter().map(|it| it.input_ids.len());
                let lengths: Vec<usize> = lengths.collect();
                break Window {
                    rows: fit(&lengths, self.shape.seq_len),
                    examples,
                    end: self.cursor,
                    left_out: std::mem::take(&mut self.left_out),
                };
            }
            if start.token > 0 {
                return Err(outside(start));
            }
            start = self.cursor;
        };
        // Said by the batch in which the window ends, as is what rows of a window without tokens have left out.
        self.left_out = left_out;
        self.cursor = start;
        Ok(Some(window))
    }

    /// What has been made of the row that the cursor is in, after rows without a token; `None` once all epochs are over.
    fn part(&mut self) -> Result<Option<Part<'_>>, DataError> {
        let mut empty_rows = 0;
        loop {
            if self.num_epochs.is_some_and(|end| self.cursor.epoch >= end) {
                return Ok(None);
            }
            let job = match self.job.take() {
                Some(job) => job,
                None => self.prefetch.next_item()?,
            };
            let job = self.job.insert(job);
            let num_tokens = job.examples[self.row].num_tokens();
            let is_cut = job.is_cut && self.row + 1 == job.num_rows;
            let end = self.earlier + num_tokens as u64;
            if self.cursor.token < end {
                break;
            }
            if is_cut {
                // A cursor that is restored may be in a later part.
                let token = self.cursor.token;
                self.next_part();
                self.cursor.token = token;
                continue;
            }
            if self.cursor.token > end || (end > 0 && self.earlier == 0) {
                return Err(outside(self.cursor));
            }
            empty_rows += 1;
            // The only row with tokens may come first in an epoch and last in the next.
            let most = (2 * self.rows_per_epoch - 1).min(MOST_EMPTY_ROWS);
            if empty_rows >= most && end == 0 {
                return Err(DataError::NoTokens {
                    collator: self.collator.to_owned(),
                    rows: empty_rows,
                    at: job.row.at.clone(),
                });
            }
            self.next_row();
        }
        Ok(self.job.as_ref().map(|job| Part {
            examples: &job.examples[self.row],
            used: (self.cursor.token - self.earlier) as usize,
            is_cut: job.is_cut && self.row + 1 == job.num_rows,
        }))
    }

    /// Goes on to the next part of the row.
    fn next_part(&mut self) {
        if let Some(job) = self.job.take() {
            self.earlier += job.examples[self.row].num_tokens() as u64;
            self.prefetch.recycle(job);
        }
        self.cursor.token = self.earlier;
        self.row = 0;
    }

    fn next_row(&mut self) {
        // Later epochs have the same rows. What a batch says may depend on nothing but where it is, so by the epoch.
        if let Some(job) = &self.job
            && self.cursor.epoch == 0
        {
            self.left_out += job.examples[self.row].left_out();
        }
        self.cursor.token = 0;
        self.earlier = 0;
        self.cursor.row += 1;
        if self.cursor.row == self.rows_per_epoch {
            self.cursor.row = 0;
            self.cursor.epoch += 1;
        }
        self.row += 1;
        if let Some(job) = self.job.take_if(|job| self.row == job.num_rows) {
            self.row = 0;
            self.prefetch.recycle(job);
        }
    }
}

/// Examples that are packed together.
struct Window {
    examples: Vec<Example>,
    /// The examples in each row of the batch.
    rows: Vec<Vec<usize>>,
    /// Where the next window begins.
    end: Cursor,
    left_out: LeftOut,
}

/// What is at hand of a row of data.
struct Part<'a> {
    examples: &'a Examples,
    /// Tokens of it that have been used.
    used: usize,
    /// The row goes on in the next part.
    is_cut: bool,
}

/// Reads and encodes the rows of a job.
struct Encoder {
    /// Position of the first row of job 0.
    first: u64,
    source: Arc<dyn Source>,
    order: Order,
    collator: Arc<dyn Collator>,
    spec: BatchSpec,
    shape: BatchShape,
}

impl Encoder {
    fn encode(&self, n: u64, job: &mut Job, rest: &mut Rest) -> Result<Made, DataError> {
        let mut tokens = 0;
        job.num_rows = 0;
        job.is_cut = false;
        while rest.num_rows < ROWS_PER_JOB && tokens < TOKENS_PER_PART && !job.is_cut {
            let position = self.first + n * ROWS_PER_JOB as u64 + rest.num_rows as u64;
            let rows_per_epoch = self.order.rows_per_epoch();
            let epoch = position / rows_per_epoch;
            let index = self.order.row(epoch, position % rows_per_epoch);
            let from = match rest.row.take() {
                Some((row, from)) => {
                    job.row = row;
                    from
                }
                None => {
                    self.source.read(index, &mut job.row)?;
                    0
                }
            };
            if job.examples.len() == job.num_rows {
                job.examples
                    .push(Examples::new(&self.spec.fields, self.shape.seq_len));
            }
            let examples = &mut job.examples[job.num_rows];
            let before = match from {
                0 => Before::default(),
                _ => rest.before,
            };
            examples.go_on(self.order.row_seed(epoch, index), before);
            let next = self.encode_row(&job.row, from, examples);
            let next =
                next.map_err(|error| error.of_collator(self.collator.name(), Some(&job.row.at)))?;
            tokens += examples.num_tokens();
            rest.before = examples.leave();
            job.num_rows += 1;
            match next {
                Some(next) => {
                    rest.row = Some((std::mem::take(&mut job.row), next));
                    job.is_cut = true;
                }
                None => {
                    rest.num_rows += 1;
                    if from > 0 {
                        job.row = Row::default(); // a long one is not kept
                    }
                }
            }
        }
        Ok(Made {
            weight: tokens,
            is_whole: rest.num_rows == ROWS_PER_JOB,
        })
    }

    /// A part of a row that is packed, or as much of it as a row of the batch takes. Gives where the next part begins.
    fn encode_row(
        &self,
        row: &Row,
        from: usize,
        examples: &mut Examples,
    ) -> Result<Option<usize>, DataError> {
        let mut next = self.collator.encode_part(row, from, examples)?;
        if self.spec.layout != Layout::Packed {
            // What is cut off need not be encoded.
            while let Some(from) = next
                && examples.num_tokens() < self.shape.seq_len
            {
                next = self.collator.encode_part(row, from, examples)?;
            }
            next = None;
        }
        self.collator.finish(examples)?;
        examples.check(self.spec.layout, self.shape.vocab_size)?;
        Ok(next)
    }
}

fn outside(cursor: Cursor) -> DataError {
    DataError::CursorOutsideData {
        cursor: cursor.to_string(),
    }
}
