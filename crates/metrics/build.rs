//! Records the compiler for `environment()`: numbers may differ between compilers.

use std::{env, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .unwrap_or_default();
    println!("cargo:rustc-env=TT_RUSTC_VERSION={}", version.trim());
    println!(
        "cargo:rustc-env=TT_TARGET={}",
        env::var("TARGET").unwrap_or_default()
    );
}
