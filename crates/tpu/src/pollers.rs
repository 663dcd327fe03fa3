//! The emulator's threads that poll: `emulator/pollers.c` gives them a rest in their loop.

use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pollers.so"));

/// To be called before the emulator is loaded, with a folder for a file that may go afterwards. If it does not work out the
/// threads poll as they did, which is slow and no error.
pub(crate) fn let_rest(folder: &Path) {
    let path = folder.join("pollers.so");
    if std::fs::write(&path, LIBRARY).is_err() {
        return;
    }
    // SAFETY: the library has no initialisers; it defines one function, with the signature of the vendor's, which it calls.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    // It stays as long as the emulator does.
    std::mem::forget(library);
}
