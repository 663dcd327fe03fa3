//! The modules for chips, as far as they can be proved without one: the vendor's library defines all that they call, and a
//! loader of the chip's architecture, under `qemu`, finds every kernel registered, with the arguments that the host gives.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use tt_kernels::{Chip, Target};
use tt_tpu::sdk::Sdk;

/// Skips the rest where something is missing; under `CI` that is a failure.
macro_rules! or_skip {
    ($what:expr) => {
        match $what {
            Ok(found) => found,
            Err(why) => {
                assert!(std::env::var_os("CI").is_none(), "{why}");
                eprintln!("skipped: {why}");
                return;
            }
        }
    };
}

/// The program that runs those of the target's architecture, and where their libraries are.
fn emulation(target: Target) -> (&'static str, &'static str) {
    match target {
        Target::Chip(Chip::Bm1690) => ("qemu-riscv64", "/usr/riscv64-linux-gnu"),
        Target::Chip(Chip::Bm1684x) => ("qemu-aarch64", "/usr/aarch64-linux-gnu"),
        Target::Emulator(_) => unreachable!("runs here"),
    }
}

/// What the loader prints of the module.
fn load(target: Target, compiler: &Path, module: &Path) -> Result<String, String> {
    let folder = module.parent().expect("a folder");
    let loader = folder.join("loader");
    let mut compile = Command::new(compiler);
    compile.args(["-std=gnu11", "-rdynamic", "-o"]).arg(&loader);
    compile.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chip/loader.c"));
    let compiled = compile
        .arg("-ldl")
        .status()
        .map_err(|error| error.to_string())?;
    assert!(compiled.success());
    let (qemu, root) = emulation(target);
    let mut command = Command::new(qemu);
    command.args(["-L", root]).arg(loader);
    command
        .arg(folder.join(target.vendor_library()))
        .arg(module);
    let output = command.output();
    let output = output.map_err(|error| format!("{qemu} (apt-get install qemu-user): {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    Ok(String::from_utf8(output.stdout).expect("ASCII"))
}

fn loads_and_registers(
    target: Target,
    compile: fn(Target, &Path, &Path) -> tt_kernels::Result<()>,
) {
    let compiler: PathBuf = or_skip!(target.compiler());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernels.so");
    compile(target, &compiler, &path).unwrap();
    let module = target.check(&std::fs::read(&path).unwrap()).unwrap();

    let vendor = Sdk::cache().join("lib").join(target.vendor_library());
    let vendor = std::fs::read(&vendor)
        .map_err(|error| format!("{} (cargo xtask sdk): {error}", vendor.display()));
    target.check_against(&module, &or_skip!(vendor)).unwrap();

    let printed = or_skip!(load(target, &compiler, &path));
    let registered = printed.lines().map(|line| {
        let (name, bytes) = line.split_once(' ').expect("two words");
        (name.to_owned(), bytes.parse().expect("a number"))
    });
    let registered: BTreeMap<String, usize> = registered.collect();
    assert_eq!(registered, module.kernels);
}

fn ours(target: Target, compiler: &Path, out: &Path) -> tt_kernels::Result<()> {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
    target.compile(compiler, sources.as_ref(), out)
}

fn a_users(target: Target, compiler: &Path, out: &Path) -> tt_kernels::Result<()> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/device/own_kernels.c");
    target.compile_own(compiler, &[source.into()], &[], out)
}

#[test]
fn a_bm1690_loads_the_module_and_every_kernel_registers() {
    loads_and_registers(Target::Chip(Chip::Bm1690), ours);
}

#[test]
fn a_bm1684x_loads_the_module_and_every_kernel_registers() {
    loads_and_registers(Target::Chip(Chip::Bm1684x), ours);
}

#[test]
fn so_does_a_module_of_a_users_own() {
    loads_and_registers(Target::Chip(Chip::Bm1690), a_users);
    loads_and_registers(Target::Chip(Chip::Bm1684x), a_users);
}

/// `kernels/checks.h`, under which the emulator runs all kernels, sees each rule broken.
#[test]
fn what_a_chip_minds_is_noticed() {
    let compiler = or_skip!(Target::Emulator(Chip::Bm1690).compiler());
    let folder = tempfile::tempdir().unwrap();
    let called = [
        "tpu_gdma_cpy_S2L",
        "tpu_bdc_fp_mm",
        "tpu_invalidate_cache",
        "tpu_global_mem_addr",
        "tpu_flush_cache",
        "tpu_parallel_start",
        "tpu_parallel_end",
        "tpu_bdc_fp_add",
    ];
    let stubs = called.map(|name| format!("int {name}() {{ return 0; }}\n"));
    let device = folder.path().join("device.c");
    std::fs::write(&device, stubs.concat()).unwrap();
    let program = folder.path().join("rules");
    let own = env!("CARGO_MANIFEST_DIR");
    let mut compile = Command::new(compiler);
    compile.args(["-std=gnu11", "-O1", "-DEMULATOR", "-Wno-unused-function"]);
    compile
        .arg(format!("-I{own}/kernels"))
        .arg("-o")
        .arg(&program);
    compile.arg(format!("{own}/tests/chip/rules.c")).arg(device);
    assert!(compile.status().unwrap().success());
    for broken in 0..=9 {
        let ended = Command::new(&program).arg(broken.to_string()).output();
        let ended = ended.unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        let expected = if broken == 0 { 0 } else { 233 };
        assert_eq!(ended.status.code(), Some(expected), "rule {broken}: {said}");
        assert_eq!(said.contains("Assertion"), broken > 0, "{said}");
    }
}
