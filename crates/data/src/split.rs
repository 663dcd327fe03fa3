//! Splitting text into the pieces that byte-level BPE never merges across.
//!
//! The pattern is the one that Qwen2 publishes: contractions, letters with one character before
//! them, single digits, punctuation, line ends, white space. Its look-ahead, `\s+(?!\S)`, leaves
//! the last blank to the word that follows; here the match is shortened by hand instead, so that
//! an automaton without backtracking can be used.
//! Source: tokenizer.json of Qwen/Qwen2-0.5B, `pre_tokenizer`.

use std::sync::LazyLock;

use regex::Regex;

/// As it stands in `tokenizer.json`.
pub(crate) const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

static WITHOUT_LOOK_AHEAD: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(&PATTERN.replace(r"|\s+(?!\S)", "")).expect("the pattern is a constant")
});

/// The pieces of `text`, in order; nothing is lost.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        // The first match begins where `rest` does: each character is within some alternative.
        let mut end = WITHOUT_LOOK_AHEAD.find(rest)?.end();
        let mut last_two = rest[..end].char_indices().rev();
        if let (Some((start, last)), Some(_)) = (last_two.next(), last_two.next())
            && last.is_whitespace()
            && !matches!(last, '\r' | '\n')
            && end < rest.len()
        {
            end = start;
        }
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokenizers::pattern::Pattern;
    use tokenizers::utils::SysRegex;

    fn reference(text: &str) -> Vec<&str> {
        let regex = SysRegex::new(PATTERN).unwrap();
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
        fn pieces_are_those_of_the_published_pattern(
            text in r#"([ \t\r\n\u{a0}\u{2003}]{0,3}('s|'LL|[a-zA-Zäß]{0,3}|[0-9²Ⅷ]{0,2}|[.,!"-]{0,2}|\PC{0,2})){1,12}"#
        ) {
            prop_assert_eq!(pieces(&text).collect::<Vec<_>>(), reference(&text));
        }
    }

    #[test]
    fn a_word_takes_one_blank_and_digits_stand_alone() {
        let text = "Pip's  kite,\n 12 + 7";
        let expected = [
            "Pip", "'s", " ", " kite", ",\n", " ", "1", "2", " +", " ", "7",
        ];
        assert_eq!(pieces(text).collect::<Vec<_>>(), expected);
    }
}
