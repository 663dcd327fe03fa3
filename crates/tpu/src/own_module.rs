//! Modules of a user's own kernels, beside ours: from `build.rs` ([`own_module!`](macro@crate::own_module)) or a file.

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use tt_kernels::Target;

use crate::error::{Error, Result};

/// A module of a user's own kernels. A process loads each once, so it is a `static`.
#[derive(Debug)]
pub struct OwnModule(Source);

#[derive(Debug)]
enum Source {
    Built {
        name: &'static str,
        modules: [BuiltModule; 4],
    },
    File(PathBuf),
}

/// What a build script made for a target.
#[derive(Debug)]
pub struct BuiltModule {
    /// [`Target::name`].
    pub target: &'static str,
    /// The ELF library; empty if it could not be made.
    pub bytes: &'static [u8],
    /// Why it could not.
    pub why_none: &'static str,
}

impl OwnModule {
    /// What [`own_module!`](macro@crate::own_module) gives.
    pub const fn built(name: &'static str, modules: [BuiltModule; 4]) -> Self {
        Self(Source::Built { name, modules })
    }

    /// A file, as `cargo xtask kernels --add` makes it, for the device that will be opened.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// The library for a target.
    pub(crate) fn bytes(&self, target: Target) -> Result<Cow<'static, [u8]>> {
        match &self.0 {
            Source::Built { modules, .. } => {
                let module = modules.iter().find(|it| it.target == target.name());
                match module {
                    Some(module) if !module.bytes.is_empty() => Ok(Cow::Borrowed(module.bytes)),
                    other => {
                        let why = other.map_or("", |module| module.why_none);
                        let target = target.name();
                        Err(self.error(format!("this program has none for the {target}: {why}")))
                    }
                }
            }
            Source::File(path) => fs::read(path)
                .map(Cow::Owned)
                .map_err(|cause| self.error(cause.to_string())),
        }
    }

    pub(crate) fn error(&self, why: String) -> Error {
        Error::OwnModule {
            module: self.to_string(),
            why,
        }
    }
}

/// The name that its author gave it, or the file.
impl fmt::Display for OwnModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Built { name, .. } => f.write_str(name),
            Source::File(path) => path.display().fmt(f),
        }
    }
}

/// The [`OwnModule`] of what `tt_kernels::build(name, ..)` has compiled in this crate's build script.
#[macro_export]
macro_rules! own_module {
    (@built $name:literal $target:literal) => {
        $crate::BuiltModule {
            target: $target,
            bytes: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".", $target, ".so")),
            why_none: include_str!(concat!(env!("OUT_DIR"), "/", $name, ".", $target, ".why")),
        }
    };
    ($name:literal) => {
        $crate::OwnModule::built(
            $name,
            [
                $crate::own_module!(@built $name "bm1690-emulator"),
                $crate::own_module!(@built $name "bm1684x-emulator"),
                $crate::own_module!(@built $name "bm1690"),
                $crate::own_module!(@built $name "bm1684x"),
            ],
        )
    };
}
