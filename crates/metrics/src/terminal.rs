//! What standard output can show.

use std::env;
use std::io::{self, IsTerminal};

/// Whether it is a terminal that can move its cursor and colour text.
pub fn is_capable() -> bool {
    io::stdout().is_terminal() && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Its width, as it is now; 80 if it is none.
pub fn columns() -> usize {
    console::Term::stdout().size().1.into()
}

/// Whether the user wants no colours, as <https://no-color.org> has it.
pub fn refuses_colours() -> bool {
    env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
