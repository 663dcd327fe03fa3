//! Standard output and standard error. A reader that has gone away (`tpu-train --help | head`) or a full disk behind one of
//! them is no reason to stop. A run also keeps it in its folder: see [`tt_metrics::transcript`].

use std::fmt::Display;
use std::io::{self, Write};

use tt_metrics::transcript::keep;

/// Prints a text as it is.
pub(crate) fn text(text: impl Display) {
    let text = text.to_string();
    let _ = write!(io::stdout(), "{text}");
    keep(&text);
}

/// Prints a line.
pub(crate) fn line(line: impl Display) {
    text(format_args!("{line}\n"));
}

/// Prints a line to standard error.
pub(crate) fn error_line(line: impl Display) {
    let line = format!("{line}\n");
    let _ = write!(io::stderr(), "{line}");
    keep(&line);
}
