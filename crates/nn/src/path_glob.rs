//! Globs over dotted paths of modules and parameters: `model.layers.*.self_attn.q_proj`.
//!
//! `*` stands for anything within one part of the path, `**` for any number of parts, `{a,b}` for either, `[0-3]` for
//! one character of a range. A glob matches the whole path.

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Error, Result};

/// A pattern that paths match or not.
#[derive(Clone, Debug)]
pub struct PathGlob(GlobMatcher);

impl PathGlob {
    /// Error: `pattern` is no glob, e.g. for an open bracket.
    pub fn new(pattern: &str) -> Result<Self> {
        let glob = GlobBuilder::new(&as_file_path(pattern))
            .literal_separator(true)
            .build()
            .map_err(|error| Error::Glob {
                pattern: pattern.to_owned(),
                why: error.kind().to_string(),
            })?;
        Ok(Self(glob.compile_matcher()))
    }

    /// Whether `path` fits the pattern.
    pub fn matches(&self, path: &str) -> bool {
        self.0.is_match(as_file_path(path))
    }
}

/// The library knows parts of a path by their slashes.
fn as_file_path(path: &str) -> String {
    path.replace('.', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_within_one_part() {
        let matches = |pattern, path| PathGlob::new(pattern).unwrap().matches(path);
        assert!(matches("model.layers.*", "model.layers.11"));
        assert!(!matches("model.layers.*", "model.layers.11.mlp"));
        assert!(matches(
            "model.layers.*.mlp.*_proj",
            "model.layers.0.mlp.up_proj"
        ));
        assert!(matches("**.q_proj", "model.layers.0.self_attn.q_proj"));
        assert!(matches("**.{q,v}_proj", "model.layers.0.self_attn.v_proj"));
        assert!(matches("model.layers.[0-3]", "model.layers.3"));
        assert!(!matches("model.layers.[0-3]", "model.layers.4"));
        assert!(!matches("layers.0", "model.layers.0"));
    }

    #[test]
    fn what_is_no_glob_is_named() {
        let message = PathGlob::new("model.[0").unwrap_err().to_string();
        assert!(message.contains("model.[0"), "{message}");
    }
}
