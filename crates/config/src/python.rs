//! How Python writes and reads numbers and containers, where OmegaConf shows that to the user.
//!
//! An interpolation inside a text gives `str(value)`: `5e-05`, `1000000.0`, `True`, `None`,
//! `{'a': 1}`. The functions `int()` and `float()` of the override grammar read as Python does.

use crate::value::{Node, Value};

/// `repr(float)`: the shortest digits that read back, in scientific form below 1e-4 and from 1e16.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = match scientific.split_once('e') {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().unwrap_or(0)),
        None => (scientific.as_str(), 0),
    };
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
    }
}

/// `str(value)`.
pub(crate) fn display(node: &Node) -> String {
    match &node.value {
        Value::Str(text) => text.clone(),
        _ => repr(node),
    }
}

/// `repr(value)`. Interpolations inside containers are shown as they are written.
pub(crate) fn repr(node: &Node) -> String {
    let mut out = String::new();
    write_repr(node, &mut out);
    out
}

fn write_repr(node: &Node, out: &mut String) {
    match &node.value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Int(value) => out.push_str(&value.to_string()),
        Value::Float(value) => out.push_str(&float(*value)),
        Value::Str(text) => quote(text, out),
        Value::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(item, out);
            }
            out.push(']');
        }
        Value::Map(map) => {
            out.push('{');
            for (index, (key, item)) in map.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                match key.kind() {
                    crate::value::KeyKind::Text => quote(key.as_str(), out),
                    crate::value::KeyKind::Boolean if key.as_str() == "true" => {
                        out.push_str("True")
                    }
                    crate::value::KeyKind::Boolean => out.push_str("False"),
                    _ => out.push_str(key.as_str()),
                }
                out.push_str(": ");
                write_repr(item, out);
            }
            out.push('}');
        }
    }
}

fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() && (c as u32) < 0x100 => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

/// `int(text)`: decimal, with sign, single underscores between digits and outer spaces.
pub(crate) fn parse_int(text: &str) -> Option<i128> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    plain_digits(digits)?;
    text.replace('_', "").parse().ok()
}

/// `float(text)`: also `inf`, `infinity` and `nan` in any case.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim();
    if text.contains('_') {
        let valid = text
            .split(|c: char| !(c.is_ascii_digit() || c == '_'))
            .all(|run| run.is_empty() || plain_digits(run).is_some());
        if !valid {
            return None;
        }
    }
    text.replace('_', "").parse().ok()
}

/// Digits, with single underscores between them.
fn plain_digits(text: &str) -> Option<()> {
    let ok = !text.is_empty()
        && text
            .split('_')
            .all(|run| !run.is_empty() && run.bytes().all(|b| b.is_ascii_digit()));
    ok.then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_prints_them() {
        for (value, text) in [
            (5e-5, "5e-05"),
            (1e6, "1000000.0"),
            (1e-10, "1e-10"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (9999999999999998.0, "9999999999999998.0"),
            (1e-4, "0.0001"),
            (1.5e-7, "1.5e-07"),
            (1e100, "1e+100"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn underscores_are_read_as_python_reads_them() {
        assert_eq!(parse_int(" +1_000 "), Some(1000));
        assert_eq!(parse_int("1__0"), None);
        assert_eq!(parse_int("1_"), None);
        assert_eq!(parse_float("1_0.5"), Some(10.5));
        assert_eq!(parse_float("1_.5"), None);
        assert_eq!(parse_float("-Infinity"), Some(f64::NEG_INFINITY));
    }
}
