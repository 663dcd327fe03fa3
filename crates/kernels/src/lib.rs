//! Compiles the kernels of a TPU, C files in a folder, into a module for the emulator or for a chip, and checks a module.
//! [`build()`] does so for the kernels of a crate of a user's own, which include our headers ([`Target::compile_own`]).
//!
//! Nothing of the vendor's is needed for it. A module is linked against a stub, generated from the declarations in the
//! folder's `device.h`, that carries the name of the library which defines these functions where the module is loaded:
//! the emulator, or for a chip the vendor's own module of kernels, which has the firmware in it.
//!
//! ```no_run
//! use tt_kernels::Target;
//!
//! let target: Target = "bm1690".parse()?;
//! let compiler = target.compiler()?;
//! target.compile(&compiler, "crates/tpu/kernels".as_ref(), "kernels.so".as_ref())?;
//! let module = target.check(&std::fs::read("kernels.so")?)?;
//! println!("{} kernels", module.kernels.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod build;
mod compile;
mod headers;
mod module;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use object::Architecture;

pub use build::build;
pub use compile::compile_library;
pub use module::Module;

/// What went wrong with a module. The texts name the file, the command or the symbol.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such chip or target.
    #[error("`{name}` is none of {names}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        names: String,
    },
    /// Nothing compiles for it here.
    #[error("no compiler for {target}: none of {looked_for} is in PATH{install}")]
    NoCompiler {
        /// The target's name.
        target: &'static str,
        /// Names of programs.
        looked_for: String,
        /// What to do about it, or nothing.
        install: &'static str,
    },
    /// A program that could not be run, or that failed.
    #[error("{command} failed: {said}")]
    Command {
        /// As it was called.
        command: String,
        /// What it, or the system, said.
        said: String,
    },
    /// A file that cannot be read or written.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// The module is not what a device can load.
    #[error("the module {0}")]
    Unfit(String),
}

/// What a system says of a file.
fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |cause| Error::Io { path, cause }
}

/// What [`Error`]s are given in.
pub type Result<T> = std::result::Result<T, Error>;

/// A chip that kernels are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chip {
    /// BM1690 (SG2260): eight cores.
    Bm1690,
    /// BM1684X: one core.
    Bm1684x,
}

impl Chip {
    /// Each.
    pub const ALL: [Self; 2] = [Self::Bm1690, Self::Bm1684x];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bm1690 => "bm1690",
            Self::Bm1684x => "bm1684x",
        }
    }

    /// Its cores.
    pub fn cores(self) -> usize {
        match self {
            Self::Bm1690 => 8,
            Self::Bm1684x => 1,
        }
    }
}

impl FromStr for Chip {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|chip| chip.name() == name);
        found.ok_or_else(|| Error::Unknown {
            name: name.to_owned(),
            names: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// What a module is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The vendor's emulator of a chip, on x86-64.
    Emulator(Chip),
    /// A chip: the cores of a BM1690 are RISC-V, that of a BM1684X is ARM.
    Chip(Chip),
}

impl Target {
    /// Each.
    pub const ALL: [Self; 4] = [
        Self::Emulator(Chip::Bm1690),
        Self::Emulator(Chip::Bm1684x),
        Self::Chip(Chip::Bm1690),
        Self::Chip(Chip::Bm1684x),
    ];

    /// The chip, or the one that is emulated.
    pub fn chip(self) -> Chip {
        match self {
            Self::Emulator(chip) | Self::Chip(chip) => chip,
        }
    }

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Emulator(Chip::Bm1690) => "bm1690-emulator",
            Self::Emulator(Chip::Bm1684x) => "bm1684x-emulator",
            Self::Chip(chip) => chip.name(),
        }
    }

    /// The library that defines the device's functions where the module is loaded.
    pub fn vendor_library(self) -> &'static str {
        match self {
            Self::Emulator(Chip::Bm1690) => "libtpuv7_emulator.so",
            Self::Emulator(Chip::Bm1684x) => "libcmodel_bm1684x.so",
            Self::Chip(Chip::Bm1690) => "libbm1690_kernel_module.so",
            Self::Chip(Chip::Bm1684x) => "libbm1684x_kernel_module.so",
        }
    }

    /// Of the cores that run the module.
    pub fn architecture(self) -> Architecture {
        match self {
            Self::Emulator(_) => Architecture::X86_64,
            Self::Chip(Chip::Bm1690) => Architecture::Riscv64,
            Self::Chip(Chip::Bm1684x) => Architecture::Aarch64,
        }
    }

    /// What the kernels are told of it.
    fn defines(self) -> &'static [&'static str] {
        match self {
            Self::Emulator(Chip::Bm1690) => &["-DBM1690", "-DEMULATOR"],
            Self::Emulator(Chip::Bm1684x) => &["-DBM1684X", "-DEMULATOR"],
            Self::Chip(Chip::Bm1690) => &["-DBM1690"],
            Self::Chip(Chip::Bm1684x) => &["-DBM1684X"],
        }
    }

    /// Compilers for it, the ones of Debian and of the vendor's tool chains, best first.
    fn compilers(self) -> &'static [&'static str] {
        match self {
            Self::Emulator(_) => &["cc", "gcc", "clang"],
            Self::Chip(Chip::Bm1690) => &[
                "riscv64-linux-gnu-gcc",
                "riscv64-unknown-linux-gnu-gcc",
                "riscv64-linux-gcc",
            ],
            Self::Chip(Chip::Bm1684x) => &["aarch64-linux-gnu-gcc", "aarch64-none-linux-gnu-gcc"],
        }
    }

    /// The first compiler for it in `PATH`.
    pub fn compiler(self) -> Result<PathBuf> {
        let runs = |name: &&&str| {
            let asked = Command::new(name).arg("--version").output();
            asked.is_ok_and(|asked| asked.status.success())
        };
        let found = self.compilers().iter().find(runs);
        found.map(PathBuf::from).ok_or_else(|| Error::NoCompiler {
            target: self.name(),
            looked_for: self.compilers().join(", "),
            install: match self {
                Self::Emulator(_) => "",
                Self::Chip(Chip::Bm1690) => {
                    "; on Debian: apt-get install gcc-riscv64-linux-gnu libc6-dev-riscv64-cross"
                }
                Self::Chip(Chip::Bm1684x) => {
                    "; on Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
                }
            },
        })
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|target| target.name() == name);
        found.ok_or_else(|| Error::Unknown {
            name: name.to_owned(),
            names: Self::ALL.map(Self::name).join(", "),
        })
    }
}
