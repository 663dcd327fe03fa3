//! Standard output and standard error. A reader that has gone away (`tpu-train --help | head`) or a full disk behind one of
//! them is no reason to stop.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a text as it is.
pub(crate) fn text(text: impl Display) {
    let _ = write!(io::stdout(), "{text}");
}

/// Prints a line.
pub(crate) fn line(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints a line to standard error.
pub(crate) fn error_line(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
