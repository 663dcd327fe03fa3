//! Standard output and standard error. A reader that has gone away (`tpu-train --help | head`) or a full disk behind one of
//! them is no reason to stop. At the end a full disk behind standard output is a failure, see [`finish`], but of a run, which
//! also keeps what it says in its folder: see [`tt_metrics::transcript`].

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Context;

use tt_metrics::transcript::{Stream, keep};

/// Where what is not an error goes, as a [`Talk`].
static TALK: AtomicU8 = AtomicU8::new(Talk::Usual as u8);

/// Whether what is printed is on disk besides.
static IS_LOG: AtomicBool = AtomicBool::new(false);

/// Why the first text that is lost could not be written to standard output.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// Of a process that has others speak for it: what its lines begin with.
static LABEL: OnceLock<String> = OnceLock::new();

/// From now on only warnings and errors are printed, each line of it with `label` before it.
pub(crate) fn set_label(label: String) {
    let _ = LABEL.set(label);
}

/// Where what is not an error goes.
#[derive(Clone, Copy)]
pub(crate) enum Talk {
    /// To standard output.
    Usual,
    /// To standard error: standard output is for programs.
    Aside,
    /// Nowhere.
    Off,
}

/// From now on.
pub(crate) fn set_talk(talk: Talk) {
    TALK.store(talk as u8, Ordering::Relaxed);
}

/// From now on standard output is but a view of what is on disk: [`finish`] does not mind if it is lost.
pub(crate) fn is_log() {
    IS_LOG.store(true, Ordering::Relaxed);
}

/// Error: something did not get to standard output, for another reason than that its reader has had enough.
pub(crate) fn finish() -> anyhow::Result<()> {
    note_lost(io::stdout().flush());
    let lost = LOST.lock().unwrap_or_else(PoisonError::into_inner).take();
    match lost {
        Some(error) if !IS_LOG.load(Ordering::Relaxed) => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

fn note_lost(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert(error);
    }
}

/// Prints a text as it is.
pub(crate) fn text(text: impl Display) {
    let text = text.to_string();
    if let Some(label) = LABEL.get() {
        if text.starts_with("warning: ") {
            let _ = write!(io::stderr(), "{}", labelled(label, &text));
        }
        return;
    }
    let stream = match TALK.load(Ordering::Relaxed) {
        talk if talk == Talk::Usual as u8 => {
            note_lost(write!(io::stdout(), "{text}"));
            Stream::Out
        }
        talk if talk == Talk::Aside as u8 || text.starts_with("warning: ") => {
            let _ = write!(io::stderr(), "{text}");
            Stream::Err
        }
        _ => Stream::Out,
    };
    keep(stream, &text);
}

/// Prints a line or more; see [`legible`].
pub(crate) fn line(line: impl Display) {
    text(format_args!("{}\n", legible(&line.to_string())));
}

/// Prints a line or more to standard error; see [`legible`].
pub(crate) fn error_line(line: impl Display) {
    let line = format!("{}\n", legible(&line.to_string()));
    if let Some(label) = LABEL.get() {
        let _ = write!(io::stderr(), "{}", labelled(label, &line));
        return;
    }
    let _ = write!(io::stderr(), "{line}");
    keep(Stream::Err, &line);
}

fn labelled(label: &str, text: &str) -> String {
    let lines = text.lines().map(|line| format!("{label}{line}\n"));
    lines.collect()
}

/// Control characters as they are written in Rust, but for ends of lines and tabs: what a user has given, or a file, shall be
/// seen in a message and not move the cursor or colour the terminal.
fn legible(line: &str) -> Cow<'_, str> {
    let is_shown = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    if line.chars().all(is_shown) {
        return Cow::Borrowed(line);
    }
    let mut legible = String::with_capacity(line.len());
    for c in line.chars() {
        if is_shown(c) {
            legible.push(c);
        } else {
            legible.extend(c.escape_default());
        }
    }
    Cow::Owned(legible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(
            legible("`a\rb\u{1b}[31m`\u{85}\u{7f}"),
            r"`a\rb\u{1b}[31m`\u{85}\u{7f}"
        );
        assert!(matches!(legible("two\n\tlines, a ü"), Cow::Borrowed(_)));
    }
}
