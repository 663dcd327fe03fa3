//! Which instruction set the kernels use: the best of this processor, or a lesser one that was asked for, by
//! [`Isa::select`] or the environment variable [`VARIABLE`].
//!
//! A process has one, settled when it is first needed. Asking for a lesser one takes the very path that a processor
//! without the better ones takes: in every kernel, in how products are cut, and so in every bit.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The environment variable that names the instruction set.
pub const VARIABLE: &str = "TT_ISA";

/// An instruction set that kernels are made for, each with all that is before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What every processor of the architecture has: SSE2, or NEON on aarch64.
    Generic,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// And AVX512-BF16.
    Avx512Bf16,
}

/// Why an instruction set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IsaError {
    #[error("unknown instruction set `{0}`: one of {all}; this processor has {has}", all = names(&Isa::ALL), has = names(&Isa::available()))]
    Unknown(String),
    #[error("this processor does not have the instruction set `{0}`; it has {has}", has = names(&Isa::available()))]
    Unavailable(Isa),
    #[error("the instruction set `{0}` comes too late: `{1}` is in use")]
    InUse(Isa, Isa),
    #[error("{VARIABLE}: {0}")]
    Environment(Box<IsaError>),
}

impl Isa {
    pub const ALL: [Self; 4] = [Self::Generic, Self::Avx2, Self::Avx512, Self::Avx512Bf16];

    pub fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512bf16",
        }
    }

    /// Those that this processor has, the best last.
    pub fn available() -> Vec<Self> {
        let best = Self::best();
        Self::ALL.into_iter().filter(|isa| *isa <= best).collect()
    }

    /// The best that this processor has. AVX2 without FMA is generic: no processor that is still in use has only that.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if !(has!("avx2") && has!("fma")) {
                return Self::Generic;
            }
            if !(has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl")) {
                return Self::Avx2;
            }
            if !has!("avx512bf16") {
                return Self::Avx512;
            }
            Self::Avx512Bf16
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::Generic
    }

    /// What [`VARIABLE`] asks for, if it is set.
    pub fn from_environment() -> Result<Option<Self>, IsaError> {
        let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let asked = value.to_string_lossy().parse().and_then(Self::check);
        asked
            .map(Some)
            .map_err(|error| IsaError::Environment(Box::new(error)))
    }

    /// Makes this the one that kernels use, whatever [`VARIABLE`] says. Before the first kernel runs.
    pub fn select(self) -> Result<(), IsaError> {
        let asked = self.check()?;
        let in_use = *IN_USE.get_or_init(|| asked);
        if in_use == asked {
            Ok(())
        } else {
            Err(IsaError::InUse(asked, in_use))
        }
    }

    fn check(self) -> Result<Self, IsaError> {
        if self <= Self::best() {
            Ok(self)
        } else {
            Err(IsaError::Unavailable(self))
        }
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Self, IsaError> {
        let found = Self::ALL.into_iter().find(|isa| isa.name() == name);
        found.ok_or_else(|| IsaError::Unknown(name.to_owned()))
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn names(all: &[Isa]) -> String {
    let names: Vec<_> = all.iter().map(|isa| isa.name()).collect();
    names.join(", ")
}

static IN_USE: OnceLock<Isa> = OnceLock::new();

/// The instruction set that kernels use. Panics if [`VARIABLE`] asks for one that there is not: a program asks
/// [`Isa::from_environment`] first.
pub(crate) fn in_use() -> Isa {
    #[cfg(test)]
    if let Some(isa) = tests::FORCED.get() {
        return isa;
    }
    *IN_USE.get_or_init(|| match Isa::from_environment() {
        Ok(asked) => asked.unwrap_or_else(Isa::best),
        Err(error) => panic!("{error}"),
    })
}

/// The name of the instruction set that the kernels use. Results are the same bits for any number of threads, but
/// may differ between instruction sets.
pub fn isa() -> &'static str {
    match in_use() {
        Isa::Generic if cfg!(target_arch = "aarch64") => "neon",
        isa => isa.name(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        pub(super) static FORCED: Cell<Option<Isa>> = const { Cell::new(None) };
    }

    /// Runs `f` once for every instruction set of this processor; it must stay on this thread.
    pub(crate) fn on_each_isa<R>(f: impl Fn() -> R) -> Vec<R> {
        forced_in_turn(Isa::available(), f)
    }

    /// Runs `f` once for every instruction set there is, of this processor or not; it may ask how work is cut, but run none.
    pub(crate) fn with_cuts_of_each_isa<R>(f: impl Fn() -> R) -> Vec<R> {
        forced_in_turn(Isa::ALL, f)
    }

    fn forced_in_turn<R>(isas: impl IntoIterator<Item = Isa>, f: impl Fn() -> R) -> Vec<R> {
        let on = |isa| {
            force(isa);
            f()
        };
        let results = isas.into_iter().map(on).collect();
        FORCED.set(None);
        results
    }

    /// Makes it the one that this thread uses.
    pub(crate) fn force(isa: Isa) {
        FORCED.set(Some(isa));
    }

    #[test]
    fn names_are_read_back_and_others_are_refused_with_the_names_there_are() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse::<Isa>().unwrap(), isa);
        }
        let error = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert!(error.contains("`sse9`"), "{error}");
        assert!(
            error.contains("generic, avx2, avx512, avx512bf16"),
            "{error}"
        );
        assert!(error.contains("this processor has generic"), "{error}");
    }

    #[test]
    fn the_generic_path_is_on_every_processor_and_the_best_is_the_last() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::Generic));
        assert_eq!(available.last(), Some(&Isa::best()));
    }
}
