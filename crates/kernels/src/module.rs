//! What a module must be for a device to load it: checked in its file, as nothing comes back from a device that cannot.

use std::collections::{BTreeMap, BTreeSet};

use object::read::elf::ProgramHeader;
use object::{File, Object, ObjectSection, ObjectSymbol, elf};

use crate::{Error, Result, Target};

/// The smallest page of the systems that load modules.
const PAGE_BYTES: u64 = 4096;
/// What a C compiler makes use of by itself, and every loader has.
const OF_THE_LOADER: [&str; 5] = [
    "_ITM_deregisterTMCloneTable",
    "_ITM_registerTMCloneTable",
    "__cxa_finalize",
    "__gmon_start__",
    "__stack_chk_fail",
];
/// Of libc and libm, whose functions the vendor's libraries need too. A version of them is no part of the name.
const OF_LIBC: [&str; 3] = ["memcpy", "memset", "memmove"];

/// A module that a device of the target can load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The kernels that it defines, and the bytes of the arguments of each.
    pub kernels: BTreeMap<String, usize>,
    /// Those that `batch` runs, in the order of its list; none in a module without one, as a user's is.
    pub batched: Vec<String>,
    /// The device's functions that it calls.
    pub functions: BTreeSet<String>,
}

impl Target {
    /// The module in a file. Errors: it is no ELF library for the target's cores, its segments are not aligned to pages, it
    /// calls anything of a chip's system but copying memory, or has a kernel without the
    /// size of its arguments.
    pub fn check(self, file: &[u8]) -> Result<Module> {
        let elf = parse(file)?;
        let (have, want) = (elf.architecture(), self.architecture());
        if have != want {
            return Err(unfit(format!(
                "is for {have:?}, and {} is {want:?}",
                self.name()
            )));
        }
        check_alignment(&elf)?;
        // The emulator runs it in the host's process, where all of libc is.
        let has_libc = matches!(self, Self::Emulator(_));
        let undefined = elf.dynamic_symbols().filter(|symbol| symbol.is_undefined());
        let mut functions = BTreeSet::new();
        for symbol in undefined {
            let name = symbol.name().unwrap_or_default();
            if name.starts_with("tpu_") {
                functions.insert(name.to_owned());
            } else if !has_libc
                && !name.is_empty()
                && !OF_THE_LOADER.contains(&name)
                && !OF_LIBC.contains(&name)
            {
                return Err(unfit(format!(
                    "calls `{name}`, which is no function of the device"
                )));
            }
        }
        let kernels = kernels(&elf)?;
        if kernels.is_empty() {
            return Err(unfit("has no kernels".to_owned()));
        }
        Ok(Module {
            batched: batched(&elf),
            kernels,
            functions,
        })
    }

    /// Whether the vendor's library, of these bytes, defines all that the module calls. Error: what it does not.
    pub fn check_against(self, module: &Module, vendor: &[u8]) -> Result<()> {
        let elf = parse(vendor)?;
        let defined = elf
            .dynamic_symbols()
            .filter(|symbol| symbol.is_definition());
        let defined: BTreeSet<&str> = defined.filter_map(|symbol| symbol.name().ok()).collect();
        let is_missing = |name: &&String| !defined.contains(name.as_str());
        let missing: Vec<&str> = module
            .functions
            .iter()
            .filter(is_missing)
            .map(String::as_str)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(unfit(format!(
            "calls what {} does not define: {}",
            self.vendor_library(),
            missing.join(", ")
        )))
    }
}

fn unfit(why: String) -> Error {
    Error::Unfit(why)
}

fn parse(file: &[u8]) -> Result<File<'_>> {
    File::parse(file).map_err(|error| unfit(format!("cannot be read: {error}")))
}

fn check_alignment(elf: &File<'_>) -> Result<()> {
    let File::Elf64(elf) = elf else {
        return Err(unfit("is no 64-bit ELF file".to_owned()));
    };
    let endian = elf.endian();
    let loaded = elf
        .elf_program_headers()
        .iter()
        .filter(|it| it.p_type(endian) == elf::PT_LOAD);
    for segment in loaded {
        let (align, address, offset) = (
            segment.p_align(endian),
            segment.p_vaddr(endian),
            segment.p_offset(endian),
        );
        if align < PAGE_BYTES || address % align != offset % align {
            return Err(unfit(format!(
                "has a segment at {address:#x} that is not aligned to pages ({align:#x}, at {offset:#x} of the file)"
            )));
        }
    }
    Ok(())
}

/// A kernel `f` comes with a constant `f_args_bytes`: the size of its arguments (`kernel.h`).
fn kernels(elf: &File<'_>) -> Result<BTreeMap<String, usize>> {
    let defined: Vec<_> = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .collect();
    let is_defined = |name: &str| defined.iter().any(|symbol| symbol.name() == Ok(name));
    let mut kernels = BTreeMap::new();
    for symbol in &defined {
        let name = symbol.name().unwrap_or_default();
        let Some(kernel) = name.strip_suffix("_args_bytes") else {
            continue;
        };
        if !is_defined(kernel) {
            return Err(unfit(format!(
                "has the arguments of `{kernel}` and no such kernel"
            )));
        }
        let section = symbol
            .section_index()
            .and_then(|index| elf.section_by_index(index).ok());
        let bytes = section.and_then(|it| it.data_range(symbol.address(), 4).ok().flatten());
        let bytes: Option<[u8; 4]> = bytes.and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or_else(|| unfit(format!("has no constant in `{name}`")))?;
        kernels.insert(kernel.to_owned(), u32::from_le_bytes(bytes) as usize);
    }
    Ok(kernels)
}

/// The list of `batch.c`: names, each with a semicolon after it.
fn batched(elf: &File<'_>) -> Vec<String> {
    let mut symbols = elf.dynamic_symbols();
    let Some(symbol) = symbols.find(|symbol| symbol.name() == Ok("batch_kernels")) else {
        return Vec::new();
    };
    let section = symbol
        .section_index()
        .and_then(|index| elf.section_by_index(index).ok());
    let text = section.and_then(|it| {
        it.data_range(symbol.address(), symbol.size())
            .ok()
            .flatten()
    });
    let text = text
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
        .unwrap_or_default();
    let names = text.trim_end_matches('\0').split_terminator(';');
    names.map(str::to_owned).collect()
}
