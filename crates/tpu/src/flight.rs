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
//! started 1017                                                as the device says; 0: not known
//! 1024 matmul { m: 64, .. }                                   a ring of the last 256 launches
//! ```
//!
//! A record that is [off](FlightRecord::off) costs a comparison. Errors of the file are ignored: they must not end a run.

use std::fmt::{self, Display, Write};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of a line, its newline included.
const LINE_BYTES: usize = 256;
/// Launches that are remembered: as many as may be queued.
const RING: u64 = 256;
/// Lines before the ring.
const HEADER_LINES: u64 = 2;

/// The writing side. Launches and waits come from one thread at a time, [`started`](Self::started) from any.
#[derive(Debug)]
pub struct FlightRecord {
    file: Option<File>,
    launched: AtomicU64,
    done: AtomicU64,
    waits: AtomicU64,
}

impl FlightRecord {
    /// A record that is not kept.
    pub fn off() -> Self {
        Self {
            file: None,
            launched: AtomicU64::new(0),
            done: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    /// A record in the file at `path`, which is made anew.
    pub fn create(path: &Path) -> io::Result<Self> {
        let record = Self {
            file: Some(File::create(path)?),
            ..Self::off()
        };
        record.write_counts("");
        record.started(0);
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

    /// The device has begun with launch number `sequence`.
    pub fn started(&self, sequence: u64) {
        self.write(1, format_args!("started {sequence}"));
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
        let _ = write_at(file, &bytes.0, line * LINE_BYTES as u64);
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

fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::write_all_at(file, bytes, offset);
    #[cfg(windows)]
    return std::os::windows::fs::FileExt::seek_write(file, bytes, offset).map(drop);
}

/// What a record says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flight {
    /// The last launch; 0: none yet.
    pub launched: u64,
    /// The last launch known to have run.
    pub done: u64,
    /// The last launch that the device is known to have begun with.
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
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines().map(str::trim_end);
        let mut flight = Self::default();
        if let Some(line) = lines.next() {
            flight.read_counts(line);
        }
        let started = lines.next().and_then(|line| line.strip_prefix("started "));
        flight.started = started
            .and_then(|text| text.parse().ok())
            .filter(|&sequence| sequence > 0);
        flight.launches = lines.filter_map(Launch::parse).collect();
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
        let (sequence, text) = line.trim_start_matches('\0').split_once(' ')?;
        Some(Self {
            sequence: sequence.parse().ok()?,
            text: text.trim_end().to_owned(),
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
        record.started(2);
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
