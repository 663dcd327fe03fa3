//! What has been measured: lines for people, and one line of JSON for programs.

use std::time::Duration;

use serde_json::{Map, Value};
use tt_report::{Column, Table};

/// Of one kind. The names of the JSON are what programs rely on.
#[derive(Default)]
pub(super) struct Report {
    pub(super) json: Map<String, Value>,
    /// (name, value, note).
    rows: Vec<[String; 3]>,
    /// A table of its own, after the rows.
    pub(super) table: Option<Table>,
}

impl Report {
    pub(super) fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.json.insert(name.to_owned(), value.into());
    }

    pub(super) fn row(&mut self, name: &str, value: impl Into<String>, note: impl Into<String>) {
        self.rows.push([name.to_owned(), value.into(), note.into()]);
    }

    pub(super) fn text(&self) -> String {
        const COLUMNS: [Column; 3] = [
            Column::left().width(24).gap(0),
            Column::right().width(10),
            Column::left(),
        ];
        let mut table = Table::new(COLUMNS);
        self.rows.iter().for_each(|row| table.row(row.clone()));
        let own = self.table.iter().map(|own| format!("\n{own}"));
        table.to_string() + &own.collect::<String>()
    }
}

/// Milliseconds.
pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
