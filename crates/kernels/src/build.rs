//! For the build script of a crate that has kernels of its own.

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

use crate::{Result, Target, at};

/// Compiles a crate's own C files for each target into `OUT_DIR`, from where `tt_tpu::own_module!(name)` takes them.
///
/// `build.rs` is
/// ```no_run
/// fn main() -> Result<(), tt_kernels::Error> {
///     tt_kernels::build("my_kernels", &["kernels/mine.c"])
/// }
/// ```
/// A target that nothing compiles for on this machine gets an empty file, and who launches the kernels there is told why.
/// Error: what a compiler says, or a module that a device could not load.
///
/// # Panics
/// Outside a build script.
pub fn build(name: &str, sources: &[&str]) -> Result<()> {
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo for a build script"));
    let watched = sources.iter().map(|source| format!("changed={source}"));
    for what in watched.chain(["env-changed=PATH".to_owned()]) {
        let _ = writeln!(io::stdout(), "cargo:rerun-if-{what}");
    }
    let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
    for target in Target::ALL {
        let out = out_dir.join(format!("{name}.{}.so", target.name()));
        let why_none = match compiler(target) {
            Ok(compiler) => {
                target.compile_own(&compiler, &sources, &[], &out)?;
                target.check(&fs::read(&out).map_err(at(&out))?)?;
                String::new()
            }
            Err(why) => {
                fs::write(&out, []).map_err(at(&out))?;
                why
            }
        };
        let why = out.with_extension("why");
        fs::write(&why, why_none).map_err(at(&why))?;
    }
    Ok(())
}

/// What compiles for the target here, or why nothing does.
fn compiler(target: Target) -> std::result::Result<PathBuf, String> {
    let host = env::var("TARGET").expect("set by cargo for a build script");
    let is_emulator = matches!(target, Target::Emulator(_));
    if is_emulator && !(host.starts_with("x86_64") && host.contains("linux")) {
        return Err(format!(
            "the emulator runs on x86-64 Linux and not on {host}"
        ));
    }
    target.compiler().map_err(|error| error.to_string())
}
