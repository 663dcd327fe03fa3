//! A table whose columns line up, as text for a terminal and as Markdown.
//!
//! Widths are counted in characters. Lines do not end in blanks, so a row may leave out its last cells.

use std::fmt::{self, Display};

/// How a column is set.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    is_right: bool,
    /// `None`: as wide as its widest cell.
    width: Option<usize>,
    /// Blanks between this column and the next.
    gap: usize,
}

impl Column {
    /// Cells begin where the column begins: text.
    pub const fn left() -> Self {
        Self {
            is_right: false,
            width: None,
            gap: 2,
        }
    }

    /// Cells end where the column ends: numbers.
    pub const fn right() -> Self {
        Self {
            is_right: true,
            ..Self::left()
        }
    }

    /// A width of its own, which a longer cell exceeds for its line alone.
    pub const fn width(mut self, width: usize) -> Self {
        self.width = Some(width);
        self
    }

    pub const fn gap(mut self, gap: usize) -> Self {
        self.gap = gap;
        self
    }
}

/// Rows of cells, and lines of text between them.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    lines: Vec<Line>,
}

#[derive(Clone, Debug)]
enum Line {
    Cells(Vec<String>),
    Text(String),
}

impl Table {
    pub fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self {
            columns: columns.into(),
            lines: Vec::new(),
        }
    }

    /// Adds a row. In Markdown the first is the head.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let cells = cells.into_iter().map(Into::into);
        self.lines.push(Line::Cells(cells.collect()));
    }

    /// Adds a line that does not count for the widths of columns; none in Markdown.
    pub fn line(&mut self, text: impl Into<String>) {
        self.lines.push(Line::Text(text.into()));
    }

    fn rows(&self) -> impl Iterator<Item = &[String]> {
        self.lines.iter().filter_map(|line| match line {
            Line::Cells(cells) => Some(&cells[..]),
            Line::Text(_) => None,
        })
    }

    fn width(&self, index: usize) -> usize {
        self.columns[index].width.unwrap_or_else(|| {
            let cells = self.rows().filter_map(|cells| cells.get(index));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
    }

    /// Without a line end after the last row.
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        // A cell ends at a bar, even within code.
        let escaped = |cells: &[String]| cells.iter().map(|it| it.replace('|', "\\|")).collect();
        let mut lines: Vec<String> = self.rows().map(|cells| line(escaped(cells))).collect();
        let rule = self.columns.iter().map(|column| {
            let rule = if column.is_right { "---:" } else { "---" };
            rule.to_owned()
        });
        lines.insert(lines.len().min(1), line(rule.collect()));
        lines.join("\n")
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<_> = (0..self.columns.len()).map(|i| self.width(i)).collect();
        for line in &self.lines {
            let cells = match line {
                Line::Cells(cells) => cells,
                Line::Text(text) => {
                    writeln!(f, "{text}")?;
                    continue;
                }
            };
            let mut text = String::new();
            for (cell, (column, &width)) in cells.iter().zip(self.columns.iter().zip(&widths)) {
                text += &if column.is_right {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:width$}")
                };
                text += &" ".repeat(column.gap);
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new([Column::left(), Column::right(), Column::left()]);
        table.row(["name", "size", ""]);
        table.row(["\u{fc}ber", "1.5", "a note"]);
        assert_eq!(table.to_string(), "name  size\n\u{fc}ber   1.5  a note\n");
    }

    #[test]
    fn a_width_of_its_own_holds_for_shorter_cells() {
        let mut table = Table::new([Column::left().width(4).gap(0), Column::left()]);
        table.row(["a", "b"]);
        table.row(["longer", "b"]);
        assert_eq!(table.to_string(), "a   b\nlongerb\n");
    }

    #[test]
    fn lines_between_rows_widen_no_column() {
        let mut table = Table::new([Column::left(), Column::left()]);
        table.line("a long title:");
        table.row(["x", "y"]);
        assert_eq!(table.to_string(), "a long title:\nx  y\n");
    }

    #[test]
    fn markdown_escapes_bars() {
        let mut table = Table::new([Column::left(), Column::right()]);
        table.row(["", "max |a|"]);
        table.row(["w", "1"]);
        assert_eq!(
            table.markdown(),
            "|  | max \\|a\\| |\n| --- | ---: |\n| w | 1 |"
        );
    }
}
