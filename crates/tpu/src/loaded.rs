//! The modules of users' own kernels that the device has loaded.
//!
//! One is loaded when the first of its kernels is launched, and checked before as ours is: a library for the device's cores
//! that calls nothing but the device's functions, none of its kernels with a name of ours. Each kernel is then looked up, and
//! the size of its arguments compared with the host's, as nothing comes back from a launch that goes wrong.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;

use tt_kernels::Target;

use crate::error::{Error, Result};
use crate::launch::Kernel;
use crate::own_module::OwnModule;
use crate::runtime::{Module, Runtime};

/// What loading a module depends on.
pub(crate) struct Host {
    pub target: Target,
    /// The vendor's library, which defines what modules call.
    pub vendors: PathBuf,
    /// Our kernels.
    pub ours: Vec<String>,
    /// Where the emulator keeps copies of modules, a core one, which it never removes.
    pub copies: Option<PathBuf>,
}

/// Those that the device has loaded.
pub(crate) struct OwnModules {
    host: Host,
    /// By the address of the `static`.
    loaded: HashMap<usize, Loaded>,
    /// Of a module that cores may still have to load.
    files: Option<Files>,
}

struct Loaded {
    /// The module's, for messages.
    name: String,
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
    pub(crate) fn new(host: Host) -> Self {
        Self {
            host,
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
        let bytes = own.bytes(self.host.target)?;
        let kernels = self.check(own, &bytes)?;
        find::<K>(own, &kernels)?;
        let files = Files::write(&bytes, self.host.copies.clone())?;
        let module = runtime.load(&files.path())?;
        self.files = Some(files);
        let name = own.to_string();
        self.loaded.insert(
            key,
            Loaded {
                name,
                module,
                kernels,
            },
        );
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
        let target = self.host.target;
        let module = target.check(bytes).map_err(unfit)?;
        let path = &self.host.vendors;
        let read = fs::read(path).map_err(|cause| Error::Io {
            path: path.clone(),
            cause,
        })?;
        target.check_against(&module, &read).map_err(unfit)?;
        let ours = self.host.ours.iter().map(|name| (name, "this program"));
        let others = self.loaded.values();
        let others = others.flat_map(|it| it.kernels.keys().map(|name| (name, it.name.as_str())));
        // A chip's firmware knows kernels by their names alone.
        let mut taken = ours.chain(others);
        if let Some((name, whose)) = taken.find(|(name, _)| module.kernels.contains_key(*name)) {
            return Err(own.error(format!("`{name}` is the name of a kernel of {whose}")));
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

/// The emulator's folder, where each core puts its copy of a module; removed with them, if it was made here.
pub(crate) struct CopiesFolder(Option<PathBuf>);

impl CopiesFolder {
    pub(crate) fn make(path: Option<PathBuf>) -> Result<Self> {
        // Or it was given, and whoever made it removes it.
        let made = path.filter(|path| !path.exists());
        if let Some(path) = &made {
            // The emulator's cores would each make it, and those that come second end the process.
            fs::create_dir_all(path).map_err(|cause| Error::Io {
                path: path.clone(),
                cause,
            })?;
        }
        Ok(Self(made))
    }
}

impl Drop for CopiesFolder {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            // What is left of it is a file too many, and no error.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// A module as a file, until it is loaded.
struct Files {
    folder: tempfile::TempDir,
    _copies: CopiesFolder,
}

impl Files {
    fn write(bytes: &[u8], copies: Option<PathBuf>) -> Result<Self> {
        // The emulator's folder of the device's opening is gone, unless it was given.
        let parent = copies.clone().filter(|given| given.exists());
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let copies = CopiesFolder::make(copies)?;
        let folder = tempfile::Builder::new()
            .prefix("tpu-train-kernels-")
            .tempdir_in(&parent);
        let folder = folder.map_err(|cause| Error::Io {
            path: parent,
            cause,
        })?;
        let files = Self {
            folder,
            _copies: copies,
        };
        let path = files.path();
        fs::write(&path, bytes).map_err(|cause| Error::Io { path, cause })?;
        Ok(files)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("own_kernels.so")
    }
}
