//! What was found, line by line.

use serde::Serialize;
use tt_report::{Column, Table};

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Ok,
    /// It is not there, and nothing else needs it.
    Missing,
    /// It works, and may be why something else does not.
    Doubt,
    /// It is there and does not work.
    Problem,
}

/// A line of the report.
#[derive(Debug, Serialize)]
struct Row {
    section: &'static str,
    name: String,
    state: State,
    text: String,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Findings {
    rows: Vec<Row>,
}

impl Findings {
    pub(super) fn row(
        &mut self,
        section: &'static str,
        name: &str,
        state: State,
        text: impl Into<String>,
    ) {
        self.rows.push(Row {
            section,
            name: name.to_owned(),
            state,
            text: text.into(),
        });
    }

    pub(super) fn has_problem(&self) -> bool {
        self.rows.iter().any(|row| row.state == State::Problem)
    }

    pub(super) fn text(&self) -> String {
        let mut table = Table::new([Column::left().width(18).gap(0), Column::left()]);
        let mut section = "";
        for row in &self.rows {
            if row.section != section {
                section = row.section;
                table.line(section);
            }
            let mark = match row.state {
                State::Ok => ' ',
                State::Missing => '-',
                State::Doubt => '?',
                State::Problem => '!',
            };
            table.row([&format!("{mark} {}", row.name), &row.text]);
        }
        table.to_string()
    }
}
