//! Faults on purpose, asked for by the environment: what tests of supervision and of `diff` look for.
//!
//! `TPU_TRAIN_INJECT_FAULT` is `assert@WHEN` or `hang@WHEN`, or `skip:KERNEL`, which leaves out each launch of a kernel, as the
//! vendor's runtime does with a name that it does not know. `WHEN` is a number, before that launch of the process; or
//! else the path of a file, before the launch that finds it, which takes it away.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use crate::launch::kernels;
use crate::traffic::Traffic;

kernels! {
    /// Fails a check of the device's own.
    InjectedAssert = "injected_assert" {}
    /// Never ends.
    InjectedHang = "injected_hang" {}
}

impl Traffic for InjectedAssert {}
impl Traffic for InjectedHang {}

pub(crate) const VARIABLE: &str = "TPU_TRAIN_INJECT_FAULT";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    Assert(When),
    Hang(When),
    Skip { kernel: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Launch(u32),
    File(PathBuf),
}

impl When {
    /// Whether the fault comes before launch number `next`.
    pub(crate) fn is_due(&self, next: u32) -> bool {
        match self {
            Self::Launch(number) => *number == next,
            Self::File(path) => fs::remove_file(path).is_ok(),
        }
    }
}

impl From<&str> for When {
    fn from(text: &str) -> Self {
        match text.parse() {
            Ok(number) => Self::Launch(number),
            Err(_) => Self::File(text.into()),
        }
    }
}

impl FromStr for InjectedFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(kernel) = text.strip_prefix("skip:") {
            return Ok(Self::Skip {
                kernel: kernel.to_owned(),
            });
        }
        match text.split_once('@') {
            Some(("assert", when)) => Ok(Self::Assert(when.into())),
            Some(("hang", when)) => Ok(Self::Hang(when.into())),
            _ => Err(format!(
                "{VARIABLE}: `{text}` is not assert@WHEN, hang@WHEN or skip:KERNEL"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_its_kind_and_its_place() {
        assert_eq!("hang@40".parse(), Ok(InjectedFault::Hang(When::Launch(40))));
        let skip = InjectedFault::Skip {
            kernel: "fill".to_owned(),
        };
        assert_eq!("skip:fill".parse(), Ok(skip));
        for wrong in ["hang", "burn@1"] {
            assert!(
                wrong
                    .parse::<InjectedFault>()
                    .unwrap_err()
                    .contains(VARIABLE),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_fault_comes_at_its_launch_or_once_for_a_file() {
        let at_40 = When::from("40");
        assert!(at_40.is_due(40) && !at_40.is_due(41));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("now");
        let when = When::File(path.clone());
        assert!(!when.is_due(1));
        fs::write(path, "").unwrap();
        assert!(when.is_due(2) && !when.is_due(3));
    }
}
