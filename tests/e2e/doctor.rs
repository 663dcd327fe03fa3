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
    let is_well = |row: &&Value| {
        let is_unknown = row["text"]
            .as_str()
            .is_some_and(|text| text.starts_with("unknown: "));
        row["state"] == "ok" || is_unknown
    };
    assert!(tpu.iter().all(is_well), "{report:#}");
    for group in ["device", "matmul", "attention", "loss", "optimizer"] {
        let row = tpu.iter().find(|row| row["name"] == group);
        let text = row.and_then(|row| row["text"].as_str()).expect(group);
        assert!(group == "device" || text.contains(" launches"), "{text}");
    }
    for (name, part) in [
        ("chip", "BM1690, emulated"),
        ("firmware", "1.0.0"),
        ("driver", "none: "),
        ("memory", "4.0 GiB"),
        ("versions", "nothing known is against them"),
    ] {
        let row = tpu.iter().find(|row| row["name"] == name).expect(name);
        assert!(
            row["text"].as_str().is_some_and(|text| text.contains(part)),
            "{row}"
        );
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

/// The functions that the runtime must have, but for that which opens the device.
fn functions() -> String {
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
    code
}

fn runtime(place: &Place, on_open: &str, needs: &[&str]) -> Option<()> {
    let mut code = functions();
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

/// What a driver and its package leave on a machine.
fn installed(
    place: &Place,
    driver: &str,
    package: &str,
) -> Vec<(&'static str, std::path::PathBuf)> {
    let chip = "root/proc/sgdrv/card0/chip0";
    for (file, content) in [
        ("root/proc/sgdrv/driver_version", driver.to_owned()),
        ("root/proc/sgdrv/driver_date", "2025-11-11".to_owned()),
        (&format!("{chip}/status"), "Active\n".to_owned()),
        (&format!("{chip}/dbdf"), "0000:01:00.0\n".to_owned()),
        (
            "root/var/lib/dpkg/status",
            format!("Package: tpuv7-driver\nStatus: install ok installed\nVersion: {package}\n"),
        ),
    ] {
        place.write(file, &content);
    }
    vec![("TPU_TRAIN_DOCTOR_ROOT", place.path().join("root"))]
}

/// Rows of the section `tpu`: name, state, text.
fn tpu_rows(place: &Place, sdk: &Path, env: &[(&str, std::path::PathBuf)]) -> Vec<[String; 3]> {
    let mut command = place.command(&["doctor", "--json"]);
    command.env("SOPHGO_SDK", sdk);
    command.env("TPU_TRAIN_DOCTOR_TIMEOUT", "20");
    command.envs(env.iter().map(|(name, value)| (name, value)));
    let told = Running::start(command).finish();
    let report: Value = serde_json::from_str(&told.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap().iter();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.filter(|row| row["section"] == "tpu")
        .map(|row| ["name", "state", "text"].map(|key| text(row, key)))
        .collect()
}

#[track_caller]
fn assert_told(rows: &[[String; 3]], name: &str, state: &str, part: &str) {
    let is_there = |row: &[String; 3]| row[0] == name && row[1] == state && row[2].contains(part);
    assert!(
        rows.iter().any(is_there),
        "{name} {state} {part}: {rows:#?}"
    );
}

/// Files alone tell it, as the device does not open.
#[test]
fn the_versions_of_driver_and_runtime_that_do_not_fit_are_named_where_the_device_does_not_work() {
    let place = Place::new();
    if runtime(&place, "return 7;", &[]).is_none() {
        return;
    }
    // As the vendor's package installs it.
    let current = place.path().join("tpuv7-runtime_1.9.3");
    fs::create_dir(&current).unwrap();
    fs::rename(
        place.path().join("libtpuv7_rt.so"),
        current.join("libtpuv7_rt.so"),
    )
    .unwrap();
    let rows = |driver: &str, package: &str| {
        tpu_rows(&place, &current, &installed(&place, driver, package))
    };
    let other = rows("1.7.6", "1.7.6");
    assert_told(&other, "driver", "ok", "1.7.6, of 2025-11-11");
    assert_told(&other, "runtime", "ok", "1.9.3");
    assert_told(&other, "chips", "ok", "card0/chip0 Active 0000:01:00.0");
    assert_told(
        &other,
        "versions",
        "problem",
        "the driver is 1.7.6, the runtime 1.9.3",
    );
    let reload = rows("1.9.2", "1.9.3");
    assert_told(
        &reload,
        "versions",
        "problem",
        "loaded is 1.9.2, the package tpuv7-driver is 1.9.3",
    );
    let fit = rows("1.9.3", "1.9.3-1");
    assert!(
        !fit.iter().any(|row| row[2].contains("1.9.3, the runtime")),
        "{fit:#?}"
    );
    place.write("root/proc/sgdrv/card0/chip0/status", "FAULT\n");
    let root = [("TPU_TRAIN_DOCTOR_ROOT", place.path().join("root"))];
    assert_told(
        &tpu_rows(&place, &current, &root),
        "chips",
        "problem",
        "FAULT",
    );
}

/// A runtime that opens and computes nothing, which has some of the functions that tell of a chip.
const TELLING: &str = r#"
    #include <string.h>
    static char memory[1 << 22];
    static long next;
    int tpuRtMalloc(void **at, unsigned long long bytes, int n) { *at = memory + next; next += bytes; return 0; }
    int tpuRtSetDevice(int device) { return 0; }
    void *tpuRtKernelLoadModuleFile(const char *path, void *stream) { return memory; }
    int tpuRtGetDeviceProperties(char *out, int device) { strcpy(out, "MT00"); *(long *)(out + 24) = 1L << 37; return 0; }
    int tpuRtGetMiscInfo(int device, char *out) { strcpy(out, "0000:01:00.0"); strcpy(out + 128, "AKS"); return 0; }
    int tpuRtGetStat(int device, long *out) { out[0] = 1L << 36; out[1] = 1L << 30; return 0; }
    int tpuRtGetChipTemp(int device, int *out) { *out = 47; return 0; }
    int tpuRtGetBoardTemp(int device, int *out) { return 2; }
"#;

#[test]
fn what_the_runtime_tells_of_the_chip_is_shown_and_what_it_does_not_is_unknown() {
    let place = Place::new();
    let name = "libbm1690_kernel_module.so";
    let vendors = tt_tpu::sdk::Sdk::cache().join("lib").join(name);
    if !vendors.exists() || std::env::var_os("TT_TPU_KERNELS").is_some() {
        assert!(std::env::var_os("CI").is_none(), "cargo xtask sdk");
        return;
    }
    fs::copy(&vendors, place.path().join(name)).unwrap();
    let functions = functions().replace("int tpuRtMalloc(void) { return 0; }", "");
    let functions = functions.replace("int tpuRtKernelLoadModuleFile(void) { return 0; }", "");
    if library(
        &place,
        "libtpuv7_rt.so",
        &format!("{functions}{TELLING}"),
        &[],
    )
    .is_none()
    {
        return;
    }
    let rows = tpu_rows(&place, place.path(), &installed(&place, "1.9.3", "1.9.3"));
    assert_told(&rows, "device", "ok", "opened");
    assert_told(&rows, "chip", "ok", "MT00, AKS, 0000:01:00.0");
    assert_told(&rows, "firmware", "ok", "1.0.0");
    assert_told(&rows, "memory", "ok", "64.0 GiB, 1.0 GiB used");
    assert_told(&rows, "temperature", "ok", "chip 47 C");
    // Without the function that tells it.
    assert_told(
        &rows,
        "cores",
        "missing",
        "unknown: not told by tpuRtGetTpuGoodNumber",
    );
    assert_told(&rows, "runtime", "missing", "unknown: not in the name of");
    // It computes nothing.
    assert_told(&rows, "matmul", "problem", "");
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
