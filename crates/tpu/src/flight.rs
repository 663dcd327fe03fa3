//! The flight record: a small file that says, after the process has died, what it had asked of the device.
//!
//! Nothing comes back from a launch that goes wrong: the process ends, or waits for ever. So who launches writes down what,
//! before; and around each call that may block, that it waits. The file outlives the process, and another one reads it
//! ([`Flight::read`]) while this one works or after.
//!
//! It begins with a header, mapped into memory, so that a count is one store. After it comes a ring of the last
//! launches, a line of text each, written in place: `1024 matmul m=64 ..`. Together less than a microsecond a launch,
//! and a comparison where the record is [off](FlightRecord::off). Errors of the file are ignored: they must not end a
//! run.
//!
//! The launch at work cannot be asked for: a copy from the device, on whatever stream, waits for the launch that never ends.
//! But the emulator runs in this process, so each of its kernels begins by leaving its number in a word of memory
//! ([`FlightRecord::started_address`]), and that is a word of the header. Of a chip it is not known.

use std::fmt::{self, Display, Write};
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Of a line, its newline included. The header takes up one.
const LINE_BYTES: usize = 256;
/// Launches that are remembered: as many as may be in a batch.
const RING: u64 = 1024;

/// The counts at the beginning of the file, in the byte order of the machine.
#[derive(Debug)]
#[repr(C)]
struct Header {
    /// The launch at work, written by the emulator; 0: not known.
    started: AtomicU32,
    /// A [`Wait`], while `waits` is odd.
    waiting_for: AtomicU32,
    /// Counts beginnings and ends of waits.
    waits: AtomicU64,
    launched: AtomicU64,
    done: AtomicU64,
}

/// What a call that may block waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Wait {
    Opening,
    /// A launch, while the queue is full.
    Queue,
    Launches,
    CopyToDevice,
    CopyToHost,
}

impl Wait {
    const ALL: [Self; 5] = [
        Self::Opening,
        Self::Queue,
        Self::Launches,
        Self::CopyToDevice,
        Self::CopyToHost,
    ];
}

impl Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Opening => "the device to open",
            Self::Queue => "room in the queue of launches",
            Self::Launches => "the launches to end",
            Self::CopyToDevice => "a copy to the device",
            Self::CopyToHost => "a copy to the host",
        })
    }
}

/// The writing side. Calls come from one thread at a time.
#[derive(Debug)]
pub struct FlightRecord {
    file: Option<File>,
    header: &'static Header,
}

impl FlightRecord {
    /// A record that is not kept.
    pub fn off() -> Self {
        static NOWHERE: Header = Header {
            started: AtomicU32::new(0),
            waiting_for: AtomicU32::new(0),
            waits: AtomicU64::new(0),
            launched: AtomicU64::new(0),
            done: AtomicU64::new(0),
        };
        Self {
            file: None,
            header: &NOWHERE,
        }
    }

    /// A record in the file at `path`, which is made anew.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(path)?;
        file.set_len((1 + RING) * LINE_BYTES as u64)?;
        Ok(Self {
            header: map_header(&file)?,
            file: Some(file),
        })
    }

    /// Writes down launch number `sequence` (they count from 1) of the kernel `op`, with its shapes and types in `detail`.
    pub fn note(&self, sequence: u64, op: &str, detail: impl Display) {
        if let Some(file) = &self.file {
            let mut line = Line::default();
            // Ends early where the line is full.
            let _ = write!(line, "{sequence} {op} {detail}");
            let _ = file.write_all_at(&line.0, (1 + sequence % RING) * LINE_BYTES as u64);
            self.header.launched.store(sequence, Relaxed);
        }
    }

    /// Says that the process waits for the device, until the result is dropped.
    pub fn waiting(&self, wait: Wait) -> Waiting<'_> {
        if self.file.is_some() {
            self.header.waiting_for.store(wait as u32, Relaxed);
            self.header.waits.fetch_add(1, Relaxed);
        }
        Waiting(self)
    }

    /// Launch number `sequence` and all before it have run.
    pub fn done(&self, sequence: u64) {
        if self.file.is_some() {
            self.header.done.store(sequence, Relaxed);
        }
    }

    /// Where a kernel of the emulator leaves its number when it begins.
    pub fn started_address(&self) -> u64 {
        self.header.started.as_ptr() as u64
    }
}

/// What is written to this header is in the file, however the process ends.
fn map_header(file: &File) -> io::Result<&'static Header> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a file of that length, never unmapped, aligned to a page. All bytes of it are valid in the
    // header's atomics; others only read them, from the file.
    unsafe {
        let start = std::ptr::null_mut();
        let header = mmap(start, LINE_BYTES, access, MapFlags::SHARED, file, 0)?;
        Ok(&*header.cast::<Header>())
    }
}

/// A call that may block is under way.
#[derive(Debug)]
#[must_use = "the wait ends when this is dropped"]
pub struct Waiting<'a>(&'a FlightRecord);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.0.file.is_some() {
            self.0.header.waits.fetch_add(1, Relaxed);
        }
    }
}

/// A line being filled.
struct Line([u8; LINE_BYTES], usize);

impl Default for Line {
    fn default() -> Self {
        let mut bytes = [b' '; LINE_BYTES];
        bytes[LINE_BYTES - 1] = b'\n';
        Self(bytes, 0)
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.0[self.1..LINE_BYTES - 1];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.1 += len;
        if len == text.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

/// What a record says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flight {
    /// The last launch; 0: none yet.
    pub launched: u64,
    /// The last launch known to have run.
    pub done: u64,
    /// The launch that the device has begun with, if that is known.
    pub started: Option<u64>,
    /// Changes whenever a wait begins or ends.
    pub waits: u64,
    /// What the process waits for, if it does.
    pub waiting_for: Option<Wait>,
    /// The last launches, in their order.
    pub launches: Vec<Launch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub sequence: u64,
    /// The kernel, and its shapes and types.
    pub text: String,
}

impl Flight {
    /// Reads the record at `path`. A line that makes no sense is passed over.
    pub fn read(path: &Path) -> io::Result<Self> {
        let bytes = std::fs::read(path)?;
        let mut lines = bytes.chunks(LINE_BYTES);
        let mut flight = Self::default();
        if let Some(header) = lines.next().and_then(|line| line.first_chunk()) {
            flight.read_header(header);
        }
        flight.launches = lines.filter_map(Launch::parse).collect();
        flight.launches.sort_by_key(|launch| launch.sequence);
        Ok(flight)
    }

    fn read_header(&mut self, header: &[u8; size_of::<Header>()]) {
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let count = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let started = word(offset_of!(Header, started));
        self.started = (started > 0).then(|| started.into());
        self.waits = count(offset_of!(Header, waits));
        self.launched = count(offset_of!(Header, launched));
        self.done = count(offset_of!(Header, done));
        let what = word(offset_of!(Header, waiting_for)) as usize;
        self.waiting_for = Wait::ALL.get(what).copied().filter(|_| self.waits % 2 == 1);
    }
}

impl Launch {
    fn parse(line: &[u8]) -> Option<Self> {
        let line = String::from_utf8_lossy(line);
        let (sequence, text) = line.trim_end().split_once(' ')?;
        Some(Self {
            sequence: sequence.parse().ok()?,
            text: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> (tempfile::TempDir, FlightRecord) {
        let folder = tempfile::tempdir().unwrap();
        let record = FlightRecord::create(&folder.path().join("flight")).unwrap();
        (folder, record)
    }

    fn read(folder: &tempfile::TempDir) -> Flight {
        Flight::read(&folder.path().join("flight")).unwrap()
    }

    #[test]
    fn the_last_launches_are_remembered_in_order() {
        let (folder, record) = record();
        let last = RING + 44;
        for sequence in 1..=last {
            record.note(sequence, "fill", format_args!("[{sequence}] f32"));
        }
        let flight = read(&folder);
        let sequences: Vec<_> = flight.launches.iter().map(|l| l.sequence).collect();
        assert_eq!(sequences, (45..=last).collect::<Vec<_>>());
        assert_eq!(flight.launches[0].text, "fill [45] f32");
        assert_eq!((flight.launched, flight.waiting_for), (last, None));
    }

    #[test]
    fn what_was_launched_what_has_begun_and_what_has_run_read_back() {
        let (folder, record) = record();
        record.note(1, "a", "");
        assert_eq!(read(&folder).started, None);
        record.done(1);
        record.note(2, "b", "");
        record.note(3, "c", "");
        // SAFETY: the record lives.
        let word = unsafe { AtomicU32::from_ptr(record.started_address() as *mut u32) };
        word.store(2, Relaxed); // as a kernel does
        let flight = read(&folder);
        assert_eq!((flight.launched, flight.done), (3, 1));
        assert_eq!(flight.started, Some(2));
    }

    #[test]
    fn a_wait_is_seen_while_it_lasts() {
        let (folder, record) = record();
        let waiting = record.waiting(Wait::CopyToHost);
        let during = read(&folder);
        assert_eq!(during.waiting_for, Some(Wait::CopyToHost));
        drop(waiting);
        let after = read(&folder);
        assert_eq!(after.waiting_for, None);
        assert_ne!(after.waits, during.waits);
    }

    #[test]
    fn a_long_description_is_cut() {
        let (folder, record) = record();
        record.note(1, "op", "\u{e9}".repeat(300));
        record.note(2, "next", "whole");
        let flight = read(&folder);
        assert_eq!(flight.launches.len(), 2);
        assert!(flight.launches[0].text.starts_with("op \u{e9}\u{e9}"));
        assert_eq!(flight.launches[1].text, "next whole");
    }

    #[test]
    fn a_record_that_is_off_formats_nothing() {
        struct Refuses;
        impl Display for Refuses {
            fn fmt(&self, _: &mut fmt::Formatter) -> fmt::Result {
                panic!("formatted")
            }
        }
        let record = FlightRecord::off();
        record.note(1, "op", Refuses);
        record.done(1);
    }
}
