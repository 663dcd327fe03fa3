//! Problems with a configuration, and how they are shown.
//!
//! A [`Diagnostic`] says what is wrong, where (source line and caret), and what next; a run
//! collects all of them in one [`Diagnostics`]. The text is plain: colour is the caller's.

use std::fmt::{self, Write as _};

use crate::origin::{Origin, Place, floor_char_boundary};

/// One problem. Boxed, since it travels as the error of many small functions.
#[derive(Clone, Debug)]
pub struct Diagnostic(Box<Report>);

#[derive(Clone, Debug)]
struct Report {
    message: String,
    origin: Option<Origin>,
    label: String,
    notes: Vec<String>,
}

impl Diagnostic {
    /// A problem: what is wrong, in a line, without a full stop.
    pub fn new(message: impl Into<String>) -> Self {
        Diagnostic(Box::new(Report {
            message: message.into(),
            origin: None,
            label: String::new(),
            notes: Vec::new(),
        }))
    }

    /// Where the problem is. The chain of choices that led there is shown too.
    pub fn at(mut self, origin: &Origin) -> Self {
        self.0.origin = Some(origin.clone());
        self
    }

    /// A few words beside the caret.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.0.label = label.into();
        self
    }

    /// A further line, under the source line.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.0.notes.push(note.into());
        self
    }

    /// What is wrong.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Where, if that has been said.
    pub fn origin(&self) -> Option<&Origin> {
        self.0.origin.as_ref()
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.0.message)?;
        let Some(origin) = &self.0.origin else {
            for note in &self.0.notes {
                write_note(f, "", note)?;
            }
            return Ok(());
        };
        let shown = origin.read_at.as_deref().unwrap_or(origin);
        let margin = match (&shown.place, shown.line_column()) {
            (Place::File(_), Some((line, _))) => line.to_string(),
            _ => String::new(),
        };
        let pad = " ".repeat(margin.len().max(1) + 1);
        match &shown.place {
            Place::File(_) => write!(f, "\n{pad}--> {shown}")?,
            Place::Argument(_) => write!(f, "\n{pad}--> command line")?,
            Place::Environment(name) => write!(f, "\n{pad}--> environment variable {name}")?,
            Place::Default => {}
        }
        if let Some((line, caret)) = source_line(shown) {
            write!(f, "\n{pad} |")?;
            write!(f, "\n{margin:>width$} | {line}", width = pad.len())?;
            write!(f, "\n{pad} | {caret}")?;
            if !self.0.label.is_empty() {
                write!(f, " {}", self.0.label)?;
            }
        } else if !self.0.label.is_empty() {
            write_note(f, &pad, &self.0.label)?;
        }
        for note in &self.0.notes {
            write_note(f, &pad, note)?;
        }
        if origin.read_at.is_some() {
            write_note(f, &pad, &format!("the value comes from {origin}"))?;
        }
        for choice in shown.choices() {
            write_note(f, &pad, &choice)?;
        }
        Ok(())
    }
}

fn write_note(f: &mut fmt::Formatter<'_>, pad: &str, note: &str) -> fmt::Result {
    let mut lines = note.lines();
    write!(f, "\n{pad} = {}", lines.next().unwrap_or(""))?;
    for line in lines {
        write!(f, "\n{pad}   {line}")?;
    }
    Ok(())
}

/// The line that holds the value, and carets under the value.
fn source_line(origin: &Origin) -> Option<(String, String)> {
    // A line longer than this is cut around the value.
    const WIDEST: usize = 120;
    let text = origin.text()?;
    let start = floor_char_boundary(text, origin.value.start as usize);
    let end = floor_char_boundary(text, origin.value.end as usize).max(start);
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
    let before: Vec<char> = text[line_start..start].chars().collect();
    let marked = text[start..end.min(line_end).max(start)]
        .trim_end()
        .chars()
        .count()
        .clamp(1, WIDEST);
    let skipped = before.len().saturating_sub(WIDEST / 2);
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let mut line = String::new();
    if skipped > 0 {
        line.push_str("...");
    }
    line.extend(before[skipped..].iter().map(|c| visible(*c)));
    let indent = line.chars().count();
    let rest = text[start..line_end].trim_end_matches('\r');
    line.extend(rest.chars().take(WIDEST).map(visible));
    if rest.chars().count() > WIDEST {
        line.push_str("...");
    }
    let mut caret = String::new();
    let _ = write!(caret, "{:indent$}{}", "", "^".repeat(marked));
    Some((line.trim_end().to_string(), caret))
}

/// Everything that is wrong with a configuration, in the order it was found.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// No problem.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.0.push(diagnostic);
    }

    /// Adds all of another.
    pub fn extend(&mut self, other: Diagnostics) {
        self.0.extend(other.0);
    }

    /// Adds what is not there yet: the jobs of a sweep share most of their problems.
    pub(crate) fn extend_new(&mut self, other: Diagnostics) {
        for diagnostic in other.0 {
            let is_known = |known: &Diagnostic| known.message() == diagnostic.message();
            if !self.0.iter().any(is_known) {
                self.0.push(diagnostic);
            }
        }
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Each, in the order it was found.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0.iter()
    }

    /// `value` if nothing was wrong.
    pub fn into_result<T>(self, value: T) -> Result<T, Diagnostics> {
        if self.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        Diagnostics(vec![diagnostic])
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            write!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// The candidate nearest to `word` by edit distance, if it is near enough to be a slip.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Nobody mistypes a word this long, and the distance is quadratic.
    if word.len() > 100 {
        return None;
    }
    let limit = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance <= limit
                || (word.len() >= 3 && (candidate.starts_with(word) || word.starts_with(candidate)))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (
        a.to_lowercase().chars().collect(),
        b.to_lowercase().chars().collect(),
    );
    let mut two_back = vec![0; b.len() + 1];
    let mut back: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let substitution = back[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = substitution.min(back[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(two_back[j - 2] + 1);
            }
        }
        two_back = std::mem::replace(&mut back, row);
    }
    back[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_slips_and_nothing_else() {
        let keys = ["lr", "betas", "eps", "weight_decay"];
        assert_eq!(nearest("weight_decy", keys), Some("weight_decay"));
        assert_eq!(nearest("wieght_decay", keys), Some("weight_decay"));
        assert_eq!(nearest("beats", keys), Some("betas"));
        assert_eq!(nearest("momentum", keys), None);
    }
}
