//! The emulators' threads that poll: `emulator/*.c` give them a rest in their loops.
//!
//! If it does not work out the threads poll as they did, which is slow and no error.

use std::ffi::{c_int, c_void};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

static OF_THE_DAEMON: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pollers.so"));
static OF_CMODEL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cmodel_pollers.so"));

/// For the emulator of a BM1690. To be called before it is loaded, with a folder for a file that may go afterwards.
pub(crate) fn let_rest(folder: &Path) {
    // It stays as long as the emulator does.
    std::mem::forget(load(folder, OF_THE_DAEMON));
}

/// For that of a BM1684X, when it is loaded (its handle is that of `dlopen`) and has no threads yet.
pub(crate) fn let_cmodel_rest(folder: &Path, emulator: *mut c_void) {
    let Some(library) = load(folder, OF_CMODEL) else {
        return;
    };
    // SAFETY: the function has this type.
    let rest =
        unsafe { library.get::<unsafe extern "C" fn(*mut c_void) -> c_int>(b"cmodel_let_rest") };
    if let Ok(rest) = rest {
        // SAFETY: the handle is of a library that is loaded.
        unsafe { rest(emulator) };
    }
    std::mem::forget(library);
}

fn load(folder: &Path, library: &[u8]) -> Option<Library> {
    let path = folder.join("pollers.so");
    std::fs::write(&path, library).ok()?;
    // SAFETY: the libraries have no initialisers. For all to see: the vendor's finds a function of its own by name.
    let loaded = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
    loaded.ok()
}
