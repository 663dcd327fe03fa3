//! Typed launches: an argument struct of the kernel's layout, its name, and a line on what it works on.
//!
//! Nothing comes back from a launch that goes wrong: an unknown name does nothing, a failed check ends the process, a bad
//! address hangs. So all that must hold is checked before, by who fills in the arguments (`ops`), and the size of
//! the struct when the device is opened (`module`), or before the first launch from a module of a user's (`loaded`).

use std::ffi::CStr;

use candle_core::DType;

use crate::error::{Error, Result};
use crate::own_module::OwnModule;
use crate::traffic::Traffic;

/// The first field of every argument struct; filled in by the launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Header {
    /// Address of the words that kernels report in.
    pub(crate) state: u64,
    /// Address of a word of this process, where the emulator leaves the sequence number that it has begun with.
    pub(crate) started: u64,
    /// Counts launches, from 1.
    pub(crate) sequence: u32,
    pub(crate) reserved: u32,
}

/// The arguments of a kernel, defined by [`kernels!`](crate::kernels).
///
/// # Safety
/// The type is `#[repr(C)]`, starts with a [`Header`], has the fields of the kernel's C struct in their order, and no padding.
pub unsafe trait Kernel: Copy + std::fmt::Debug + Traffic {
    /// Its name in the module.
    const NAME: &'static str;
    /// The same, as C has it.
    const C_NAME: &'static CStr;
    /// The module that has it; `None`: ours.
    fn module() -> Option<&'static OwnModule>;
    /// To be filled in by the launch.
    fn header(&mut self) -> &mut Header;
}

/// Defines argument structs. Fields are u64 (addresses, counts), i64, u32, i32, f32 or arrays of these, in the order of the C
/// struct; the 64-bit ones come first and the 32-bit ones are even in number, so that neither side pads: what would is not
/// compiled.
///
/// Kernels of a module of a user's own begin with its name, a `static` [`OwnModule`]:
///
/// ```
/// use tt_tpu::{OwnModule, TpuDevice, kernels};
///
/// static MODULE: std::sync::LazyLock<OwnModule> = std::sync::LazyLock::new(|| OwnModule::file("mine.so"));
///
/// kernels! {
///     in MODULE;
///     /// `y = x * by`, for `n` f32 at the addresses `x` and `y`.
///     Times = "times" { x: u64, y: u64, n: u64, by: f32, reserved: u32 }
/// }
///
/// fn times(tpu: TpuDevice, x: u64, y: u64, n: u64, by: f32) -> tt_tpu::Result<()> {
///     tpu.launch(Times { x, y, n, by, ..Times::default() })
/// }
/// ```
///
/// Not so, where C would fill up the last eight bytes:
///
/// ```compile_fail,E0080
/// # use tt_tpu::{OwnModule, kernels};
/// # static MODULE: std::sync::LazyLock<OwnModule> = std::sync::LazyLock::new(|| OwnModule::file("mine.so"));
/// kernels! { in MODULE; Times = "times" { x: u64, by: f32 } }
/// ```
#[macro_export]
macro_rules! kernels {
    (@define $module:expr; $($(#[$doc:meta])* $name:ident = $symbol:literal { $($(#[$field_doc:meta])* $field:ident: $ty:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Default)]
            pub(crate) struct $name {
                pub launch: $crate::Header,
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

            const _: () = {
                const fn is_plain<T: $crate::NoUninit>() {}
                is_plain::<u64>();
                $(is_plain::<$ty>();)*
                assert!(
                    size_of::<$name>() == size_of::<$crate::Header>() $(+ size_of::<$ty>())*,
                    "arguments with a gap: the 64-bit fields first, an even number of 32-bit ones (`reserved: u32` is one)"
                );
            };

            // SAFETY: repr(C), the header first, no gap; the fields are those of the C struct, which the comparison of sizes
            // before the first launch supports.
            unsafe impl $crate::Kernel for $name {
                const NAME: &'static str = $symbol;
                const C_NAME: &'static std::ffi::CStr =
                    match std::ffi::CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name with a NUL"),
                    };

                fn module() -> Option<&'static $crate::OwnModule> {
                    $module
                }

                fn header(&mut self) -> &mut $crate::Header {
                    &mut self.launch
                }
            }
        )*
    };
    (in $module:ident; $($(#[$doc:meta])* $name:ident = $symbol:literal { $($fields:tt)* })*) => {
        $crate::kernels! { @define Some(&$module); $($(#[$doc])* $name = $symbol { $($fields)* })* }
        $(impl $crate::traffic::Traffic for $name {})*
    };
    ($($(#[$doc:meta])* $name:ident = $symbol:literal { $($fields:tt)* })*) => {
        $crate::kernels! { @define None; $($(#[$doc])* $name = $symbol { $($fields)* })* }

        /// Name and bytes of the arguments of each kernel of this family.
        pub(crate) const KERNELS: &[(&str, usize)] = &[$(($symbol, size_of::<$name>())),*];
    };
}
pub(crate) use kernels;

/// How the device's kernels call a dtype (`data_type_t` in C). Error: it is not on this device.
pub fn code(dtype: DType) -> Result<u32> {
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
