//! TensorBoard: `logging=tensorboard` writes an event file into `tensorboard/` of the run folder, which
//! `tensorboard --logdir outputs` finds by itself.
//!
//! What is written: every number of a row under the step, as `loss`, `val_loss`, ...; histograms of gradients and weights
//! where there are any; what the model wrote, as text; the plots of the run at its end, as images; the configuration, as
//! hyper-parameters and as text. Rows are handed to the system as they come: a kill loses none.
//!
//! # Format
//!
//! A file is a row of TFRecords, each an `Event`: the length as u64, its checksum, the bytes, their checksum. Checksums
//! are CRC-32C, rotated right by 15 and added to `0xa282ead8`. A run that goes on begins another file, whose second event
//! (`SessionLog.START` at the first step to come) has TensorBoard forget what earlier files say of that step and later
//! ones. Field numbers are those of `event.proto`, `summary.proto`, `tensor.proto` and `plugins/hparams/plugin_data.proto` of
//! TensorBoard 2.20.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::proto::Message;
use crate::histogram::{Histogram, Histograms};
use crate::image::Image;
use crate::record::Record;
use crate::sample::Sample;
use crate::sink::{RunInfo, Sink, SinkResult};

/// `kwargs` of `tensorboard.TensorBoard`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TensorBoardConfig {
    /// Where the event files go; null: `tensorboard` in the run folder. A relative path is one in the run folder.
    pub dir: Option<PathBuf>,
}

/// `tensorboard.TensorBoard`.
pub struct TensorBoard {
    config: TensorBoardConfig,
    /// There once the run has started.
    file: Option<fs::File>,
    /// Of the last row.
    step: u64,
    /// Of the samples of the last step: how many there have been.
    samples: (u64, usize),
}

/// `SessionLog.SessionStatus.START`.
const START: i64 = 1;
/// `Summary.Image.colorspace`.
const RGB: i64 = 3;
/// `DataType.DT_STRING`.
const STRING: i64 = 7;

impl TensorBoard {
    /// A sink that has opened nothing yet.
    pub fn new(config: TensorBoardConfig) -> Self {
        Self {
            config,
            file: None,
            step: 0,
            samples: (0, 0),
        }
    }

    fn write(&mut self, step: u64, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        let mut event = Message::default();
        event.double(1, now());
        event.int(2, step as i64);
        fill(&mut event);
        let file = self.file.as_mut();
        let file = file.ok_or_else(|| io::Error::other("the run has not started"))?;
        file.write_all(&framed(&event.into_bytes()))
    }

    /// One summary of one value.
    fn summary(&mut self, step: u64, tag: &str, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        self.write(step, |event| {
            event.message(5, |summary| {
                summary.message(1, |value| {
                    value.text(1, tag);
                    fill(value);
                });
            });
        })
    }

    fn text(&mut self, step: u64, tag: &str, text: &str) -> io::Result<()> {
        self.summary(step, tag, |value| {
            plugin(value, "text", |_| {});
            value.message(8, |tensor| {
                tensor.int(1, STRING);
                tensor.message(2, |shape| shape.message(2, |dim| dim.int(1, 1)));
                tensor.text(8, text);
            });
        })
    }

    /// The configuration as the HParams page has it: a flat list of numbers, truth values and texts.
    fn hyper_parameters(&mut self, config: &Value) -> io::Result<()> {
        let mut flat = Vec::new();
        flatten(config, "", &mut flat);
        self.summary(0, "_hparams_/session_start_info", |value| {
            plugin(value, "hparams", |data| {
                data.message(3, |session| {
                    for (key, number) in &flat {
                        session.message(1, |entry| {
                            entry.text(1, key);
                            entry.message(2, |it| hyper_parameter(it, number));
                        });
                    }
                    session.double(5, now());
                });
            });
        })
    }
}

impl Sink for TensorBoard {
    fn start(&mut self, run: &RunInfo) -> SinkResult {
        let dir = self
            .config
            .dir
            .as_deref()
            .unwrap_or(Path::new("tensorboard"));
        let dir = run.dir.join(dir);
        fs::create_dir_all(&dir)?;
        self.file = Some(create(&dir, run.step)?);
        self.step = run.step;
        self.write(0, |event| event.text(3, "brain.Event:2"))?;
        // Nothing but its step says which.
        self.write(run.step + 1, |event| {
            event.message(7, |log| log.int(1, START));
        })?;
        if run.step == 0 {
            self.hyper_parameters(&run.config)?;
            let config = serde_json::to_string_pretty(&run.config)?;
            let indented = config.replace('\n', "\n    ");
            self.text(0, "config", &format!("    {indented}"))?;
            for text in run.notes.iter() {
                self.text(0, "notes", text)?;
            }
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, _position: u64) -> SinkResult {
        self.step = record.step();
        let mut values = Vec::new();
        match record {
            Record::Step(r) => values.extend(r.numbers()),
            Record::Val(r) => values.push(("val_loss", f64::from(r.val_loss))),
        }
        let scalars = record.scalars().iter();
        values.extend(scalars.map(|(name, scalar)| (name.as_str(), scalar.to_f64())));
        // One write a row.
        self.write(record.step(), |event| {
            event.message(5, |summary| {
                for (tag, number) in values {
                    summary.message(1, |value| {
                        value.text(1, tag);
                        value.float(2, number as f32);
                        plugin(value, "scalars", |_| {});
                    });
                }
            });
        })?;
        Ok(())
    }

    fn histograms(&mut self, histograms: &Histograms) -> SinkResult {
        self.write(histograms.step, |event| {
            event.message(5, |summary| {
                for histogram in &histograms.histograms {
                    summary.message(1, |value| {
                        value.text(1, &histogram.name);
                        value.message(5, |message| spread(message, histogram));
                    });
                }
            });
        })?;
        Ok(())
    }

    fn image(&mut self, image: &Image) -> SinkResult {
        let (width, height) = image.size();
        self.summary(self.step, &image.name, |value| {
            value.message(4, |message| {
                message.int(1, height.into());
                message.int(2, width.into());
                message.int(3, RGB);
                message.bytes(4, &image.png);
            });
        })?;
        Ok(())
    }

    fn sample(&mut self, sample: &Sample) -> SinkResult {
        let (step, nth) = self.samples;
        let nth = if step == sample.step { nth } else { 0 };
        self.samples = (sample.step, nth + 1);
        let text = format!("**{}**{}", sample.prompt, sample.continuation);
        self.text(sample.step, &format!("samples/{nth}"), &text)?;
        Ok(())
    }
}

/// The metadata of a value: whose it is.
fn plugin(value: &mut Message, name: &str, content: impl FnOnce(&mut Message)) {
    value.message(9, |metadata| {
        metadata.message(1, |plugin| {
            plugin.text(1, name);
            plugin.message(2, content);
        });
    });
}

/// As `HistogramProto`: of each bin its upper bound and its count.
fn spread(message: &mut Message, histogram: &Histogram) {
    let counts: Vec<f64> = histogram.counts.iter().map(|&count| count as f64).collect();
    let edges = histogram.edges();
    message.double(1, edges[0]);
    message.double(2, edges[edges.len() - 1]);
    message.double(3, counts.iter().sum());
    message.double(4, histogram.sum);
    message.double(5, histogram.sum_squares);
    message.doubles(6, &edges[1..]);
    message.doubles(7, &counts);
}

/// As `google.protobuf.Value`.
fn hyper_parameter(message: &mut Message, value: &Value) {
    match value {
        Value::Number(number) => message.double(2, number.as_f64().unwrap_or(f64::NAN)),
        Value::Bool(value) => message.truth(4, *value),
        Value::String(text) => message.text(3, text),
        other => message.text(3, &other.to_string()),
    }
}

fn flatten(value: &Value, path: &str, into: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match path {
                    "" if key == "hydra" => {}
                    "" => flatten(value, key, into),
                    path => flatten(value, &format!("{path}.{key}"), into),
                }
            }
        }
        value => into.push((path.to_owned(), value.clone())),
    }
}

/// A file that is not there yet. TensorBoard reads the files of a folder by their names, in which the time comes first.
fn create(dir: &Path, step: u64) -> io::Result<fs::File> {
    let seconds = now() as u64;
    for nth in 0.. {
        let name = format!("events.out.tfevents.{seconds:010}.{nth}.step-{step}");
        let mut options = OpenOptions::new();
        match options.append(true).create_new(true).open(dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => return file,
        }
    }
    unreachable!("there are more numbers than files")
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut framed = Vec::with_capacity(bytes.len() + 16);
    framed.extend_from_slice(&length);
    framed.extend_from_slice(&masked(&length).to_le_bytes());
    framed.extend_from_slice(bytes);
    framed.extend_from_slice(&masked(bytes).to_le_bytes());
    framed
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

/// In seconds.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_framed_as_the_format_says() {
        // The first event of every file that TensorFlow writes, of wall time 0.
        let mut event = Message::default();
        event.double(1, 0.0);
        event.text(3, "brain.Event:2");
        let framed = framed(&event.into_bytes());
        assert_eq!(framed[..8], 24u64.to_le_bytes());
        // CRC-32C of `123456789` is a published check value.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        let masked = 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8);
        assert_eq!(super::masked(b"123456789"), masked);
        assert_eq!(framed.len(), 8 + 4 + 24 + 4);
    }
}
