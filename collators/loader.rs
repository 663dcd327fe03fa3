//! Batches in order: rows read and encoded ahead on workers, then laid out here.
//!
//! Laying out is sequential, for where a packed row begins depends on all before it; it only
//! copies. Its whole state is the [`Cursor`], which travels with each batch, so the batches after a
//! restored cursor are those of a run never interrupted.

use std::sync::Arc;

use tt_data::{Cursor, DataError, Order, Prefetch, Row, Source};

use crate::{Batch, Collator, Example, Layout};

/// Rows that a worker encodes at a time: enough to make waking it cheap.
const ROWS_PER_JOB: u64 = 8;
/// Jobs begun and not used.
const JOBS_AHEAD: usize = 8;
/// Room for tokens of a row from the start, so that rows of usual length never grow a buffer later.
const TOKENS_PER_ROW: usize = 512;

/// The shape of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    pub rows: usize,
    pub seq_len: usize,
    /// What stands where there is no token.
    pub pad_id: u32,
}

/// The batches of one rank, from a cursor on.
pub struct Loader {
    prefetch: Prefetch<Job>,
    job: Option<Job>,
    /// Of `job`, the example that the cursor is in.
    example: usize,
    cursor: Cursor,
    rows_per_epoch: u64,
    num_epochs: Option<u64>,
    layout: Layout,
    shape: BatchShape,
    spare: Vec<Batch>,
}

/// Encoded rows in order, and the buffers to make them.
struct Job {
    row: Row,
    examples: Vec<Example>,
}

impl Default for Job {
    fn default() -> Self {
        let example = |_| Example {
            input_ids: Vec::with_capacity(TOKENS_PER_ROW),
            labels: Vec::with_capacity(TOKENS_PER_ROW),
        };
        Self {
            row: Row::default(),
            examples: (0..ROWS_PER_JOB).map(example).collect(),
        }
    }
}

impl Loader {
    /// Batches of `source` in `order`, from `cursor` to the end of epoch `num_epochs` if given.
    ///
    /// Errors: a cursor beyond the data; no room for the workers' threads.
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
        let layout = collator.layout();
        let first = cursor.epoch * rows_per_epoch + cursor.row;
        let encode = move |n, job: &mut Job| {
            let start = first + n * ROWS_PER_JOB;
            for (example, position) in job.examples.iter_mut().zip(start..) {
                let index = order.row(position / rows_per_epoch, position % rows_per_epoch);
                source.read(index, &mut job.row)?;
                example.input_ids.clear();
                example.labels.clear();
                collator.encode(&job.row, example)?;
            }
            Ok(())
        };
        Ok(Self {
            prefetch: Prefetch::new(num_workers, JOBS_AHEAD, encode)?,
            job: None,
            example: 0,
            cursor,
            rows_per_epoch,
            num_epochs,
            layout,
            shape,
            spare: Vec::new(),
        })
    }

    /// The next batch; `None` once all epochs are over. The last one may end in padding.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, DataError> {
        self.next_batch_of(self.shape.rows)
    }

    /// A batch whose first `rows` rows are filled.
    pub(crate) fn next_batch_of(&mut self, rows: usize) -> Result<Option<Batch>, DataError> {
        let BatchShape {
            rows: all_rows,
            seq_len,
            pad_id,
        } = self.shape;
        let mut batch = self.spare.pop().unwrap_or_default();
        batch.clear(all_rows, seq_len, pad_id);
        let mut is_empty = true;
        for row in 0..rows {
            let start = self.cursor;
            if self.fill_row(&mut batch, row * seq_len)? {
                batch.starts.push(start);
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

    /// Fills the row that begins at `start`; false if there was nothing left for it.
    fn fill_row(&mut self, batch: &mut Batch, start: usize) -> Result<bool, DataError> {
        let seq_len = self.shape.seq_len;
        let mut filled = 0;
        let mut segment = 0;
        let mut empty_rows = 0;
        while filled < seq_len {
            if self.num_epochs.is_some_and(|end| self.cursor.epoch >= end) {
                break;
            }
            let used = self.cursor.token as usize;
            let example = self.example()?;
            let len = example.input_ids.len();
            if used > 0 && used >= len {
                return Err(outside(self.cursor));
            }
            if len == 0 {
                empty_rows += 1;
                if empty_rows >= self.rows_per_epoch {
                    let what = "the data set".to_owned();
                    return Err(DataError::Empty { what });
                }
                self.next_example();
                continue;
            }
            let take = (len - used).min(seq_len - filled);
            let range = used..used + take;
            segment += 1;
            let (ids, labels) = (&example.input_ids[range.clone()], &example.labels[range]);
            batch.put(start + filled, segment, ids, labels);
            filled += take;
            if used + take == len || self.layout == Layout::Padded {
                self.next_example();
            } else {
                self.cursor.token += take as u64;
            }
            if self.layout == Layout::Padded {
                break;
            }
        }
        Ok(filled > 0)
    }

    fn example(&mut self) -> Result<&Example, DataError> {
        let job = match self.job.take() {
            Some(job) => job,
            None => self.prefetch.next_item()?,
        };
        Ok(&self.job.insert(job).examples[self.example])
    }

    fn next_example(&mut self) {
        self.cursor.token = 0;
        self.cursor.row += 1;
        if self.cursor.row == self.rows_per_epoch {
            self.cursor.row = 0;
            self.cursor.epoch += 1;
        }
        self.example += 1;
        if self.example as u64 == ROWS_PER_JOB {
            self.example = 0;
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
