//! What is shown of results: tables as text, Markdown and CSV, numbers as people read them, plots as SVG.
//!
//! ```
//! use tt_report::{Column, Table};
//!
//! let mut table = Table::new([Column::left(), Column::right()]);
//! table.row(["job", "loss"]);
//! table.row(["12", "2.5"]);
//! assert_eq!(table.to_string(), "job  loss\n12    2.5\n");
//! assert_eq!(table.markdown(), "| job | loss |\n| --- | ---: |\n| 12 | 2.5 |");
//! ```

// They panic where nobody can read: standard output may be closed, or its disk full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod axis;
mod csv;
mod draw;
mod line_plot;
pub mod number;
mod page;
mod scatter;
mod smooth;
mod table;

pub use csv::csv_line;
pub use draw::DrawError;
pub use line_plot::{Line, LinePlot};
pub use page::{Chart, ChartLine, ConfigRow, NextCommand, Page, PageRun, PageSample};
pub use scatter::{Point, Scatter};
pub use smooth::{smoothed, usual_weight};
pub use table::{Column, Table};
