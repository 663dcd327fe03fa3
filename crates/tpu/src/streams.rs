//! Sends what C libraries print to a log.
//!
//! The vendor's libraries print at opening and when a kernel's check fails, on standard output and error, from threads of
//! their own, with no switch to stop it. All of it goes through C's `stdout` and `stderr`, which Rust does not use: it
//! writes to the file descriptors. So these two are made to point at the log, and the program's own output, its
//! terminal and its progress bar stay as they are. C++'s streams begin on C's, as long as this comes before the first C++
//! library is loaded.
//!
//! The log is not buffered: what was printed is in it however the process ends.

use std::fs::File;
use std::io;

/// From now on, what C libraries print goes to `log`, which should be open for appending. To be called before a
/// library is loaded; called again, it changes the log.
#[cfg(target_env = "gnu")]
pub fn redirect_to(log: File) -> io::Result<()> {
    use std::ffi::{c_char, c_int, c_void};
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::sync::Mutex;

    unsafe extern "C" {
        static mut stdout: *mut c_void;
        static mut stderr: *mut c_void;
        fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void;
        fn setvbuf(stream: *mut c_void, buffer: *mut c_char, mode: c_int, size: usize) -> c_int;
        fn dup2(from: c_int, to: c_int) -> c_int;
    }
    const UNBUFFERED: c_int = 2; // _IONBF of <stdio.h>

    /// The descriptor of the stream, once it is there.
    static STREAM: Mutex<Option<c_int>> = Mutex::new(None);

    let mut stream_fd = STREAM
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(fd) = *stream_fd {
        // The stream stays, since C++ and other threads hold it; what it writes to is exchanged.
        // SAFETY: both are open; the second belongs to the stream alone, which has nothing buffered.
        return match unsafe { dup2(log.as_raw_fd(), fd) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        };
    }
    let fd = log.into_raw_fd();
    // SAFETY: the descriptor is open and handed over to the stream, which is never closed. In glibc `stdout` and `stderr`
    // are plain variables that a program may set; Rust never reads them.
    unsafe {
        let stream = fdopen(fd, c"a".as_ptr());
        if stream.is_null() {
            return Err(io::Error::last_os_error());
        }
        setvbuf(stream, std::ptr::null_mut(), UNBUFFERED, 0);
        stdout = stream;
        stderr = stream;
    }
    *stream_fd = Some(fd);
    Ok(())
}

/// Does nothing: the vendor's libraries need glibc.
#[cfg(not(target_env = "gnu"))]
pub fn redirect_to(log: File) -> io::Result<()> {
    drop(log);
    Ok(())
}
