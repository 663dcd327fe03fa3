//! The firmware in a library of the vendor's kernels, and the one that this program is tested with.

use tt_kernels::Chip;

/// Before the version, in a library that has firmware in it.
const FIRMWARE: &[u8] = b"tpu_firmware_version:";

/// Of the vendor's kernels that this program is tested with, in which the firmware is: its commit.
pub(crate) fn tested_firmware(chip: Chip) -> &'static str {
    match chip {
        Chip::Bm1690 => "44b447769",
        Chip::Bm1684x => "20075eaca",
    }
}

/// `1.0.0, branch:HEAD, minor version:7562, commit:44b447769`.
pub(crate) fn firmware(library: &[u8]) -> Option<String> {
    let found = library
        .windows(FIRMWARE.len())
        .position(|it| it == FIRMWARE)?;
    let rest = &library[found + FIRMWARE.len()..];
    let end = rest.iter().position(|byte| !(b' '..=b'~').contains(byte))?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sdk::Sdk;
    use std::fs;

    /// Of the vendor's package that tests run with.
    #[test]
    fn the_firmware_that_this_program_is_tested_with_is_the_one_it_names() {
        let folder = Sdk::cache().join("lib");
        for (library, chip) in [
            ("libtpuv7_emulator.so", Chip::Bm1690),
            ("libbm1690_kernel_module.so", Chip::Bm1690),
            ("libbm1684x_kernel_module.so", Chip::Bm1684x),
        ] {
            match fs::read(folder.join(library)) {
                Ok(bytes) => {
                    let told = firmware(&bytes).unwrap();
                    assert!(told.contains(tested_firmware(chip)), "{library}: {told}");
                }
                Err(cause) => assert!(std::env::var_os("CI").is_none(), "{library}: {cause}"),
            }
        }
    }
}
