//! The type of a plain YAML scalar, by the rules of YAML 1.1 as PyYAML and OmegaConf apply them.
//!
//! `yes`, `no`, `on` and `off` are booleans, `017` is octal, `1:30` is ninety; `5e-5` is a float
//! (OmegaConf's rule, PyYAML alone reads text); dates are text.

use crate::value::Value;

/// The value of a plain scalar; `None` for an integer beyond 128 bits.
pub(crate) fn resolve(text: &str) -> Option<Value> {
    if matches!(text, "" | "~" | "null" | "Null" | "NULL") {
        return Some(Value::Null);
    }
    if let Some(value) = boolean(text) {
        return Some(Value::Bool(value));
    }
    if let Some(value) = float(text) {
        return Some(Value::Float(value));
    }
    match integer(text) {
        Integer::Value(value) => Some(Value::Int(value)),
        Integer::TooLarge => None,
        Integer::Not => Some(Value::Str(text.to_string())),
    }
}

/// Whether a text stays text when it is written without quotes.
pub(crate) fn is_plain_text(text: &str) -> bool {
    matches!(resolve(text), Some(Value::Str(_))) && text != "=" && text != "<<"
}

/// What a text is as an integer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Integer {
    Value(i128),
    /// An integer beyond 128 bits.
    TooLarge,
    Not,
}

pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Some(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// Decimal, `0b`, `0` octal, `0x` or base 60 (`2:10:05`).
pub(crate) fn integer(text: &str) -> Integer {
    let (negative, body) = signed(text);
    let magnitude = if body == "0" {
        Some(0)
    } else if body.contains(':') {
        let Some(parts) = base_60(body).filter(|_| !body.starts_with('0')) else {
            return Integer::Not;
        };
        parts.iter().try_fold(0i128, |sum, part| {
            sum.checked_mul(60)?.checked_add(part.parse().ok()?)
        })
    } else {
        let (digits, radix) = match body.strip_prefix("0b").map(|digits| (digits, 2)) {
            Some(binary) => binary,
            None => match body.strip_prefix("0x").map(|digits| (digits, 16)) {
                Some(hexadecimal) => hexadecimal,
                None => match body.strip_prefix('0') {
                    Some(octal) => (octal, 8),
                    None => (body, 10),
                },
            },
        };
        let is_number = !digits.is_empty()
            && digits.chars().all(|c| c == '_' || c.is_digit(radix))
            && (radix != 10 || !digits.starts_with('_'));
        let clean = digits.replace('_', "");
        match (is_number, clean.is_empty(), radix) {
            (false, ..) => return Integer::Not,
            // `0_` is zero; `0x_` is nothing.
            (true, true, 8) => Some(0),
            (true, true, _) => return Integer::Not,
            (true, false, _) => i128::from_str_radix(&clean, radix).ok(),
        }
    };
    match magnitude {
        Some(magnitude) => Integer::Value(if negative { -magnitude } else { magnitude }),
        None => Integer::TooLarge,
    }
}

/// A float in any of the forms of PyYAML's rule or OmegaConf's.
pub(crate) fn float(text: &str) -> Option<f64> {
    let (negative, body) = signed(text);
    let sign = if negative { -1.0 } else { 1.0 };
    match body {
        ".inf" | ".Inf" | ".INF" => return Some(sign * f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" if body.len() == text.len() => return Some(f64::NAN),
        _ => {}
    }
    if body.contains(':') {
        let (whole, fraction) = body.split_once('.')?;
        if !is_digits_or_underscores(fraction) {
            return None;
        }
        let parts = base_60(whole)?;
        let last = format!("{}.{}", parts.last()?, fraction.replace('_', ""));
        let seconds: f64 = last.parse().ok()?;
        let rest = parts[..parts.len() - 1].iter().try_fold(0.0, |sum, part| {
            Some((sum + part.parse::<f64>().ok()?) * 60.0)
        })?;
        return Some(sign * (rest + seconds));
    }
    let (mantissa, exponent) = match body.find(['e', 'E']) {
        Some(at) => (&body[..at], Some(&body[at + 1..])),
        None => (body, None),
    };
    let exponent_signed = exponent.is_none_or(|e| e.starts_with(['+', '-']));
    if let Some(exponent) = exponent {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
    }
    let matches = match mantissa.split_once('.') {
        // `.5`: takes no sign in front, and its exponent must have one.
        Some(("", fraction)) => {
            body.len() == text.len()
                && fraction.starts_with(|c: char| c.is_ascii_digit())
                && is_digits_or_underscores(fraction)
                && exponent_signed
        }
        Some((whole, fraction)) => {
            let whole_ok = whole.starts_with(|c: char| c.is_ascii_digit())
                && is_digits_or_underscores(whole)
                && (exponent_signed || is_grouped(whole));
            whole_ok && is_digits_or_underscores(fraction)
        }
        None => exponent.is_some() && is_grouped(mantissa),
    };
    if !matches {
        return None;
    }
    let magnitude: f64 = body.replace('_', "").parse().ok()?;
    Some(sign * magnitude)
}

fn signed(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}

fn is_digits_or_underscores(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

/// Runs of digits joined by single underscores.
fn is_grouped(text: &str) -> bool {
    text.split('_')
        .all(|run| !run.is_empty() && run.bytes().all(|b| b.is_ascii_digit()))
}

/// The parts of `[0-9][0-9_]*(:[0-5]?[0-9])+`, without underscores.
fn base_60(text: &str) -> Option<Vec<String>> {
    let mut parts = text.split(':');
    let first = parts.next()?;
    if !first.starts_with(|c: char| c.is_ascii_digit()) || !is_digits_or_underscores(first) {
        return None;
    }
    let mut all = vec![first.replace('_', "")];
    for part in parts {
        let ok = match part.as_bytes() {
            [ones] => ones.is_ascii_digit(),
            [tens, ones] => (b'0'..=b'5').contains(tens) && ones.is_ascii_digit(),
            _ => false,
        };
        if !ok {
            return None;
        }
        all.push(part.to_string());
    }
    (all.len() > 1).then_some(all)
}
