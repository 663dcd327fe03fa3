//! Columns of token ids, as rows hold them.

use tt_data::{DataError, Row};

/// The token ids in column `field`, whatever integers they are stored as. Errors: none, or one that cannot be an id.
pub(crate) fn ids(row: &Row, field: &str) -> Result<Vec<u32>, DataError> {
    let ids = row.ints(field)?.iter().enumerate();
    ids.map(|(i, &id)| {
        u32::try_from(id).map_err(|_| {
            bad(
                row,
                format!("`{field}`: {id}, number {i} of the list, is no token id"),
            )
        })
    })
    .collect()
}

pub(crate) fn bad(row: &Row, message: String) -> DataError {
    DataError::BadRow {
        at: row.at.clone(),
        message,
    }
}
