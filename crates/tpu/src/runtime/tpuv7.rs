//! The device on one stream of the runtime of a BM1690.

use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

use tt_kernels::Chip;

use super::{Module, POLL, Runtime, library_error, load_module, succeeded};
use crate::error::Result;
use crate::sys::tpuv7::{DevicePtr, Event, Functions, NOT_READY, Stream};

/// The opened device.
pub(super) struct Tpuv7 {
    functions: Functions,
    number: c_int,
    stream: Stream,
    /// Set behind what is queued, to wait for.
    mark: Event,
    /// Where the memory ends, if it is emulated. The emulator hands out addresses from 1 GiB on, as many as it has memory in
    /// all: whoever touches the last of them crashes.
    end: u64,
}

// SAFETY: the runtime takes calls from any thread that uses a stream made by another.
unsafe impl Send for Tpuv7 {}
// SAFETY: but for `enter`, one thread at a time calls.
unsafe impl Sync for Tpuv7 {}

impl Tpuv7 {
    /// The device of this number; `room`: see `end`.
    pub(super) fn open(library: &Path, number: usize, room: u64) -> Result<Self> {
        let functions = Functions::load(library).map_err(library_error(library))?;
        let number = number as c_int;
        let (mut stream, mut mark) = (null_mut(), null_mut());
        // SAFETY: the order that the runtime asks for; the pointers are written once.
        unsafe {
            succeeded("initialise", (functions.init)())?;
            succeeded("open the device", (functions.set_device)(number))?;
            succeeded("make a stream", (functions.stream_create)(&mut stream))?;
            succeeded("make an event", (functions.event_create)(&mut mark))?;
        }
        Ok(Self {
            functions,
            number,
            stream,
            mark,
            end: room,
        })
    }
}

impl Runtime for Tpuv7 {
    /// Which device is meant, the runtime knows by thread, and each may be new here.
    fn enter(&self) {
        // SAFETY: the device is open; this names it again.
        unsafe { (self.functions.set_device)(self.number) };
    }

    fn malloc(&self, bytes: u64) -> Option<u64> {
        let mut address: DevicePtr = null_mut();
        // SAFETY: the size is not 0; the pointer is written on success.
        let status = unsafe { (self.functions.malloc)(&mut address, bytes, 0) };
        if status != 0 {
            return None;
        }
        let address = address as u64;
        if address + bytes > self.end {
            // SAFETY: nobody has it.
            unsafe { self.free(address) };
            return None;
        }
        Some(address)
    }

    unsafe fn free(&self, address: u64) {
        let mut address = address as DevicePtr;
        // SAFETY: an address from `malloc`, as the caller says.
        unsafe { (self.functions.free)(&mut address, 0) };
    }

    unsafe fn copy_to_device(&self, address: u64, data: &[u8]) -> Result<()> {
        let (source, bytes) = (data.as_ptr().cast(), data.len() as u64);
        let copy = self.functions.copy_to_device_async;
        // SAFETY: there is memory of this size, and the data stays, as the caller says.
        let status = unsafe { copy(address as DevicePtr, source, bytes, self.stream) };
        succeeded("copy to the device", status)
    }

    unsafe fn copy_to_host(&self, address: u64, out: &mut [u8]) -> Result<()> {
        let (to, bytes) = (out.as_mut_ptr().cast(), out.len() as u64);
        // SAFETY: there is memory of this size, as the caller says; `out` has it, too.
        let status = unsafe { (self.functions.copy_to_host)(to, address as *const c_void, bytes) };
        succeeded("copy to the host", status)
    }

    fn load(&self, path: &Path) -> Result<Module> {
        // SAFETY: the stream was made at opening, the file is an ELF library.
        load_module(path, |name| unsafe {
            (self.functions.load_module)(name, self.stream)
        })
    }

    unsafe fn launch(&self, module: Module, name: &'static CStr, args: &[u8]) -> Result<()> {
        let (bytes, cores) = (args.len() as u32, Chip::Bm1690.cores() as u64);
        let (args, launch) = (args.as_ptr().cast(), self.functions.launch_async);
        // SAFETY: the kernel exists with arguments of this size, as the caller says.
        let status = unsafe { launch(module.0, name.as_ptr(), args, bytes, 1, cores, self.stream) };
        succeeded(name.to_str().unwrap_or("launch a kernel"), status)
    }

    /// The runtime's own wait spins, and would take a core from what it waits for: so it is asked to only when all is done.
    fn wait(&self) -> Result<()> {
        const WAIT: &str = "wait for the device";
        let functions = &self.functions;
        // SAFETY: stream and mark were made at opening.
        succeeded(WAIT, unsafe {
            (functions.event_record)(self.mark, self.stream)
        })?;
        loop {
            // SAFETY: as above.
            match unsafe { (functions.event_query)(self.mark) } {
                NOT_READY => std::thread::sleep(POLL),
                status => {
                    succeeded(WAIT, status)?;
                    // SAFETY: as above.
                    return succeeded(WAIT, unsafe { (functions.stream_synchronize)(self.stream) });
                }
            }
        }
    }
}
