//! The runtime of a BM1690, `libtpuv7_rt.so`. A copy to the host does not wait for the stream. Source: the vendor's
//! `tpuv7_rt.h`.

use std::ffi::{c_char, c_int, c_void};

/// A stream of the runtime: what is queued on it runs in order.
pub(crate) type Stream = *mut c_void;
/// A mark on a stream.
pub(crate) type Event = *mut c_void;
/// An address in the device's memory, never read by the host.
pub(crate) type DevicePtr = *mut c_void;

/// A status that says to ask again.
pub(crate) const NOT_READY: c_int = 1;

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
    load_module = "tpuRtKernelLoadModuleFile": fn(path: *const c_char, stream: Stream) -> *mut c_void;
    /// Copies the arguments before it returns.
    launch_async = "tpuRtKernelLaunchAsync": fn(module: *mut c_void, name: *const c_char, args: *const c_void, bytes: u32, groups: u64, blocks: u64, stream: Stream) -> c_int;
}
