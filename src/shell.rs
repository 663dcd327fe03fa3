//! What `--shell-completion` asks for, and what a shell evaluates to have its words completed.

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
}

impl Shell {
    pub(crate) fn install(self) -> &'static str {
        match self {
            Self::Bash => include_str!("completion/bash"),
            Self::Zsh => include_str!("completion/zsh"),
            Self::Fish => include_str!("completion/fish"),
        }
    }

    pub(crate) fn uninstall(self) -> &'static str {
        match self {
            Self::Bash => "complete -r tpu-train\nunset -f _tpu_train_complete\n",
            Self::Zsh => "compdef -d tpu-train\nunfunction _tpu_train_complete\n",
            Self::Fish => "complete -e -c tpu-train\nfunctions -e __tpu_train_complete\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
