//! Errors of adapters that do not fit their model, or cannot be read.

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("`{target}`: {why}")]
    Target {
        target: String,
        /// Its place among the targets.
        index: usize,
        why: String,
    },
    #[error("`{target}` matches no linear layer of the model{}", hint(.nearest))]
    UnmatchedTarget {
        target: String,
        index: usize,
        nearest: Option<String>,
    },
    #[error(
        "`{target}` matches {path}, which is {what}: adapters go on linear layers within the model"
    )]
    NotLinear {
        target: String,
        index: usize,
        path: String,
        what: &'static str,
    },
    #[error("adapter_config.json: `{key}`: {why}")]
    PeftConfig { key: String, why: String },
    #[error("the adapter has a tensor `{name}`, which is of no linear layer of the model")]
    UnknownTensor { name: String },
}

fn hint(nearest: &Option<String>) -> String {
    match nearest {
        Some(nearest) => format!(", did you mean `{nearest}`?"),
        None => String::new(),
    }
}

pub type Result<T> = std::result::Result<T, Error>;
