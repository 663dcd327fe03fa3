//! The end of the process.
//!
//! The vendor's exit handlers and destructors run while its threads still work, and now and then end the process by a signal
//! after everything has gone well. So the process leaves before they are called.

/// From now on the process ends where the vendor's handlers would begin. To be called when its libraries are loaded and
/// running: handlers run in the reverse order of their registration.
#[cfg(target_env = "gnu")]
pub(crate) fn skip_the_vendors_handlers() {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn on_exit(
            handler: extern "C" fn(status: c_int, argument: *mut c_void),
            argument: *mut c_void,
        ) -> c_int;
        fn fflush(stream: *mut c_void) -> c_int;
        fn _exit(status: c_int) -> !;
    }

    extern "C" fn leave(status: c_int, _: *mut c_void) {
        // OpenMP's mark of this process, which its own handler would have removed.
        let user = rustix::process::getuid().as_raw();
        let mark = format!(
            "/dev/shm/__KMP_REGISTERED_LIB_{}_{user}",
            std::process::id()
        );
        let _ = std::fs::remove_file(mark);
        // SAFETY: both may be called at any time; what C's streams still hold (the text of a failed check) is written first.
        unsafe {
            fflush(std::ptr::null_mut());
            _exit(status)
        }
    }

    // SAFETY: the handler is a function of this program, which stays.
    unsafe { on_exit(leave, std::ptr::null_mut()) };
}

/// Only glibc tells a handler the status.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn skip_the_vendors_handlers() {}
