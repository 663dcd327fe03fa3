//! What becomes of rows without a value, where `data.nulls` is `skip`.

use std::sync::Arc;

use tt_data::{DataError, Location, Row};

use crate::inner::hand_on;
use crate::{Collator, Examples};

/// A collator that leaves out rows in which what it asks for is null, or, of JSON, where there is no such key. They are
/// counted.
pub(crate) struct SkipNulls(pub(crate) Arc<dyn Collator>);

impl SkipNulls {
    fn skip<T>(
        &self,
        made: Result<T, DataError>,
        row: &Row,
        examples: &mut Examples,
        nothing: T,
    ) -> Result<T, DataError> {
        // Every row of a typed file has every column: there a missing one is a wrong name.
        let is_json = matches!(row.at, Location::Line { .. });
        match made {
            Err(DataError::NullField { .. }) => {}
            Err(DataError::MissingField { .. }) if is_json => {}
            made => return made,
        }
        examples.clear();
        examples.skip();
        Ok(nothing)
    }
}

#[deny(clippy::missing_trait_methods)] // one that is not handed on would be the trait's
impl Collator for SkipNulls {
    hand_on!();

    fn may_leave_out(&self) -> bool {
        true
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        let made = self.0.encode(row, examples);
        self.skip(made, row, examples, ())
    }

    fn encode_part(
        &self,
        row: &Row,
        from: usize,
        examples: &mut Examples,
    ) -> Result<Option<usize>, DataError> {
        let made = self.0.encode_part(row, from, examples);
        self.skip(made, row, examples, None)
    }
}
