//! Opening the device: the vendor's libraries, what they read from the environment, our kernels, the first launch.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use candle_core::DType;
use tt_kernels::{Chip, Target};

use super::{Inner, PAGE_BYTES, STATE_WORDS, State, Stats, TpuDevice};
use crate::batch::Batch;
use crate::collectives::Links;
use crate::error::{Error, Result};
use crate::exit;
use crate::fault_injection;
use crate::flight::{FlightRecord, Wait};
use crate::launch::code;
use crate::loaded::{Host, OwnModules};
use crate::module::Kernels;
use crate::ops::fill::Fill;
use crate::sdk::{Sdk, SdkKind};
use crate::vendor::{Provider, VendorLibrary};
use crate::{pollers, runtime};

/// The variable that names the folder of the emulator's files to it; ours is made inside. The spelling is the vendor's.
pub const EMULATOR_FOLDER: &str = "TPU_SCALAER_EMULATOR_WORKDIR";
/// Memory of an emulated device if nothing else is said: the vendor's choice.
pub const DEFAULT_MEMORY_BYTES: u64 = 4 << 30;
/// The emulator hands out addresses from here on, as many as it has memory in all. So this much of them, at the end, is not
/// there, and whoever touches it crashes.
const FIRST_ADDRESS: u64 = 1 << 30;
const EMULATED_BYTES: &str = "CMODEL_GLOBAL_MEM_SIZE";

/// What the emulator takes for the number of chips that it waits for, and for the place of its own.
const SIZES: [&str; 2] = ["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"];
const RANKS: [&str; 2] = ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"];
/// Where emulators find each other. Without it, in files of the working folder.
const MEETING_PLACE: &str = "CMODEL_DIST_ADDRS";

/// How to open the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Cores to use of the emulator; `None`: all eight. Results are the same for any number.
    pub cores: Option<usize>,
    /// Memory of the emulated device; `None`: [`DEFAULT_MEMORY_BYTES`].
    pub memory_bytes: Option<u64>,
    /// What has no kernel is an error, instead of running on the CPU.
    pub forbid_fallback: bool,
    /// Wait after every launch, to tell which one fails.
    pub synchronous: bool,
    /// Collect kernels and run many with one launch; results are the same. Not where each is waited for.
    pub batched: bool,
    /// Where to keep a [flight record](crate::flight), if at all.
    pub flight: Option<PathBuf>,
    /// Whose kernels compute, where both have one.
    pub kernels: Provider,
    /// The kind of chip; `None`: that whose libraries are there.
    pub chip: Option<Chip>,
    /// Which of the machine's chips to take, from 0. Each process has an emulator of its own, with one chip.
    pub number: usize,
    /// The chips that this one works together with; `None`: it is alone.
    pub links: Option<Links>,
}

static DEVICE: OnceLock<Inner> = OnceLock::new();
static OPENING: Mutex<()> = Mutex::new(());

impl TpuDevice {
    /// Opens the device, or returns it if it is open with the same options.
    pub fn open(options: &Options) -> Result<Self> {
        let _one_at_a_time = OPENING
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(inner) = DEVICE.get() {
            if inner.options != *options {
                return Err(Error::AlreadyOpen);
            }
            return Ok(Self(inner));
        }
        // Where the emulator keeps copies of the module, a core one, which it never removes.
        let parent = std::env::var_os(EMULATOR_FOLDER).map(PathBuf::from);
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let workdir = tempfile::Builder::new()
            .prefix("tpu-train-device-")
            .tempdir_in(&parent);
        let workdir = workdir.map_err(|cause| Error::Io {
            path: parent,
            cause,
        })?;
        let inner = Inner::open(options, workdir.path())?;
        let device = Self(DEVICE.get_or_init(|| inner));
        device.clear_words()?;
        exit::skip_the_vendors_handlers();
        // Every core has run a kernel, so each has loaded its copy, and no file is needed any more.
        Ok(device)
    }

    fn clear_words(self) -> Result<()> {
        let mut state = self.lock();
        let words = Fill {
            y: state.words,
            n: STATE_WORDS as u64,
            dtype: code(DType::U32)?,
            ..Fill::default()
        };
        self.enqueue(&mut state, words)?;
        // What the words say now is what was in memory before; the next wait reads them again.
        let _ = state.wait(&*self.0.runtime);
        state.sequence = 0;
        state.flight.done(0);
        state.stats = Stats::default();
        Ok(())
    }
}

impl Inner {
    fn open(options: &Options, workdir: &Path) -> Result<Self> {
        let injected = std::env::var(fault_injection::VARIABLE).ok();
        let injected = injected
            .map(|text| text.parse())
            .transpose()
            .map_err(Error::InjectedFault)?;
        let sdk = Sdk::find(options.chip)?;
        if let Some(links) = options.links {
            Links::check(links.size)?;
            if sdk.chip != Chip::Bm1690 {
                let why = format!("a {} has no links to other chips", sdk.chip.name());
                return Err(Error::Operand(why));
            }
        }
        let kernels = Kernels::find(&sdk)?;
        set_environment(options, workdir);
        let path = workdir.join("kernels.so");
        std::fs::write(&path, &kernels.module).map_err(|cause| Error::Io {
            path: path.clone(),
            cause,
        })?;

        let flight = match &options.flight {
            Some(path) => FlightRecord::create(path).map_err(|cause| Error::Io {
                path: path.clone(),
                cause,
            })?,
            None => FlightRecord::off(),
        };
        let flight = Arc::new(flight);
        let opening = flight.waiting(Wait::Opening);
        if kernels.target == Target::Emulator(Chip::Bm1690) {
            pollers::let_rest(workdir);
        }
        let number = match sdk.kind {
            SdkKind::Emulator => options.links.map_or(0, |links| links.rank),
            SdkKind::Driver => options.number,
        };
        let runtime = runtime::open(&sdk, number, &path, room(&sdk, options)?)?;
        // First: ours is linked against it, and the loader finds by its name what is there already.
        let vendors = kernels.vendors.as_deref();
        let vendors_module = vendors.map(|path| runtime.load(path)).transpose()?;
        let module = runtime.load(&path)?;
        drop(opening);
        let vendors = kernels.vendors.unwrap_or_else(|| sdk.emulator());
        let copies = std::env::var_os(EMULATOR_FOLDER).map(PathBuf::from);
        let mut state = State {
            flight,
            module,
            vendor: VendorLibrary::new(
                kernels.target,
                vendors.clone(),
                vendors_module,
                copies.clone(),
            ),
            provider: options.kernels,
            own_modules: OwnModules::new(Host {
                target: kernels.target,
                vendors,
                ours: kernels.names,
                copies,
            }),
            free: HashMap::new(),
            words: 0,
            sequence: 0,
            queued: Vec::new(),
            batch: (options.batched && !options.synchronous).then(|| Batch::new(&kernels.batched)),
            batches: Vec::new(),
            trace: None,
            idle_lists: Vec::new(),
            staging: Vec::new(),
            staged_bytes: 0,
            stats: Stats::default(),
        };
        if options.kernels == Provider::Vendor || options.links.is_some() {
            state.vendor.check()?;
        }
        state.words = state.alloc(&*runtime, PAGE_BYTES)?;
        Ok(Self {
            runtime,
            options: options.clone(),
            injected,
            state: Mutex::new(state),
        })
    }
}

/// What the emulator reads from the environment, without what is there already. A driver for a chip does not look at it. To be
/// given to a process that will open the device: in a process with threads nothing may change its environment.
///
/// Empty without libraries, which whoever opens the device will find out.
pub fn environment(options: &Options) -> Vec<(&'static str, OsString)> {
    let Ok(sdk) = Sdk::find(options.chip) else {
        return Vec::new();
    };
    if sdk.target() != Target::Emulator(Chip::Bm1690) {
        return Vec::new();
    }
    let scalar_emulator = sdk.scalar_emulator();
    let memory_bytes = options.memory_bytes.unwrap_or(DEFAULT_MEMORY_BYTES);
    let emulated = memory_bytes.saturating_add(FIRST_ADDRESS);
    // Each core has a team of OpenMP threads, as many as the machine has cores, that spin when they have nothing to do and take
    // the time from one another. Together they are as many as the machine has, and they sleep.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let a_team = threads / options.cores.unwrap_or(sdk.chip.cores()).max(1);
    let mut variables = vec![
        ("TPU_EMULATOR_PATH", sdk.emulator().into_os_string()),
        ("TPU_SCALAR_EMULATOR_PATH", scalar_emulator.into_os_string()),
        // Products of 16-bit numbers through oneDNN, 15 to 40 times as fast; long sums are rounded otherwise.
        ("CMODEL_FAST_EXEC", "1".into()),
        ("OMP_NUM_THREADS", a_team.max(1).to_string().into()),
        ("OMP_WAIT_POLICY", "passive".into()),
        (EMULATED_BYTES, emulated.to_string().into()),
    ];
    let cores = options.cores.map(|cores| cores.to_string().into());
    variables.extend(cores.map(|cores| ("TPU_RT_CORE_NUM", cores)));
    variables.retain(|(name, _)| std::env::var_os(name).is_none());
    variables
}

/// Sets what is missing of that: in a process that opens the device without having been started for it.
fn set_environment(options: &Options, workdir: &Path) {
    let mut variables = environment(options);
    // Each process has an emulator of its own, with one chip. By what launchers say of processes it would wait for theirs.
    let (rank, size) = options.links.map_or((0, 1), |it| (it.rank, it.size));
    variables.extend(SIZES.map(|name| (name, size.to_string().into())));
    variables.extend(RANKS.map(|name| (name, rank.to_string().into())));
    variables.extend(
        options
            .links
            .map(|links| (MEETING_PLACE, links.address.to_string().into())),
    );
    if std::env::var_os(EMULATOR_FOLDER).is_none() {
        variables.push((EMULATOR_FOLDER, workdir.into()));
    }
    for (name, value) in variables {
        // SAFETY: once a process, before the vendor's library is loaded; Rust's own readers take a lock, and nobody else is
        // known to read while threads are at work.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Memory of an emulated device as its runtime counts it. Error: more than there can be.
fn room(sdk: &Sdk, options: &Options) -> Result<u64> {
    if sdk.chip == Chip::Bm1690 {
        let size = std::env::var(EMULATED_BYTES).ok();
        let size = size.and_then(|text| text.parse().ok());
        return Ok(size.unwrap_or(DEFAULT_MEMORY_BYTES));
    }
    // The emulator of a BM1684X has no more, and keeps some of it.
    const KEPT_BYTES: u64 = 128 << 20;
    let bytes = options.memory_bytes.unwrap_or(DEFAULT_MEMORY_BYTES);
    if sdk.kind == SdkKind::Emulator && bytes > DEFAULT_MEMORY_BYTES {
        let why = format!(
            "an emulated {} has {} GiB of memory and no more",
            sdk.chip.name(),
            DEFAULT_MEMORY_BYTES >> 30
        );
        return Err(Error::Operand(why));
    }
    Ok(bytes - KEPT_BYTES)
}
