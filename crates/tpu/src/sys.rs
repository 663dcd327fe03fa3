//! The vendor's libraries, loaded at run time: raw functions, nothing safe about them.
//!
//! Every status is 0 for success. A launch that fails later says nothing here: see the module `launch`.

/// Defines a struct of functions of a library, and the list of their names.
macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {
        /// The functions that are used, resolved once.
        pub(crate) struct Functions {
            $($(#[$doc])* pub(crate) $field: unsafe extern "C" fn($($arg: $ty),*) -> $ret,)*
            /// Keeps the functions where they are.
            _library: libloading::Library,
        }

        impl Functions {
            pub(crate) fn load(path: &std::path::Path) -> Result<Self, libloading::Error> {
                // SAFETY: the library's initialisers are the vendor's; loading it has no precondition of ours.
                let library = unsafe { libloading::Library::new(path) }?;
                // SAFETY: the types are those of the vendor's header for the version that was checked.
                $(let $field = *unsafe { library.get($symbol) }?;)*
                Ok(Self { $($field,)* _library: library })
            }
        }

        /// What a library must define to be this runtime.
        pub(crate) const SYMBOLS: &[&str] = &[$($symbol),*];
    };
}

pub(crate) mod bmlib;
pub(crate) mod tpuv7;

use tt_kernels::Chip;

/// What the library of a chip must define.
pub(crate) fn symbols(chip: Chip) -> &'static [&'static str] {
    match chip {
        Chip::Bm1690 => tpuv7::SYMBOLS,
        Chip::Bm1684x => bmlib::SYMBOLS,
    }
}
