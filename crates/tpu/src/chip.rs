//! What a chip, its driver and its runtime say of themselves, for a report. Nothing of it is needed to train, and each reader
//! is optional: what does not answer is not known, and says where it was looked for.
//!
//! Sources: the files are those that the vendor's runtime library reads under `/proc/sgdrv`, and `driver_date`, which the
//! vendor's PyTorch extension reads; the kernel module is called `sgcard`; the functions are those of the vendor's
//! `tpuv7_manager.h`. The packages `tpuv7-driver` and `tpuv7-runtime` are published in pairs of one version, and the
//! runtime's is in the name of the folder that `/opt/tpuv7/tpuv7-current` leads to.

use std::ffi::{CStr, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};

use libloading::Library;
use tt_kernels::Chip;

use crate::firmware::{firmware, tested_firmware};
use crate::sdk::{Sdk, SdkKind};

const PROC: &str = "proc/sgdrv";
const KERNEL_MODULE: &str = "sys/module/sgcard/version";
const PACKAGES: &str = "var/lib/dpkg/status";
/// Room for what the runtime writes, and for more if another version of it does.
const ROOM: usize = 1024;

/// Something that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub name: &'static str,
    /// The answer; else where it was looked for.
    pub told: Result<String, String>,
}

impl Fact {
    fn new(name: &'static str, told: Option<String>, looked_in: impl Into<String>) -> Self {
        Self {
            name,
            told: told.ok_or_else(|| looked_in.into()),
        }
    }
}

/// The versions of what must work together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Of the driver that is loaded.
    pub driver: Option<String>,
    pub driver_date: Option<String>,
    /// Of the driver that is installed.
    pub driver_package: Option<String>,
    pub runtime: Option<String>,
    /// Of the vendor's kernels.
    pub firmware: Option<String>,
    /// What that should have in it.
    pub tested_firmware: &'static str,
}

impl Versions {
    /// Reads files under `root`, which is `/`.
    pub fn read(root: &Path, sdk: &Sdk, vendors: Option<&Path>) -> Self {
        let of_driver = |file| line(&root.join(PROC).join(file));
        let driver = of_driver("driver_version").or_else(|| line(&root.join(KERNEL_MODULE)));
        let packages = fs::read_to_string(root.join(PACKAGES)).unwrap_or_default();
        let of_folder = fs::canonicalize(&sdk.folder).ok();
        let of_folder = of_folder.and_then(|folder| release(&folder));
        let library = match sdk.kind {
            SdkKind::Emulator => Some(sdk.emulator()),
            SdkKind::Driver => vendors.map(Path::to_owned),
        };
        // What is emulated has none, whatever else is on the machine.
        let is_driven = sdk.kind == SdkKind::Driver;
        Self {
            driver: driver.filter(|_| is_driven),
            driver_date: of_driver("driver_date").filter(|_| is_driven),
            driver_package: package(&packages, "tpuv7-driver").filter(|_| is_driven),
            runtime: of_folder
                .or_else(|| sdk.version.clone())
                .or_else(|| line(&sdk.folder.parent()?.join("VERSION")))
                .or_else(|| package(&packages, "tpuv7-runtime")),
            firmware: library.and_then(|path| firmware(&fs::read(path).ok()?)),
            tested_firmware: match (sdk.kind, sdk.chip) {
                (SdkKind::Emulator, Chip::Bm1684x) => "", // it has none
                (_, chip) => tested_firmware(chip),
            },
        }
    }

    /// The pairs that do not fit, each with what to do.
    pub fn misfits(&self) -> Vec<String> {
        let mut misfits = Vec::new();
        let pair = |a: &Option<String>, b: &Option<String>| {
            let (a, b) = (a.clone()?, b.clone()?);
            let differ = number(&a)? != number(&b)?;
            differ.then_some((a, b))
        };
        if let Some((loaded, installed)) = pair(&self.driver, &self.driver_package) {
            misfits.push(format!(
                "the driver that is loaded is {loaded}, the package tpuv7-driver is {installed}: load the module sgcard again, \
                 or restart the machine"
            ));
        }
        let driver = self.driver_package.clone().or_else(|| self.driver.clone());
        if let Some((driver, runtime)) = pair(&driver, &self.runtime) {
            misfits.push(format!(
                "the driver is {driver}, the runtime {runtime}: the vendor publishes tpuv7-driver and tpuv7-runtime in pairs of \
                 one version"
            ));
        }
        if let Some(firmware) = &self.firmware
            && !firmware.contains(self.tested_firmware)
        {
            misfits.push(format!(
                "the vendor's kernels have firmware {firmware}, this program is tested with commit {}",
                self.tested_firmware
            ));
        }
        misfits
    }

    /// What there is, in words.
    pub fn facts(&self, sdk: &Sdk, vendors: Option<&Path>) -> Vec<Fact> {
        let vendors = vendors.map_or("no library of the vendor's kernels".to_owned(), |path| {
            path.display().to_string()
        });
        let (driver, library) = match sdk.kind {
            SdkKind::Emulator => (
                Some("none: libcdm_daemon_emulator.so stands for it".to_owned()),
                sdk.emulator().display().to_string(),
            ),
            SdkKind::Driver => {
                let date = self.driver_date.as_ref().map(|date| format!("of {date}"));
                let told: Vec<_> = self.driver.clone().into_iter().chain(date).collect();
                ((!told.is_empty()).then(|| told.join(", ")), vendors)
            }
        };
        let folder = sdk.folder.display();
        vec![
            Fact::new("firmware", self.firmware.clone(), library),
            Fact::new(
                "driver",
                driver,
                format!("/{PROC}/driver_version, /{KERNEL_MODULE}"),
            ),
            Fact::new(
                "runtime",
                self.runtime.clone(),
                format!("the name of {folder}, the package tpuv7-runtime"),
            ),
        ]
    }
}

/// What the driver says of the chips: `card0/chip0 Active 0000:01:00.0`.
pub fn of_driver(root: &Path) -> Fact {
    let mut chips = Vec::new();
    for card in folders(&root.join(PROC), "card") {
        for chip in folders(&card, "chip") {
            let names = [&card, &chip].map(|path| path.file_name().unwrap_or_default());
            let mut text = names.map(|name| name.to_string_lossy()).join("/");
            for file in ["status", "dbdf"] {
                let told = line(&chip.join(file));
                text = [text, told.unwrap_or_default()].join(" ");
            }
            chips.push(text.trim_end().to_owned());
        }
    }
    let chips = (!chips.is_empty()).then(|| chips.join(", "));
    Fact::new("chips", chips, format!("/{PROC}/card*/chip*/status"))
}

/// Whether a chip says that it is not to be used.
pub fn is_faulty(chips: &str) -> bool {
    chips.contains("FAULT")
}

/// What the emulator of a chip stands for.
pub fn of_emulator(chip: Chip) -> Vec<Fact> {
    let memory = std::env::var("CMODEL_GLOBAL_MEM_SIZE").ok();
    let memory = memory.and_then(|text| text.parse().ok());
    let memory = memory.filter(|_| chip == Chip::Bm1690);
    let memory = memory.unwrap_or(crate::DEFAULT_MEMORY_BYTES);
    let (name, cores) = (chip.name().to_uppercase(), chip.cores());
    let fact = |name, text: String| Fact::new(name, Some(text), "");
    vec![
        fact("chip", format!("{name}, emulated")),
        fact("cores", format!("{cores}, or as many as device.cores says")),
        fact(
            "memory",
            format!("{}, or as device.memory_gb says", gibibytes(memory)),
        ),
        fact("temperature", "none: there is no chip".to_owned()),
    ]
}

/// Asks the vendor's runtime about chip `chip`. To be called once the device is open, in a process that may hang.
pub fn of_runtime(sdk: &Sdk, chip: usize) -> Vec<Fact> {
    let path = sdk.runtime();
    // SAFETY: it is loaded already, and has been initialised.
    let library = unsafe { Library::new(&path) }.ok();
    let runtime = Asked {
        library: library.as_ref(),
        chip: chip as c_int,
    };
    let properties = runtime.ask("tpuRtGetDeviceProperties", true);
    let misc = runtime.ask("tpuRtGetMiscInfo", false);
    let stat = runtime.ask("tpuRtGetStat", false);
    let number = |function| runtime.ask(function, false).map(|room| int(&room));

    let name = properties.as_ref().map(|room| text(&room[..24]));
    let chip_id = misc.as_ref().map(|room| text(&room[128..144]));
    let address = misc.as_ref().map(|room| text(&room[..64]));
    let parts = [name, chip_id, address].into_iter().flatten();
    let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
    let chip = (!parts.is_empty()).then(|| parts.join(", "));

    let good = number("tpuRtGetTpuGoodNumber");
    let cores = good.map(|good| format!("{good} of {} in order", sdk.chip.cores()));
    let memory = stat.map(|room| {
        let [total, used] = [long(&room), long(&room[8..])].map(gibibytes);
        format!("{total}, {used} used")
    });
    let memory = memory.or_else(|| {
        let total = properties.as_ref().map(|room| long(&room[24..]));
        total.map(gibibytes)
    });
    let degrees = |what: &str, told: Option<i32>| told.map(|degrees| format!("{what} {degrees} C"));
    let temperatures = [
        degrees("chip", number("tpuRtGetChipTemp")),
        degrees("board", number("tpuRtGetBoardTemp")),
    ];
    let temperatures: Vec<_> = temperatures.into_iter().flatten().collect();
    let temperature = (!temperatures.is_empty()).then(|| temperatures.join(", "));
    vec![
        Fact::new("chip", chip, "tpuRtGetDeviceProperties, tpuRtGetMiscInfo"),
        Fact::new("cores", cores, "tpuRtGetTpuGoodNumber"),
        Fact::new("memory", memory, "tpuRtGetStat, tpuRtGetDeviceProperties"),
        Fact::new(
            "temperature",
            temperature,
            "tpuRtGetChipTemp, tpuRtGetBoardTemp",
        ),
    ]
}

struct Asked<'a> {
    library: Option<&'a Library>,
    chip: c_int,
}

impl Asked<'_> {
    /// What a function writes about the chip. `None`: it is not there, or does not know.
    fn ask(&self, function: &str, is_chip_last: bool) -> Option<Vec<u8>> {
        /// Aligned for all that is written there.
        #[repr(C, align(16))]
        struct Room([u8; ROOM]);
        type First = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
        type Last = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
        let mut room = Box::new(Room([0; ROOM]));
        let out = room.0.as_mut_ptr().cast::<c_void>();
        let library = self.library?;
        // SAFETY: the types are those of the vendor's header; it writes at most 144 bytes.
        let status = unsafe {
            if is_chip_last {
                (library.get::<Last>(function).ok()?)(out, self.chip)
            } else {
                (library.get::<First>(function).ok()?)(self.chip, out)
            }
        };
        (status == 0).then(|| room.0.to_vec())
    }
}

/// Up to the first NUL.
fn text(bytes: &[u8]) -> String {
    let bytes: Vec<u8> = bytes.iter().copied().chain([0]).collect();
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    text.to_string_lossy().trim().to_owned()
}

fn int(room: &[u8]) -> i32 {
    i32::from_ne_bytes(room[..4].try_into().expect("4 bytes"))
}

fn long(room: &[u8]) -> u64 {
    u64::from_ne_bytes(room[..8].try_into().expect("8 bytes"))
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// The first line of a file.
fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text
        .lines()
        .next()?
        .trim_matches(|c: char| c == '\0' || c.is_whitespace());
    (!line.is_empty()).then(|| line.to_owned())
}

/// Folders in `folder` of which the name begins so, in their order.
fn folders(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let begins = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(prefix) && path.is_dir()
    };
    let mut found: Vec<_> = entries.map(|entry| entry.path()).filter(begins).collect();
    found.sort();
    found
}

/// `1.9.3`, of `/opt/tpuv7/tpuv7-runtime_1.9.3/lib`.
fn release(folder: &Path) -> Option<String> {
    let names = folder.ancestors().filter_map(Path::file_name);
    names
        .filter_map(|name| name.to_str()?.strip_prefix("tpuv7-runtime_"))
        .map(str::to_owned)
        .next()
}

/// The version of an installed package.
fn package(status: &str, name: &str) -> Option<String> {
    let paragraph = status.split("\n\n").find(|paragraph| {
        let mut lines = paragraph.lines();
        lines.any(|line| line.strip_prefix("Package: ") == Some(name))
            && paragraph.contains("ok installed")
    })?;
    let version = paragraph
        .lines()
        .find_map(|line| line.strip_prefix("Version: "))?;
    Some(version.to_owned())
}

/// Major, minor and patch, of the first number in a text that has points in it.
fn number(version: &str) -> Option<Vec<u64>> {
    let words = version.split(|c: char| !(c.is_ascii_digit() || c == '.'));
    let of = |word: &str| -> Option<Vec<u64>> {
        let parts: Vec<u64> = word
            .split('.')
            .map_while(|part| part.parse().ok())
            .collect();
        (parts.len() >= 2).then_some(parts)
    };
    let mut parts = words.filter_map(of).next()?;
    parts.resize(3, 0);
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(driver: &str, package: &str, runtime: &str) -> Versions {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Versions {
            driver: some(driver),
            driver_package: some(package),
            runtime: some(runtime),
            ..Versions::default()
        }
    }

    #[test]
    fn the_pair_of_versions_that_does_not_fit_is_named() {
        let misfits = |driver, package, runtime| versions(driver, package, runtime).misfits();
        assert_eq!(misfits("1.7.6", "1.7.6", "1.7.6"), [""; 0]);
        assert_eq!(
            misfits("release version:1.7.6 build 3", "1.7.6-1", "1.7.6"),
            [""; 0]
        );
        let reload = misfits("1.7.5", "1.7.6", "1.7.6");
        assert!(
            reload[0].contains("1.7.5") && reload[0].contains("load the module"),
            "{reload:?}"
        );
        let other = misfits("1.7.6", "", "1.9.3");
        assert!(
            other[0].contains("1.7.6") && other[0].contains("1.9.3"),
            "{other:?}"
        );
        // What is not known fits.
        assert_eq!(misfits("", "", "1.9.3"), [""; 0]);
        assert_eq!(misfits("2025-11-11", "", "1.9.3"), [""; 0]);
    }

    #[test]
    fn the_release_is_read_from_the_folder_and_the_list_of_packages() {
        let folder = Path::new("/opt/tpuv7/tpuv7-runtime_1.9.3/lib");
        assert_eq!(release(folder).as_deref(), Some("1.9.3"));
        let list = "Package: tpuv7-driver\nStatus: deinstall ok config-files\nVersion: 1.1.3\n\n\
                    Package: tpuv7-runtime\nStatus: install ok installed\nVersion: 1.7.6\n";
        assert_eq!(package(list, "tpuv7-runtime").as_deref(), Some("1.7.6"));
        assert_eq!(package(list, "tpuv7-driver"), None);
    }
}
