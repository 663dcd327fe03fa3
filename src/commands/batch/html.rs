//! Batches as a page.

use std::fmt::Write;

use super::shown::Shown;
use super::text::{origin, title};

const HEAD: &str = "<!doctype html>\n<meta charset=\"utf-8\">\n<title>batches</title>\n<style>
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em; max-width: 70em }
p { white-space: pre-wrap; font-family: ui-monospace, monospace; margin: .3em 0 }
.target { background: #d9f2d9 }
.other { color: #888 }
small { color: #666 }
</style>
<p><span class=\"target\">what the loss counts</span> <span class=\"other\">what it does not</span></p>\n";

pub(super) fn page(batches: &[Shown]) -> String {
    let mut page = HEAD.to_owned();
    for (index, batch) in batches.iter().enumerate() {
        let _ = writeln!(page, "<h2>{}</h2>", escaped(&title(index, batch)));
        for (number, row) in batch.rows.iter().enumerate() {
            let _ = writeln!(
                page,
                "<h3>row {number} <small>{}</small></h3>",
                escaped(&origin(row))
            );
            let mut segment = 0;
            for piece in &row.pieces {
                if piece.segment != segment {
                    segment = piece.segment;
                    let _ = write!(page, "<p><small>{segment} @{}</small> ", piece.position);
                }
                let class = if piece.is_target { "target" } else { "other" };
                let text = escaped(&piece.text);
                let _ = write!(page, "<span class=\"{class}\">{text}</span>");
            }
            page.push('\n');
        }
    }
    page
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
