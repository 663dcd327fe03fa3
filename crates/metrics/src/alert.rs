//! What somebody may want to be called for.

/// An event of a run that cannot wait until somebody looks at it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Alert {
    /// Its kind: those of one title are one kind.
    pub title: String,
    /// What has happened.
    pub text: String,
    /// How bad it is.
    pub level: AlertLevel,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AlertLevel {
    /// The run goes on.
    #[default]
    Warning,
    /// The run has ended.
    Error,
}
