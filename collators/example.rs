//! What a collator makes of one row of a data set.

use std::ops::AddAssign;

use tt_data::DataError;

use crate::field::{self, Element, Field, IGNORE, Per, Values};
use crate::layout::Layout;

/// Room for tokens of a row from the start, so that rows of usual length never grow a buffer later.
const TOKENS_PER_ROW: usize = 512;

/// Tokens, with as many labels: the tokens themselves, not shifted, or [`IGNORE`] where the loss should not look; and
/// what else the collator has declared.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Example {
    /// The tokens.
    pub input_ids: Vec<u32>,
    /// As many labels; see [`Example::label_all`] and [`Example::label_none`].
    pub labels: Vec<i64>,
    pub(crate) fields: Vec<(Field, Values)>,
}

impl Example {
    fn of(fields: &[Field]) -> Self {
        let values = |field: &Field| match field.per {
            Per::Token | Per::Target => Values::empty(field.padding, TOKENS_PER_ROW),
            Per::Row => Values::empty(field.padding, 1),
        };
        Self {
            input_ids: Vec::with_capacity(TOKENS_PER_ROW),
            labels: Vec::with_capacity(TOKENS_PER_ROW),
            fields: fields.iter().map(|field| (*field, values(field))).collect(),
        }
    }

    fn clear(&mut self) {
        self.input_ids.clear();
        self.labels.clear();
        self.fields
            .iter_mut()
            .for_each(|(_, values)| values.clear());
    }

    /// The values of a declared field, to be written: as many as tokens, or one for the row.
    ///
    /// Errors: a field that is not declared, or not of this type.
    pub fn field<E: Element>(&mut self, name: &str) -> Result<&mut Vec<E>, DataError> {
        field::named(&mut self.fields, name)
    }

    /// Gives every token that has no label yet itself as the label.
    pub fn label_all(&mut self) {
        let unlabelled = self.input_ids.iter().skip(self.labels.len());
        self.labels.extend(unlabelled.map(|&id| i64::from(id)));
    }

    /// Gives every token that has no label yet none that counts: a prompt's, for one.
    pub fn label_none(&mut self) {
        self.labels.resize(self.input_ids.len(), IGNORE);
    }

    /// Everything must have the length that its declaration says, and every token a number under `vocab_size`.
    fn check(&self, vocab_size: usize) -> Result<(), DataError> {
        let tokens = self.input_ids.len();
        let check = |name: &str, found: usize, wanted: usize, of: &str| {
            if found == wanted {
                return Ok(());
            }
            Err(DataError::field(
                name,
                format!("{found} values for {wanted} {of}"),
            ))
        };
        check("labels", self.labels.len(), tokens, "tokens")?;
        let is_beyond = |id: u64| id >= vocab_size as u64;
        if let Some(id) = self.input_ids.iter().find(|id| is_beyond((**id).into())) {
            let why = format!("{id} is beyond the vocabulary of {vocab_size} tokens");
            return Err(DataError::field("input_ids", why));
        }
        let is_wrong = |label: i64| label != IGNORE && u64::try_from(label).map_or(true, is_beyond);
        if let Some(label) = self.labels.iter().find(|label| is_wrong(**label)) {
            let why = format!(
                "{label} is neither {IGNORE}, which the loss leaves out, nor one of the {vocab_size} tokens of the vocabulary"
            );
            return Err(DataError::field("labels", why));
        }
        for (field, values) in &self.fields {
            match field.per {
                Per::Token | Per::Target => check(field.name, values.len(), tokens, "tokens")?,
                Per::Row => check(field.name, values.len(), 1, "row")?,
            }
        }
        Ok(())
    }
}

/// What a collator makes of one row of a data set: usually one example.
#[derive(Debug)]
pub struct Examples {
    fields: Vec<Field>,
    /// Those in use come first; the others keep their buffers.
    all: Vec<Example>,
    len: usize,
    seed: u64,
    before: Before,
    sequence_length: usize,
    left_out: LeftOut,
}

/// What the parts of a row before this one have left.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before {
    tokens: u64,
    carried: u64,
}

/// What of the rows did not get into batches, counted in the first epoch, as the others have the same rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Rows of which nothing is used.
    pub rows: u64,
    /// Rows of which a part is used.
    pub cut_rows: u64,
    /// Tokens that were cut off those.
    pub cut_tokens: u64,
}

impl LeftOut {
    /// In words, for rows of `sequence_length`; `None` if all was used.
    pub fn describe(&self, sequence_length: usize) -> Option<String> {
        let Self {
            rows,
            cut_rows,
            cut_tokens,
        } = self;
        let left_out = (*rows > 0).then(|| {
            format!(
                "{rows} rows of data left out, malformed, too long or with nothing to learn from"
            )
        });
        let cut = (*cut_rows > 0).then(|| {
            format!(
                "{cut_rows} rows of data cut by {cut_tokens} tokens in all to fit into data.sequence_length={sequence_length}"
            )
        });
        let said: Vec<String> = [left_out, cut].into_iter().flatten().collect();
        (!said.is_empty()).then(|| said.join("; "))
    }
}

impl AddAssign for LeftOut {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.cut_rows += other.cut_rows;
        self.cut_tokens += other.cut_tokens;
    }
}

impl Examples {
    pub(crate) fn new(fields: &[Field], sequence_length: usize) -> Self {
        Self {
            fields: fields.to_vec(),
            all: vec![Example::of(fields)],
            len: 0,
            seed: 0,
            before: Before::default(),
            sequence_length,
            left_out: LeftOut::default(),
        }
    }

    pub(crate) fn begin(&mut self, seed: u64) {
        self.go_on(seed, Before::default());
    }

    /// Begins a part of a row, after those that have left `before`.
    pub(crate) fn go_on(&mut self, seed: u64, before: Before) {
        self.len = 0;
        self.seed = seed;
        self.before = before;
        self.left_out = LeftOut::default();
    }

    /// What the next part begins with.
    pub(crate) fn leave(&self) -> Before {
        Before {
            tokens: self.before.tokens + self.num_tokens() as u64,
            ..self.before
        }
    }

    /// Tokens of the row in the parts before this one.
    pub fn tokens_before(&self) -> u64 {
        self.before.tokens
    }

    /// What the part before has left by [`Examples::carry`]; 0 in the first.
    pub fn carried(&self) -> u64 {
        self.before.carried
    }

    /// Leaves a number for the next part of the row.
    pub fn carry(&mut self, number: u64) {
        self.before.carried = number;
    }

    /// Takes back what has been made of the row.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Cuts the last example into pieces that a row of the batch takes.
    pub(crate) fn split_last(&mut self) {
        let most = self.sequence_length;
        while self.len > 0 && self.all[self.len - 1].input_ids.len() > most {
            let long = &mut self.all[self.len - 1];
            let ids = long.input_ids.split_off(most);
            let labels = long.labels.split_off(most);
            let rest = self.add();
            rest.input_ids.extend(ids);
            rest.labels.extend(labels);
        }
    }

    /// Tokens that a row of the batch takes.
    pub fn sequence_length(&self) -> usize {
        self.sequence_length
    }

    /// Counts the row as one that is left out.
    pub fn skip(&mut self) {
        self.left_out.rows += 1;
    }

    /// Counts `tokens` of the row as cut off, if there are any.
    pub fn cut(&mut self, tokens: usize) {
        self.left_out.cut_rows += u64::from(tokens > 0);
        self.left_out.cut_tokens += tokens as u64;
    }

    pub(crate) fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// The last one, to go on with: what [`Collator::encode_part`](crate::Collator::encode_part) of rows that are not packed
    /// does. A new one if there is none.
    pub fn last_or_add(&mut self) -> &mut Example {
        match self.len {
            0 => self.add(),
            len => &mut self.all[len - 1],
        }
    }

    /// One more, empty.
    pub fn add(&mut self) -> &mut Example {
        if self.len == self.all.len() {
            self.all.push(Example::of(&self.fields));
        }
        self.len += 1;
        let example = &mut self.all[self.len - 1];
        example.clear();
        example
    }

    /// Those that have been made, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Example> {
        self.all[..self.len].iter_mut()
    }

    /// A number for what is drawn at random, masked positions for one: a function of the run's seed, the epoch and the
    /// row of the data, so that any worker, and a run that goes on, draws the same.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn as_slice(&self) -> &[Example] {
        &self.all[..self.len]
    }

    pub(crate) fn num_tokens(&self) -> usize {
        let examples = self.as_slice().iter();
        examples.map(|example| example.input_ids.len()).sum()
    }

    /// The example that token `used` of all is in, and which of its tokens that is.
    pub(crate) fn after(&self, mut used: usize) -> (&Example, usize) {
        for example in self.as_slice() {
            match used.checked_sub(example.input_ids.len()) {
                Some(rest) => used = rest,
                None => return (example, used),
            }
        }
        unreachable!("asked for tokens that are there")
    }

    /// Errors: an example that is not as declared, or another number of them than `layout` says.
    pub(crate) fn check(&self, layout: Layout, vocab_size: usize) -> Result<(), DataError> {
        let mut examples = self.as_slice().iter();
        examples.try_for_each(|example| example.check(vocab_size))?;
        let wanted = match layout {
            Layout::Packed | Layout::Fitted(_) => return Ok(()),
            Layout::Padded => 1,
            Layout::Grouped(count) => count,
        };
        if ![0, wanted].contains(&self.len) {
            return Err(DataError::field(
                "input_ids",
                format!(
                    "{} examples, where the layout says {wanted} or none",
                    self.len
                ),
            ));
        }
        let is_empty = |example: &Example| example.input_ids.is_empty();
        if self.num_tokens() > 0
            && let Some(i) = self.as_slice().iter().position(is_empty)
        {
            return Err(DataError::field(
                "input_ids",
                format!("example {} of {wanted} has no tokens", i + 1),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_left_out_is_said() {
        let mut of = LeftOut::default();
        assert_eq!(of.describe(64), None);
        of.rows = 2;
        let rows = "2 rows of data left out, malformed, too long or with nothing to learn from";
        assert_eq!(of.describe(64).unwrap(), rows);
        (of.cut_rows, of.cut_tokens) = (3, 40);
        let cut = "3 rows of data cut by 40 tokens in all to fit into data.sequence_length=64";
        assert_eq!(of.describe(64).unwrap(), format!("{rows}; {cut}"));
        of.rows = 0;
        assert_eq!(of.describe(64).unwrap(), cut);
    }
}
