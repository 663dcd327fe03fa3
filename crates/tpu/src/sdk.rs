//! Where the vendor's libraries are on this machine, and whether they are what they should be.
//!
//! Looked for in this order: the folder that `SOPHGO_SDK` names; where the vendor's driver packages install, and the
//! library path; `$XDG_CACHE_HOME/tpu-train/sophgo/<version>` (`~/.cache`), where `cargo xtask sdk` puts the emulators.
//! In a folder they are in `lib`, or in the folder itself. Of several chips whose libraries are in one folder it is the BM1690,
//! if no other is asked for.

use std::path::{Path, PathBuf};

use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Architecture, Object, ObjectSymbol, elf};

use tt_kernels::{Chip, Target};

use crate::sys;

/// The version of the `tpu_mlir` package whose runtime and emulator this program is tested with.
pub const VERSION: &str = include_str!("../SDK_VERSION");

/// What stands for the driver of a BM1690 where the chip is emulated.
const DAEMON: &str = "libcdm_daemon_emulator.so";
const SCALAR_EMULATOR: &str = "libtpuv7_scalar_emulator.so";

/// Where the vendor's driver packages put their libraries.
const DRIVER_FOLDERS: [&str; 6] = [
    "/opt/tpuv7/tpuv7-current/lib",
    "/opt/sophon/tpuv7-current/lib",
    "/opt/sophon/libsophon-current/lib",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// File names of a chip's runtime: as programs are linked to it, and as a package without headers has it.
fn runtimes(chip: Chip) -> [&'static str; 2] {
    match chip {
        Chip::Bm1690 => ["libtpuv7_rt.so", "libtpuv7_rt.so.0"],
        Chip::Bm1684x => ["libbmlib.so", "libbmlib.so.0"],
    }
}

const INSTALL: &str = "in a clone of tpu-train, `cargo xtask sdk` installs the emulator; without one, set SOPHGO_SDK to \
    the folder tpu_mlir unpacked from the wheel of: python3 -m pip download --no-deps --only-binary=:all: \
    --python-version 3.10 --implementation cp --platform manylinux2014_x86_64 tpu-mlir==";

#[derive(Debug, thiserror::Error)]
pub enum SdkError {
    #[error("{} is missing; {INSTALL}{VERSION}", .0.display())]
    Missing(PathBuf),
    #[error("{}: {cause}", path.display())]
    Unreadable {
        path: PathBuf,
        cause: std::io::Error,
    },
    #[error("{} is not an ELF library ({cause}); remove its folder and run `cargo xtask sdk`", path.display())]
    NotElf { path: PathBuf, cause: String },
    #[error("{} is for {have:?}, this program for {want:?}", path.display())]
    WrongMachine {
        path: PathBuf,
        have: Architecture,
        want: Architecture,
    },
    #[error("{} does not define {symbol}: it is no runtime of a version that this program knows", path.display())]
    MissingSymbol { path: PathBuf, symbol: &'static str },
    #[error("{} holds version {have} of the vendor's libraries, this program is made for {VERSION}; {INSTALL}{VERSION}", root.display())]
    WrongVersion { root: PathBuf, have: String },
}

/// What the libraries drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SdkKind {
    /// The vendor's emulator of a chip.
    Emulator,
    /// A driver package for chips in this machine.
    Driver,
}

/// The vendor's libraries on this machine, looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sdk {
    /// The folder of the libraries.
    pub folder: PathBuf,
    pub chip: Chip,
    pub kind: SdkKind,
    /// As the folder says; `None`: it does not say.
    pub version: Option<String>,
}

impl Sdk {
    /// Finds the libraries of a chip, or of any, and checks them. Error: there are none, or they are not for this program; it
    /// names the file.
    pub fn find(chip: Option<Chip>) -> Result<Self, SdkError> {
        let named = std::env::var_os("SOPHGO_SDK").filter(|root| !root.is_empty());
        if let Some(root) = named {
            return Self::at(Path::new(&root), chip);
        }
        let library_path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let on_path: Vec<PathBuf> = std::env::split_paths(&library_path).collect();
        let installed = on_path.into_iter().chain(DRIVER_FOLDERS.map(PathBuf::from));
        for folder in installed {
            if installed_in(&folder, chip).is_some() {
                return Self::at(&folder, chip);
            }
        }
        Self::at(&Self::cache(), chip)
    }

    /// Where `cargo xtask sdk` installs.
    pub fn cache() -> PathBuf {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let cache = match (set("XDG_CACHE_HOME"), set("HOME")) {
            (Some(cache), _) => PathBuf::from(cache),
            (None, Some(home)) => Path::new(&home).join(".cache"),
            (None, None) => PathBuf::from(".cache"),
        };
        cache.join("tpu-train/sophgo").join(VERSION)
    }

    fn at(root: &Path, chip: Option<Chip>) -> Result<Self, SdkError> {
        let folders = [root.join("lib"), root.to_owned()];
        let mut found = folders
            .iter()
            .map(|folder| (folder, installed_in(folder, chip)));
        let Some((folder, (chip, runtime))) = found.find_map(|(folder, it)| Some((folder, it?)))
        else {
            let [runtime, _] = runtimes(chip.unwrap_or(Chip::Bm1690));
            return Err(SdkError::Missing(root.join("lib").join(runtime)));
        };
        let version = std::fs::read_to_string(root.join("VERSION"))
            .ok()
            .map(|text| text.trim().to_owned());
        if let Some(have) = version.as_ref().filter(|have| *have != VERSION) {
            return Err(SdkError::WrongVersion {
                root: root.to_owned(),
                have: have.clone(),
            });
        }
        check_library(&runtime, sys::symbols(chip))?;
        let is_emulated = match chip {
            // Both runtimes have the same name and functions; a missing emulator does not make one a driver's.
            Chip::Bm1690 => needs(&runtime, DAEMON)?,
            // A driver is asked by this call.
            Chip::Bm1684x => !imports(&runtime, "ioctl")?,
        };
        let sdk = Self {
            folder: folder.clone(),
            chip,
            kind: if is_emulated {
                SdkKind::Emulator
            } else {
                SdkKind::Driver
            },
            version,
        };
        match (sdk.kind, chip) {
            (SdkKind::Emulator, Chip::Bm1690) => {
                check_library(&sdk.folder.join(DAEMON), &[])?;
                check_library(&sdk.emulator(), &["tpu_kernel_init"])?;
                check_library(&sdk.scalar_emulator(), &[])?;
            }
            (SdkKind::Emulator, Chip::Bm1684x) => check_library(&sdk.emulator(), &["cmodel_init"])?,
            (SdkKind::Driver, _) => {}
        }
        Ok(sdk)
    }

    /// What modules of kernels are made for.
    pub fn target(&self) -> Target {
        match self.kind {
            SdkKind::Emulator => Target::Emulator(self.chip),
            SdkKind::Driver => Target::Chip(self.chip),
        }
    }

    pub fn runtime(&self) -> PathBuf {
        let found = runtimes(self.chip).map(|name| self.folder.join(name));
        let [named, _] = &found;
        found
            .iter()
            .find(|path| path.is_file())
            .unwrap_or(named)
            .clone()
    }

    pub fn emulator(&self) -> PathBuf {
        self.folder.join(match self.chip {
            Chip::Bm1690 => "libtpuv7_emulator.so",
            Chip::Bm1684x => "libcmodel.so",
        })
    }

    /// The vendor's own kernels, which have the chip's firmware in them: beside the runtime, or where `cargo xtask sdk`
    /// installs.
    pub(crate) fn vendor_library(&self, target: Target) -> crate::Result<PathBuf> {
        let library = target.vendor_library();
        let folders = [self.folder.clone(), Self::cache().join("lib")];
        let found = folders.iter().map(|folder| folder.join(library));
        found
            .into_iter()
            .find(|path| path.is_file())
            .ok_or_else(|| {
                let folders = folders
                    .each_ref()
                    .map(|folder| folder.display().to_string());
                crate::Error::NoVendorKernels {
                    library,
                    looked_in: folders.join(", "),
                }
            })
    }

    pub fn scalar_emulator(&self) -> PathBuf {
        self.folder.join(SCALAR_EMULATOR)
    }
}

/// The chip whose runtime is in a folder, of those that are asked for, and the runtime.
fn installed_in(folder: &Path, chip: Option<Chip>) -> Option<(Chip, PathBuf)> {
    let mut chips = Chip::ALL
        .into_iter()
        .filter(|it| chip.is_none_or(|chip| chip == *it));
    chips.find_map(|chip| {
        let paths = runtimes(chip).map(|name| folder.join(name));
        let found = paths.into_iter().find(|path| path.is_file());
        found.map(|path| (chip, path))
    })
}

/// A library of this machine's architecture that defines `symbols`.
fn check_library(path: &Path, symbols: &[&'static str]) -> Result<(), SdkError> {
    let bytes = read(path)?;
    let elf = parse(path, &bytes)?;
    let (have, want) = (elf.architecture(), architecture());
    if have != want {
        let path = path.to_owned();
        return Err(SdkError::WrongMachine { path, have, want });
    }
    let defines = |wanted: &str| {
        let mut defined = elf
            .dynamic_symbols()
            .filter(|symbol| symbol.is_definition());
        defined.any(|symbol| symbol.name() == Ok(wanted))
    };
    match symbols.iter().find(|symbol| !defines(symbol)) {
        Some(symbol) => Err(SdkError::MissingSymbol {
            path: path.to_owned(),
            symbol,
        }),
        None => Ok(()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, SdkError> {
    let path = path.to_owned();
    if !path.exists() {
        return Err(SdkError::Missing(path));
    }
    std::fs::read(&path).map_err(|cause| SdkError::Unreadable { path, cause })
}

fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<object::File<'a>, SdkError> {
    object::File::parse(bytes).map_err(|cause| SdkError::NotElf {
        path: path.to_owned(),
        cause: cause.to_string(),
    })
}

/// Whether the library at `path` calls a function of this name that another one has.
fn imports(path: &Path, name: &str) -> Result<bool, SdkError> {
    let bytes = read(path)?;
    let elf = parse(path, &bytes)?;
    let mut imported = elf.dynamic_symbols().filter(|symbol| symbol.is_undefined());
    Ok(imported.any(|symbol| symbol.name() == Ok(name)))
}

/// Whether the library at `path` is linked against the one of this name.
fn needs(path: &Path, name: &str) -> Result<bool, SdkError> {
    let bytes = read(path)?;
    let read = || -> object::Result<bool> {
        let data = &*bytes;
        let header = ElfFile64::<object::Endianness>::parse(data)?;
        let (endian, header) = (header.endian(), header.elf_header());
        let sections = header.sections(endian, data)?;
        let Some((entries, strings)) = sections.dynamic(endian, data)? else {
            return Ok(false);
        };
        let strings = sections.strings(endian, data, strings)?;
        Ok(entries.iter().any(|entry| {
            entry.tag32(endian) == Some(elf::DT_NEEDED)
                && entry.string(endian, strings) == Ok(name.as_bytes())
        }))
    };
    read().map_err(|cause| SdkError::NotElf {
        path: path.to_owned(),
        cause: cause.to_string(),
    })
}

/// Of this program.
fn architecture() -> Architecture {
    match std::env::consts::ARCH {
        "x86_64" => Architecture::X86_64,
        "aarch64" => Architecture::Aarch64,
        "riscv64" => Architecture::Riscv64,
        _ => Architecture::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const RUNTIME: &str = "libtpuv7_rt.so";
    const EMULATOR: &str = "libtpuv7_emulator.so";

    /// The header of an ELF library without sections, for the machine of this number.
    fn elf(machine: u16) -> Vec<u8> {
        let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header.extend([3, 0]); // a shared object
        header.extend(machine.to_le_bytes());
        header.extend(1u32.to_le_bytes());
        header.extend([0; 24]); // entry, program and section headers: none
        header.extend([0; 4]);
        header.extend([64, 0, 56, 0, 0, 0, 64, 0, 0, 0, 0, 0]);
        header
    }

    fn sdk_with(runtime: Option<&[u8]>, version: Option<&str>) -> Result<Sdk, SdkError> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("lib")).unwrap();
        if let Some(bytes) = runtime {
            fs::write(root.path().join("lib").join(RUNTIME), bytes).unwrap();
        }
        if let Some(version) = version {
            fs::write(root.path().join("VERSION"), version).unwrap();
        }
        Sdk::at(root.path(), Some(Chip::Bm1690))
    }

    #[test]
    fn a_missing_library_is_named_with_the_way_to_install_it() {
        let text = sdk_with(None, None).unwrap_err().to_string();
        assert!(
            text.contains(RUNTIME) && text.contains("cargo xtask sdk"),
            "{text}"
        );
    }

    #[test]
    fn what_is_no_library_is_named() {
        let text = sdk_with(Some(b"<html>404</html>"), None)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains(RUNTIME) && text.contains("not an ELF library"),
            "{text}"
        );
    }

    #[test]
    fn a_library_for_another_machine_is_named_with_both_machines() {
        const RISCV: u16 = 243;
        let error = sdk_with(Some(&elf(RISCV)), None).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(RUNTIME) && text.contains("Riscv64"), "{text}");
        assert!(matches!(error, SdkError::WrongMachine { .. }));
    }

    /// A library for this machine, linked against the stubs of `needs`, that defines `symbols`; `None` without a C compiler.
    fn compile(folder: &Path, name: &str, symbols: &[&str], needs: &[&str]) -> Option<()> {
        let source = folder.join("source.c");
        let code: String = symbols
            .iter()
            .map(|symbol| format!("int {symbol}(void) {{ return 0; }}\n"))
            .collect();
        fs::write(&source, code).unwrap();
        let mut cc = std::process::Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]);
        cc.arg(folder.join(name)).arg(&source).arg("-L").arg(folder);
        cc.args(needs.iter().map(|name| format!("-l:{name}")));
        cc.arg(format!("-Wl,-soname,{name}"));
        match cc.status() {
            Ok(status) => assert!(status.success(), "{cc:?}"),
            Err(cause) => {
                assert!(std::env::var_os("CI").is_none(), "cc: {cause}");
                eprintln!("skipped: cc: {cause}");
                return None;
            }
        }
        Some(())
    }

    #[test]
    fn what_the_runtime_is_linked_against_tells_an_emulator_from_a_driver() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        let compiled = compile(folder, DAEMON, &[], &[])
            .and_then(|()| compile(folder, RUNTIME, sys::symbols(Chip::Bm1690), &[DAEMON]))
            .and_then(|()| compile(folder, SCALAR_EMULATOR, &[], &[]));
        if compiled.is_none() {
            return;
        }
        // An emulator that is missing is missing, and not a chip.
        let error = Sdk::at(folder, None).unwrap_err();
        assert!(
            matches!(&error, SdkError::Missing(path) if path.ends_with(EMULATOR)),
            "{error}"
        );
        compile(folder, EMULATOR, &["tpu_kernel_init"], &[]).unwrap();
        assert_eq!(Sdk::at(folder, None).unwrap().kind, SdkKind::Emulator);

        compile(folder, RUNTIME, sys::symbols(Chip::Bm1690), &[]).unwrap();
        assert_eq!(Sdk::at(folder, None).unwrap().kind, SdkKind::Driver);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_library_without_the_runtimes_functions_is_named_with_the_first_of_them() {
        const X86_64: u16 = 62;
        let text = sdk_with(Some(&elf(X86_64)), None).unwrap_err().to_string();
        assert!(
            text.contains(RUNTIME) && text.contains("tpuRtInit"),
            "{text}"
        );
    }

    #[test]
    fn another_version_is_named_with_the_one_wanted() {
        let text = sdk_with(Some(b""), Some("0.1.0\n"))
            .unwrap_err()
            .to_string();
        assert!(text.contains("0.1.0") && text.contains(VERSION), "{text}");
    }
}
