//! The device of this process: its memory, its one stream, and the launches on it.
//!
//! Everything is queued on one stream and runs in the order of the calls, uploads too, so a buffer may be reused as soon as the
//! host has let go of it. Only a copy to the host waits. There is one device a process, and it stays open: the
//! vendor's runtime can neither close one nor hold two.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::fmt;
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use candle_core::DType;

pub use self::open::{DEFAULT_MEMORY_BYTES, EMULATOR_FOLDER, Options, environment};
use crate::batch::{Batch, MAX_DATA, RunBatch};
use crate::error::{Error, Result};
use crate::fault_injection::{InjectedAssert, InjectedFault, InjectedHang};
use crate::flight::{FlightRecord, Wait};
use crate::launch::{Header, Kernel};
use crate::loaded::{OwnModules, Place};
use crate::runtime::{Module, Runtime};
use crate::storage::TpuStorage;
use crate::trace::{DeviceEvent, Trace, TracedLaunch, Work};
use crate::traffic::Traffic;
use crate::vendor::{Provider, VendorKernel, VendorLibrary};

mod open;

/// The runtime hands out memory in units of this many bytes.
const PAGE_BYTES: u64 = 4096;
/// Launches that may be queued before the host waits: enough to keep the device busy, few enough to name the one that hangs.
const MAX_QUEUED: usize = 256;
/// Bytes of uploads that may be kept before the host waits: a model that is loaded passes through this much at a time.
const MAX_STAGED_BYTES: u64 = 64 << 20;
/// Batches that may be queued before the host waits.
const MAX_BATCHES: usize = 4;
/// Words that kernels report in: the launch that began last, the first fault, the launch that found it.
const STATE_WORDS: usize = 3;

/// What has happened on the device so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// In tensors that exist, as they were asked for.
    pub tensor_bytes: u64,
    /// The same, in the units in which memory is handed out.
    pub live_bytes: u64,
    pub peak_bytes: u64,
    /// Allocated from the runtime and waiting for reuse.
    pub free_bytes: u64,
    /// Launches by kernel, of those that are collected too.
    pub launches: BTreeMap<&'static str, u64>,
    /// Launches that the runtime was asked for: as many, or fewer where kernels are collected.
    pub submissions: u64,
    pub uploads: u64,
    pub uploaded_bytes: u64,
    /// Copies of tensors to the host; each waits for all that is queued.
    pub downloads: u64,
    pub downloaded_bytes: u64,
    /// Waits for launches, after each of which the host reads the words (12 bytes) that kernels report faults in.
    pub fault_reads: u64,
    /// Operations without a kernel that ran on the CPU.
    pub fallbacks: BTreeMap<&'static str, u64>,
    /// Operations that a kernel of the vendor's was asked for and is not admitted for, and why: ours computed them.
    pub declined: BTreeMap<(&'static str, &'static str), u64>,
}

impl Stats {
    pub fn num_launches(&self) -> u64 {
        self.launches.values().sum()
    }
}

/// The opened device. Copies are the same device.
#[derive(Clone, Copy)]
pub struct TpuDevice(&'static Inner);

struct Inner {
    runtime: Box<dyn Runtime>,
    options: Options,
    injected: Option<InjectedFault>,
    state: Mutex<State>,
}

struct State {
    module: Module,
    own_modules: OwnModules,
    vendor: VendorLibrary,
    provider: Provider,
    /// Free addresses by size class.
    free: HashMap<u64, Vec<u64>>,
    /// Address of the [`STATE_WORDS`].
    words: u64,
    sequence: u32,
    /// Names of the launches that may still run, oldest first.
    queued: Vec<(u32, &'static str)>,
    /// What is to be queued; `None`: each launch is queued at once.
    batch: Option<Batch>,
    /// Those of batches that are queued.
    batches: Vec<ListMemory>,
    idle_lists: Vec<ListMemory>,
    /// Of what is done from now on, if it is asked for.
    trace: Option<Trace>,
    /// Data of uploads that may still be read.
    staging: Vec<Vec<u8>>,
    staged_bytes: u64,
    stats: Stats,
    flight: Arc<FlightRecord>,
}

/// A kernel with its arguments.
struct Launch<'a> {
    name: &'static str,
    c_name: &'static CStr,
    bytes: &'a [u8],
    /// The arguments, for flight record and trace.
    told: &'a dyn Told,
}

trait Told: fmt::Debug + Traffic {}

impl<T: fmt::Debug + Traffic> Told for T {}

/// Memory for the records of a batch.
struct ListMemory {
    address: u64,
    bytes: u64,
}

impl TpuDevice {
    pub fn stats(self) -> Stats {
        self.lock().stats.clone()
    }

    /// Waits until all that is queued has run. Error: a kernel has reported a fault.
    pub fn synchronize(self) -> Result<()> {
        let start = Instant::now();
        let mut state = self.lock();
        state.wait(&*self.0.runtime)?;
        state.traced(start, Duration::ZERO, || Work::Wait);
        Ok(())
    }

    /// Traces what is done from now on. Error: what was done before has failed.
    pub fn begin_trace(self) -> Result<()> {
        let mut state = self.lock();
        state.wait(&*self.0.runtime)?;
        state.trace = Some(Trace {
            events: Vec::new(),
            set_aside: state.batch.take(),
        });
        Ok(())
    }

    /// Ends the trace, and gives what has happened in it.
    pub fn end_trace(self) -> Vec<DeviceEvent> {
        let mut state = self.lock();
        let Some(trace) = state.trace.take() else {
            return Vec::new();
        };
        state.batch = trace.set_aside;
        trace.events
    }

    /// `len` elements, their content unspecified.
    pub fn alloc(self, dtype: DType, len: usize) -> Result<TpuStorage> {
        let bytes = TpuStorage::bytes_of(dtype, len)?;
        let address = self.lock().alloc(&*self.0.runtime, bytes)?;
        Ok(TpuStorage::new(self, address, dtype, len))
    }

    /// Gives memory that is kept for reuse back to the runtime.
    pub fn trim(self) {
        let mut state = self.lock();
        // A failing wait is found again by whoever reads.
        let _ = state.wait(&*self.0.runtime);
        state.release_free(&*self.0.runtime);
    }

    pub(crate) fn give(self, address: u64, bytes: u64) {
        self.lock().give(address, bytes);
    }

    /// Queues a copy to the device.
    pub(crate) fn upload(self, address: u64, data: Vec<u8>) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let (runtime, start, bytes) = (&*self.0.runtime, Instant::now(), data.len() as u64);
        let mut state = self.lock();
        state.stats.uploads += 1;
        state.stats.uploaded_bytes += data.len() as u64;
        if let Some(batch) = state.batch.as_mut().filter(|_| data.len() <= MAX_DATA) {
            batch.data(address, &data);
            return state.submit_if_full(runtime);
        }
        // What is collected may still use what was in that memory before.
        state.submit(runtime)?;
        state.copy_to_device(runtime, address, data)?;
        if state.trace.is_some() {
            let queued = start.elapsed();
            state.run_to_end(runtime)?;
            state.traced(start, queued, || Work::Upload { bytes });
        }
        if state.staged_bytes >= MAX_STAGED_BYTES {
            state.wait(runtime)?;
        }
        Ok(())
    }

    /// Copies to the host, after all that is queued.
    pub(crate) fn download(self, address: u64, out: &mut [u8]) -> Result<()> {
        let runtime = &*self.0.runtime;
        let mut state = self.lock();
        state.wait(runtime)?;
        let start = Instant::now();
        if out.is_empty() {
            return Ok(());
        }
        state.stats.downloads += 1;
        state.stats.downloaded_bytes += out.len() as u64;
        state.copy_to_host(runtime, address, out)?;
        let bytes = out.len() as u64;
        state.traced(start, Duration::ZERO, || Work::Download { bytes });
        Ok(())
    }

    /// Queues a kernel. Nothing comes back from one that goes wrong: what `args` says must hold. Errors: it is not in its
    /// module, or takes other arguments; the module is not one for this device.
    pub fn launch<K: Kernel>(self, args: K) -> Result<()> {
        let mut state = self.lock();
        if self.inject(&mut state, K::NAME)? {
            return Ok(());
        }
        self.enqueue(&mut state, args)
    }

    /// Queues a kernel of the vendor's, whoever's are asked for. Nothing comes back from one that goes wrong: its author knows
    /// what it takes. Errors: none may be launched on this device; it is not in the library.
    pub(crate) fn launch_vendor<K: VendorKernel>(self, args: K) -> Result<()> {
        let mut state = self.lock();
        if self.inject(&mut state, K::NAME)? {
            return Ok(());
        }
        let place = state.vendor.find(K::NAME, &*self.0.runtime)?;
        state.sequence = state.sequence.wrapping_add(1);
        let launch = Launch {
            name: K::NAME,
            c_name: K::C_NAME,
            bytes: bytemuck::bytes_of(&args),
            told: &args,
        };
        self.queue(&mut state, launch, Some(place))?;
        state.vendor.forget_files();
        Ok(())
    }

    /// Does what a test asked for before this launch. True: it is not to be made.
    fn inject(self, state: &mut State, kernel: &str) -> Result<bool> {
        let next = state.sequence.wrapping_add(1);
        match &self.0.injected {
            Some(InjectedFault::Skip { kernel: skipped }) if skipped == kernel => return Ok(true),
            Some(InjectedFault::Assert(when)) if when.is_due(next) => {
                self.enqueue(state, InjectedAssert::default())?;
            }
            Some(InjectedFault::Hang(when)) if when.is_due(next) => {
                self.enqueue(state, InjectedHang::default())?;
            }
            _ => {}
        }
        Ok(false)
    }

    fn enqueue<K: Kernel>(self, state: &mut State, mut args: K) -> Result<()> {
        let place = match K::module() {
            Some(own) => Some(state.own_modules.load::<K>(own, &*self.0.runtime)?),
            None => None,
        };
        state.sequence = state.sequence.wrapping_add(1);
        *args.header() = Header {
            state: state.words,
            started: state.flight.started_address(),
            sequence: state.sequence,
            reserved: 0,
        };
        let launch = Launch {
            name: K::NAME,
            c_name: K::C_NAME,
            bytes: bytes_of(&args),
            told: &args,
        };
        let is_from_elsewhere = place.is_some();
        self.queue(state, launch, place)?;
        if is_from_elsewhere {
            state.own_modules.forget_files();
        }
        Ok(())
    }

    /// Queues what has the current number; `place`: of another module than ours.
    fn queue(self, state: &mut State, launch: Launch, place: Option<Place>) -> Result<()> {
        let (runtime, name, sequence) = (&*self.0.runtime, launch.name, state.sequence);
        state.queued.push((sequence, name));
        *state.stats.launches.entry(name).or_default() += 1;
        state
            .flight
            .note(sequence.into(), name, format_args!("{:?}", launch.told));
        let start = Instant::now();
        if let Some(place) = place {
            // What is collected comes before it, and a batch runs kernels of our module alone.
            state.submit(runtime)?;
            state.launch_now(runtime, place.module, &launch)?;
            if place.is_new {
                // Each core loads its copy of the module when it first runs a kernel of it.
                state.wait(runtime)?;
            }
        } else if let Some(batch) = &mut state.batch {
            batch.kernel(name, launch.bytes);
            return state.submit_if_full(runtime);
        } else {
            state.launch_now(runtime, state.module, &launch)?;
        }
        if state.trace.is_some() {
            let queued = start.elapsed();
            state.run_to_end(runtime)?;
            state.traced(start, queued, || {
                Work::Launch(TracedLaunch {
                    sequence,
                    kernel: name,
                    arguments: format!("{:?}", launch.told),
                    operands: launch.told.operands(),
                })
            });
        }
        if self.0.options.synchronous || state.queued.len() >= MAX_QUEUED {
            state.wait(runtime)?;
        }
        Ok(())
    }

    /// From now on, whose kernels compute where both have one. Error: the vendor's cannot.
    pub fn set_kernels(self, provider: Provider) -> Result<()> {
        let mut state = self.lock();
        if provider == Provider::Vendor {
            state.vendor.check()?;
        }
        state.provider = provider;
        Ok(())
    }

    /// Whether the vendor's kernels are to be taken for what they are admitted for.
    pub(crate) fn takes_vendors(self) -> bool {
        self.lock().provider == Provider::Vendor
    }

    /// Counts an operation that the vendor has a kernel for, and that ours computes all the same.
    pub(crate) fn declined(self, op: &'static str, why: &'static str) {
        *self.lock().stats.declined.entry((op, why)).or_default() += 1;
    }

    /// Counts an operation that has no kernel, and is about to run on the CPU. Error: that is forbidden.
    pub fn fall_back(self, op: &'static str) -> Result<()> {
        if self.0.options.forbid_fallback {
            return Err(Error::NoKernel { op });
        }
        *self.lock().stats.fallbacks.entry(op).or_default() += 1;
        Ok(())
    }

    /// How it was opened.
    pub(crate) fn options(self) -> &'static Options {
        &self.0.options
    }

    fn lock(self) -> MutexGuard<'static, State> {
        self.0.runtime.enter();
        // A panic between two calls leaves nothing half done on the device.
        self.0
            .state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn alloc(&mut self, runtime: &dyn Runtime, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Ok(0); // an empty tensor has no memory
        }
        let class = class_bytes(bytes);
        let address = match self.free.get_mut(&class).and_then(Vec::pop) {
            Some(address) => {
                self.stats.free_bytes -= class;
                address
            }
            None => self.alloc_fresh(runtime, class)?,
        };
        self.stats.tensor_bytes += bytes;
        self.stats.live_bytes += class;
        self.stats.peak_bytes = self.stats.peak_bytes.max(self.stats.live_bytes);
        Ok(address)
    }

    fn alloc_fresh(&mut self, runtime: &dyn Runtime, bytes: u64) -> Result<u64> {
        let mut address = runtime.malloc(bytes);
        if address.is_none() && self.stats.free_bytes > 0 {
            // Other sizes may lie idle. What is queued may still use them.
            self.wait(runtime)?;
            self.release_free(runtime);
            address = runtime.malloc(bytes);
        }
        address.ok_or(Error::OutOfMemory {
            bytes,
            live_bytes: self.stats.live_bytes,
            free_bytes: self.stats.free_bytes,
        })
    }

    fn copy_to_device(&mut self, runtime: &dyn Runtime, address: u64, data: Vec<u8>) -> Result<()> {
        self.staged_bytes += data.len() as u64;
        // Kept until the next wait: the runtime reads it when the copy's turn comes.
        self.staging.push(data);
        let data = &self.staging[self.staging.len() - 1];
        let _waiting = self.flight.waiting(Wait::CopyToDevice);
        // SAFETY: the buffer at `address` is ours and of at least this size; the source lives in `staging`.
        unsafe { runtime.copy_to_device(address, data) }
    }

    fn launch_now(&mut self, runtime: &dyn Runtime, module: Module, launch: &Launch) -> Result<()> {
        self.stats.submissions += 1;
        let _waiting = self.flight.waiting(Wait::Queue);
        // SAFETY: the kernel exists with arguments of this size (checked when its module was loaded, or by the version of the
        // vendor's library), which point to memory of tensors, as who launches it says.
        unsafe { runtime.launch(module, launch.c_name, launch.bytes) }
    }

    fn submit_if_full(&mut self, runtime: &dyn Runtime) -> Result<()> {
        if self.batch.as_ref().is_some_and(Batch::is_full) {
            self.submit(runtime)?;
            if self.batches.len() >= MAX_BATCHES {
                return self.wait(runtime);
            }
        }
        Ok(())
    }

    /// Memory for the records of a batch. Not that of a tensor which the host has let go of: kernels of the batch may use it.
    fn list_memory(&mut self, runtime: &dyn Runtime, bytes: u64) -> Result<ListMemory> {
        if let Some(at) = self.idle_lists.iter().position(|list| list.bytes >= bytes) {
            return Ok(self.idle_lists.swap_remove(at));
        }
        let bytes = bytes.next_power_of_two().max(PAGE_BYTES);
        let address = self.alloc_fresh(runtime, bytes)?;
        Ok(ListMemory { address, bytes })
    }

    /// Queues what has been collected.
    fn submit(&mut self, runtime: &dyn Runtime) -> Result<()> {
        let Some((records, count)) = self.batch.as_mut().and_then(Batch::take) else {
            return Ok(());
        };
        let bytes = records.len() as u64;
        let list = self.list_memory(runtime, bytes)?;
        let address = list.address;
        self.batches.push(list);
        self.copy_to_device(runtime, address, records)?;
        let args = RunBatch {
            records: address,
            count,
            bytes: bytes as u32,
            ..RunBatch::default()
        };
        let launch = Launch {
            name: RunBatch::NAME,
            c_name: RunBatch::C_NAME,
            bytes: bytes_of(&args),
            told: &args,
        };
        self.launch_now(runtime, self.module, &launch)
    }

    fn copy_to_host(&self, runtime: &dyn Runtime, address: u64, out: &mut [u8]) -> Result<()> {
        let _waiting = self.flight.waiting(Wait::CopyToHost);
        // SAFETY: the buffer at `address` has at least this size, and nothing is queued that writes it.
        unsafe { runtime.copy_to_host(address, out) }
    }

    fn give(&mut self, address: u64, bytes: u64) {
        if address == 0 {
            return;
        }
        let class = class_bytes(bytes);
        self.stats.tensor_bytes -= bytes;
        self.stats.live_bytes -= class;
        self.stats.free_bytes += class;
        self.free.entry(class).or_default().push(address);
    }

    fn release_free(&mut self, runtime: &dyn Runtime) {
        for address in self.free.drain().flat_map(|(_, addresses)| addresses) {
            // SAFETY: an address from `malloc` that nothing refers to any more.
            unsafe { runtime.free(address) };
        }
        self.stats.free_bytes = 0;
    }

    /// Forgets a fault that has been reported, so that the device is of use to whoever handles the error.
    fn clear_fault(&mut self, runtime: &dyn Runtime) -> Result<()> {
        static NONE: [u8; 4 * STATE_WORDS] = [0; 4 * STATE_WORDS];
        // SAFETY: a page was allocated for the words; the source lives for ever.
        unsafe { runtime.copy_to_device(self.words, &NONE) }
    }

    /// Adds to the trace what began at `start` and is done now, if there is one.
    fn traced(&mut self, start: Instant, queued: Duration, work: impl FnOnce() -> Work) {
        if let Some(trace) = &mut self.trace {
            trace.push(start, queued, work);
        }
    }

    /// Waits for the stream.
    fn run_to_end(&self, runtime: &dyn Runtime) -> Result<()> {
        let waiting = self.flight.waiting(Wait::Launches);
        let waited = runtime.wait();
        drop(waiting);
        waited
    }

    /// Waits for the stream, then asks whether a kernel found something wrong.
    fn wait(&mut self, runtime: &dyn Runtime) -> Result<()> {
        self.submit(runtime)?;
        self.run_to_end(runtime)?;
        self.flight.done(self.sequence.into());
        self.staging.clear();
        self.staged_bytes = 0;
        self.idle_lists.append(&mut self.batches);
        if self.queued.is_empty() {
            return Ok(());
        }
        let queued = std::mem::take(&mut self.queued);
        let mut words = [0; 4 * STATE_WORDS];
        self.stats.fault_reads += 1;
        self.copy_to_host(runtime, self.words, &mut words)?;
        let word = |i: usize| u32::from_le_bytes(words[4 * i..][..4].try_into().expect("4 bytes"));
        match word(1) {
            0 => Ok(()),
            fault => {
                let sequence = word(2);
                self.clear_fault(runtime)?;
                let op = queued
                    .iter()
                    .find(|(at, _)| *at == sequence)
                    .map(|(_, op)| *op);
                Err(Error::Fault {
                    sequence,
                    op: op.unwrap_or("a kernel"),
                    fault: fault_text(fault),
                })
            }
        }
    }
}

/// The faults of `kernels/kernel.h`.
fn fault_text(fault: u32) -> Cow<'static, str> {
    match fault {
        1 => "an index is out of range".into(),
        own => format!("it reports fault {own}").into(),
    }
}

/// As the device reads them: structs of `launch::kernels` have no padding.
fn bytes_of<K: Kernel>(args: &K) -> &[u8] {
    // SAFETY: as many bytes, all of them set.
    unsafe { slice::from_raw_parts(ptr::from_ref(args).cast(), size_of::<K>()) }
}

/// Sizes that share free memory: pages, eight classes an octave.
fn class_bytes(bytes: u64) -> u64 {
    let pages = bytes.div_ceil(PAGE_BYTES);
    if pages <= 8 {
        return pages * PAGE_BYTES;
    }
    let step = (1 << (pages - 1).ilog2()) / 8;
    pages.div_ceil(step) * step * PAGE_BYTES
}

impl PartialEq for TpuDevice {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for TpuDevice {}

impl fmt::Debug for TpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tpu")
    }
}
