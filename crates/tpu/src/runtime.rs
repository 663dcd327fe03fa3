//! What the device asks of a vendor's library, loaded at run time: memory, copies, modules of kernels, and one queue of
//! launches. A BM1690 has `tpuv7`, a BM1684X `bmlib`; each for the chip and for its emulator.
//!
//! What is queued runs in the order of the calls. A launch that goes wrong says nothing here: see the module `launch`.

mod bmlib;
mod tpuv7;

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::time::Duration;

use tt_kernels::Chip;

use crate::error::{Error, Result};
use crate::float_mode;
use crate::sdk::{Sdk, SdkKind};

/// How often the host asks whether what is queued has run.
const POLL: Duration = Duration::from_micros(100);

/// A module of kernels that is loaded on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Module(*mut c_void);

// SAFETY: a handle of the runtime's, which takes it from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// An opened device of a vendor's library. Calls are made by one thread at a time, but for [`Runtime::enter`].
pub(crate) trait Runtime: Send + Sync {
    /// To be called by a thread before its other calls; it takes a microsecond.
    fn enter(&self);

    /// An address of `bytes`, which are not 0; `None`: there is no such room.
    fn malloc(&self, bytes: u64) -> Option<u64>;

    /// Gives an address of `malloc` back.
    ///
    /// # Safety
    /// Nothing refers to it any more, and nothing queued uses it.
    unsafe fn free(&self, address: u64);

    /// Queues a copy.
    ///
    /// # Safety
    /// Memory of this size is at `address`, and the data stays where it is until the next wait.
    unsafe fn copy_to_device(&self, address: u64, data: &[u8]) -> Result<()>;

    /// Copies at once, whatever is queued.
    ///
    /// # Safety
    /// Memory of this size is at `address`, and nothing queued writes it.
    unsafe fn copy_to_host(&self, address: u64, out: &mut [u8]) -> Result<()>;

    /// Loads the module in a file.
    fn load(&self, path: &Path) -> Result<Module>;

    /// Queues a kernel, on all cores. The arguments are copied.
    ///
    /// # Safety
    /// The module has the kernel, with arguments of this size; what they point to stays until it has run.
    unsafe fn launch(&self, module: Module, name: &'static CStr, args: &[u8]) -> Result<()>;

    /// Waits until all that is queued has run.
    fn wait(&self) -> Result<()>;
}

/// Opens the device. `kernels` is the file of our module, which is loaded later, but for an emulator that begins with it.
/// `room` is the memory of an emulated device.
pub(crate) fn open(
    sdk: &Sdk,
    number: usize,
    kernels: &Path,
    room: u64,
) -> Result<Box<dyn Runtime>> {
    let room = match sdk.kind {
        SdkKind::Emulator => room,
        SdkKind::Driver => u64::MAX,
    };
    float_mode::kept(|| -> Result<Box<dyn Runtime>> {
        Ok(match sdk.chip {
            Chip::Bm1690 => Box::new(tpuv7::Tpuv7::open(&sdk.runtime(), number, room)?),
            Chip::Bm1684x => Box::new(bmlib::Bmlib::open(sdk, number, kernels, room)?),
        })
    })
}

fn succeeded(call: &'static str, status: i32) -> Result<()> {
    match status {
        0 => Ok(()),
        status => Err(Error::Runtime { call, status }),
    }
}

fn library_error(path: &Path) -> impl FnOnce(libloading::Error) -> Error {
    let path = path.to_owned();
    move |cause| Error::Library {
        path,
        cause: cause.to_string(),
    }
}

/// What `load`, a function of the vendor's, makes of a file.
fn load_module(path: &Path, load: impl FnOnce(*const c_char) -> *mut c_void) -> Result<Module> {
    let name = CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| Error::Module(format!("{} has a NUL", path.display())))?;
    let module = load(name.as_ptr());
    if module.is_null() {
        let why = format!("{} was not taken by the device", path.display());
        return Err(Error::Module(why));
    }
    Ok(Module(module))
}
