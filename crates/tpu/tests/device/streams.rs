//! What C prints goes to the log, what Rust prints does not.
//!
//! A redirection is for the whole process, so nothing else may print there.

use std::ffi::{c_char, c_int};
use std::fs::{self, File};

use crate::alone;

unsafe extern "C" {
    fn puts(text: *const c_char) -> c_int;
    fn perror(text: *const c_char);
}

#[test]
fn what_c_prints_goes_to_the_log_at_once() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    let open = |name| {
        File::options()
            .create(true)
            .append(true)
            .open(path(name))
            .unwrap()
    };

    tt_tpu::streams::redirect_to(open("first")).unwrap();
    // SAFETY: literals with their NUL.
    unsafe {
        puts(c"to standard output".as_ptr());
        perror(c"to standard error".as_ptr());
    }
    println!("of Rust");
    let first = fs::read_to_string(path("first")).unwrap();
    assert!(
        first.starts_with("to standard output\nto standard error: "),
        "{first}"
    );
    assert_eq!(first.lines().count(), 2);

    tt_tpu::streams::redirect_to(open("second")).unwrap();
    // SAFETY: as above.
    unsafe { puts(c"and further".as_ptr()) };
    assert_eq!(fs::read_to_string(path("second")).unwrap(), "and further\n");
    assert_eq!(fs::read_to_string(path("first")).unwrap(), first);
}
