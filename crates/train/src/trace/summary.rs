//! What the traced steps come to, to read: operations, launches, bytes, the kernels that take the time, memory by owner.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tt_tensor::profile::Event;
use tt_tensor::trace::Work;

use super::place::places;
use crate::device_memory::{Moment, Owned, Sample};

/// Kernels that are told one by one.
const TOP: usize = 20;

/// Of all traced steps together, but for memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    steps: u64,
    time: Duration,
    /// In the order of a step.
    parts: Vec<(String, Duration)>,
    operations: u64,
    launches: u64,
    uploads: Copies,
    downloads: Copies,
    /// Launches by kernel; where there are none, operations.
    kernels: BTreeMap<String, OfKernel>,
    /// At the step's fullest moment, by owner.
    peak: Option<Owned>,
    /// What a forward pass has left for its backward pass, at most.
    kept: Owned,
    /// Each owner's most.
    most: [u64; 7],
}

#[derive(Clone, Copy, Debug, Default)]
struct Copies {
    count: u64,
    bytes: u64,
}

/// Of one kernel.
#[derive(Clone, Copy, Debug, Default)]
struct OfKernel {
    count: u64,
    time: Duration,
    read: u64,
    written: u64,
}

impl Summary {
    pub(crate) fn of(events: &[Event], samples: &[Sample]) -> Self {
        let mut summary = Self::default();
        let places = places(events);
        let on_device = events.iter().any(|event| event.work.is_some());
        // What a kernel's span holds of others is theirs.
        let mut own: Vec<Duration> = events.iter().map(|event| event.length).collect();
        for (event, place) in events.iter().zip(&places) {
            if let ("kernel", Some(outer)) = (event.kind, place.kernel) {
                own[outer] = own[outer].saturating_sub(event.length);
            }
        }
        for ((event, place), own) in events.iter().zip(&places).zip(own) {
            if place.is_in_step || event.kind == "step" {
                summary.add(event, own, on_device);
            }
        }
        for sample in samples {
            summary.look_at(sample);
        }
        summary
    }

    fn add(&mut self, event: &Event, own: Duration, on_device: bool) {
        match (event.kind, &event.work) {
            ("step", _) => {
                self.steps += 1;
                self.time += event.length;
            }
            ("part", _) => match self.parts.iter_mut().find(|(part, _)| *part == event.name) {
                Some((_, time)) => *time += event.length,
                None => self.parts.push((event.name.to_string(), event.length)),
            },
            ("kernel", _) => {
                self.operations += 1;
                if !on_device {
                    self.kernel(event, own);
                }
            }
            (_, Some((Work::Launch(launch), _))) => {
                self.launches += 1;
                let kernel = self.kernel(event, own);
                kernel.read += launch.read_bytes();
                kernel.written += launch.written_bytes();
            }
            (_, Some((Work::Upload { bytes }, _))) => self.uploads.add(*bytes),
            (_, Some((Work::Download { bytes }, _))) => self.downloads.add(*bytes),
            _ => {}
        }
    }

    fn kernel(&mut self, event: &Event, own: Duration) -> &mut OfKernel {
        let kernel = self.kernels.entry(event.name.to_string()).or_default();
        kernel.count += 1;
        kernel.time += own;
        kernel
    }

    fn look_at(&mut self, sample: &Sample) {
        let owned = sample.owned;
        let is_fuller = |peak: Owned| owned.tensors() > peak.tensors();
        if self.peak.is_none_or(is_fuller) {
            self.peak = Some(owned);
        }
        if sample.moment == Moment::AfterForward && owned.activations > self.kept.activations {
            self.kept = owned;
        }
        for (most, (_, bytes)) in self.most.iter_mut().zip(owned.rows()) {
            *most = bytes.max(*most);
        }
    }

    /// A line: what a step does.
    pub(crate) fn of_a_step(&self) -> String {
        let steps = self.steps.max(1) as f64;
        let mut line = format!("a step: {} operations", each(self.operations, steps));
        if self.launches > 0 {
            let read = self.kernels.values().map(|it| it.read).sum();
            let written = self.kernels.values().map(|it| it.written).sum();
            line += &format!(
                ", {} launches that read {} MB and write {} MB",
                each(self.launches, steps),
                megabytes(read, steps),
                megabytes(written, steps)
            );
        }
        line
    }
}

impl Copies {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

/// A whole number, if it is the same in every step.
fn each(count: u64, steps: f64) -> String {
    let each = count as f64 / steps;
    if each.fract() == 0.0 {
        format!("{each:.0}")
    } else {
        format!("{each:.1}")
    }
}

fn megabytes(bytes: u64, steps: f64) -> String {
    format!("{:.3}", bytes as f64 / steps / 1e6)
}

fn ms(time: Duration, steps: f64) -> f64 {
    time.as_secs_f64() * 1e3 / steps
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.max(1) as f64;
        writeln!(f, "{}", self.of_a_step())?;
        writeln!(f, "of {} traced, on average", self.steps)?;
        writeln!(f)?;
        writeln!(f, "{:<24}{:>12}", "time", "ms")?;
        let row = |f: &mut fmt::Formatter<'_>, name: &str, time| {
            writeln!(f, "{name:<24}{:>12.3}", ms(time, steps))
        };
        for (part, time) in &self.parts {
            row(f, &format!("  {part}"), *time)?;
        }
        row(f, "  step", self.time)?;
        self.write_kernels(f, steps)?;
        if self.launches > 0 {
            writeln!(f)?;
            writeln!(f, "{:<24}{:>12}{:>14}", "copies", "number", "bytes")?;
            for (name, copies) in [
                ("to the device", self.uploads),
                ("from the device", self.downloads),
            ] {
                let (count, bytes) = (each(copies.count, steps), each(copies.bytes, steps));
                writeln!(f, "  {name:<22}{count:>12}{bytes:>14}")?;
            }
        }
        self.write_memory(f)
    }
}

impl Summary {
    fn write_kernels(&self, f: &mut fmt::Formatter<'_>, steps: f64) -> fmt::Result {
        let on_device = self.launches > 0;
        let mut kernels: Vec<_> = self.kernels.iter().collect();
        kernels.sort_by_key(|(_, it)| std::cmp::Reverse(it.time));
        let all: Duration = kernels.iter().map(|(_, it)| it.time).sum();
        writeln!(f)?;
        let (what, count) = if on_device {
            ("kernels", "launches")
        } else {
            ("operations", "number")
        };
        write!(f, "{what:<24}{count:>12}{:>12}{:>8}", "ms", "share")?;
        if on_device {
            write!(f, "{:>12}{:>12}{:>9}", "MB read", "written", "GB/s")?;
        }
        writeln!(f)?;
        let others = kernels.split_off(kernels.len().min(TOP));
        let mut rest = OfKernel::default();
        for (_, it) in &others {
            rest.count += it.count;
            rest.time += it.time;
            rest.read += it.read;
            rest.written += it.written;
        }
        let others = format!("{} others", others.len());
        let rest = (rest.count > 0).then_some((&others, &rest));
        for (name, it) in kernels.into_iter().chain(rest) {
            let share = it.time.as_secs_f64() / all.as_secs_f64().max(f64::MIN_POSITIVE);
            let (count, time) = (each(it.count, steps), ms(it.time, steps));
            write!(
                f,
                "  {name:<22}{count:>12}{time:>12.3}{:>6.1} %",
                100.0 * share
            )?;
            if on_device {
                let (read, written) = (megabytes(it.read, steps), megabytes(it.written, steps));
                let moved = (it.read + it.written) as f64 / it.time.as_secs_f64() / 1e9;
                write!(f, "{read:>12}{written:>12}{moved:>9.3}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(peak) = self.peak else {
            return Ok(());
        };
        writeln!(f)?;
        writeln!(
            f,
            "{:<24}{:>14}{:>14}",
            "memory, bytes", "at the peak", "most"
        )?;
        for ((name, bytes), most) in peak.rows().into_iter().zip(self.most) {
            writeln!(f, "  {name:<22}{bytes:>14}{most:>14}")?;
        }
        writeln!(f, "  {:<22}{:>14}", "tensors at once", peak.tensors())?;
        let kept = self.kept.activations;
        writeln!(f, "  {:<22}{kept:>14}", "kept for backward")
    }
}
