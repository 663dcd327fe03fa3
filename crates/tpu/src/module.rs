//! The modules of kernels that `build.rs` compiled, or one that the user brings.
//!
//! A launch of a name that a module does not define succeeds and does nothing. So every name is looked up, and the size of
//! its arguments compared with the host's, when the device is opened.

use std::borrow::Cow;
use std::path::PathBuf;

use tt_kernels::{Module, Target};

use crate::batch::{MAX_ARGS, RunBatch};
use crate::error::{Error, Result};
use crate::launch::Kernel as _;
use crate::ops;
use crate::sdk::{Sdk, SdkKind};

/// The variable that names a file to take instead of what the binary carries, as `cargo xtask kernels` makes it.
pub const KERNELS_VARIABLE: &str = "TT_TPU_KERNELS";

/// The modules that `build.rs` has made.
macro_rules! made {
    ($($name:literal),*) => {
        /// Name of the target; an ELF library, empty if the build could not make one; why not.
        static MADE: &[(&str, &[u8], &str)] = &[$((
            $name,
            include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".so")),
            include_str!(concat!(env!("OUT_DIR"), "/", $name, ".why")),
        )),*];
    };
}
made!["bm1690-emulator", "bm1684x-emulator", "bm1690", "bm1684x"];

/// What is loaded on the device of a machine.
#[derive(Clone, Debug)]
pub struct Kernels {
    /// What runs them.
    pub target: Target,
    /// The module, as a file.
    pub module: Cow<'static, [u8]>,
    /// The vendor's library that must be loaded before; the emulator is one itself.
    pub vendors: Option<PathBuf>,
    /// The kernels that a batch may have, in the order of the device's list.
    pub(crate) batched: Vec<String>,
    /// All of them.
    pub(crate) names: Vec<String>,
}

impl Kernels {
    /// For these libraries. Errors: there are none, or they are not what this program and the libraries need.
    pub fn find(sdk: &Sdk) -> Result<Self> {
        let target = sdk.target();
        let module = bytes(target)?;
        let checked = check(target, &module, ops::kernels())?;
        let vendors = match sdk.kind {
            SdkKind::Emulator => None,
            SdkKind::Driver => Some(sdk.vendor_library(target)?),
        };
        if let Some(path) = &vendors {
            let read = std::fs::read(path).map_err(|cause| Error::Io {
                path: path.clone(),
                cause,
            })?;
            let defined = target.check_against(&checked, &read);
            defined.map_err(|error| Error::Module(error.to_string()))?;
        }
        Ok(Self {
            target,
            module,
            vendors,
            batched: checked.batched,
            names: checked.kernels.into_keys().collect(),
        })
    }
}

/// The module that the binary carries, or why it has none.
fn embedded(target: Target) -> Result<&'static [u8]> {
    let made = MADE.iter().find(|(name, ..)| *name == target.name());
    let (_, module, why_none) = *made.expect("one a target");
    if module.is_empty() {
        return Err(Error::NoKernels {
            target: target.name(),
            why: why_none.trim().to_owned(),
        });
    }
    Ok(module)
}

/// The module to load.
fn bytes(target: Target) -> Result<Cow<'static, [u8]>> {
    match std::env::var_os(KERNELS_VARIABLE).map(PathBuf::from) {
        Some(path) => {
            let read = std::fs::read(&path);
            let read = read.map_err(|cause| Error::Io { path, cause })?;
            Ok(Cow::Owned(read))
        }
        None => embedded(target).map(Cow::Borrowed),
    }
}

/// That the module can be loaded, and that every kernel that the host may launch is in it, with arguments of the same size.
fn check(
    target: Target,
    module: &[u8],
    kernels: impl Iterator<Item = (&'static str, usize)>,
) -> Result<Module> {
    let module = target
        .check(module)
        .map_err(|error| Error::Module(error.to_string()))?;
    for (name, bytes) in kernels {
        match module.kernels.get(name) {
            Some(size) if *size == bytes => {}
            Some(size) => {
                let why = format!("`{name}` takes {size} bytes of arguments, the host has {bytes}");
                return Err(Error::Module(why));
            }
            None => return Err(Error::Module(format!("it does not define `{name}`"))),
        }
        let is_batched = module.batched.iter().any(|it| it == name);
        if name != RunBatch::NAME && (!is_batched || bytes > MAX_ARGS) {
            return Err(Error::Module(format!("its batches cannot run `{name}`")));
        }
    }
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tt_kernels::Chip;

    #[test]
    fn each_module_has_all_kernels_with_the_arguments_that_the_host_gives() {
        for target in Target::ALL {
            match embedded(target) {
                Ok(module) => drop(check(target, module, ops::kernels()).unwrap()),
                Err(error) if std::env::var_os("CI").is_none() => eprintln!("skipped: {error}"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn what_is_no_module_of_the_target_is_an_error() {
        let told = |module| {
            let checked = check(Target::Chip(Chip::Bm1690), module, ops::kernels());
            checked.unwrap_err().to_string()
        };
        assert!(told(b"no module").contains("cannot be read"));
        if let Ok(module) = embedded(Target::Emulator(Chip::Bm1690)) {
            assert!(told(module).contains("is for X86_64, and bm1690 is Riscv64"));
        }
    }
}
