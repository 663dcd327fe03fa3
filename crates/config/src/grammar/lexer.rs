//! Tokens of the override grammar: longest match, in two modes, as Hydra's lexer has them.
//!
//! The key mode lasts until the first `=`; everything after it is read in the value mode.

use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    // Key mode.
    Tilde,
    Plus,
    At,
    Slash,
    /// A word of letters, digits, `_` and `-`.
    Id,
    /// A word that may hold `$`.
    SpecialKey,
    DotPath,
    // Both modes.
    Equal,
    Colon,
    // Value mode.
    ParenOpen,
    ParenClose,
    Comma,
    BracketOpen,
    BracketClose,
    BraceOpen,
    BraceClose,
    Float,
    Int,
    Bool,
    Null,
    UnquotedChar,
    Escape,
    Space,
    Quoted,
    Interpolation,
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub kind: Kind,
    pub span: Range<usize>,
}

/// The tokens of a whole argument, or the byte offset that no token begins at.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>, usize> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let (kind, len) = key_token(&text[at..]).ok_or(at)?;
        tokens.push(Token {
            kind,
            span: at..at + len,
        });
        at += len;
        if kind == Kind::Equal {
            value_tokens(text, at, &mut tokens)?;
            break;
        }
    }
    Ok(tokens)
}

fn value_tokens(text: &str, mut at: usize, tokens: &mut Vec<Token>) -> Result<(), usize> {
    while at < text.len() {
        let (kind, len) = value_token(&text[at..]).ok_or(at)?;
        tokens.push(Token {
            kind,
            span: at..at + len,
        });
        at += len;
    }
    Ok(())
}

fn key_token(rest: &str) -> Option<(Kind, usize)> {
    let single = match rest.as_bytes()[0] {
        b'=' => return Some((Kind::Equal, 1 + spaces(&rest[1..]))),
        b'~' => Some(Kind::Tilde),
        b'+' => Some(Kind::Plus),
        b'@' => Some(Kind::At),
        b':' => Some(Kind::Colon),
        b'/' => Some(Kind::Slash),
        _ => None,
    };
    if let Some(kind) = single {
        return Some((kind, 1));
    }
    let path = dot_path(rest);
    let special = special_key(rest);
    if path > special {
        return Some((Kind::DotPath, path));
    }
    match (identifier(rest), special) {
        (_, 0) => None,
        (id, special) if id == special => Some((Kind::Id, id)),
        (_, special) => Some((Kind::SpecialKey, special)),
    }
}

fn value_token(rest: &str) -> Option<(Kind, usize)> {
    let space = spaces(rest);
    let after = &rest[space..];
    // These take the white space in front of them.
    if let Some(c) = after.bytes().next() {
        let trailing = || 1 + spaces(&after[1..]);
        match c {
            b'(' => return Some((Kind::ParenOpen, space + trailing())),
            b',' => return Some((Kind::Comma, space + trailing())),
            b':' => return Some((Kind::Colon, space + trailing())),
            b'=' => return Some((Kind::Equal, space + trailing())),
            b')' => return Some((Kind::ParenClose, space + 1)),
            b']' => return Some((Kind::BracketClose, space + 1)),
            b'}' => return Some((Kind::BraceClose, space + 1)),
            _ => {}
        }
    }
    if space > 0 {
        return Some((Kind::Space, space));
    }
    match rest.as_bytes()[0] {
        b'[' => return Some((Kind::BracketOpen, 1 + spaces(&rest[1..]))),
        b'{' => return Some((Kind::BraceOpen, 1 + spaces(&rest[1..]))),
        b'"' | b'\'' => return quoted(rest).map(|len| (Kind::Quoted, len)),
        _ => {}
    }
    // The longest wins; of equal lengths, the first.
    let candidates = [
        (Kind::Float, float(rest)),
        (Kind::Int, signed(rest, integer)),
        (Kind::Bool, word(rest, &["true", "false"])),
        (Kind::Null, word(rest, &["null"])),
        (Kind::UnquotedChar, unquoted_char(rest)),
        (Kind::Id, identifier(rest)),
        (Kind::Escape, escapes(rest)),
        (Kind::Interpolation, interpolation(rest)),
    ];
    let mut best = (Kind::Id, 0);
    for candidate in candidates {
        if candidate.1 > best.1 {
            best = candidate;
        }
    }
    (best.1 > 0).then_some(best)
}

fn run(text: &str, accept: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|b| accept(*b)).count()
}

fn spaces(text: &str) -> usize {
    run(text, |b| b == b' ' || b == b'\t')
}

pub(crate) fn identifier(text: &str) -> usize {
    match text.bytes().next() {
        Some(first) if first.is_ascii_alphabetic() || first == b'_' => run(text, |b| {
            b.is_ascii_alphanumeric() || b == b'_' || b == b'-'
        }),
        _ => 0,
    }
}

fn special_key(text: &str) -> usize {
    match text.bytes().next() {
        Some(first) if first.is_ascii_alphabetic() || first == b'_' || first == b'$' => {
            run(text, |b| {
                b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'$')
            })
        }
        _ => 0,
    }
}

/// Two or more keys or indices, joined by dots.
fn dot_path(text: &str) -> usize {
    let step = |text: &str| special_key(text).max(integer(text));
    let mut end = step(text);
    let mut steps = usize::from(end > 0);
    while end > 0 && text[end..].starts_with('.') {
        let next = step(&text[end + 1..]);
        if next == 0 {
            break;
        }
        end += 1 + next;
        steps += 1;
    }
    if steps > 1 { end } else { 0 }
}

/// `0`, or digits without a leading zero, with single underscores between them.
pub(crate) fn integer(text: &str) -> usize {
    match text.bytes().next() {
        Some(b'0') => 1,
        Some(b'1'..=b'9') => digits(text),
        _ => 0,
    }
}

/// Digits with single underscores between them.
fn digits(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    if !is_digit(0) {
        return 0;
    }
    let mut end = 1;
    loop {
        if is_digit(end) {
            end += 1;
        } else if bytes.get(end) == Some(&b'_') && is_digit(end + 1) {
            end += 2;
        } else {
            return end;
        }
    }
}

fn signed(text: &str, rule: impl Fn(&str) -> usize) -> usize {
    let sign = usize::from(text.starts_with(['+', '-']));
    match rule(&text[sign..]) {
        0 => 0,
        len => sign + len,
    }
}

pub(crate) fn float(text: &str) -> usize {
    signed(text, |text| {
        let whole = integer(text);
        let point = if text[whole..].starts_with('.') {
            let fraction = digits(&text[whole + 1..]);
            if whole > 0 || fraction > 0 {
                whole + 1 + fraction
            } else {
                0
            }
        } else {
            0
        };
        let mantissa = point.max(whole);
        let exponent = if mantissa > 0 && text[mantissa..].starts_with(['e', 'E']) {
            let sign = usize::from(text[mantissa + 1..].starts_with(['+', '-']));
            match digits(&text[mantissa + 1 + sign..]) {
                0 => 0,
                len => mantissa + 1 + sign + len,
            }
        } else {
            0
        };
        point.max(exponent).max(word(text, &["inf", "nan"]))
    })
}

pub(crate) fn word(text: &str, words: &[&str]) -> usize {
    words
        .iter()
        .find(|word| {
            text.get(..word.len())
                .is_some_and(|head| head.eq_ignore_ascii_case(word))
        })
        .map_or(0, |word| word.len())
}

pub(crate) fn unquoted_char(text: &str) -> usize {
    usize::from(text.starts_with(['/', '-', '\\', '+', '.', '$', '%', '*', '@', '?', '|']))
}

/// Escapes such as `\,` and `\\`, one after the other.
pub(crate) fn escapes(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut end = 0;
    while bytes.get(end) == Some(&b'\\')
        && bytes
            .get(end + 1)
            .is_some_and(|b| br"\()[]{}:=, 	".contains(b))
    {
        end += 2;
    }
    end
}

/// Up to the first matching quote with an even number of backslashes before it.
fn quoted(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let quote = bytes[0];
    let mut backslashes = 0;
    for (at, byte) in bytes.iter().enumerate().skip(1) {
        if *byte == quote && backslashes % 2 == 0 {
            return Some(at + 1);
        }
        backslashes = if *byte == b'\\' { backslashes + 1 } else { 0 };
    }
    None
}

/// `${...}` up to the first `}`.
fn interpolation(text: &str) -> usize {
    match text.strip_prefix("${").and_then(|body| body.find('}')) {
        Some(len) if len > 0 => 2 + len + 1,
        _ => 0,
    }
}
