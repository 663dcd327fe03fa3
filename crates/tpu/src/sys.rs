//! The vendor's runtime library, loaded at run time: raw functions, nothing safe about them.
//!
//! Every status is 0 for success. A launch that fails later says nothing here: see the module of launches.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use libloading::Library;

/// A stream of the runtime: what is queued on it runs in order.
pub(crate) type Stream = *mut c_void;
/// A mark on a stream.
pub(crate) type Event = *mut c_void;
/// A module of kernels, loaded on the device.
pub(crate) type Module = *mut c_void;
/// An address in the device's memory, never read by the host.
pub(crate) type DevicePtr = *mut c_void;

/// A status that says to ask again.
pub(crate) const NOT_READY: c_int = 1;

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        /// The functions that are used, resolved once.
        pub(crate) struct Runtime {
            $($(#[$doc])* pub(crate) $field: unsafe extern "C" fn($($arg: $ty),*) -> $ret,)*
            /// Keeps the functions where they are.
            _library: Library,
        }

        impl Runtime {
            /// Loads the library at `path`.
            pub(crate) fn load(path: &Path) -> Result<Self, libloading::Error> {
                // SAFETY: the library's initialisers are the vendor's; loading it has no precondition of ours.
                let library = unsafe { Library::new(path) }?;
                // SAFETY: the types are those of the vendor's header for the version that was checked.
                $(let $field = *unsafe { library.get($symbol) }?;)*
                Ok(Self { $($field,)* _library: library })
            }
        }

        /// What a library must define to be this runtime.
        pub const RUNTIME_SYMBOLS: &[&str] = &[$($symbol),*];
    };
}

functions! {
    init = "tpuRtInit": fn() -> c_int;
    /// Boots the emulator.
    set_device = "tpuRtSetDevice": fn(device: c_int) -> c_int;
    /// A size of 0 ends the process.
    malloc = "tpuRtMalloc": fn(address: *mut DevicePtr, bytes: u64, parallel: c_int) -> c_int;
    free = "tpuRtFree": fn(addresses: *mut DevicePtr, count: c_int) -> c_int;
    /// Does not wait for what is queued.
    copy_to_host = "tpuRtMemcpyD2S": fn(host: *mut c_void, device: *const c_void, bytes: u64) -> c_int;
    copy_to_device_async = "tpuRtMemcpyS2DAsync": fn(device: DevicePtr, host: *const c_void, bytes: u64, stream: Stream) -> c_int;
    stream_create = "tpuRtStreamCreate": fn(stream: *mut Stream) -> c_int;
    stream_synchronize = "tpuRtStreamSynchronize": fn(stream: Stream) -> c_int;
    event_create = "tpuRtEventCreate": fn(event: *mut Event) -> c_int;
    /// Queues a mark on the stream.
    event_record = "tpuRtEventRecord": fn(event: Event, stream: Stream) -> c_int;
    /// 0: the stream has come to the mark; [`NOT_READY`]: not yet.
    event_query = "tpuRtEventQuery": fn(event: Event) -> c_int;
    load_module = "tpuRtKernelLoadModuleFile": fn(path: *const c_char, stream: Stream) -> Module;
    /// Copies the arguments before it returns.
    launch_async = "tpuRtKernelLaunchAsync": fn(module: Module, name: *const c_char, args: *const c_void, bytes: u32, groups: u64, blocks: u64, stream: Stream) -> c_int;
}
