//! Where the data of a batch begins, without the batches before it: by the count of rows where each is of one row of data, by
//! the lengths of rows where these are known, and else not at all.

use tt_data::{Cursor, Order};

use crate::layout::Layout;

/// How tokens come to lie in batches.
pub(crate) struct Batching<'a> {
    pub(crate) layout: Layout,
    /// Rows of data in a batch, or rows of tokens where they are packed.
    pub(crate) rows: u64,
    pub(crate) seq_len: u64,
    /// Some rows of data may give nothing.
    pub(crate) may_leave_out: bool,
    /// Tokens that the source's row has, where they are known of all.
    pub(crate) lengths: Option<&'a dyn Fn(u64) -> u64>,
}

impl Batching<'_> {
    /// The cursor after `batches` of them. Error: why it cannot be known.
    pub(crate) fn after(&self, batches: u64, order: &Order) -> Result<Cursor, &'static str> {
        if batches == 0 {
            return Ok(Cursor::default());
        }
        let rows = batches.saturating_mul(self.rows);
        match (self.layout, self.lengths) {
            (Layout::Padded | Layout::Grouped(_), _) if self.may_leave_out => Err(
                "rows of the data may be left out (data.nulls=skip, data.collator.kwargs.on_..=skip), and how many were is only \
                 known by reading them; with `error` none is",
            ),
            (Layout::Padded | Layout::Grouped(_), _) => Ok(Cursor {
                epoch: rows / order.rows_per_epoch(),
                row: rows % order.rows_per_epoch(),
                token: 0,
            }),
            (Layout::Packed, Some(length)) => {
                after_tokens(rows.saturating_mul(self.seq_len), length, order)
            }
            (Layout::Packed, None) => Err(
                "where rows are packed, it depends on the lengths of all documents before; data.token_cache=true knows \
                 them, data.collator.kwargs.packing=false does without",
            ),
            (Layout::Fitted(_), _) => Err(
                "where rows hold what fits together, it is known by packing all that is before; \
                 data.collator.kwargs.method=concat with data.token_cache=true does without, or no packing",
            ),
        }
    }
}

/// The cursor after `left` tokens, each row having as many as `length` says.
fn after_tokens(
    mut left: u64,
    length: &dyn Fn(u64) -> u64,
    order: &Order,
) -> Result<Cursor, &'static str> {
    let mut epoch = 0;
    loop {
        let before = left;
        for row in 0..order.rows_per_epoch() {
            let tokens = length(order.row(epoch, row));
            if left == 0 || left < tokens {
                let token = left;
                return Ok(Cursor { epoch, row, token });
            }
            left -= tokens;
        }
        let of_epoch = before - left;
        if of_epoch == 0 {
            return Err("the data has no tokens");
        }
        epoch += 1;
        // Each epoch has the same rows, unless they are shared among ranks.
        if order.is_whole() {
            epoch += left / of_epoch;
            left %= of_epoch;
        }
    }
}
