//! What can go wrong in writing the record of a run.

/// What is made, or why not.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in writing the record of a run.
#[expect(missing_docs, reason = "a variant's message says what it is of")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Disk(#[from] tt_disk::Error),

    /// Written, it would make two fields of one name in a row.
    #[error("the scalar `{0}` has the name of a field that every row has")]
    ReservedKey(String),
}

/// An error and what caused it, on one line.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
