//! From C files to a module.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Result, Target, at, headers};

impl Target {
    /// Compiles the `*.c` of the folder `sources` into the module `out`, beside which the stub is left.
    pub fn compile(self, compiler: &Path, sources: &Path, out: &Path) -> Result<()> {
        let header = sources.join("device.h");
        let header = fs::read_to_string(&header).map_err(at(&header))?;
        let sources = c_files(sources).map_err(at(sources))?;
        let flags = ["-Wl,--no-undefined".to_owned()];
        self.link(compiler, &header, &sources, &flags, out)
    }

    /// Compiles C files of a user's own, which include our headers, into the module `out`, with further `flags` for the
    /// compiler. What is needed for it is left beside it.
    ///
    /// They may call what our `device.h` does not declare, if they declare it: that it is there is found where the vendor's
    /// library is ([`Target::check_against`]).
    pub fn compile_own(
        self,
        compiler: &Path,
        sources: &[PathBuf],
        flags: &[String],
        out: &Path,
    ) -> Result<()> {
        // A compiler's word for a file that is not there is not of much use.
        for source in sources {
            fs::metadata(source).map_err(at(source))?;
        }
        let include = folder_of(out).join("include");
        headers::write(&include)?;
        let mut own = vec![
            format!("-I{}", include.display()),
            "-Werror=implicit-function-declaration".to_owned(),
        ];
        own.extend_from_slice(flags);
        self.link(compiler, headers::DEVICE, sources, &own, out)
    }

    /// `device` declares what the vendor's library defines.
    fn link(
        self,
        compiler: &Path,
        device: &str,
        sources: &[PathBuf],
        flags: &[String],
        out: &Path,
    ) -> Result<()> {
        let folder = folder_of(out);
        let definitions =
            declared_functions(device).map(|name| format!("int {name}() {{ return 0; }}\n"));
        let stub = folder.join(format!("{}_stub.c", self.name()));
        fs::write(&stub, definitions.collect::<String>()).map_err(at(&stub))?;

        let library = self.vendor_library();
        let mut link_stub = shared(compiler, &folder.join(library));
        run(link_stub.arg(&stub).arg(format!("-Wl,-soname,{library}")))?;
        let mut link = shared(compiler, out);
        link.args(["-Wall", "-Wextra", "-Wno-unused-function"]);
        link.args(self.defines());
        link.args(flags).args(sources).arg("-L").arg(folder);
        run(link.arg(format!("-l:{library}")).arg("-lm"))
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// Compiles a C file into a shared library of its own, for this machine.
pub fn compile_library(compiler: &Path, source: &Path, out: &Path) -> Result<()> {
    run(shared(compiler, out)
        .arg(source)
        .args(["-Wall", "-Wextra", "-ldl"]))
}

/// A call of the compiler that makes a shared library.
fn shared(compiler: &Path, out: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-O2", "-fPIC", "-shared", "-std=gnu11", "-o"]);
    command.arg(out);
    command
}

fn c_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        files.push(entry?.path());
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    files.sort(); // so that the module is the same wherever it is made
    Ok(files)
}

/// The functions that a header declares: the identifiers with the device's prefix before an opening bracket.
fn declared_functions(header: &str) -> impl Iterator<Item = &str> {
    let code = header
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    code.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("tpu_").then_some(name)
    })
}

fn run(command: &mut Command) -> Result<()> {
    let said = match command.output() {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            format!("{}\n{said}", output.status)
        }
        Err(error) => error.to_string(),
    };
    Err(Error::Command {
        command: format!("{command:?}"),
        said,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Chip;

    /// What is told of a module of one file; its text may be missing.
    fn told(name: &str, text: Option<&str>) -> String {
        let folder = std::env::temp_dir().join(format!("tt-kernels-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let source = folder.join("mine.c");
        if let Some(text) = text {
            fs::write(&source, text).unwrap();
        }
        let target = Target::Emulator(Chip::Bm1690);
        let compiler = target.compiler().unwrap();
        let compiled = target.compile_own(&compiler, &[source], &[], &folder.join("mine.so"));
        fs::remove_dir_all(&folder).unwrap();
        compiled.unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_with_a_users_file_is_told_by_its_name() {
        let missing = told("missing", None);
        assert!(missing.contains("mine.c: No such file"), "{missing}");
        let misspelt = "#include \"kernel.h\"\ntypedef struct { launch_t launch; } t;\n
            KERNEL(mine, t) { (void)a; tpu_bdc_ad(); }";
        let misspelt = told("misspelt", Some(misspelt));
        let words = ["mine.c:4", "implicit declaration of function", "tpu_bdc_ad"];
        for word in words {
            assert!(misspelt.contains(word), "{misspelt}");
        }
    }
}
