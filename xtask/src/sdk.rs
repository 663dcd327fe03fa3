//! Installs the vendor's emulator of Sophgo TPUs for this user.
//!
//! It comes in the vendor's Python package `tpu_mlir`, of which a few libraries are taken (80 MB of 1 GB) to
//! `$XDG_CACHE_HOME/tpu-train/sophgo/<version>`. The package is fetched by pip and compared with the checksum here. The folder
//! is made aside and renamed, so it is complete once it is there, however the installation ends.
//! A machine with the vendor's driver needs only what a chip's kernels are linked against, which comes along.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

const VERSION: &str = include_str!("../../crates/tpu/SDK_VERSION");
const SHA256: &str = "542807361c9eeb0777a7bd35e501d8c71cce767e4bce021a3cb3a7c25c35f909";
/// What the runtime and the emulator load, but for the system's own libraries; and what a chip's kernels are linked against,
/// which a driver package may not have.
const FILES: [&str; 11] = [
    "libtpuv7_rt.so",
    "libcdm_daemon_emulator.so",
    "libtpuv7_emulator.so",
    "libtpuv7_scalar_emulator.so",
    "libbmlib.so",
    "libcmodel.so",
    "third_party/libdnnl.so.3",
    "third_party/libomp.so.5",
    "third_party/libgomp.so.1",
    "libbm1690_kernel_module.so",
    "libbm1684x_kernel_module.so",
];

/// Installs from `wheel`, or from the package index.
pub fn install(wheel: Option<&Path>) -> Result<()> {
    let home = folder()?;
    if is_complete(&home) {
        println!("the emulator of the TPU is in {}", home.display());
        return Ok(());
    }
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "the vendor's emulator runs on x86-64 Linux only"
    );
    let parent = home.parent().context("a cache folder")?;
    fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    // On the same disk, so that it can be renamed; removed if anything fails.
    let aside = tempfile::tempdir_in(parent).with_context(|| parent.display().to_string())?;
    let wheel = match wheel {
        Some(wheel) => wheel.to_owned(),
        None => download(aside.path())?,
    };
    verify(&wheel)?;
    let complete = aside.path().join("complete");
    unpack(&wheel, &complete)?;
    if home.exists() && !is_complete(&home) {
        // Of an earlier version of this program, which took fewer files.
        fs::rename(&home, aside.path().join("earlier"))
            .with_context(|| home.display().to_string())?;
    }
    match fs::rename(&complete, &home) {
        Ok(()) => {}
        Err(_) if is_complete(&home) => {} // another installation was quicker
        Err(cause) => return Err(cause).with_context(|| home.display().to_string()),
    }
    println!("installed the emulator of the TPU in {}", home.display());
    Ok(())
}

fn is_complete(home: &Path) -> bool {
    let mut files = FILES.iter();
    home.join("VERSION").is_file() && files.all(|file| home.join("lib").join(file).is_file())
}

/// Where it is installed.
pub fn folder() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = match (set("XDG_CACHE_HOME"), set("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => Path::new(&home).join(".cache"),
        (None, None) => bail!("neither XDG_CACHE_HOME nor HOME is set"),
    };
    Ok(cache.join("tpu-train/sophgo").join(VERSION))
}

/// Fetches the package with pip; it is for a Python that need not be here.
fn download(to: &Path) -> Result<PathBuf> {
    println!("fetching tpu_mlir {VERSION} (312 MB)");
    let status = Command::new("python3")
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .args([
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            "3.10",
        ])
        .args([
            "--implementation",
            "cp",
            "--platform",
            "manylinux2014_x86_64",
        ])
        .arg("--dest")
        .arg(to)
        .arg(format!("tpu-mlir=={VERSION}"))
        .status()
        .context("python3 with pip is needed to fetch the package")?;
    ensure!(status.success(), "pip could not fetch tpu-mlir=={VERSION}");
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    let mut files = fs::read_dir(to)?.filter_map(|entry| Some(entry.ok()?.path()));
    files.find(is_wheel).context("pip has fetched no wheel")
}

fn verify(wheel: &Path) -> Result<()> {
    let mut file = File::open(wheel).with_context(|| wheel.display().to_string())?;
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash).with_context(|| wheel.display().to_string())?;
    let have = format!("{:x}", hash.finalize());
    ensure!(
        have == SHA256,
        "{} has the checksum {have} instead of {SHA256}: it is damaged, or another version",
        wheel.display()
    );
    Ok(())
}

fn unpack(wheel: &Path, to: &Path) -> Result<()> {
    let mut archive = zip::ZipArchive::new(File::open(wheel)?)?;
    let mut take = |from: &str, to: PathBuf| -> Result<()> {
        let mut file = archive
            .by_name(from)
            .with_context(|| format!("no {from} in the package"))?;
        fs::create_dir_all(to.parent().context("a folder")?)?;
        let written = File::create(&to).and_then(|mut out| io::copy(&mut file, &mut out));
        written.with_context(|| to.display().to_string())?;
        Ok(())
    };
    for file in FILES {
        take(&format!("tpu_mlir/lib/{file}"), to.join("lib").join(file))?;
    }
    let license = format!("tpu_mlir-{VERSION}.dist-info/licenses/LICENSE");
    take(&license, to.join("LICENSE"))?;
    fs::write(to.join("VERSION"), VERSION)?;
    Ok(())
}
