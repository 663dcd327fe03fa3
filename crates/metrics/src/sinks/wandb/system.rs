//! What the machine and this process do, under the names that the site knows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::json;
use super::record::Items;

/// In `/proc/diskstats`, whatever the device has.
const SECTOR_BYTES: f64 = 512.0;

/// Reads `/proc`; elsewhere there is nothing to tell.
pub(super) struct System {
    folder: PathBuf,
    start: Counters,
    last: (Instant, f64),
}

/// Since the machine was started.
#[derive(Debug, Clone, Default)]
struct Counters {
    sent: f64,
    received: f64,
    /// By device: bytes read, bytes written.
    disks: BTreeMap<String, (f64, f64)>,
}

impl System {
    /// `folder`: that whose disk is looked at.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            start: Counters::read(),
            last: (Instant::now(), cpu_seconds().unwrap_or(0.0)),
        }
    }

    pub(super) fn sample(&mut self) -> Items {
        let mut items = Items::new();
        let mut add = |name: &str, value: f64| {
            let rounded = (value * 1e4).round() / 1e4;
            items.insert(name.to_owned(), json::number(rounded));
        };
        let now = (Instant::now(), cpu_seconds());
        if let (at, Some(seconds)) = now {
            let elapsed = at.duration_since(self.last.0).as_secs_f64();
            if elapsed > 0.0 {
                add("cpu", 100.0 * (seconds - self.last.1).max(0.0) / elapsed);
            }
            self.last = (at, seconds);
        }
        let total = kib("/proc/meminfo", "MemTotal:");
        let available = kib("/proc/meminfo", "MemAvailable:");
        if let (Some(total), Some(available)) = (total, available) {
            add("memory_percent", 100.0 * (total - available) / total);
            add("proc.memory.availableMB", available / 1024.0);
            if let Some(rss) = kib("/proc/self/status", "VmRSS:") {
                add("proc.memory.rssMB", rss / 1024.0);
                add("proc.memory.percent", 100.0 * rss / total);
            }
        }
        if let Some(threads) = number("/proc/self/status", "Threads:") {
            add("proc.cpu.threads", threads);
        }
        #[cfg(unix)]
        if let Ok(disk) = rustix::fs::statvfs(&self.folder) {
            let used = disk.f_blocks.saturating_sub(disk.f_bfree) as f64;
            add(
                "disk./.usagePercent",
                100.0 * used / disk.f_blocks.max(1) as f64,
            );
            add("disk./.usageGB", used * disk.f_frsize as f64 / 1e9);
        }
        let counters = Counters::read();
        add("network.sent", counters.sent - self.start.sent);
        add("network.recv", counters.received - self.start.received);
        for (name, (read, written)) in counters.disks {
            let start = self
                .start
                .disks
                .get(&name)
                .copied()
                .unwrap_or((read, written));
            add(&format!("disk.{name}.in"), (read - start.0) / 1e6);
            add(&format!("disk.{name}.out"), (written - start.1) / 1e6);
        }
        items
    }
}

impl Counters {
    fn read() -> Self {
        let mut counters = Self::default();
        let text = fs::read_to_string("/proc/net/dev").unwrap_or_default();
        for line in text.lines().skip(2) {
            let Some((name, numbers)) = line.split_once(':') else {
                continue;
            };
            if name.trim() != "lo" {
                let numbers = numbers_of(numbers);
                counters.received += numbers.first().copied().unwrap_or(0.0);
                counters.sent += numbers.get(8).copied().unwrap_or(0.0);
            }
        }
        let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let bytes = |index: usize| {
                let sectors: f64 = words.get(index)?.parse().ok()?;
                Some(SECTOR_BYTES * sectors)
            };
            if let (Some(name), Some(read), Some(written)) = (words.get(2), bytes(5), bytes(9))
                && is_disk(name)
            {
                counters.disks.insert((*name).to_owned(), (read, written));
            }
        }
        counters
    }
}

/// A device as a whole, and one that exists.
fn is_disk(name: &str) -> bool {
    !name.starts_with("loop")
        && !name.starts_with("ram")
        && Path::new("/sys/block").join(name).exists()
}

fn numbers_of(text: &str) -> Vec<f64> {
    let words = text.split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Processor time of this process.
fn cpu_seconds() -> Option<f64> {
    /// `USER_HZ`, which is 100 on every architecture.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything.
    let fields = text.rsplit_once(')')?.1;
    let numbers: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |index: usize| numbers.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

fn kib(path: &str, key: &str) -> Option<f64> {
    number(path, key)
}

/// The number of a line `KEY 123 ...`.
fn number(path: &str, key: &str) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_processor_memory_disk_and_network() {
        let mut system = System::new(std::env::temp_dir());
        std::hint::black_box((0..10_000_000u64).fold(0, u64::wrapping_add));
        let items = system.sample();
        for name in [
            "cpu",
            "memory_percent",
            "proc.memory.rssMB",
            "proc.cpu.threads",
            "disk./.usagePercent",
            "network.sent",
        ] {
            let value = items.get(name).and_then(|text| json::parse_number(text));
            assert!(value.is_some_and(|value| value >= 0.0), "{name}: {items:?}");
        }
        let percent = json::parse_number(&items["memory_percent"]).unwrap();
        assert!((0.0..=100.0).contains(&percent));
    }
}
