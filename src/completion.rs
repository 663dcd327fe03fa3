//! `--shell-completion`: what the shell completes a word of the command line to.
//!
//! As in Hydra, `install=SHELL` and `uninstall=SHELL` print code for the shell to evaluate. The installed code asks
//! `query=SHELL`, with the line up to the cursor in the environment variable `COMP_LINE`, and gets a candidate a line:
//! groups and their options, keys of the config that the words so far compose to and values of those that have a few,
//! flags and commands. Whatever is wrong with those words is no error here; there is less to offer, and nothing to say.

mod values;

use tt_run::program::{self, TPU_TRAIN};

use crate::args::{Args, BenchKind};
use crate::cli::{self, Request};
use crate::commands::{BENCH, TABLE, TRAIN, Work};
use crate::configs;
use crate::plugins::Plugins;
use crate::shell::Completion;

/// What is printed.
pub(crate) fn text(completion: Completion, plugins: &Plugins) -> String {
    match completion {
        Completion::Install(shell) => of_program(program::running().name, shell.install()),
        Completion::Uninstall(shell) => of_program(program::running().name, shell.uninstall()),
        Completion::Query => {
            let line = std::env::var("COMP_LINE").unwrap_or_default();
            let mut text = candidates(&line, plugins).join("\n");
            if !text.is_empty() {
                text.push('\n');
            }
            text
        }
    }
}

/// Shell code for the program `name` from that for ours.
fn of_program(name: &str, code: &str) -> String {
    let identifier = |name: &str| name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    code.replace(TPU_TRAIN.name, name)
        .replace(&identifier(TPU_TRAIN.name), &identifier(name))
}

/// What the last word of a line may become.
fn candidates(line: &str, plugins: &Plugins) -> Vec<String> {
    let mut words = split(line);
    let word = words.pop().unwrap_or_default();
    let mut before = words.into_iter().skip(1).collect::<Vec<_>>();
    if before.last().is_some_and(|flag| cli::takes_override(flag)) {
        before.pop(); // the word is completed as overrides are
    } else if let Some(values) = before.last().and_then(|flag| cli::values_after(flag)) {
        let values = values.into_iter().filter(|value| value.starts_with(&word));
        return values.map(str::to_owned).collect();
    }
    if word.starts_with('-') {
        let flags = cli::flags().filter(|flag| flag.starts_with(&word));
        return flags.map(str::to_owned).collect();
    }
    let has_command = before
        .iter()
        .any(|given| TABLE.iter().any(|command| command.name == given));
    // A flag that is not finished, or a wrong word, shall not keep the others from being used.
    let (command, args) = loop {
        match cli::parse(before.iter().map(Into::into)) {
            Ok(Request::Run(command, args)) => break (command, args),
            _ if before.is_empty() => break (&TRAIN, Args::default()),
            _ => before.truncate(before.len() - 1),
        }
    };
    let Work::Composed { config_name, .. } = command.work else {
        return Vec::new(); // the shell completes paths
    };
    let mut found = Vec::new();
    if !has_command && !word.is_empty() {
        let names = TABLE.iter().map(|command| command.name);
        found.extend(
            names
                .filter(|name| name.starts_with(&word))
                .map(str::to_owned),
        );
    }
    if command.name == BENCH.name && args.options.bench.is_none() {
        let kinds = BenchKind::ALL.map(BenchKind::name).into_iter();
        found.extend(
            kinds
                .filter(|kind| kind.starts_with(&word))
                .map(str::to_owned),
        );
    }
    let Ok(composer) = configs::composer(&args, plugins.configs, config_name) else {
        return found;
    };
    found.extend(composer.complete(&args.overrides, &word));
    if let (Some((key, value)), true) = (word.split_once('='), found.is_empty())
        && let Ok(composition) = composer.compose(&args.overrides)
    {
        let key = key.trim_start_matches('+');
        // Of a sweep's values the last is still being typed.
        let start = value.rsplit(',').next().unwrap_or_default();
        let before = &word[..word.len() - start.len()];
        let values = values::of(key, start, &composition, plugins);
        found.extend(values.into_iter().map(|value| format!("{before}{value}")));
    }
    found
}

/// The words of a line as a shell reads them, the last one still being typed; empty after a space.
fn split(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        let last = words.last_mut().expect("never empty");
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None | Some('"'), '\\') => last.extend(chars.next()),
            (None, c) if c.is_whitespace() => {
                if !last.is_empty() {
                    words.push(String::new());
                }
            }
            (_, c) => last.push(c),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::Shell;

    #[test]
    fn a_line_is_split_as_a_shell_does() {
        assert_eq!(split("a  b"), ["a", "b"]);
        assert_eq!(split("a b "), ["a", "b", ""]);
        assert_eq!(
            split(r#"a 'b c'=d "e \" f" g\ h"#),
            ["a", "b c=d", "e \" f", "g h"]
        );
        assert_eq!(split("a 'b c"), ["a", "b c"]);
        assert_eq!(split(""), [""]);
    }

    #[test]
    fn another_program_is_completed_by_its_own_name() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            for code in [shell.install(), shell.uninstall()] {
                let code = of_program("my-lab2", code);
                assert!(!code.contains("tpu"), "{code}");
                assert!(code.contains(" my-lab2") && code.contains("_my_lab2_complete"));
            }
        }
    }
}
