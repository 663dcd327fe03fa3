//! One row of a source, in buffers that are used again.

use serde_json::{Map, Value};

use crate::error::DataError;
use crate::location::Location;

/// One row of a source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Values by column.
    pub fields: Map<String, Value>,
    /// Where it stands, for messages.
    pub at: Location,
}

impl Row {
    /// The string in column `field`. Errors: there is none, or it is something else.
    pub fn text(&self, field: &str) -> Result<&str, DataError> {
        match self.fields.get(field) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(DataError::NotText {
                at: self.at.to_string(),
                field: field.to_owned(),
            }),
            None => Err(DataError::MissingField {
                at: self.at.to_string(),
                field: field.to_owned(),
                fields: self.fields.keys().cloned().collect(),
            }),
        }
    }

    /// The string in column `field`, emptied to be written; its buffer is the last row's.
    pub fn text_mut(&mut self, field: &str) -> &mut String {
        if !matches!(self.fields.get(field), Some(Value::String(_))) {
            self.fields
                .insert(field.to_owned(), Value::String(String::new()));
        }
        match self.fields.get_mut(field) {
            Some(Value::String(text)) => {
                text.clear();
                text
            }
            _ => unreachable!("the line above put a string there"),
        }
    }
}
