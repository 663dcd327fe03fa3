//! Numbers as people read and write them.

use std::time::Duration;

/// A unit and what it stands for.
type Unit = (&'static str, f64);

/// Decimal, as disks and machines are sold.
const BYTES: &[Unit] = &[
    ("TB", 1e12),
    ("GB", 1e9),
    ("MB", 1e6),
    ("kB", 1e3),
    ("B", 1.0),
];

const COUNTS: &[Unit] = &[
    ("Z", 1e21),
    ("E", 1e18),
    ("P", 1e15),
    ("T", 1e12),
    ("G", 1e9),
    ("M", 1e6),
    ("k", 1e3),
    ("", 1.0),
];

/// `123 M`: three digits.
pub fn count(number: f64) -> String {
    scaled(number, COUNTS)
}

/// `30.5 GB`: three digits.
pub fn bytes(number: u64) -> String {
    scaled(number as f64, BYTES)
}

/// Three digits and the unit that keeps them before the thousands.
fn scaled(number: f64, units: &[Unit]) -> String {
    let unit = units.iter().find(|(_, factor)| number >= *factor);
    let (name, factor) = unit.or(units.last()).copied().unwrap_or(("", 1.0));
    let scaled = number / factor;
    let decimals = match scaled {
        _ if factor == 1.0 => 0,
        x if x < 10.0 => 2,
        x if x < 100.0 => 1,
        _ => 0,
    };
    format!("{scaled:.decimals$} {name}").trim_end().to_owned()
}

/// Reads a number of bytes such as `24GB`, `1.5 TB` or `512MiB`; a plain number is bytes.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let factor = match text[end..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024f64.powi(2),
        "gib" => 1024f64.powi(3),
        "tib" => 1024f64.powi(4),
        _ => return None,
    };
    Some((number * factor) as u64)
}

/// `0`, `inf` or `1.0e-4`: an error, of which the magnitude counts.
pub fn error(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value.is_infinite() => "inf".to_owned(),
        value => format!("{value:.1e}"),
    }
}

/// `2.5000` or, far from 1, `1.2346e-5`: five digits, which tell results apart.
pub fn result(value: f64) -> String {
    if is_far_from_one(value) {
        format!("{value:.4e}")
    } else {
        format!("{value:.4}")
    }
}

/// `2.5` or, far from 1, `1.0e-5`: as short as can be, for a mark on an axis.
pub fn mark(value: f64) -> String {
    if is_far_from_one(value) {
        format!("{value:.1e}")
    } else {
        let text = format!("{value:.4}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

fn is_far_from_one(value: f64) -> bool {
    value != 0.0 && !(1e-3..1e6).contains(&value.abs())
}

/// `1:02:03`, or `2:03` below an hour.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_decimal_and_binary_units() {
        let sizes = [
            ("24GB", 24_000_000_000),
            ("1.5 tb", 1_500_000_000_000),
            ("512MiB", 512 << 20),
            ("16g", 16_000_000_000),
            ("100", 100),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "GB", "much", "1XB", "-1GB"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_show_three_digits() {
        let shown = [0.0, 999.0, 1_000.0, 12_345.0, 123_456_789.0].map(count);
        assert_eq!(shown, ["0", "999", "1.00 k", "12.3 k", "123 M"]);
        assert_eq!(bytes(7_615_616_512 * 4), "30.5 GB");
    }

    #[test]
    fn far_from_one_numbers_have_an_exponent() {
        let cases = [
            (0.0, "0", "0.0000", "0"),
            (2.5, "2.5e0", "2.5000", "2.5"),
            (3.0, "3.0e0", "3.0000", "3"),
            (0.00001, "1.0e-5", "1.0000e-5", "1.0e-5"),
            (f64::INFINITY, "inf", "inf", "inf"),
        ];
        for (number, as_error, as_result, as_mark) in cases {
            assert_eq!(error(number), as_error);
            assert_eq!(result(number), as_result);
            assert_eq!(mark(number), as_mark);
        }
    }

    #[test]
    fn times_read_as_clocks() {
        assert_eq!(clock(Duration::from_secs(61)), "1:01");
        assert_eq!(clock(Duration::from_secs(3723)), "1:02:03");
    }
}
