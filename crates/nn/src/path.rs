//! Dotted module paths, named as in Hugging Face checkpoints: `model.layers.0.self_attn.q_proj`.

use std::fmt;
use std::sync::Arc;

/// The place of a module in its model. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModulePath(Arc<str>);

impl ModulePath {
    /// The model itself, whose parameters have undotted names.
    pub fn root() -> Self {
        Self("".into())
    }

    /// The child `name`, which may itself be dotted (`layers.0`).
    pub fn join(&self, name: impl fmt::Display) -> Self {
        if self.0.is_empty() {
            Self(name.to_string().into())
        } else {
            Self(format!("{}.{name}", self.0).into())
        }
    }

    /// As text, with dots: empty at the root.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ModulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0)
    }
}
