//! Splitting text into the pieces that byte-level BPE never merges across.
//!
//! The patterns are the published ones: contractions, letters with one character before them, digits, punctuation, line ends,
//! white space. Their look-ahead, `\s+(?!\S)`, leaves the last blank to the word that follows; here the match is shortened by
//! hand instead, so that an automaton without backtracking can be used. Where a piece and what follows it are ASCII, as most
//! of English and code is, classes of bytes do without the automaton.
//! Source: tokenizer.json of Qwen/Qwen2-0.5B and meta-llama/Meta-Llama-3-8B, `pre_tokenizer`; `ByteLevel` of `tokenizers`.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// As it stands in `tokenizer.json`.
pub(crate) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Where text is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// The first, which `ByteLevel` has by itself.
    Gpt2,
    /// Up to three digits together.
    Llama3,
    /// Digits alone.
    Qwen2,
}

impl Pattern {
    /// Of `pre_tokenizer` in a `tokenizer.json`; `None` if it is another.
    pub(crate) fn of(pre_tokenizer: &Value) -> Option<Self> {
        let is_byte_level = |part: &Value, use_regex: bool| {
            part["type"] == "ByteLevel"
                && part["add_prefix_space"] == false
                && part["use_regex"].as_bool().unwrap_or(true) == use_regex
        };
        if is_byte_level(pre_tokenizer, true) {
            return Some(Self::Gpt2);
        }
        let parts = pre_tokenizer["pretokenizers"].as_array()?;
        let [split, bytes] = &parts[..] else {
            return None;
        };
        let is_plain = pre_tokenizer["type"] == "Sequence"
            && split["type"] == "Split"
            && split["behavior"] == "Isolated"
            && split["invert"] == false
            && is_byte_level(bytes, false);
        let pattern = split["pattern"]["Regex"].as_str()?;
        let known = [Self::Gpt2, Self::Llama3, Self::Qwen2].into_iter();
        known.filter(|_| is_plain).find(|it| it.regex() == pattern)
    }

    fn regex(self) -> &'static str {
        match self {
            Self::Gpt2 => GPT2,
            Self::Llama3 => LLAMA3,
            Self::Qwen2 => QWEN2,
        }
    }

    fn without_look_ahead(self) -> &'static Regex {
        static ALL: LazyLock<[Regex; 3]> = LazyLock::new(|| {
            [Pattern::Gpt2, Pattern::Llama3, Pattern::Qwen2].map(|pattern| {
                let regex = pattern.regex().replace(r"|\s+(?!\S)", "");
                Regex::new(&regex).expect("the pattern is a constant")
            })
        });
        &ALL[self as usize]
    }

    /// The pieces of `text`, in order; nothing is lost.
    pub(crate) fn pieces(self, text: &str) -> impl Iterator<Item = &str> {
        let regex = self.without_look_ahead();
        let mut rest = text;
        std::iter::from_fn(move || {
            let end = match self.of_ascii(rest.as_bytes()) {
                Some(0) => return None,
                Some(end) => end,
                None => self.of_any(regex, rest),
            };
            let (piece, after) = rest.split_at(end);
            rest = after;
            Some(piece)
        })
    }

    fn of_any(self, regex: &Regex, rest: &str) -> usize {
        // The first match begins where `rest` does: each character is within some alternative.
        let end = regex.find(rest).map_or(rest.len(), |found| found.end());
        let mut last_two = rest[..end].char_indices().rev();
        match (last_two.next(), last_two.next()) {
            (Some((start, last)), Some(_))
                if last.is_whitespace()
                    && (self == Self::Gpt2 || !matches!(last, '\r' | '\n'))
                    && end < rest.len() =>
            {
                start
            }
            _ => end,
        }
    }

    /// The length of the first piece; `None` if anything but ASCII has a say in it.
    fn of_ascii(self, text: &[u8]) -> Option<usize> {
        use Class::{Blank, Digit, Letter, LineEnd, Other};
        let class = |at: usize| text.get(at).map(|&byte| CLASSES[usize::from(byte)]);
        // The end of those of `is_in` from `at` on.
        let end_of = |mut at: usize, is_in: fn(Class) -> bool| loop {
            match class(at) {
                Some(Class::NotAscii) => return None,
                Some(it) if is_in(it) => at += 1,
                _ => return Some(at),
            }
        };
        let (Some(first), second) = (class(0), class(1)) else {
            return Some(0);
        };
        if first == Class::NotAscii || second == Some(Class::NotAscii) {
            return None;
        }
        if text[0] == b'\'' {
            let letter = |at: usize| match self {
                Self::Gpt2 => text.get(at).copied(),
                _ => text.get(at).map(u8::to_ascii_lowercase),
            };
            match (letter(1), letter(2)) {
                (Some(b's' | b't' | b'm' | b'd'), _) => return Some(2),
                (Some(b'r' | b'v'), Some(b'e')) | (Some(b'l'), Some(b'l')) => return Some(3),
                _ => {}
            }
        }
        let is_letter = |it| it == Letter;
        let is_other = |it| it == Other;
        let is_space = |it| matches!(it, Blank | LineEnd);
        let after_blank = usize::from(text[0] == b' ');
        if self == Self::Gpt2 {
            let is_in: Option<fn(Class) -> bool> = match class(after_blank) {
                Some(Letter) => Some(is_letter),
                Some(Digit) => Some(|it| it == Digit),
                Some(Other) => Some(is_other),
                _ => None,
            };
            if let Some(is_in) = is_in {
                return end_of(after_blank, is_in);
            }
        } else {
            match (first, second) {
                (Letter, _) => return end_of(0, is_letter),
                (Blank | Other, Some(Letter)) => return end_of(1, is_letter),
                (Digit, _) if self == Self::Qwen2 => return Some(1),
                (Digit, _) => return Some(end_of(0, |it| it == Digit)?.min(3)),
                _ => {}
            }
            if class(after_blank) == Some(Other) {
                return end_of(end_of(after_blank, is_other)?, |it| it == LineEnd);
            }
        }
        let end = end_of(0, is_space)?;
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        if self != Self::Gpt2
            && let Some(last) = text[..end].iter().rposition(is_line_end)
        {
            return Some(last + 1);
        }
        let leaves_one = end > 1 && end < text.len();
        Some(end - usize::from(leaves_one))
    }
}

/// What the patterns tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Digit,
    LineEnd,
    Blank,
    Other,
    NotAscii,
}

static CLASSES: [Class; 256] = {
    let mut classes = [Class::Other; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Digit,
            b'\r' | b'\n' => Class::LineEnd,
            b' ' | b'\t' | 0x0b | 0x0c => Class::Blank,
            0x80.. => Class::NotAscii,
            _ => Class::Other,
        };
        byte += 1;
    }
    classes
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokenizers::pattern::Pattern as _;
    use tokenizers::utils::SysRegex;

    const ALL: [Pattern; 3] = [Pattern::Gpt2, Pattern::Llama3, Pattern::Qwen2];

    fn reference(pattern: Pattern, text: &str) -> Vec<&str> {
        let regex = SysRegex::new(pattern.regex()).unwrap();
        let matches = (&regex).find_matches(text).unwrap();
        matches
            .iter()
            .map(|((start, end), _)| &text[*start..*end])
            .filter(|piece| !piece.is_empty())
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn pieces_are_those_of_the_published_patterns(
            text in r#"([ \t\r\n\u{b}\u{1c}\u{85}\u{a0}\u{2003}]{0,3}('s|'LL|'ſ|'re|[a-zA-Zäß]{0,3}|[0-9²Ⅷ]{0,5}|[.,!"-]{0,2}|\PC{0,2})){1,12}"#
        ) {
            for pattern in ALL {
                prop_assert_eq!(pattern.pieces(&text).collect::<Vec<_>>(), reference(pattern, &text));
            }
        }

        /// The classes of bytes alone, which the text above leaves after a few pieces.
        #[test]
        fn pieces_of_ascii_are_those_of_the_published_patterns(
            text in r#"([ \t\r\n\x0b\x0c]{0,3}|'(s|T|re|VE|m|ll|lx|D|v)?|[a-zA-Z]{1,3}|[0-9]{1,5}|[.,!"'-]{1,3}|[\x00-\x7f]){1,16}"#
        ) {
            for pattern in ALL {
                prop_assert_eq!(pattern.pieces(&text).collect::<Vec<_>>(), reference(pattern, &text));
            }
        }
    }

    #[test]
    fn a_word_takes_one_blank_and_digits_stand_alone() {
        let text = "Pip's  kite,\n 12 + 7";
        let expected = [
            "Pip", "'s", " ", " kite", ",\n", " ", "1", "2", " +", " ", "7",
        ];
        assert_eq!(Pattern::Qwen2.pieces(text).collect::<Vec<_>>(), expected);
    }
}
