//! What a collator declares of its batches.

use tt_data::DataError;

use crate::Collator;
use crate::field::{self, Field};
use crate::layout::{Layout, Prediction};

/// What a collator declares of its batches.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchSpec {
    /// How examples lie in rows.
    pub layout: Layout,
    /// What the labels are compared with.
    pub prediction: Prediction,
    /// What there is besides tokens and labels.
    pub fields: Vec<Field>,
}

impl Default for BatchSpec {
    /// Packed tokens and labels, and nothing else.
    fn default() -> Self {
        Self {
            layout: Layout::Packed,
            prediction: Prediction::NextToken,
            fields: Vec::new(),
        }
    }
}

impl BatchSpec {
    /// Errors: fields that do not go together, or not with the layout; they name the collator.
    pub fn of(collator: &dyn Collator) -> Result<Self, DataError> {
        let spec = Self {
            layout: collator.layout(),
            prediction: collator.prediction(),
            fields: collator.fields(),
        };
        spec.check()
            .map_err(|error| error.of_collator(collator.name(), None))?;
        Ok(spec)
    }

    /// With another field. Error: as of [`BatchSpec::of`].
    pub(crate) fn with_field(mut self, field: Field) -> Result<Self, DataError> {
        self.fields.push(field);
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), DataError> {
        field::check(&self.fields)?;
        let mut fields = self.fields.iter();
        match self.layout {
            Layout::Fitted(0) => Err(DataError::field(
                "input_ids",
                "packed in windows of no rows",
            )),
            Layout::Packed | Layout::Fitted(_) => match fields.find(|field| field.is_per_row()) {
                Some(field) => Err(DataError::field(
                    field.name,
                    "packed rows hold several examples, so it cannot be per row",
                )),
                None => Ok(()),
            },
            Layout::Grouped(0) => Err(DataError::field("input_ids", "a group of no rows")),
            Layout::Padded | Layout::Grouped(_) => Ok(()),
        }
    }

    /// Rows of a batch that one row of data fills.
    pub fn rows_of_each(&self) -> usize {
        match self.layout {
            Layout::Packed | Layout::Padded | Layout::Fitted(_) => 1,
            Layout::Grouped(rows) => rows,
        }
    }
}
