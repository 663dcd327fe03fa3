//! The device of the runtime of a BM1684X, of one core.
//!
//! Launches are queued; copies are made at once, by another engine than that of the kernels, so one
//! to the device waits for what is queued.
//!
//! The emulator calls kernels in this process, of the file that a variable names to it when it begins. A module that is loaded
//! later it does not look into, so a user's own is loaded and called here, as the emulator would. It ends the process where
//! memory runs out, so what it has given is counted here.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{self, null_mut};
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::{Module, Runtime, library_error, load_module, succeeded};
use crate::error::{Error, Result};
use crate::pollers;
use crate::sdk::{Sdk, SdkKind};
use crate::sys::bmlib::{Functions, Handle, Memory};

/// Names the file of kernels to the emulator.
const FIRMWARE: &str = "TPUKERNEL_FIRMWARE_PATH";
/// Not more at once: sizes have 32 bits.
const MAX_BYTES: u64 = u32::MAX as u64;

/// The opened device.
pub(super) struct Bmlib {
    functions: Functions,
    handle: Handle,
    state: Mutex<State>,
    /// The file that the emulator began with.
    began_with: Option<PathBuf>,
    /// Bytes that may be given in all.
    room: u64,
}

/// A kernel in a module, as it is launched.
#[derive(Clone, Copy)]
enum Function {
    /// By the library.
    Numbered(c_int),
    /// By us.
    Called(unsafe extern "C" fn(args: *const c_void, bytes: c_uint) -> c_int),
}

#[derive(Default)]
struct State {
    kernels: HashMap<(Module, &'static CStr), Function>,
    /// Modules that the emulator did not begin with.
    own: HashMap<Module, Library>,
    /// What `malloc` has given, by address.
    memory: HashMap<u64, Memory>,
    bytes: u64,
}

// SAFETY: the library takes its handle from any thread.
unsafe impl Send for Bmlib {}
// SAFETY: one thread at a time calls.
unsafe impl Sync for Bmlib {}

impl Bmlib {
    /// The device of this number with at most `room` bytes of memory; its emulator begins with the file `kernels`.
    pub(super) fn open(sdk: &Sdk, number: usize, kernels: &Path, room: u64) -> Result<Self> {
        let began_with = (sdk.kind == SdkKind::Emulator).then(|| kernels.to_owned());
        if let Some(kernels) = &began_with {
            begin_emulator(&sdk.emulator(), kernels)?;
        }
        let library = sdk.runtime();
        let functions = Functions::load(&library).map_err(library_error(&library))?;
        let mut handle = null_mut();
        // SAFETY: the handle is written once.
        let status = unsafe { (functions.request)(&mut handle, number as c_int) };
        succeeded("open the device", status)?;
        Ok(Self {
            functions,
            handle,
            state: Mutex::default(),
            began_with,
            room,
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn function(&self, module: Module, name: &'static CStr) -> Result<Function> {
        let mut state = self.state();
        if let Some(function) = state.kernels.get(&(module, name)) {
            return Ok(*function);
        }
        let function = match state.own.get(&module) {
            Some(library) => {
                // SAFETY: kernels have this type.
                let found = unsafe { library.get(name.to_bytes_with_nul()) };
                Function::Called(*found.map_err(|error| Error::Module(error.to_string()))?)
            }
            // SAFETY: the module was loaded by this device.
            None => Function::Numbered(unsafe {
                (self.functions.get_function)(self.handle, module.0, name.as_ptr())
            }),
        };
        state.kernels.insert((module, name), function);
        Ok(function)
    }
}

/// Our kernels are linked against the emulator, which is looked for by its name: so it must be there before. But not for all to
/// see: the runtime would take it for a part of the program, and not look for our kernels.
fn begin_emulator(emulator: &Path, kernels: &Path) -> Result<()> {
    // SAFETY: once a process, before the library that reads it is loaded; Rust's own readers take a lock.
    unsafe { std::env::set_var(FIRMWARE, kernels) };
    // SAFETY: the vendor's initialisers have no precondition of ours.
    let library = unsafe { Library::open(Some(emulator), RTLD_NOW | RTLD_LOCAL) };
    // It stays as long as the process does.
    let handle = library.map_err(library_error(emulator))?.into_raw();
    if let Some(folder) = kernels.parent() {
        pollers::let_cmodel_rest(folder, handle);
    }
    Ok(())
}

impl Runtime for Bmlib {
    fn enter(&self) {}

    fn malloc(&self, bytes: u64) -> Option<u64> {
        let mut state = self.state();
        if bytes > MAX_BYTES || state.bytes + bytes > self.room {
            return None;
        }
        let mut memory = Memory::at(0, 0);
        // SAFETY: the description is written on success.
        let status = unsafe { (self.functions.malloc)(self.handle, &mut memory, bytes as c_uint) };
        if status != 0 {
            return None;
        }
        state.bytes += bytes;
        state.memory.insert(memory.address, memory);
        Some(memory.address)
    }

    unsafe fn free(&self, address: u64) {
        let mut state = self.state();
        if let Some(memory) = state.memory.remove(&address) {
            state.bytes -= u64::from(memory.bytes);
            // SAFETY: from `malloc`; nothing uses it, as the caller says.
            unsafe { (self.functions.free)(self.handle, memory) };
        }
    }

    unsafe fn copy_to_device(&self, address: u64, data: &[u8]) -> Result<()> {
        // What is queued may still read what was there before.
        self.wait()?;
        let to = Memory::at(address, data.len());
        let copy = self.functions.copy_to_device;
        // SAFETY: there is memory of this size, as the caller says.
        let status = unsafe { copy(self.handle, to, data.as_ptr().cast()) };
        succeeded("copy to the device", status)
    }

    unsafe fn copy_to_host(&self, address: u64, out: &mut [u8]) -> Result<()> {
        let from = Memory::at(address, out.len());
        let copy = self.functions.copy_to_host;
        // SAFETY: there is memory of this size, as the caller says; `out` has it, too.
        let status = unsafe { copy(self.handle, out.as_mut_ptr().cast(), from) };
        succeeded("copy to the host", status)
    }

    fn load(&self, path: &Path) -> Result<Module> {
        if self
            .began_with
            .as_deref()
            .is_some_and(|first| first != path)
        {
            // SAFETY: the module was checked; its initialisers register kernels.
            let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
            let library = library.map_err(library_error(path))?;
            let mut state = self.state();
            // A name that no module of the vendor's has.
            let module = Module(ptr::without_provenance_mut(state.own.len() + 1));
            state.own.insert(module, library);
            return Ok(module);
        }
        // SAFETY: the file is an ELF library.
        load_module(path, |name| unsafe {
            (self.functions.load_module)(self.handle, name)
        })
    }

    unsafe fn launch(&self, module: Module, name: &'static CStr, args: &[u8]) -> Result<()> {
        let function = self.function(module, name)?;
        let (bytes, args) = (args.len(), args.as_ptr().cast());
        // SAFETY: the kernel exists with arguments of this size, as the caller says.
        let status = unsafe {
            match function {
                Function::Numbered(number) => {
                    (self.functions.launch_async)(self.handle, number, args, bytes)
                }
                Function::Called(kernel) => kernel(args, bytes as c_uint),
            }
        };
        succeeded(name.to_str().unwrap_or("launch a kernel"), status)
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the device is open.
        succeeded("wait for the device", unsafe {
            (self.functions.sync)(self.handle)
        })
    }
}
