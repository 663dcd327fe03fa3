//! What is wrong with a command line.

use std::ffi::OsString;

use crate::args::BenchKind;

/// A command line that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    #[error("unknown flag `{flag}`{}", hint(.nearest))]
    UnknownFlag {
        flag: String,
        nearest: Option<String>,
    },
    #[error("unknown command `{command}`{}; an override has the form key=value", hint(.nearest))]
    UnknownCommand {
        command: String,
        nearest: Option<String>,
    },
    #[error("`bench` does not measure `{kind}`{}: it measures {}", hint(.nearest), bench_kinds())]
    UnknownBench {
        kind: String,
        nearest: Option<String>,
    },
    #[error("`bench` measures one thing at a time: {}", bench_kinds())]
    SeveralBenches,
    #[error("flag `{flag}` needs a value: {value}")]
    MissingValue { flag: String, value: &'static str },
    #[error("flag `{flag}` takes no value")]
    UnexpectedValue { flag: String },
    #[error("`{value}` is not a value of `{flag}`: {expected}")]
    BadValue {
        flag: String,
        value: String,
        expected: &'static str,
    },
    #[error("flag `{flag}` does nothing without `{needs}`")]
    Alone {
        flag: &'static str,
        needs: &'static str,
    },
    #[error("flags `{0}` and `{1}` exclude each other")]
    Excluded(&'static str, &'static str),
    #[error("`{flag}` is for {}, not for `{command}`", names(.owners))]
    ForOther {
        flag: &'static str,
        owners: &'static [&'static str],
        command: &'static str,
    },
    #[error("`{0}` composes no config: it takes neither --cfg nor --info")]
    NoConfig(&'static str),
    #[error("argument is not UTF-8: {0:?}")]
    NotUtf8(OsString),
}

fn bench_kinds() -> String {
    let [others @ .., last] = BenchKind::ALL.map(BenchKind::name);
    format!("{} or {last}", others.join(", "))
}

fn names(owners: &[&str]) -> String {
    let names: Vec<_> = owners.iter().map(|name| format!("`{name}`")).collect();
    names.join(" and ")
}

fn hint(nearest: &Option<String>) -> String {
    match nearest {
        Some(nearest) => format!(", did you mean `{nearest}`?"),
        None => String::new(),
    }
}
