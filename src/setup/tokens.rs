//! The tokens that `data.token_cache` keeps, made with their progress shown.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tt_collators::{Pipeline, TokenProgress, Tokenized};
use tt_data::DataError;

use crate::out;

/// How often a log is told.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Makes what is missing, if the configuration wants a cache. A signal ends the process; what has been made stays.
pub(crate) fn fill(data: &mut Pipeline) -> Result<Option<Tokenized>, DataError> {
    let bar = ProgressBar::hidden();
    if io::stderr().is_terminal() {
        let style = "tokenizing: row {human_pos} of {human_len}, {per_sec}, {eta} left";
        let style = ProgressStyle::with_template(style);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
    }
    let told = Cell::new(Instant::now());
    let filled = data.fill_token_cache(&|TokenProgress { rows, num_rows }| {
        bar.set_length(num_rows);
        bar.set_position(rows);
        if told.get().elapsed() > LOG_INTERVAL && !io::stderr().is_terminal() {
            told.set(Instant::now());
            out::error_line(format_args!("tokenizing: row {rows} of {num_rows}"));
        }
        true
    });
    bar.finish_and_clear();
    filled
}

/// What the cache holds, in a line.
pub(crate) fn describe(tokenized: &Tokenized) -> String {
    let Tokenized {
        rows,
        tokens,
        made_rows,
        folders,
    } = tokenized;
    let folders: Vec<String> = folders.iter().map(|it| it.display().to_string()).collect();
    format!(
        "token cache: {rows} rows, {tokens} tokens, of which {made_rows} rows were made now, in {}",
        folders.join(", ")
    )
}
