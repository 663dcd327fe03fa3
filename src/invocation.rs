//! What a command works from: its configuration, and what that was made by.

use tt_config::{Composer, Composition, Diagnostics};

use crate::args::Options;
use crate::defaults;
use crate::migration;
use crate::plugins::Plugins;

/// What a subcommand works from.
pub(crate) struct Invocation {
    pub(crate) composition: Composition,
    pub(crate) plugins: Plugins,
    /// What the composition was made by, and from which overrides.
    pub(crate) composer: Composer,
    pub(crate) overrides: Vec<String>,
    /// All arguments, as the user gave them.
    pub(crate) arguments: Vec<String>,
    pub(crate) options: Options,
}

impl Invocation {
    /// The same with more overrides.
    pub(crate) fn with(&self, more: &[String]) -> Result<Self, Diagnostics> {
        let overrides = [self.overrides.as_slice(), more].concat();
        let mut composition = self.composer.compose(&overrides)?;
        migration::apply(&mut composition, &self.plugins);
        defaults::apply(&mut composition);
        Ok(Self {
            composition,
            plugins: self.plugins.clone(),
            composer: self.composer.clone(),
            overrides,
            arguments: self.arguments.clone(),
            options: self.options.clone(),
        })
    }
}
