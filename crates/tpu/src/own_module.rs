//! Modules of a user's own kernels, beside ours: from `build.rs` ([`own_module!`](crate::own_module)) or a file.
//!
//! One is loaded when the first of its kernels is launched, and checked before as ours is: a library for the device's cores
//! that calls nothing but the device's functions, none of its kernels with a name of ours. Each kernel is then looked up, and
//! the size of its arguments compared with the host's, as nothing comes back from a launch that goes wrong.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::path::PathBuf;

use tt_kernels::Target;

use crate::error::{Error, Result};
use crate::launch::Kernel;
use crate::module::Kernels;
use crate::runtime::{Module, Runtime};

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
    /// What [`own_module!`](crate::own_module) gives.
    pub const fn built(name: &'static str, modules: [BuiltModule; 4]) -> Self {
        Self(Source::Built { name, modules })
    }

    /// A file, as `cargo xtask kernels --add` makes it, for the device that will be opened.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// The library for a target.
    fn bytes(&self, target: Target) -> Result<Cow<'static, [u8]>> {
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

    fn error(&self, why: String) -> Error {
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

/// Those that the device has loaded.
pub(crate) struct OwnModules {
    target: Target,
    /// The vendor's library that is loaded already, if what modules call is defined there.
    vendors: Option<PathBuf>,
    /// Of our kernels.
    taken: Vec<String>,
    /// By the address of the `static`.
    loaded: HashMap<usize, Loaded>,
    /// Of a module that cores may still have to load.
    files: Option<Files>,
}

struct Loaded {
    module: Module,
    /// The bytes of the arguments of each.
    kernels: BTreeMap<String, usize>,
}

/// Where a kernel is.
pub(crate) struct Place {
    pub module: Module,
    /// Whether nothing of the module has been launched before.
    pub is_new: bool,
}

impl OwnModules {
    /// For a device with these kernels.
    pub(crate) fn new(ours: &Kernels) -> Self {
        Self {
            target: ours.target,
            vendors: ours.vendors.clone(),
            taken: ours.names.clone(),
            loaded: HashMap::new(),
            files: None,
        }
    }

    /// Loads the module if it is not, and finds the kernel in it.
    pub(crate) fn load<K: Kernel>(
        &mut self,
        own: &'static OwnModule,
        runtime: &dyn Runtime,
    ) -> Result<Place> {
        let key = std::ptr::from_ref(own) as usize;
        if let Some(loaded) = self.loaded.get(&key) {
            find::<K>(own, &loaded.kernels)?;
            return Ok(Place {
                module: loaded.module,
                is_new: false,
            });
        }
        let bytes = own.bytes(self.target)?;
        let kernels = self.check(own, &bytes)?;
        find::<K>(own, &kernels)?;
        let files = Files::write(&bytes)?;
        let module = runtime.load(&files.path())?;
        self.files = Some(files);
        self.loaded.insert(key, Loaded { module, kernels });
        Ok(Place {
            module,
            is_new: true,
        })
    }

    /// To be called when a kernel of the module that was loaded last has run on all cores.
    pub(crate) fn forget_files(&mut self) {
        self.files = None;
    }

    fn check(&self, own: &OwnModule, bytes: &[u8]) -> Result<BTreeMap<String, usize>> {
        let unfit = |error: tt_kernels::Error| own.error(error.to_string());
        let module = self.target.check(bytes).map_err(unfit)?;
        if let Some(path) = &self.vendors {
            let read = fs::read(path).map_err(|cause| Error::Io {
                path: path.clone(),
                cause,
            })?;
            self.target.check_against(&module, &read).map_err(unfit)?;
        }
        // A chip's firmware knows kernels by their names alone.
        if let Some(name) = self.taken.iter().find(|it| module.kernels.contains_key(*it)) {
            return Err(own.error(format!("`{name}` is the name of a kernel of this program's own")));
        }
        Ok(module.kernels)
    }
}

fn find<K: Kernel>(own: &OwnModule, kernels: &BTreeMap<String, usize>) -> Result<()> {
    let (name, bytes) = (K::NAME, size_of::<K>());
    match kernels.get(name) {
        Some(size) if *size == bytes => Ok(()),
        Some(size) => Err(own.error(format!(
            "`{name}` takes {size} bytes of arguments, the host has {bytes}"
        ))),
        None => {
            let names: Vec<&str> = kernels.keys().map(String::as_str).collect();
            let names = names.join(", ");
            Err(own.error(format!("they do not define `{name}`; there is {names}")))
        }
    }
}

/// A module as a file, until it is loaded; the emulator keeps copies of it beside, a core one.
struct Files(tempfile::TempDir);

impl Files {
    fn write(bytes: &[u8]) -> Result<Self> {
        let folder = std::env::temp_dir();
        let made = tempfile::Builder::new()
            .prefix("tpu-train-kernels-")
            .tempdir_in(&folder);
        let files = Self(made.map_err(|cause| Error::Io {
            path: folder,
            cause,
        })?);
        let path = files.path();
        fs::write(&path, bytes).map_err(|cause| Error::Io { path, cause })?;
        Ok(files)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("own_kernels.so")
    }
}
