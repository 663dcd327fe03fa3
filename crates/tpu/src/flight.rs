//! The flight record: a small file that says, after the process has died, what it had asked of the device.
//!
//! Nothing comes back from a launch that goes wrong: the process ends, or waits for ever. So who launches writes down what,
//! before; and around each call that may block, that it waits. The file outlives the process, and another one reads it
//! ([`Flight::read`]) while this one works or after.
//!
//! It is text in lines of [`LINE_BYTES`], each written in place by one `pwrite`, about a microsecond:
//!
//! ```text
//! launched 1042 done 980 waits 177 for a copy to the host     odd: waiting now
//! ....                                                        4 bytes, little-endian: the launch at work; 0: not known
//! 1024 matmul m=64 ..                                         a ring of the last 256 launches
//! ```
//!
//! The launch at work cannot be asked for: a copy from the device, on whatever stream, waits for the launch that never ends.
//! But the emulator runs in this process, so each of its kernels begins by leaving its number in a word of memory
//! ([`FlightRecord::started_address`]), and that is a word of the file. Of a chip it is not known.
//!
//! A record that is [off](FlightRecord::off) costs a comparison. Errors of the file are ignored: they must not end a run.

use std::fmt::{self, Display, Write};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Of a line, its newline included.
const LINE_BYTES: usize = 256;
/// Launches that are remembered: as many as may be queued.
const RING: u64 = 256;
/// Lines before the ring.
const HEADER_LINES: u64 = 2;

/// The writing side. Calls come from one thread at a time.
#[derive(Debug)]
pub struct FlightRecord {
    file: Option<File>,
    /// Written by the emulator's threads.
    started: &'static AtomicU32,
    launched: AtomicU64,
    done: AtomicU64,
    waits: AtomicU64,
}

impl FlightRecord {
    /// A record that is not kept.
    pub fn off() -> Self {
        static NOWHERE: AtomicU32 = AtomicU32::new(0);
        Self {
            file: None,
            started: &NOWHERE,
            launched: AtomicU64::new(0),
            done: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    /// A record in the file at `path`, which is made anew.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(path)?;
        file.set_len((HEADER_LINES + RING) * LINE_BYTES as u64)?;
        let record = Self {
            started: map_started(&file)?,
            file: Some(file),
            ..Self::off()
        };
        record.write_counts("");
        Ok(record)
    }

    pub fn is_on(&self) -> bool {
        self.file.is_some()
    }

    /// Writes down launch number `sequence` (they count from 1) of the kernel `op`, with its shapes and types in `detail`. The
    /// result is held during the call, which blocks when the queue is full.
    pub fn launch(&self, sequence: u64, op: &str, detail: impl Display) -> Waiting<'_> {
        if self.is_on() {
            let line = HEADER_LINES + sequence % RING;
            self.write(line, format_args!("{sequence} {op} {detail}"));
            self.launched.store(sequence, Ordering::Relaxed);
        }
        self.waiting("room in the queue")
    }

    /// Says that the process waits for the device, until the result is dropped.
    pub fn waiting(&self, what: &str) -> Waiting<'_> {
        self.turn(what);
        Waiting(self)
    }

    /// Launch number `sequence` and all before it have run.
    pub fn done(&self, sequence: u64) {
        self.done.store(sequence, Ordering::Relaxed); // written with the next count
    }

    /// Where a kernel of the emulator leaves its number when it begins.
    pub fn started_address(&self) -> u64 {
        self.started.as_ptr() as u64
    }

    /// From working to waiting, or back.
    fn turn(&self, what: &str) {
        if self.is_on() {
            self.waits.fetch_add(1, Ordering::Relaxed);
            self.write_counts(what);
        }
    }

    fn write_counts(&self, what: &str) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (launched, done) = (count(&self.launched), count(&self.done));
        let waits = count(&self.waits);
        let text = format_args!("launched {launched} done {done} waits {waits} for {what}");
        self.write(0, text);
    }

    fn write(&self, line: u64, text: fmt::Arguments) {
        let Some(file) = &self.file else {
            return;
        };
        let mut bytes = Line::default();
        let _ = bytes.write_fmt(text); // ends early where the line is full
        let _ = file.write_all_at(&bytes.0, line * LINE_BYTES as u64);
    }
}

/// The second line's word, as memory: what is written to it is in the file, however the process ends.
fn map_started(file: &File) -> io::Result<&'static AtomicU32> {
    let (len, access) = (2 * LINE_BYTES, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping of a file that is longer, and never unmapped. The word in it is aligned, and only ever read and
    // written as a whole; others read it from the file.
    unsafe {
        let lines = mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)?;
        Ok(AtomicU32::from_ptr(lines.byte_add(LINE_BYTES).cast()))
    }
}

/// A call that may block is under way.
#[derive(Debug)]
#[must_use = "the wait ends when this is dropped"]
pub struct Waiting<'a>(&'a FlightRecord);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.turn("");
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
    pub waiting_for: Option<String>,
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
        if let Some(line) = lines.next() {
            flight.read_counts(&text(line));
        }
        let started = lines.next().and_then(|line| line.first_chunk());
        let started = started.map_or(0, |word| u32::from_le_bytes(*word));
        flight.started = (started > 0).then(|| started.into());
        flight.launches = lines
            .filter_map(|line| Launch::parse(&text(line)))
            .collect();
        flight.launches.sort_by_key(|launch| launch.sequence);
        Ok(flight)
    }

    fn read_counts(&mut self, line: &str) {
        let (counts, what) = line.split_once(" for").unwrap_or((line, ""));
        let mut words = counts.split(' ');
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            let value = value.parse().unwrap_or_default();
            match name {
                "launched" => self.launched = value,
                "done" => self.done = value,
                "waits" => self.waits = value,
                _ => {}
            }
        }
        self.waiting_for = (self.waits % 2 == 1).then(|| what.trim().to_owned());
    }
}

impl Launch {
    fn parse(line: &str) -> Option<Self> {
        let (sequence, text) = line.split_once(' ')?;
        Some(Self {
            sequence: sequence.parse().ok()?,
            text: text.to_owned(),
        })
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim_end().to_owned()
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
        for sequence in 1..=300 {
            drop(record.launch(sequence, "fill", format_args!("[{sequence}] f32")));
        }
        let flight = read(&folder);
        let sequences: Vec<_> = flight.launches.iter().map(|l| l.sequence).collect();
        assert_eq!(sequences, (45..=300).collect::<Vec<_>>());
        assert_eq!(flight.launches[0].text, "fill [45] f32");
        assert_eq!((flight.launched, flight.waiting_for), (300, None));
    }

    #[test]
    fn what_was_launched_what_has_begun_and_what_has_run_read_back() {
        let (folder, record) = record();
        drop(record.launch(1, "a", ""));
        assert_eq!(read(&folder).started, None);
        record.done(1);
        drop(record.launch(2, "b", ""));
        drop(record.launch(3, "c", ""));
        // SAFETY: the record lives.
        let word = unsafe { AtomicU32::from_ptr(record.started_address() as *mut u32) };
        word.store(2, Ordering::Relaxed); // as a kernel does
        let flight = read(&folder);
        assert_eq!((flight.launched, flight.done), (3, 1));
        assert_eq!(flight.started, Some(2));
    }

    #[test]
    fn a_wait_is_seen_while_it_lasts() {
        let (folder, record) = record();
        let waiting = record.waiting("a copy to the host");
        let during = read(&folder);
        assert_eq!(during.waiting_for.as_deref(), Some("a copy to the host"));
        drop(waiting);
        let after = read(&folder);
        assert_eq!(after.waiting_for, None);
        assert_ne!(after.waits, during.waits);
    }

    #[test]
    fn a_long_description_is_cut() {
        let (folder, record) = record();
        drop(record.launch(1, "op", "\u{e9}".repeat(300)));
        drop(record.launch(2, "next", "whole"));
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
        drop(record.launch(1, "op", Refuses));
        record.done(1);
    }
}
