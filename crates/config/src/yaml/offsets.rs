//! From the scanner's positions, in characters, to byte offsets.

use saphyr_parser::Span as Marks;

use crate::origin::Span;

/// Byte offsets of characters.
pub(super) struct Offsets {
    base: usize,
    /// Empty if the text is ASCII.
    bytes: Vec<u32>,
    len: usize,
}

impl Offsets {
    pub(super) fn new(text: &str, base: usize) -> Self {
        let body = &text[base..];
        let bytes = if body.is_ascii() {
            Vec::new()
        } else {
            body.char_indices().map(|(at, _)| at as u32).collect()
        };
        Offsets {
            base,
            bytes,
            len: body.len(),
        }
    }

    pub(super) fn byte(&self, character: usize) -> usize {
        let at = if self.bytes.is_empty() {
            character.min(self.len)
        } else {
            self.bytes
                .get(character)
                .map_or(self.len, |byte| *byte as usize)
        };
        self.base + at
    }

    pub(super) fn span(&self, marks: Marks) -> Span {
        Span::new(self.byte(marks.start.index()), self.byte(marks.end.index()))
    }
}
