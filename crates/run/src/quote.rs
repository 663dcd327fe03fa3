//! Quoting of what is written into a command line: for the override grammar first, then for a shell.

use std::path::Path;

/// A path as a quoted string of the override grammar, whatever characters it has.
pub fn quoted(path: &Path) -> String {
    let mut text = String::from("'");
    let mut backslashes = 0;
    for c in path.to_string_lossy().chars() {
        if c == '\'' {
            // Backslashes count only before a quote; there each of them is written twice.
            text.push_str(&"\\".repeat(backslashes + 1));
        }
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
        text.push(c);
    }
    text.push_str(&"\\".repeat(backslashes));
    text.push('\'');
    text
}

/// A path as a value of the override grammar, in quotes only if it needs them.
pub fn value(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if path.is_absolute() && text.chars().all(is_plain) {
        text.into_owned()
    } else {
        quoted(path)
    }
}

/// One argument as a shell reads it, in quotes only if it needs them.
pub fn shell(argument: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "+-~_=.,:/@%".contains(c);
    let is_word = !argument.is_empty() && !argument.starts_with('~');
    if is_word && argument.chars().all(is_plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_path_reads_back() {
        for path in [
            "a/b",
            "/tmp/\u{fc} x",
            "a b,c=d",
            "it's",
            r"back\slash",
            r"both\'",
            r"end\",
            "{x}[y]",
        ] {
            let argument = format!("seed={}", quoted(Path::new(path)));
            let composer =
                tt_config::Composer::new("main").embedded("main", &[("main.yaml", "seed: null\n")]);
            let composition = composer.compose(&[argument]).unwrap();
            let read = composition.get("seed").and_then(tt_config::Node::as_str);
            assert_eq!(read, Some(path));
        }
    }
}
