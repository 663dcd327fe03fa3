//! `--shell-completion`: what the shell completes a word of the command line to.
//!
//! As in Hydra, `install=SHELL` and `uninstall=SHELL` print code for the shell to evaluate. The installed code asks
//! `query=SHELL`, with the line up to the cursor in the environment variable `COMP_LINE`, and gets a candidate a line:
//! groups and their options, keys of the config that the words so far compose to, flags and commands. Whatever is
//! wrong with those words is no error here; there is less to offer, and nothing to say.

use crate::cli::{self, Request};
use crate::commands::{TABLE, TRAIN, Work};
use crate::configs::{self, Files};
use crate::program::{self, TPU_TRAIN};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Completion {
    Install(Shell),
    Uninstall(Shell),
    Query,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Completion {
    /// Reads `install=bash` and the like.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (action, shell) = text.split_once('=')?;
        let shell = match shell {
            "bash" => Shell::Bash,
            "zsh" => Shell::Zsh,
            "fish" => Shell::Fish,
            _ => return None,
        };
        match action {
            "install" => Some(Self::Install(shell)),
            "uninstall" => Some(Self::Uninstall(shell)),
            "query" => Some(Self::Query),
            _ => None,
        }
    }

    /// What is printed.
    pub(crate) fn text(self, own: Files) -> String {
        match self {
            Self::Install(shell) => of_program(program::running().name, shell.install()),
            Self::Uninstall(shell) => of_program(program::running().name, shell.uninstall()),
            Self::Query => {
                let line = std::env::var("COMP_LINE").unwrap_or_default();
                let mut text = candidates(&line, own).join("\n");
                if !text.is_empty() {
                    text.push('\n');
                }
                text
            }
        }
    }
}

/// Shell code for the program `name` from that for ours.
fn of_program(name: &str, code: &str) -> String {
    let identifier = |name: &str| name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    code.replace(TPU_TRAIN.name, name)
        .replace(&identifier(TPU_TRAIN.name), &identifier(name))
}

impl Shell {
    fn install(self) -> &'static str {
        match self {
            Self::Bash => include_str!("completion/bash"),
            Self::Zsh => include_str!("completion/zsh"),
            Self::Fish => include_str!("completion/fish"),
        }
    }

    fn uninstall(self) -> &'static str {
        match self {
            Self::Bash => "complete -r tpu-train\nunset -f _tpu_train_complete\n",
            Self::Zsh => "compdef -d tpu-train\nunfunction _tpu_train_complete\n",
            Self::Fish => "complete -e -c tpu-train\nfunctions -e __tpu_train_complete\n",
        }
    }
}

/// What the last word of a line may become.
fn candidates(line: &str, own: Files) -> Vec<String> {
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
            _ if before.is_empty() => break (&TRAIN, cli::Args::default()),
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
    if let Ok(composer) = configs::composer(&args, own, config_name) {
        found.extend(composer.complete(&args.overrides, &word));
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

    #[test]
    fn an_action_names_a_shell() {
        assert_eq!(
            Completion::parse("install=zsh"),
            Some(Completion::Install(Shell::Zsh))
        );
        assert_eq!(Completion::parse("query=fish"), Some(Completion::Query));
        assert_eq!(Completion::parse("install=csh"), None);
        assert_eq!(Completion::parse("install"), None);
    }
}
