//! Batches for a terminal: what the loss counts stands out, what it does not is dim. Without colours what it does not count
//! is within ‹ ›.

use std::fmt::Write;

use tt_metrics::terminal;

use super::shown::{Piece, Shown, ShownRow};

/// Whether to colour.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Colours {
    Yes,
    No,
}

impl Colours {
    /// As the terminal and `NO_COLOR` say.
    pub(super) fn of_terminal() -> Self {
        if terminal::is_capable() && !terminal::refuses_colours() {
            Self::Yes
        } else {
            Self::No
        }
    }
}

/// Of what a row is made, in a line: the first and the last.
pub(super) fn origin(row: &ShownRow) -> String {
    match &row.from[..] {
        [] => row.cursor.clone(),
        [only] => format!("{only} ({})", row.cursor),
        [first, .., last] => format!(
            "{first} to {last}, {} rows ({})",
            row.from.len(),
            row.cursor
        ),
    }
}

pub(super) fn title(index: usize, batch: &Shown) -> String {
    format!(
        "batch {}: {} rows of {} tokens; {} tokens, {} of them targets; {:.1} % padding",
        index + 1,
        batch.rows.len(),
        batch.sequence_length,
        batch.tokens,
        batch.targets,
        batch.padding * 100.0
    )
}

pub(super) fn text(batches: &[Shown], colours: Colours) -> String {
    let mut text = String::new();
    for (index, batch) in batches.iter().enumerate() {
        let _ = writeln!(text, "{}", title(index, batch));
        for (number, row) in batch.rows.iter().enumerate() {
            let _ = writeln!(text, "\nrow {number}: {}", origin(row));
            let mut segment = 0;
            for piece in &row.pieces {
                if piece.segment != segment {
                    let break_before = if segment == 0 { "" } else { "\n" };
                    let _ = write!(
                        text,
                        "{break_before}  segment {} from position {}: ",
                        piece.segment, piece.position
                    );
                    segment = piece.segment;
                }
                text.push_str(&coloured(piece, colours));
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// Control characters are shown as they are written in a program, so that they do nothing to the terminal.
fn coloured(piece: &Piece, colours: Colours) -> String {
    let mut shown = String::new();
    for c in piece.text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    match (colours, piece.is_target) {
        (Colours::Yes, true) => format!("\x1b[32m{shown}\x1b[0m"),
        (Colours::Yes, false) => format!("\x1b[2m{shown}\x1b[0m"),
        (Colours::No, true) => shown,
        (Colours::No, false) => format!("‹{shown}›"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str, is_target: bool) -> Piece {
        Piece {
            segment: 1,
            position: 0,
            tokens: 1,
            is_target,
            text: text.to_owned(),
        }
    }

    #[test]
    fn what_is_not_trained_on_is_marked_with_and_without_colours() {
        assert_eq!(
            coloured(&piece("a\n\x1b[2J", true), Colours::No),
            "a\\n\\u{1b}[2J"
        );
        assert_eq!(coloured(&piece("a", false), Colours::No), "‹a›");
        assert_eq!(
            coloured(&piece("a", false), Colours::Yes),
            "\x1b[2ma\x1b[0m"
        );
        assert_eq!(
            coloured(&piece("a", true), Colours::Yes),
            "\x1b[32ma\x1b[0m"
        );
    }
}
