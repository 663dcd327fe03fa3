//! The group `device`: what a run computes on.

use std::ffi::OsString;

use anyhow::Context;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tt_config::{Composition, Diagnostics};
use tt_launch::worker;
use tt_tensor::{Device, Isa};

use crate::failure::Failure;
use crate::out;
use crate::ranks;

/// What a run computes on.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DeviceConfig {
    /// The kind of device. The keys after `utilization` are about a TPU, and without effect on the CPU.
    #[serde(rename = "type")]
    pub(crate) kind: DeviceKind,
    /// Threads of the CPU's kernels; null: as `RAYON_NUM_THREADS` says, or one a core. Results are the same for any
    /// number.
    #[schemars(range(min = 1))]
    pub(crate) threads: Option<usize>,
    /// Ranks of the run, which share its batches, and its parameters as `model.sharding` says; null: as many as `ici_mesh`
    /// and `dcn_mesh` ask for. Under `mpirun` each process is one, and null takes
    /// their number; else they are threads of one process, or on TPUs processes with a chip each, which `mpirun` starts.
    /// Those on the same cores share them.
    #[schemars(range(min = 1))]
    pub(crate) ranks: Option<usize>,
    /// The instruction set of the CPU's kernels; null: as `TT_ISA` says, or the best there is. For debugging: a lesser one
    /// takes the path of processors that have no better one, and rounds products as they do.
    pub(crate) isa: Option<InstructionSet>,
    /// What the device can compute at best, in 10^12 operations a second: a number, or `auto` to measure one large product in
    /// the run's precision at its start, in a fifth of a second. Steps then report `tflops`, and as `mfu` what part of this
    /// that is; null: neither.
    pub(crate) peak_tflops: Option<PeakTflops>,
    /// What part of `peak_tflops` a rank reaches in a step, for the time that `plan` tells: as one rank alone has it, with what
    /// is run again in the backward pass counted in.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub(crate) utilization: f64,
    /// The kind of chip; null or `auto`: that whose libraries are there, a BM1690 first. Sums of products are rounded otherwise
    /// on the other one.
    pub(crate) chip: Option<ChipName>,
    /// Cores of the TPU to use; null: all. Results are the same for any number; the emulator is faster with few.
    #[schemars(range(min = 1, max = 8))]
    pub(crate) cores: Option<usize>,
    /// Memory of an emulated TPU, in GiB; null: 4. A chip has what it has.
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) memory_gb: Option<u64>,
    /// What happens to an operation that has no kernel on the TPU.
    pub(crate) fallback: Fallback,
    /// Whose kernels compute where the vendor has one, too: products of matrices, and attention in 16 bit. The results differ by
    /// rounding.
    pub(crate) kernels: KernelProvider,
    /// How kernels are given to the TPU. Results are the same, bit for bit.
    pub(crate) mode: LaunchMode,
    /// Waits after every launch, so that a failure is found at the launch that caused it. Slow.
    pub(crate) sync: bool,
    /// A single wait for the TPU that is longer than this, with no launch begun meanwhile, is a hang; null: never.
    #[schemars(range(min = 1))]
    pub(crate) timeout_seconds: Option<u64>,
    /// What follows a failure of the TPU.
    pub(crate) restart: RestartConfig,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            kind: DeviceKind::default(),
            threads: None,
            ranks: None,
            isa: None,
            peak_tflops: None,
            utilization: 1.0,
            chip: None,
            cores: None,
            memory_gb: None,
            fallback: Fallback::default(),
            kernels: KernelProvider::default(),
            mode: LaunchMode::default(),
            sync: false,
            timeout_seconds: Some(600),
            restart: RestartConfig::default(),
        }
    }
}

/// What a device can compute.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum PeakTflops {
    /// So much.
    Given(f64),
    /// What is measured.
    Measured(Measured),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measured {
    /// One large product.
    Auto,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeviceKind {
    /// The processor of this machine.
    #[default]
    Cpu,
    /// A Sophgo TPU, or the vendor's emulator of one. It works in a process of its own, under supervision.
    Tpu,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChipName {
    /// That whose libraries are there.
    Auto,
    /// BM1690 (SG2260): eight cores.
    Bm1690,
    /// BM1684X: one core. What it does otherwise is in `docs/tpu-support-bm1684x.md`.
    Bm1684x,
}

impl ChipName {
    fn chip(self) -> Option<tt_tpu::Chip> {
        match self {
            Self::Auto => None,
            Self::Bm1690 => Some(tt_tpu::Chip::Bm1690),
            Self::Bm1684x => Some(tt_tpu::Chip::Bm1684x),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum InstructionSet {
    /// What every processor of the architecture has.
    Generic,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// And AVX512-BF16.
    Avx512Bf16,
}

impl From<InstructionSet> for Isa {
    fn from(named: InstructionSet) -> Self {
        match named {
            InstructionSet::Generic => Self::Generic,
            InstructionSet::Avx2 => Self::Avx2,
            InstructionSet::Avx512 => Self::Avx512,
            InstructionSet::Avx512Bf16 => Self::Avx512Bf16,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fallback {
    /// It runs on the CPU; which ones did is said at the end.
    #[default]
    Warn,
    /// It ends the run.
    Error,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KernelProvider {
    /// This program's.
    #[default]
    Own,
    /// The vendor's, for the shapes and types that they are tested for, with the version of its library that they are tested
    /// with; for others this program's, which is said at the end. On a BM1690 alone.
    Vendor,
    /// What is faster on the chip. Until that is measured on one, this program's.
    Auto,
}

impl KernelProvider {
    fn provider(self) -> tt_tpu::Provider {
        match self {
            Self::Own => tt_tpu::Provider::Own,
            Self::Vendor => tt_tpu::Provider::Vendor,
            Self::Auto => tt_tpu::Provider::Auto,
        }
    }
}

/// What follows a failure of the TPU.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RestartConfig {
    /// How often the run goes on by itself from its last checkpoint, as long as each time there is a newer one.
    pub(crate) max: u32,
}

impl DeviceConfig {
    /// Finds keys that undo each other.
    pub(crate) fn check(&self, composition: &Composition) -> Result<(), Diagnostics> {
        const KEY: &str = "device.mode";
        if self.mode == LaunchMode::Batch && self.sync {
            let why = format!(
                "`{KEY}`: batch runs many kernels with one launch, and `device.sync` waits after each; it goes with eager"
            );
            return Err(composition.section(KEY).error(why).into());
        }
        const KERNELS: &str = "device.kernels";
        if self.kernels == KernelProvider::Vendor && self.chip == Some(ChipName::Bm1684x) {
            let why = format!(
                "`{KERNELS}`: none of the vendor's is admitted on a bm1684x, where half of them end its emulator; own"
            );
            return Err(composition.section(KERNELS).error(why).into());
        }
        Ok(())
    }

    /// Opens the device.
    pub(crate) fn device(&self) -> anyhow::Result<Device> {
        match self.kind {
            DeviceKind::Cpu => Ok(Device::Cpu),
            DeviceKind::Tpu => {
                if ranks::processes().is_some() {
                    worker::begin_alone()?;
                }
                let device = tt_tpu::TpuDevice::open(&self.tpu_options());
                Ok(Device::Tpu(device.context("device.type=tpu")?))
            }
        }
    }

    /// Opens the device of another rank than the first, which has written the group `device`.
    pub(crate) fn open_as_told(group: &str) -> Result<(), Failure> {
        let config: Self = serde_json::from_str(group).map_err(Failure::run)?;
        config.device().map(drop).map_err(Failure::Request)
    }

    /// Memory of the device, if it has its own.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        match self.kind {
            DeviceKind::Cpu => None,
            DeviceKind::Tpu => Some(
                self.memory_gb
                    .map_or(tt_tpu::DEFAULT_MEMORY_BYTES, |gb| gb << 30),
            ),
        }
    }

    /// What a process has to find in its environment that will open the device.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        tt_tpu::environment(&self.tpu_options())
    }

    fn tpu_options(&self) -> tt_tpu::Options {
        tt_tpu::Options {
            cores: self.cores,
            memory_bytes: self.memory_bytes(),
            forbid_fallback: self.fallback == Fallback::Error,
            synchronous: self.sync,
            batched: self.mode == LaunchMode::Batch,
            flight: worker::flight_record(),
            kernels: self.kernels.provider(),
            chip: self.chip.and_then(ChipName::chip),
            number: ranks::chip(),
            links: ranks::links(),
        }
    }

    /// Settles the instruction set of the kernels and makes their thread pool, for the whole process.
    pub(crate) fn start_threads(&self) -> Result<(), Failure> {
        if let Some(isa) = self.isa {
            let selected = Isa::from(isa).select().context("device.isa");
            selected.map_err(Failure::Request)?;
        }
        let Some(threads) = self.threads.or_else(share_of_cores) else {
            return Ok(()); // rayon's own choice
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build_global().map_err(Failure::run)
    }
}

/// Threads for each of several processes on the same cores; `None`: it has them for itself, or the user has said how many.
fn share_of_cores() -> Option<usize> {
    let neighbours = ranks::processes()?.neighbours();
    let is_said = std::env::var_os("RAYON_NUM_THREADS").is_some();
    let cores = std::thread::available_parallelism().ok()?;
    (!is_said && neighbours > 1).then(|| (cores.get() / neighbours).max(1))
}

/// How kernels are given to a TPU.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LaunchMode {
    /// Each at once.
    #[default]
    Eager,
    /// Up to a thousand of them with one launch, which a kernel of ours runs one after the other on the device: a step takes
    /// a few launches. Not with `device.sync`.
    Batch,
}

/// Says at the end of a run what its TPU has done, validation and samples included.
pub(crate) fn report_work(device: Device) {
    let Device::Tpu(tpu) = device else {
        return;
    };
    let stats = tpu.stats();
    out::line(format!(
        "tpu         {} kernels in {} launches; {} to the device, {} from it",
        stats.num_launches(),
        stats.submissions,
        tt_report::number::bytes(stats.uploaded_bytes),
        tt_report::number::bytes(stats.downloaded_bytes)
    ));
}

/// Says once, at the end, what has run on the CPU for want of a kernel.
pub(crate) fn report_fallbacks(device: Device) {
    let Device::Tpu(tpu) = device else {
        return;
    };
    let counts = tpu.stats().fallbacks;
    if counts.is_empty() {
        return;
    }
    let counts: Vec<_> = counts
        .iter()
        .map(|(op, count)| format!("{op} {count}"))
        .collect();
    out::error_line(format_args!(
        "warning: operations that ran on the CPU for want of a kernel, and how often: {}; device.fallback=error forbids it",
        counts.join(", ")
    ));
}

/// Says once, at the end, what this program's kernels have computed where the vendor's were asked for.
pub(crate) fn report_declined(device: Device) {
    let Device::Tpu(tpu) = device else {
        return;
    };
    let declined = tpu.stats().declined;
    if declined.is_empty() {
        return;
    }
    let counts: Vec<_> = declined
        .iter()
        .map(|((op, why), count)| format!("{op} {count} ({why})"))
        .collect();
    out::error_line(format_args!(
        "warning: operations that device.kernels=vendor left to this program's kernels, and how often: {}",
        counts.join(", ")
    ));
}
