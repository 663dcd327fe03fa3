//! The module of kernels that `build.rs` compiled, and what its symbol table says.
//!
//! A launch of a name that the module does not define succeeds and does nothing. So every name is looked up here, and the
//! size of its arguments compared with the host's, when the device is opened.

use std::collections::HashMap;

use object::{Object, ObjectSection, ObjectSymbol};

use crate::error::{Error, Result};

/// An ELF library; empty if the build had no C compiler.
static MODULE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.so"));
static WHY_NONE: &str = include_str!(concat!(env!("OUT_DIR"), "/why_no_kernels.txt"));

/// The library, or why this build has none.
pub(crate) fn bytes() -> Result<&'static [u8]> {
    if MODULE.is_empty() {
        return Err(Error::NoKernels(WHY_NONE.trim().to_owned()));
    }
    Ok(MODULE)
}

/// Bytes of the argument struct of every kernel that `module` defines.
///
/// A kernel `f` comes with a constant `f_args_bytes` (`kernels/kernel.h`).
pub(crate) fn kernels(module: &[u8]) -> Result<HashMap<String, usize>> {
    let bad = |what: &str| Error::Module(what.to_owned());
    let elf = object::File::parse(module).map_err(|error| Error::Module(error.to_string()))?;
    let mut sizes = HashMap::new();
    let defined: Vec<_> = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .collect();
    for symbol in &defined {
        let Some(kernel) = symbol
            .name()
            .ok()
            .and_then(|name| name.strip_suffix("_args_bytes"))
        else {
            continue;
        };
        if !defined.iter().any(|symbol| symbol.name() == Ok(kernel)) {
            return Err(Error::Module(format!("kernel `{kernel}` is not defined")));
        }
        let index = symbol
            .section_index()
            .ok_or_else(|| bad("a constant in no section"))?;
        let section = elf
            .section_by_index(index)
            .map_err(|error| Error::Module(error.to_string()))?;
        let value = section
            .data_range(symbol.address(), 4)
            .ok()
            .flatten()
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(|| bad("a constant outside of its section"))?;
        sizes.insert(kernel.to_owned(), u32::from_le_bytes(value) as usize);
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_in_the_symbol_table_with_the_size_of_their_arguments() {
        let Ok(module) = bytes() else {
            assert!(std::env::var_os("CI").is_none(), "{WHY_NONE}");
            eprintln!("skipped: {WHY_NONE}");
            return;
        };
        let kernels = kernels(module).unwrap();
        assert_eq!(kernels["injected_hang"], size_of::<crate::launch::Header>());
        assert!(!kernels.contains_key("tpu_poll"), "declared, not defined");
    }

    #[test]
    fn what_is_no_elf_file_is_an_error() {
        assert!(matches!(kernels(b"no module"), Err(Error::Module(_))));
    }
}
