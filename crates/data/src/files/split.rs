//! Splits as `datasets` writes them: `train`, `train[:1%]`, `train[100:200]+test`.

use std::ops::Range;

/// A part of a split: `train[10%:20%]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Split {
    pub(crate) name: String,
    from: Option<Bound>,
    to: Option<Bound>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    Row(i64),
    /// Of all rows.
    Percent(f64),
}

impl Split {
    /// Parts to be put one after another. Errors: what is not understood.
    pub(crate) fn parse(text: &str) -> Result<Vec<Self>, String> {
        text.split('+').map(|part| Self::parse_part(part.trim())).collect()
    }

    fn parse_part(text: &str) -> Result<Self, String> {
        let bad = || {
            format!("`{text}` is no split; write `train`, `train[:1%]`, `train[100:200]` or `train+test`")
        };
        let (name, slice) = match text.split_once('[') {
            Some((name, rest)) => (name, Some(rest.strip_suffix(']').ok_or_else(bad)?)),
            None => (text, None),
        };
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(bad());
        }
        let (mut from, mut to) = (None, None);
        if let Some(slice) = slice {
            let (start, end) = slice.split_once(':').ok_or_else(bad)?;
            from = Bound::parse(start.trim()).ok_or_else(bad)?;
            to = Bound::parse(end.trim()).ok_or_else(bad)?;
        }
        let name = name.to_owned();
        Ok(Self { name, from, to })
    }

    /// Its rows of the `num_rows` that the whole split has. As Python's slices, none is out of bounds.
    pub(crate) fn rows(&self, num_rows: u64) -> Range<u64> {
        let place = |bound: Option<Bound>, otherwise: u64| match bound {
            None => otherwise,
            Some(bound) => bound.place(num_rows),
        };
        let (start, end) = (place(self.from, 0), place(self.to, num_rows));
        start..end.max(start)
    }
}

impl Bound {
    /// The outer `None` is an error.
    fn parse(text: &str) -> Option<Option<Self>> {
        if text.is_empty() {
            return Some(None);
        }
        let bound = match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.trim().parse::<f64>().ok()?;
                (percent.abs() <= 100.0).then_some(Self::Percent(percent))?
            }
            None => Self::Row(text.replace('_', "").parse().ok()?),
        };
        Some(Some(bound))
    }

    fn place(self, num_rows: u64) -> u64 {
        let rows = num_rows as f64;
        let row = match self {
            Self::Row(row) => row as f64,
            Self::Percent(percent) => (rows * percent / 100.0).round_ties_even(),
        };
        let from_start = if row < 0.0 { rows + row } else { row };
        from_start.clamp(0.0, rows) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_those_of_datasets() {
        let rows = |text: &str, num_rows| Split::parse(text).unwrap()[0].rows(num_rows);
        assert_eq!(rows("train", 200), 0..200);
        assert_eq!(rows("train[:1%]", 200), 0..2);
        assert_eq!(rows("train[10%:20%]", 37), 4..7);
        assert_eq!(rows("train[-10%:]", 200), 180..200);
        assert_eq!(rows("train[150:1000]", 200), 150..200);
        assert_eq!(rows("train[-5:]", 200), 195..200);
        assert_eq!(rows("train[20:10]", 200), 20..20);
        let both = Split::parse("train[:50%] + validation").unwrap();
        let names: Vec<&str> = both.iter().map(|split| split.name.as_str()).collect();
        assert_eq!(names, ["train", "validation"]);
    }

    #[test]
    fn what_is_no_split_is_said() {
        for text in ["", "train[", "train[1]", "train[1:2", "train[a:b]", "tr ain", "train[:200%]", "[:1%]"] {
            let error = Split::parse(text).unwrap_err();
            assert!(error.contains("is no split"), "{text}: {error}");
        }
    }
}
