//! The vendor's prebuilt kernels, launched beside ours.
//!
//! They are functions of the library that our kernels are linked against: of the emulator of a BM1690 itself, which is loaded
//! as a module when the first of them is launched, or of the vendor's module on a chip, which is there before ours.
//! Their arguments are packed structs that differ between versions, and a name that is not there does nothing and says
//! nothing. So the library must have the firmware that this program is tested with, and every name is looked up in its table
//! of symbols. What a kernel computes and for what shapes is for its caller to know: nothing comes back from one that
//! goes wrong.
//!
//! None of them is launched on a BM1684X: half of them end its emulator.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use candle_core::DType;
use object::{File, Object, ObjectSymbol};
use tt_kernels::{Chip, Target};

use crate::error::{Error, Result};
use crate::firmware::{firmware, tested_firmware};
use crate::loaded::{CopiesFolder, Place};
use crate::runtime::{Module, Runtime};
use crate::traffic::Traffic;

/// Whose kernels compute, where both have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// This program's.
    #[default]
    Own,
    /// The vendor's, for the shapes and types that they are tested for.
    Vendor,
    /// What is faster on the chip. None is measured yet, so this program's.
    Auto,
}

/// The arguments of a kernel of the vendor's, defined by [`vendor_kernels!`].
pub(crate) trait VendorKernel: bytemuck::NoUninit + Debug + Traffic {
    /// Its name in the library.
    const NAME: &'static str;
    /// The same, as C has it.
    const C_NAME: &'static CStr;
}

/// Defines argument structs. Fields lie without gaps, in the order of the vendor's packed struct; they are u64 (addresses,
/// counts), i64, u32, i32, f32 or arrays of these. All are 0 by default. A field whose name begins with `reserved` is not
/// written into the flight record. Each struct needs a [`Traffic`].
///
/// ```ignore
/// vendor_kernels! {
///     ConstFill = "tpu_kernel_api_const_fill_multi_core" {
///         out: u64, shape: [i32; 8], dims: i32, value: u32, dtype: i32,
///     }
/// }
/// impl Traffic for ConstFill {}
///
/// device.launch_vendor(ConstFill { out, dims: 1, ..ConstFill::default() })?;
/// ```
macro_rules! vendor_kernels {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal { $($(#[$field_doc:meta])* $field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C, packed)]
        #[derive(bytemuck::NoUninit, bytemuck::Zeroable, Clone, Copy)]
        pub(crate) struct $name {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        impl Default for $name {
            fn default() -> Self {
                bytemuck::Zeroable::zeroed()
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let fields: &[(&str, &dyn std::fmt::Debug)] =
                    &[$((stringify!($field), &{ self.$field })),*];
                let told = fields.iter().filter(|(name, _)| !name.starts_with("reserved"));
                told.into_iter().try_for_each(|(name, value)| write!(f, "{name}={value:?} "))
            }
        }

        impl $crate::vendor::VendorKernel for $name {
            const NAME: &'static str = $symbol;
            const C_NAME: &'static std::ffi::CStr =
                match std::ffi::CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name with a NUL"),
                };
        }
    )*};
}
pub(crate) use vendor_kernels;

/// How bare `*_multi_core` kernels and the collectives call a dtype, which is not as ours and those named `tpu_kernel_api_*` do
/// ([`launch::code`](crate::launch::code)). Error: it is not on this device.
pub(crate) fn code(dtype: DType) -> Result<i32> {
    Ok(match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::U8 => 3,
        // i64 is held as i32.
        DType::I32 | DType::I64 => 6,
        DType::U32 => 7,
        DType::BF16 => 8,
        other => return Err(Error::DType(other)),
    })
}

/// The dtype of that code, as `launch::code` has it.
pub(crate) fn as_ours(code: i32) -> u32 {
    match code {
        0 => 5,
        1 => 3,
        3 => 0,
        6 => 9,
        7 => 8,
        8 => 11,
        _ => u32::MAX,
    }
}

/// The library that has the kernels.
pub(crate) struct VendorLibrary {
    target: Target,
    path: PathBuf,
    /// Once it is loaded; that of a chip is from the beginning.
    module: Option<Module>,
    /// What it defines, once it was looked at.
    names: Option<HashSet<String>>,
    /// Where the emulator keeps copies of modules.
    copies: Option<PathBuf>,
    /// While cores may still have to load it.
    folder: Option<CopiesFolder>,
}

impl VendorLibrary {
    pub(crate) fn new(
        target: Target,
        path: PathBuf,
        module: Option<Module>,
        copies: Option<PathBuf>,
    ) -> Self {
        Self {
            target,
            path,
            module,
            names: None,
            copies,
            folder: None,
        }
    }

    /// Error: no kernel of the vendor's may be launched, and why.
    pub(crate) fn check(&mut self) -> Result<()> {
        if self.names.is_none() {
            self.names = Some(names(self.target, &self.path)?);
        }
        Ok(())
    }

    /// Finds a kernel, and loads the library if it is not.
    pub(crate) fn find(&mut self, kernel: &'static str, runtime: &dyn Runtime) -> Result<Place> {
        self.check()?;
        if !self.names.iter().any(|names| names.contains(kernel)) {
            return Err(Error::Vendor(format!(
                "{} does not define `{kernel}`",
                self.path.display()
            )));
        }
        if let Some(module) = self.module {
            let is_new = false;
            return Ok(Place { module, is_new });
        }
        self.folder = Some(CopiesFolder::make(self.copies.clone())?);
        let module = runtime.load(&self.path)?;
        self.module = Some(module);
        Ok(Place {
            module,
            is_new: true,
        })
    }

    /// To be called when a kernel of it has run on all cores.
    pub(crate) fn forget_files(&mut self) {
        self.folder = None;
    }
}

/// What a library of the vendor's defines. Error: its kernels must not be launched.
fn names(target: Target, path: &Path) -> Result<HashSet<String>> {
    let (Target::Emulator(chip) | Target::Chip(chip)) = target;
    let not = |why: String| Error::Vendor(format!("{}: {why}", path.display()));
    if chip != Chip::Bm1690 {
        return Err(Error::Vendor(format!(
            "none is admitted on a {}: half of them end its emulator",
            chip.name()
        )));
    }
    let bytes = std::fs::read(path).map_err(|cause| Error::Io {
        path: path.to_owned(),
        cause,
    })?;
    let (have, want) = (firmware(&bytes), tested_firmware(chip));
    if !have.as_ref().is_some_and(|have| have.contains(want)) {
        let have = have.map_or("no firmware".to_owned(), |it| format!("firmware {it}"));
        return Err(not(format!(
            "it has {have}, and they are tested with commit {want} alone"
        )));
    }
    let elf = File::parse(&*bytes).map_err(|cause| not(cause.to_string()))?;
    let defined = elf.dynamic_symbols().filter(|it| it.is_definition());
    Ok(defined
        .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sdk::Sdk;

    vendor_kernels! {
        Fill = "tpu_kernel_api_const_fill_multi_core" {
            out: u64,
            shape: [i32; 8],
            dims: i32,
            value: u32,
            dtype: i32,
            reserved: [u64; 2],
        }
    }
    impl Traffic for Fill {}

    #[test]
    fn arguments_lie_without_gaps_and_are_told_in_short() {
        assert_eq!(size_of::<Fill>(), 52 + 16);
        let fill = Fill {
            dims: 1,
            ..Fill::default()
        };
        assert_eq!(bytemuck::bytes_of(&fill)[40..44], [1, 0, 0, 0]);
        let told = "out=0 shape=[0, 0, 0, 0, 0, 0, 0, 0] dims=1 value=0 dtype=0 ";
        assert_eq!(format!("{fill:?}"), told);
    }

    /// The pinned version's, if it is here.
    fn emulator() -> Option<PathBuf> {
        let path = Sdk::cache().join("lib/libtpuv7_emulator.so");
        assert!(path.exists() || std::env::var_os("CI").is_none());
        path.exists().then_some(path)
    }

    #[test]
    fn the_tested_version_defines_the_kernels_and_another_is_refused() {
        let Some(path) = emulator() else { return };
        let target = Target::Emulator(Chip::Bm1690);
        let there = names(target, &path).unwrap();
        assert!(there.contains(Fill::NAME) && !there.contains("no_such_multi_core"));

        let mut bytes = std::fs::read(&path).unwrap();
        let commit = tested_firmware(Chip::Bm1690).as_bytes();
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(9).position(|it| it == commit) {
            at += found;
            bytes[at] = b'x';
        }
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other.so");
        std::fs::write(&other, bytes).unwrap();
        let told = names(target, &other).unwrap_err().to_string();
        assert!(
            told.contains("other.so") && told.contains("tested with commit 44b447769"),
            "{told}"
        );
        std::fs::write(&other, b"").unwrap();
        let told = names(target, &other).unwrap_err().to_string();
        assert!(told.contains("has no firmware"), "{told}");
    }

    #[test]
    fn none_is_launched_on_a_bm1684x() {
        let told = names(Target::Emulator(Chip::Bm1684x), Path::new("libcmodel.so"));
        let told = told.unwrap_err().to_string();
        assert!(told.contains("bm1684x"), "{told}");
    }
}
