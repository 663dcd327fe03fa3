//! A table of text, for a terminal and as Markdown.

use std::fmt::Write;

/// Its head and its rows.
pub(super) struct Grid {
    pub(super) head: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
    /// Columns from this one on are numbers.
    pub(super) numbers: usize,
}

impl Grid {
    pub(super) fn plain(&self) -> String {
        let head: Vec<String> = self.head.iter().map(|cell| (*cell).to_owned()).collect();
        let width = |column: usize| {
            let cells = self
                .rows
                .iter()
                .map(|row| &row[column])
                .chain([&head[column]]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let mut text = String::new();
        for row in std::iter::once(&head).chain(&self.rows) {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column < self.numbers {
                    true => write!(line, "{cell:width$}  "),
                    false => write!(line, "{cell:>width$}  "),
                }
                .expect("into a string");
            }
            writeln!(text, "{}", line.trim_end()).expect("into a string");
        }
        text
    }

    pub(super) fn markdown(&self) -> String {
        let row = |cells: &[String]| {
            let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |", cells.join(" | "))
        };
        let head: Vec<String> = self.head.iter().map(|cell| (*cell).to_owned()).collect();
        let rule = (0..head.len()).map(|column| match column < self.numbers {
            true => "---".to_owned(),
            false => "---:".to_owned(),
        });
        let mut lines = vec![row(&head), row(&rule.collect::<Vec<_>>())];
        lines.extend(self.rows.iter().map(|cells| row(cells)));
        lines.join("\n")
    }
}
