//! The headers that a kernel includes, carried along, so that kernels are compiled where this project's sources are not.

use std::fs;
use std::path::Path;

use crate::{Result, at};

/// What the device offers.
pub(crate) const DEVICE: &str = include_str!("../../tpu/kernels/device.h");

const HEADERS: [(&str, &str); 7] = [
    ("device.h", DEVICE),
    ("counts.h", include_str!("../../tpu/kernels/counts.h")),
    ("checks.h", include_str!("../../tpu/kernels/checks.h")),
    ("kernel.h", include_str!("../../tpu/kernels/kernel.h")),
    ("tiles.h", include_str!("../../tpu/kernels/tiles.h")),
    ("rows.h", include_str!("../../tpu/kernels/rows.h")),
    ("functions.h", include_str!("../../tpu/kernels/functions.h")),
];

/// Writes them into `folder`, which is made.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let write = || {
        fs::create_dir_all(folder)?;
        HEADERS
            .iter()
            .try_for_each(|(name, text)| fs::write(folder.join(name), text))
    };
    write().map_err(at(folder))
}
