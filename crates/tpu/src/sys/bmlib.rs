//! The runtime of a BM1684X, `libbmlib.so`. Source: the vendor's `bmlib_runtime.h`.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The device, as the library calls it.
pub(crate) type Handle = *mut c_void;

/// Device memory, as the library describes it. Passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) address: u64,
    reserved: c_uint,
    /// Of a buffer that is shared with other devices.
    file: c_int,
    /// Three bits of kind, three of the heap.
    flags: c_uint,
    pub(crate) bytes: c_uint,
}

/// A kind of memory: the device's.
const OF_THE_DEVICE: c_uint = 0;

impl Memory {
    /// Part of what `malloc` has given.
    pub(crate) fn at(address: u64, bytes: usize) -> Self {
        Self {
            address,
            reserved: 0,
            file: 0,
            flags: OF_THE_DEVICE,
            bytes: bytes as c_uint,
        }
    }
}

functions! {
    request = "bm_dev_request": fn(handle: *mut Handle, number: c_int) -> c_int;
    malloc = "bm_malloc_device_byte": fn(handle: Handle, memory: *mut Memory, bytes: c_uint) -> c_int;
    free = "bm_free_device": fn(handle: Handle, memory: Memory) -> ();
    /// At once.
    copy_to_device = "bm_memcpy_s2d": fn(handle: Handle, to: Memory, from: *const c_void) -> c_int;
    /// At once.
    copy_to_host = "bm_memcpy_d2s": fn(handle: Handle, to: *mut c_void, from: Memory) -> c_int;
    load_module = "tpu_kernel_load_module_file": fn(handle: Handle, path: *const c_char) -> *mut c_void;
    /// A name that is not there has a number, too, whose launch ends the process.
    get_function = "tpu_kernel_get_function": fn(handle: Handle, module: *mut c_void, name: *const c_char) -> c_int;
    /// Copies the arguments before it returns.
    launch_async = "tpu_kernel_launch_async": fn(handle: Handle, function: c_int, args: *const c_void, bytes: usize) -> c_int;
    /// For the launches of every thread; `tpu_kernel_sync` waits for those of its own, and ends the process if there are none.
    sync = "bm_device_sync": fn(handle: Handle) -> c_int;
}
