//! What standard output can show.

use std::env;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};

static IS_HANDED_ON: AtomicBool = AtomicBool::new(false);

/// Says that whoever reads standard output hands it on, perhaps to a file, though it looks like a terminal: launchers of
/// processes give them one in any case.
pub fn is_handed_on() {
    IS_HANDED_ON.store(true, Ordering::Relaxed);
}

/// Whether it is a terminal that can move its cursor and colour text.
pub fn is_capable() -> bool {
    !IS_HANDED_ON.load(Ordering::Relaxed)
        && io::stdout().is_terminal()
        && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Its width, as it is now; 80 if it is none.
pub fn columns() -> usize {
    console::Term::stdout().size().1.into()
}

/// Whether the user wants no colours, as <https://no-color.org> has it.
pub fn refuses_colours() -> bool {
    env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
