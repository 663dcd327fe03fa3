//! Compiles `kernels/*.c` into the modules that the binary carries: the emulator's with the machine's C compiler, a chip's
//! where there is a cross compiler for it. One that cannot be made is empty, and a text says why, which is what a user of
//! `device=tpu` then reads.
//!
//! `emulator/*.c` are libraries of their own, loaded beside the emulators.

use std::path::{Path, PathBuf};
use std::{env, fs};

use tt_kernels::{Chip, Error, Result, Target};

fn main() {
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-changed=emulator");
    println!("cargo:rerun-if-env-changed=PATH");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let write = |name: &str, content: &[u8]| {
        fs::write(out_dir.join(name), content).expect("OUT_DIR can be written");
    };
    for target in Target::ALL {
        let name = format!("{}.so", target.name());
        let made = compile(target, &out_dir.join(&name));
        let why_none = made.err().map(|error| error.to_string());
        if let Some(why) = &why_none {
            write(&name, &[]);
            if let Target::Emulator(chip) = target {
                // A chip is what few have.
                println!("cargo:warning=no kernels for the emulator of a TPU in this build: {why}");
                write(&pollers(chip).replace(".c", ".so"), &[]);
            }
        }
        let why_none = why_none.unwrap_or_default();
        write(&format!("{}.why", target.name()), why_none.as_bytes());
    }
}

/// What lets the emulator's threads rest.
fn pollers(chip: Chip) -> &'static str {
    match chip {
        Chip::Bm1690 => "pollers.c",
        Chip::Bm1684x => "cmodel_pollers.c",
    }
}

fn compile(target: Target, out: &Path) -> Result<()> {
    let compiler = target.compiler()?;
    if let Target::Emulator(chip) = target {
        runs_the_emulator()?;
        let source = Path::new("emulator").join(pollers(chip));
        let made = out.with_file_name(pollers(chip)).with_extension("so");
        tt_kernels::compile_library(&compiler, &source, &made)?;
    }
    target.compile(&compiler, "kernels".as_ref(), out)?;
    let module = fs::read(out).map_err(|cause| Error::Io {
        path: out.to_owned(),
        cause,
    })?;
    target.check(&module).map(drop)
}

fn runs_the_emulator() -> Result<()> {
    let target = env::var("TARGET").expect("set by cargo");
    if target.starts_with("x86_64") && target.contains("linux") {
        return Ok(());
    }
    let why = format!("is for the emulator, which runs on x86-64 Linux and not on {target}");
    Err(Error::Unfit(why))
}
