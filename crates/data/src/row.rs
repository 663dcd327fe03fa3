//! One row of a source, in buffers that are used again.

use crate::error::DataError;
use crate::location::Location;
use crate::value::{Fields, Value};

/// One row of a source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Values by column.
    pub fields: Fields,
    /// Where it stands, for messages.
    pub at: Location,
}

impl Row {
    /// The value in column `field`, which may be a path such as `meta.lang`. Errors: there is none.
    pub fn get(&self, field: &str) -> Result<&Value, DataError> {
        self.fields
            .get(field)
            .ok_or_else(|| DataError::MissingField {
                at: self.at.to_string(),
                field: field.to_owned(),
                fields: self.fields.names().map(str::to_owned).collect(),
            })
    }

    /// The string in column `field`. Errors: there is none, it is null, or something else.
    pub fn text(&self, field: &str) -> Result<&str, DataError> {
        match self.get(field)? {
            Value::Text(text) => Ok(text),
            other => Err(self.wrong(field, "a string", other)),
        }
    }

    /// The integers in column `field`: token ids, for one. Errors: as [`Row::text`].
    pub fn ints(&self, field: &str) -> Result<&[i64], DataError> {
        match self.get(field)? {
            Value::Ints(ints) => Ok(ints),
            other => Err(self.wrong(field, "a list of integers", other)),
        }
    }

    /// That column `field` holds `found`, where `wanted` should be.
    pub fn wrong(&self, field: &str, wanted: &'static str, found: &Value) -> DataError {
        let (at, field) = (self.at.to_string(), field.to_owned());
        match found {
            Value::Null => DataError::NullField { at, field },
            _ => DataError::WrongField {
                at,
                field,
                wanted,
                found: found.kind().to_owned(),
            },
        }
    }

    /// The string in column `field`, emptied to be written; its buffer is the last row's.
    pub fn text_mut(&mut self, field: &str) -> &mut String {
        self.fields.entry(field).text_mut()
    }
}
