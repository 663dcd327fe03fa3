//! Comma-separated values.

/// A line of cells as in RFC 4180, with the line end of this system.
pub fn csv_line(cells: &[String]) -> String {
    let quoted = |cell: &String| {
        if cell.contains(['"', ',', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.clone()
        }
    };
    let cells: Vec<_> = cells.iter().map(quoted).collect();
    cells.join(",") + "\n"
}

#[test]
fn cells_are_quoted_that_need_it() {
    let cells = ["1e-3", "[1,2]", "say \"x\"", ""].map(str::to_owned);
    assert_eq!(csv_line(&cells), "1e-3,\"[1,2]\",\"say \"\"x\"\"\",\n");
}
