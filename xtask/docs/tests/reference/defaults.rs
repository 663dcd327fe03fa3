//! What keys are set to if nobody sets them.

use tpu_train::reference::EMBEDDED;
use tt_config::{Composer, Composition, Node};

use crate::choices::Choice;

/// What the shown defaults belong to.
pub(crate) const BASE: &[&str] = &["model=qwen2", "trainer=lm"];

/// The configurations that the defaults are read from: the base, and each option of each group.
pub(crate) struct Defaults {
    /// Each group with its options.
    pub(crate) groups: Vec<(String, Vec<String>)>,
    pub(crate) base: Composition,
    options: Vec<Composition>,
}

impl Defaults {
    /// Composes what is compiled in, whatever lies in the folder that the tests run in.
    pub(crate) fn compose() -> Self {
        let composer = Composer::new("default")
            .lenient_groups(true)
            .embedded("tpu-train", EMBEDDED);
        let groups = composer.groups();
        let compose = |overrides: &[&str]| {
            let composed = composer.compose(overrides);
            composed.unwrap_or_else(|problems| panic!("{overrides:?}: {problems}"))
        };
        let mut options = Vec::new();
        for (group, names) in &groups {
            let prefix = format!("{group}=");
            for name in names {
                let choice = format!("{prefix}{name}");
                let rest = BASE.iter().filter(|other| !other.starts_with(&prefix));
                let overrides: Vec<&str> = rest.copied().chain([choice.as_str()]).collect();
                options.push(compose(&overrides));
            }
        }
        Self {
            base: compose(BASE),
            options,
            groups,
        }
    }

    /// The value at `key` where `choice` is chosen; `None` if no option chooses it, or none gives the key.
    pub(crate) fn under(&self, choice: &Choice, key: &str) -> Option<&Node> {
        let mut all = std::iter::once(&self.base).chain(&self.options);
        let chosen = all.find(|composition| {
            let named = composition.get(choice.key);
            named.and_then(Node::as_str) == Some(choice.name)
        });
        chosen?.get(key)
    }
}
