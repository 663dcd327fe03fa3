//! Compiles `kernels/*.c` into the module that the emulator loads, with the machine's C compiler.
//!
//! Nothing of the vendor's is needed for it: the module is linked against a stub, generated from the declarations in
//! `kernels/device.h`, that carries the emulator's SONAME; when the module is loaded, the emulator itself is there
//! under that name. Without a C compiler, or not on x86-64 Linux, the module is empty and a text says why, which is
//! what a user of `device=tpu` then reads.
//!
//! `emulator/pollers.c` is a library of its own, loaded before the emulator.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The library that defines the device's functions when the module is loaded.
const SONAME: &str = "libtpuv7_emulator.so";

fn main() {
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-changed=emulator");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let [module, pollers] = ["kernels.so", "pollers.so"].map(|name| out_dir.join(name));
    let why_none = match compile(&out_dir, &module, &pollers) {
        Ok(()) => String::new(),
        Err(why) => {
            println!("cargo:warning=no TPU kernels in this build: {why}");
            for library in [&module, &pollers] {
                fs::write(library, []).expect("OUT_DIR can be written");
            }
            why
        }
    };
    let reason = out_dir.join("why_no_kernels.txt");
    fs::write(reason, why_none).expect("OUT_DIR can be written");
}

fn compile(out_dir: &Path, module: &Path, pollers: &Path) -> Result<(), String> {
    let target = env::var("TARGET").expect("set by cargo");
    if !(target.starts_with("x86_64") && target.contains("linux")) {
        return Err(format!(
            "the emulator runs on x86-64 Linux, not on {target}"
        ));
    }
    let compiler = cc::Build::new()
        .try_get_compiler()
        .map_err(|error| format!("no C compiler: {error}"))?;
    let stub = out_dir.join("stub.c");
    let names = declared_functions(include_str!("kernels/device.h"));
    let definitions = names
        .iter()
        .map(|name| format!("int {name}() {{ return 0; }}\n"));
    fs::write(&stub, definitions.collect::<String>()).map_err(|error| error.to_string())?;

    let library = |output: &Path| {
        let mut command = Command::new(compiler.path());
        command.args(["-O2", "-fPIC", "-shared", "-std=gnu11"]);
        command.args(["-Wall", "-Wextra"]);
        command.arg("-o").arg(output);
        command
    };
    let mut link_stub = library(&out_dir.join(SONAME));
    run(link_stub.arg(&stub).arg(format!("-Wl,-soname,{SONAME}")))?;

    let mut sources: Vec<_> = fs::read_dir("kernels")
        .map_err(|error| error.to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    let mut link = library(module);
    link.args(["-Wno-unused-function", "-DEMULATOR"]);
    link.args(&sources).arg("-L").arg(out_dir);
    run(link.args([format!("-l:{SONAME}").as_str(), "-lm", "-Wl,--no-undefined"]))?;
    run(library(pollers).args(["emulator/pollers.c", "-ldl"]))
}

/// The functions that a header declares: the identifiers with the device's prefix before an opening bracket.
fn declared_functions(header: &str) -> Vec<&str> {
    let code = header
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    code.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("tpu_").then_some(name)
    })
    .collect()
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed:\n{said}"));
    }
    Ok(())
}
