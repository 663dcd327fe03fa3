//! Typed launches: an argument struct of the kernel's layout, its name, and a line on what it works on.
//!
//! Nothing comes back from a launch that goes wrong: an unknown name does nothing, a failed check ends the process, a bad
//! address hangs. So all that must hold is checked before, by who fills in the arguments (`ops`), and the size of
//! the struct when the device is opened (`module`).

use std::ffi::CStr;

use candle_core::DType;

use crate::error::{Error, Result};

/// The first field of every argument struct; filled in by the launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Header {
    /// Address of the words that kernels report in.
    pub state: u64,
    /// Address of a word of this process, where the emulator leaves the sequence number that it has begun with.
    pub started: u64,
    /// Counts launches, from 1.
    pub sequence: u32,
    pub reserved: u32,
}

/// The arguments of a kernel.
///
/// # Safety
/// The type is `#[repr(C)]`, starts with a [`Header`], and has the fields of the kernel's C struct in their order.
pub(crate) unsafe trait Kernel: Copy + std::fmt::Debug {
    /// Its name in the module.
    const NAME: &'static str;
    /// The same, as C has it.
    const C_NAME: &'static CStr;
    fn header(&mut self) -> &mut Header;
}

/// Defines argument structs. Fields are u64 (addresses, counts), i64, u32, i32 or f32, in the order of the C struct; the 64-bit
/// ones come first, so that neither side pads.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal { $($(#[$field_doc:meta])* $field:ident: $ty:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Default)]
            pub(crate) struct $name {
                pub launch: $crate::launch::Header,
                $($(#[$field_doc])* pub $field: $ty,)*
            }

            /// As short as can be, for the flight record: `y=1074397184 n=6 bits=0 dtype=5`.
            impl std::fmt::Debug for $name {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    let fields: &[(&str, &dyn std::fmt::Debug)] =
                        &[$((stringify!($field), &self.$field)),*];
                    fields.iter().try_for_each(|(name, value)| write!(f, "{name}={value:?} "))
                }
            }

            // SAFETY: repr(C), the header first; the fields are those of the C struct, which the size check at opening supports.
            unsafe impl $crate::launch::Kernel for $name {
                const NAME: &'static str = $symbol;
                const C_NAME: &'static std::ffi::CStr =
                    match std::ffi::CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name with a NUL"),
                    };

                fn header(&mut self) -> &mut $crate::launch::Header {
                    &mut self.launch
                }
            }
        )*

        /// Name and bytes of the arguments of each kernel of this family.
        pub(crate) const KERNELS: &[(&str, usize)] = &[$(($symbol, size_of::<$name>())),*];
    };
}
pub(crate) use kernels;

/// How the device's kernels call a dtype. Error: it is not on this device.
pub(crate) fn code(dtype: DType) -> Result<u32> {
    Ok(match dtype {
        DType::U8 => 0,
        DType::F16 => 3,
        DType::F32 => 5,
        DType::U32 => 8,
        // i64 is held as i32: the device has no 64-bit integers.
        DType::I32 | DType::I64 => 9,
        DType::BF16 => 11,
        other => return Err(Error::DType(other)),
    })
}
