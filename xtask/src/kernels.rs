//! Compiles the kernels of a TPU for a chip, or for the emulator, and says whether it can load them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use tt_kernels::{Chip, Target};

use crate::{root, sdk};

/// `--chip NAME [--cc COMPILER] [--out FILE]`, of ours; `--add FILE`, once or more, of a user's own, with `--flag FLAG` for the
/// compiler.
pub fn make(arguments: &[&str]) -> Result<()> {
    let (mut target, mut compiler, mut out) = (None, None, None);
    let (mut own, mut flags) = (Vec::new(), Vec::new());
    for pair in arguments.chunks(2) {
        match *pair {
            ["--chip", name] => target = Some(name.parse::<Target>()?),
            ["--cc", path] => compiler = Some(PathBuf::from(path)),
            ["--out", path] => out = Some(PathBuf::from(path)),
            ["--add", path] => own.push(PathBuf::from(path)),
            ["--flag", flag] => flags.push(flag.to_owned()),
            _ => bail!(
                "`{}`: --chip NAME, --cc COMPILER, --add FILE, --flag FLAG or --out FILE",
                pair.join(" ")
            ),
        }
    }
    let target = match target {
        Some(target) => target,
        None if !own.is_empty() => Target::Emulator(Chip::Bm1690), // where kernels are written
        None => bail!("--chip bm1690, or another"),
    };
    let compiler = compiler.map_or_else(|| target.compiler(), Ok)?;
    let stem = own.first().and_then(|path| path.file_stem());
    let stem = stem.map_or("kernels".into(), |stem| stem.to_string_lossy());
    let out = out.unwrap_or_else(|| format!("{stem}.{}.so", target.name()).into());
    // What is only needed to link it is made aside.
    let aside = tempfile::tempdir()?;
    let made = aside.path().join("kernels.so");
    if own.is_empty() {
        ensure!(
            flags.is_empty(),
            "--flag is for files of your own: --add FILE"
        );
        target.compile(&compiler, &root().join("crates/tpu/kernels"), &made)?;
    } else {
        target.compile_own(&compiler, &own, &flags, &made)?;
    }
    let bytes = fs::read(&made)?;
    let module = target.check(&bytes)?;
    let vendors = sdk::folder()?.join("lib").join(target.vendor_library());
    let verdict = match fs::read(&vendors) {
        Ok(vendor) => {
            target.check_against(&module, &vendor)?;
            format!("all defined by {}", vendors.display())
        }
        Err(_) => format!(
            "not compared: {} is not there; cargo xtask sdk",
            vendors.display()
        ),
    };
    ensure!(
        out.parent()
            .is_none_or(|it| it == Path::new("") || it.is_dir()),
        "no folder for {}",
        out.display()
    );
    fs::write(&out, bytes).with_context(|| out.display().to_string())?;
    println!(
        "{}: {} kernels for {:?}; {} functions of the device, {verdict}",
        out.display(),
        module.kernels.len(),
        target.architecture(),
        module.functions.len()
    );
    if own.is_empty() {
        println!("TT_TPU_KERNELS={} makes tpu-train load it", out.display());
    }
    for (name, bytes) in module.kernels.iter().filter(|_| !own.is_empty()) {
        println!("{name}: {bytes} bytes of arguments");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_file_becomes_a_module_of_its_kernels_for_the_emulator() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("own.so");
        let source = root().join("examples/custom_kernel/kernels/bias_gelu.c");
        let paths = [&source, &out].map(|path| path.to_str().expect("UTF-8"));
        make(&["--add", paths[0], "--out", paths[1]]).unwrap();
        let module = Target::Emulator(Chip::Bm1690)
            .check(&fs::read(&out).unwrap())
            .unwrap();
        let kernels: Vec<_> = module.kernels.keys().collect();
        assert_eq!(kernels, ["bias_gelu", "bias_gelu_backward"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let told = |arguments: &[&str]| make(arguments).unwrap_err().to_string();
        assert!(told(&["--add", "no/such.c"]).contains("no/such.c: No such file"));
        assert!(told(&["--chip", "bm1690", "--flag", "-O3"]).contains("--add FILE"));
        assert!(told(&[]).contains("--chip bm1690"));
    }
}
