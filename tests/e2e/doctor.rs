//! What `tpu-train doctor` says of machines without a TPU, and with a broken one.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Finished, Place, Running, emulator};

fn doctor(place: &Place, sdk: &Path, args: &[&str]) -> Finished {
    let mut command = place.command(&[&["doctor"], args].concat());
    command.env("SOPHGO_SDK", sdk);
    command.env("TPU_TRAIN_DOCTOR_TIMEOUT", "2");
    Running::start(command).finish()
}

#[test]
fn a_folder_without_libraries_is_a_problem_that_names_the_file_and_the_way_out() {
    let place = Place::new();
    doctor(&place, place.path(), &[])
        .with_code(1)
        .prints("libtpuv7_rt.so is missing")
        .prints("cargo xtask sdk");
}

#[test]
fn a_machine_without_libraries_is_in_order() {
    let place = Place::new();
    let mut command = place.command(&["doctor", "--json"]);
    command
        .env_remove("SOPHGO_SDK")
        .env_remove("LD_LIBRARY_PATH");
    command.env("XDG_CACHE_HOME", place.path());
    let told = Running::start(command).finish();
    let report: Value = serde_json::from_str(&told.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let libraries = rows.iter().find(|row| row["name"] == "libraries").unwrap();
    if Path::new("/opt/tpuv7/tpuv7-current").exists() {
        return; // it has a driver
    }
    assert_eq!(libraries["state"], "missing", "{report}");
    told.with_code(0);
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn every_group_of_kernels_is_tried_on_the_device() {
    let Some(_alone) = emulator() else { return };
    let place = Place::new();
    let mut command = place.command(&["doctor", "--json"]);
    command.env("TPU_TRAIN_DOCTOR_TIMEOUT", "250");
    let told = Running::start(command).finish();
    let report: Value = serde_json::from_str(&told.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let tpu: Vec<_> = rows.iter().filter(|row| row["section"] == "tpu").collect();
    assert!(tpu.iter().all(|row| row["state"] == "ok"), "{report:#}");
    for group in ["device", "matmul", "attention", "loss", "optimizer"] {
        let row = tpu.iter().find(|row| row["name"] == group);
        let text = row.and_then(|row| row["text"].as_str()).expect(group);
        assert!(group == "device" || text.contains(" launches"), "{text}");
    }
    told.with_code(0);
}

#[test]
fn a_damaged_library_and_one_for_another_machine_are_told_apart() {
    let place = Place::new();
    let library = place.write("libtpuv7_rt.so", "half a library");
    doctor(&place, place.path(), &[])
        .with_code(1)
        .prints("not an ELF library");
    // The header of a library for RISC-V, without sections.
    let mut riscv = b"\x7fELF\x02\x01\x01".to_vec();
    riscv.resize(16, 0);
    riscv.extend([3, 0, 243, 0, 1, 0, 0, 0]);
    riscv.resize(52, 0);
    riscv.extend([64, 0, 56, 0, 0, 0, 64, 0, 0, 0, 0, 0]);
    fs::write(library, riscv).unwrap();
    doctor(&place, place.path(), &[])
        .with_code(1)
        .prints("Riscv64");
}

/// The vendor's libraries for an emulator, of which `tpuRtSetDevice` does `on_open`.
fn broken_runtime(place: &Place, on_open: &str) -> Option<()> {
    let emulator = [
        ("libcdm_daemon_emulator.so", ""),
        ("libtpuv7_scalar_emulator.so", ""),
        (
            "libtpuv7_emulator.so",
            "int tpu_kernel_init(void) { return 0; }",
        ),
    ];
    for (name, code) in emulator {
        library(place, name, code, &[])?;
    }
    runtime(place, on_open, &["-l:libcdm_daemon_emulator.so"])
}

/// The functions that the runtime must have.
fn runtime(place: &Place, on_open: &str, needs: &[&str]) -> Option<()> {
    let mut code = String::from("#include <unistd.h>\n#include <stdio.h>\n#include <stdlib.h>\n");
    for name in [
        "Init",
        "Malloc",
        "Free",
        "MemcpyD2S",
        "MemcpyS2DAsync",
        "StreamCreate",
        "StreamSynchronize",
        "EventCreate",
        "EventRecord",
        "EventQuery",
        "KernelLoadModuleFile",
        "KernelLaunchAsync",
    ] {
        code += &format!("int tpuRt{name}(void) {{ return 0; }}\n");
    }
    code += &format!("int tpuRtSetDevice(int device) {{ {on_open} return device; }}\n");
    library(place, "libtpuv7_rt.so", &code, needs)
}

fn library(place: &Place, name: &str, code: &str, more: &[&str]) -> Option<()> {
    let source = place.write(&format!("{name}.c"), code);
    let mut cc = Command::new("cc");
    cc.current_dir(place.path())
        .arg(source)
        .args(["-shared", "-fPIC", "-o", name]);
    cc.args(["-Wl,--no-as-needed", "-L.", "-Wl,-rpath,$ORIGIN"])
        .args(more);
    cc.arg(format!("-Wl,-soname,{name}"));
    match cc.status() {
        Ok(status) => assert!(status.success(), "{cc:?}"),
        Err(cause) => {
            assert!(std::env::var_os("CI").is_none(), "cc: {cause}");
            eprintln!("skipped: cc: {cause}");
            return None;
        }
    }
    Some(())
}

/// The first minutes of somebody with a chip.
#[test]
fn a_driver_is_told_from_an_emulator_and_its_kernels_are_looked_for() {
    let place = Place::new();
    if runtime(&place, "return 7;", &[]).is_none() {
        return;
    }
    let doctor = || {
        let told = doctor(&place, place.path(), &[]).with_code(1);
        told.prints("driver of unknown version in")
    };
    let name = "libbm1690_kernel_module.so";
    let vendors = tt_tpu::sdk::Sdk::cache().join("lib").join(name);
    if !vendors.exists() || std::env::var_os("TT_TPU_KERNELS").is_some() {
        assert!(std::env::var_os("CI").is_none(), "cargo xtask sdk");
        return;
    }
    fs::copy(&vendors, place.path().join(name)).unwrap();
    doctor()
        .prints("for the bm1690, with ")
        .prints("open the device: the runtime says 7");
    // One of another version.
    library(&place, name, "int tpu_poll(void) { return 0; }", &[]);
    doctor()
        .prints("the module calls what libbm1690_kernel_module.so does not define: ")
        .prints("tpu_bdc_fp_mm");
}

#[test]
fn a_runtime_that_hangs_is_named_with_what_it_said_last() {
    let place = Place::new();
    if broken_runtime(
        &place,
        r#"puts("waiting for godot"); fflush(stdout); sleep(1000);"#,
    )
    .is_some()
    {
        doctor(&place, place.path(), &[])
            .with_code(1)
            .prints("did not end within 2 s; it last said: waiting for godot");
    }
}

#[test]
fn a_runtime_that_ends_the_process_is_named_with_its_status() {
    let place = Place::new();
    if broken_runtime(&place, "_exit(233);").is_some() {
        doctor(&place, place.path(), &[]).with_code(1).prints("233");
    }
}
