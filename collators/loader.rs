//! Batches in order: rows read and encoded ahead on workers, then laid out here.
//!
//! Laying out is sequential, for where a packed row begins depends on all before it; it only
//! copies. Its whole state is the [`Cursor`], which travels with each batch, so the batches after a
//! restored cursor are those of a run never interrupted.

use std::sync::Arc;

use tt_data::{Cursor, DataError, Order, Prefetch, Row, Source};

use crate::Collator;
use crate::batch::Batch;
use crate::example::Examples;
use crate::layout::Layout;
use crate::spec::BatchSpec;

/// Rows that a worker encodes at a time: enough to make waking it cheap.
const ROWS_PER_JOB: u64 = 8;
/// Jobs begun and not used.
const JOBS_AHEAD: usize = 8;
/// The shape of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Rows of the batch; of a collator that makes several of a row of data, rows of data.
    pub rows: usize,
    pub seq_len: usize,
    /// What stands where there is no token.
    pub pad_id: u32,
}

/// The batches of one rank, from a cursor on.
pub struct Loader {
    prefetch: Prefetch<Job>,
    job: Option<Job>,
    /// Of `job`, the row that the cursor is in.
    row: usize,
    cursor: Cursor,
    rows_per_epoch: u64,
    num_epochs: Option<u64>,
    spec: BatchSpec,
    shape: BatchShape,
    spare: Vec<Batch>,
}

/// Encoded rows in order, and the buffers to make them.
#[derive(Default)]
struct Job {
    row: Row,
    /// Of each row.
    examples: Vec<Examples>,
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
        let first = cursor.epoch * rows_per_epoch + cursor.row;
        let declared = spec.clone();
        let encode = move |n, job: &mut Job| {
            if job.examples.is_empty() {
                let examples = |_| Examples::new(&declared.fields);
                job.examples = (0..ROWS_PER_JOB).map(examples).collect();
            }
            let start = first + n * ROWS_PER_JOB;
            for (examples, position) in job.examples.iter_mut().zip(start..) {
                let epoch = position / rows_per_epoch;
                let index = order.row(epoch, position % rows_per_epoch);
                source.read(index, &mut job.row)?;
                examples.begin(order.row_seed(epoch, index));
                collator
                    .encode(&job.row, examples)
                    .and_then(|()| examples.check(declared.layout))
                    .map_err(|error| error.of_collator(collator.name(), Some(&job.row.at)))?;
            }
            Ok(())
        };
        Ok(Self {
            prefetch: Prefetch::new(num_workers, JOBS_AHEAD, encode)?,
            job: None,
            row: 0,
            cursor,
            rows_per_epoch,
            num_epochs,
            spec,
            shape,
            spare: Vec::new(),
        })
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
        } = self.shape;
        let each = self.spec.rows_of_each();
        let mut batch = self.spare.pop().unwrap_or_default();
        batch.clear((all_rows * each, seq_len), pad_id, &self.spec);
        let mut is_empty = true;
        for row in 0..rows {
            let start = self.cursor;
            let filled = match self.spec.layout {
                Layout::Packed => self.pack_row(&mut batch, row)?,
                Layout::Padded | Layout::Grouped(_) => self.fill_rows(&mut batch, row * each)?,
            };
            if filled {
                batch.starts.extend(std::iter::repeat_n(start, each));
                is_empty = false;
            }
        }
        batch.cursor = self.cursor;
        Ok((!is_empty).then_some(batch))
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
        while filled < seq_len {
            let used = self.cursor.token as usize;
            let Some(examples) = self.examples()? else {
                break;
            };
            let is_last = |take| used + take == examples.num_tokens();
            let (example, from) = examples.after(used);
            let take = (example.input_ids.len() - from).min(seq_len - filled);
            segment += 1;
            let start = row * seq_len + filled;
            batch.put(start, segment, example, from..from + take);
            filled += take;
            if is_last(take) {
                self.next_row();
            } else {
                self.cursor.token += take as u64;
            }
        }
        Ok(filled > 0)
    }

    /// Fills the rows from `first` on with the examples of one row of data; false if there is none left.
    fn fill_rows(&mut self, batch: &mut Batch, first: usize) -> Result<bool, DataError> {
        let seq_len = self.shape.seq_len;
        let Some(examples) = self.examples()? else {
            return Ok(false);
        };
        for (row, example) in (first..).zip(examples.as_slice()) {
            let len = example.input_ids.len().min(seq_len);
            batch.put(row * seq_len, 1, example, 0..len);
        }
        self.next_row();
        Ok(true)
    }

    /// What has been made of the row that the cursor is in, after rows without a token; `None` once all epochs are over.
    fn examples(&mut self) -> Result<Option<&Examples>, DataError> {
        let mut empty_rows = 0;
        loop {
            if self.num_epochs.is_some_and(|end| self.cursor.epoch >= end) {
                return Ok(None);
            }
            let job = match self.job.take() {
                Some(job) => job,
                None => self.prefetch.next_item()?,
            };
            let num_tokens = self.job.insert(job).examples[self.row].num_tokens();
            if self.cursor.token > 0 && self.cursor.token >= num_tokens as u64 {
                return Err(outside(self.cursor));
            }
            if num_tokens > 0 {
                return Ok(self.job.as_ref().map(|job| &job.examples[self.row]));
            }
            empty_rows += 1;
            if empty_rows >= self.rows_per_epoch {
                let what = "the data set".to_owned();
                return Err(DataError::Empty { what });
            }
            self.next_row();
        }
    }

    fn next_row(&mut self) {
        self.cursor.token = 0;
        self.cursor.row += 1;
        if self.cursor.row == self.rows_per_epoch {
            self.cursor.row = 0;
            self.cursor.epoch += 1;
        }
        self.row += 1;
        if self.row as u64 == ROWS_PER_JOB {
            self.row = 0;
            if let Some(job) = self.job.take() {
                self.prefetch.recycle(job);
            }
        }
    }
}

fn outside(cursor: Cursor) -> DataError {
    DataError::CursorOutsideData {
        cursor: cursor.to_string(),
    }
}
