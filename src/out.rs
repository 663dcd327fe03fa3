//! Standard output. A reader that has gone away (`tpu-train --help | head`) is no reason to stop.

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
