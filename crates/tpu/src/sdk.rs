//! Where the vendor's libraries are.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum SdkError {
    #[error("{} is missing; `cargo xtask sdk` installs it", .0.display())]
    Missing(PathBuf),
}

/// The vendor's libraries on this machine.
pub struct Sdk {
    pub root: PathBuf,
}

impl Sdk {
    pub fn find() -> Result<Self, SdkError> {
        let root = match std::env::var_os("SOPHGO_SDK") {
            Some(root) => PathBuf::from(root),
            None => {
                let home = std::env::var_os("HOME")
                    .map(PathBuf::from)
                    .unwrap_or_default();
                home.join(".cache/tpu-train/sophgo/1.30.2")
            }
        };
        let sdk = Self { root };
        let runtime = sdk.library("libtpuv7_rt.so");
        if !runtime.is_file() {
            return Err(SdkError::Missing(runtime));
        }
        Ok(sdk)
    }

    pub fn library(&self, name: &str) -> PathBuf {
        self.root.join("lib").join(name)
    }
}
