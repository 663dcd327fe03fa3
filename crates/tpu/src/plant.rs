//! Faults on purpose, asked for by the environment: what tests of supervision and of `diff` look for.
//!
//! `TPU_TRAIN_PLANT` is `assert@N` or `hang@N`, before launch `N` of the process, or `skip:KERNEL`, which leaves out each launch of
//! a kernel, as the vendor's runtime does with a name that it does not know.

use std::str::FromStr;

use crate::launch::kernels;

kernels! {
    /// Fails a check of the device's own.
    PlantedAssert = "planted_assert" {}
    /// Never ends.
    PlantedHang = "planted_hang" {}
}

pub(crate) const VARIABLE: &str = "TPU_TRAIN_PLANT";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    Assert { before: u32 },
    Hang { before: u32 },
    Skip { kernel: String },
}

impl FromStr for Plant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.parse()
                .map_err(|_| format!("{VARIABLE}: `{text}` is no number"))
        };
        if let Some(kernel) = text.strip_prefix("skip:") {
            return Ok(Self::Skip {
                kernel: kernel.to_owned(),
            });
        }
        match text.split_once('@') {
            Some(("assert", launch)) => Ok(Self::Assert {
                before: number(launch)?,
            }),
            Some(("hang", launch)) => Ok(Self::Hang {
                before: number(launch)?,
            }),
            _ => Err(format!(
                "{VARIABLE}: `{text}` is not assert@N, hang@N or skip:KERNEL"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plant_is_a_fault_and_its_place() {
        assert_eq!("hang@40".parse(), Ok(Plant::Hang { before: 40 }));
        assert_eq!(
            "skip:fill".parse(),
            Ok(Plant::Skip {
                kernel: "fill".to_owned()
            })
        );
        for wrong in ["hang", "hang@soon", "burn@1"] {
            assert!(
                wrong.parse::<Plant>().unwrap_err().contains(VARIABLE),
                "{wrong}"
            );
        }
    }
}
