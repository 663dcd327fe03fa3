//! Numbers as people read them on a terminal.

use std::time::Duration;

use textwrap::core::display_width;

/// `950`, `12.3k`, `1.20M`: three digits.
pub(crate) fn count(x: f64) -> String {
    const UNITS: [&str; 4] = ["", "k", "M", "G"];
    let (mut value, mut unit) = (x, 0);
    while value.abs() >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = match value.abs() {
        v if unit == 0 || v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}{}", UNITS[unit])
}

/// `9s`, `1m 05s`, `2h 03m`, `4d 05h`: two units.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().round() as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if days > 0 {
        format!("{days}d {:02}h", hours % 24)
    } else if hours > 0 {
        format!("{hours}h {:02}m", minutes % 60)
    } else if minutes > 0 {
        format!("{minutes}m {:02}s", seconds % 60)
    } else {
        format!("{seconds}s")
    }
}

/// Four significant digits: `3.142`, `0.01235`, `12346`; far from 1, `1.235e-5` or `5e-5`.
pub(crate) fn value(x: f64) -> String {
    if x == 0.0 || !x.is_finite() {
        return x.to_string();
    }
    let exponent = x.abs().log10().floor() as i32;
    if (-3..6).contains(&exponent) {
        let decimals = (3 - exponent).max(0) as usize;
        format!("{x:.decimals$}")
    } else {
        let text = format!("{x:.3e}");
        match text.split_once('e') {
            Some((digits, exponent)) => {
                let digits = digits.trim_end_matches('0').trim_end_matches('.');
                format!("{digits}e{exponent}")
            }
            None => text,
        }
    }
}

/// The text in a frame with a title, as wide as a terminal of `columns`.
pub(crate) fn boxed(title: &str, text: &str, columns: usize) -> String {
    let inner = columns.clamp(24, 100) - 4;
    let bar = |length: usize| "\u{2500}".repeat(length);
    let title: String = title.chars().take(inner - 2).collect();
    let rest = bar((inner - 1).saturating_sub(title.chars().count()));
    let mut lines = vec![format!("\u{256d}\u{2500} {title} {rest}\u{256e}")];
    for line in textwrap::wrap(text, inner) {
        let room = " ".repeat(inner.saturating_sub(display_width(&line)));
        lines.push(format!("\u{2502} {line}{room} \u{2502}"));
    }
    lines.push(format!("\u{2570}{}\u{256f}", bar(inner + 2)));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_three_digits() {
        let cases = [
            (0.0, "0"),
            (950.4, "950"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
        ];
        for (x, text) in cases
            .into_iter()
            .chain([(123_456.0, "123k"), (1.2e6, "1.20M")])
        {
            assert_eq!(count(x), text);
        }
    }

    #[test]
    fn durations_have_two_units() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (65, "1m 05s"),
            (7380, "2h 03m"),
            (363_600, "4d 05h"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn values_have_four_digits() {
        let cases = [
            (0.0, "0"),
            (std::f64::consts::PI, "3.142"),
            (0.0123456, "0.01235"),
            (1.23456e-5, "1.235e-5"),
            (-12_345.6, "-12346"),
            (5e-5, "5e-5"),
            (2.5e9, "2.5e9"),
            (f64::NAN, "NaN"),
        ];
        for (x, text) in cases {
            assert_eq!(value(x), text);
        }
    }
}
