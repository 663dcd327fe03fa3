//! Compiles `configs/` into the binary: a table of (path inside `configs/`, text), sorted by path.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("configs");
    // A folder stands for everything in it, so a new file also rebuilds the table.
    println!("cargo::rerun-if-changed={}", root.display());

    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();

    let mut table = String::from("&[\n");
    for file in &files {
        let name = file.strip_prefix(&root).expect("found below it");
        let name = name.to_str().expect("UTF-8 file names").replace('\\', "/");
        writeln!(table, "    ({name:?}, include_str!({file:?})),").expect("into a string");
    }
    table.push_str("]\n");
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    fs::write(out.join("configs.rs"), table)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "yaml" || e == "toml") {
            files.push(path);
        }
    }
    Ok(())
}
