//! The records of a `.wandb` log: what a run is and what has happened in it, in the words of W&B.
//!
//! | field of `Record` | message | its fields |
//! | --- | --- | --- |
//! | 17 run | [`Run`] | 1 run_id, 2 entity, 3 project, 4 config, 6 run_group, 7 job_type, 8 display_name, 9 notes, 10 tags, 13 host, 14 starting_step, 17 start_time, 19 telemetry, 20 runtime, 21 git, 24 resume |
//! | 2 history | [`Record::History`] | 1 item, 2 step {1 num} |
//! | 3 summary | [`Record::Summary`] | 1 update: item |
//! | 7 stats | [`Record::Stats`] | 2 timestamp, 3 item; names without `system.` |
//! | 13 output_raw | [`Record::Output`] | 1 type (0 stderr, 1 stdout), 2 timestamp, 3 line with its `\n` |
//! | 12 metric | [`Metric`] | 1 name, 2 glob_name, 4 step_metric, 6 options, 7 summary |
//! | 6 files | [`Record::Files`] | 1 files {1 path, 2 policy, 3 type} |
//! | 10 alert | [`Record::Alert`] | 1 title, 2 text, 3 level (`WARN`, `ERROR`), 4 wait_duration (milliseconds) |
//! | 8 artifact | [`Artifact`] | 1 run_id, 2 project, 3 entity, 4 type, 5 name, 6 digest, 8 metadata, 11 aliases, 12 manifest {1 version, 2 storage_policy, 3 storage_policy_config {1 key, 2 value_json}, 4 contents {1 path, 2 digest, 3 ref, 4 size}}, 14 finalize, 15 client_id, 16 sequence_client_id, 20 digest_algorithm |
//! | 23 preempting, 18 exit | | 1 exit_code, 2 runtime (seconds) |
//!
//! An item is 1 key, 2 nested_key (repeated, instead of a key), 16 value_json: the value as JSON, with the bare words
//! `NaN`, `Infinity` and `-Infinity`. A timestamp is 1 seconds, 2 nanos. Number 1 of a record counts from 1, and 200
//! holds the run's id. The run comes before everything but the header, the exit after everything: what is not between
//! them, `wandb sync` drops without a word.

use indexmap::IndexMap;

use super::artifact::{Artifact, KIND, Referenced, STORAGE_LAYOUT, STORAGE_POLICY};
use super::config::SummaryRule;
use super::log::Malformed;
use super::proto::{self, Message, Value};
use super::timing::ALERT_INTERVAL;
use crate::alert::{Alert, AlertLevel};

/// Values by name, each as JSON text.
pub(super) type Items = IndexMap<String, String>;

/// The client whose logs these are like: readers compare versions.
pub(super) const CLIENT_VERSION: &str = "0.31.0";

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    Header,
    Run(Box<Run>),
    Metric(Metric),
    History {
        step: u64,
        items: Items,
    },
    Summary(Items),
    Stats {
        time: f64,
        items: Items,
    },
    Output {
        is_error: bool,
        time: f64,
        line: String,
    },
    /// Files in `files/` beside the log, by name.
    Files(Vec<String>),
    Alert(Alert),
    Artifact(Box<Artifact>),
    Preempting,
    Exit {
        code: i64,
        runtime: i64,
    },
    /// Of other clients.
    Other,
}

/// One process's part of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Run {
    pub(super) id: String,
    pub(super) entity: String,
    pub(super) project: String,
    pub(super) config: Items,
    pub(super) group: String,
    pub(super) job_type: String,
    pub(super) name: String,
    pub(super) notes: String,
    pub(super) tags: Vec<String>,
    pub(super) host: String,
    pub(super) git_remote: String,
    pub(super) git_commit: String,
    /// Steps done before.
    pub(super) starting_step: u64,
    /// Unix time, seconds.
    pub(super) start_time: f64,
    /// Seconds that earlier processes have taken.
    pub(super) runtime: i64,
}

/// How a metric is shown and summed up.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Metric {
    pub(super) name: String,
    /// Instead of a name.
    pub(super) glob: String,
    pub(super) step_metric: String,
    pub(super) summary: Vec<SummaryRule>,
}

impl Record {
    /// `number` counts the records of a log from 1.
    pub(super) fn encode(&self, number: i64, run_id: &str) -> Vec<u8> {
        let mut record = Message::default();
        record.int(1, number);
        match self {
            Self::Header => record.message(21, |header| {
                header.message(1, |version| {
                    version.text(1, CLIENT_VERSION);
                    version.text(2, "0.70.0");
                });
            }),
            Self::Run(run) => record.message(17, |message| run.encode(message)),
            Self::Metric(metric) => record.message(12, |message| metric.encode(message)),
            Self::History { step, items } => record.message(2, |history| {
                encode_items(history, 1, items);
                history.message(2, |message| message.int(1, *step as i64));
            }),
            Self::Summary(items) => record.message(3, |summary| encode_items(summary, 1, items)),
            Self::Stats { time, items } => record.message(7, |stats| {
                encode_time(stats, 2, *time);
                encode_items(stats, 3, items);
            }),
            Self::Output {
                is_error,
                time,
                line,
            } => record.message(13, |output| {
                output.int(1, i64::from(!is_error));
                encode_time(output, 2, *time);
                output.text(3, &format!("{line}\n"));
            }),
            Self::Files(names) => record.message(6, |files| {
                for name in names {
                    files.message(1, |file| file.text(1, name));
                }
            }),
            Self::Alert(alert) => record.message(10, |message| {
                message.text(1, &alert.title);
                message.text(2, &alert.text);
                message.text(3, level_word(alert.level));
                message.int(4, ALERT_INTERVAL.as_millis() as i64);
            }),
            Self::Artifact(artifact) => record.message(8, |message| {
                message.text(1, run_id);
                artifact.encode(message);
            }),
            Self::Preempting => record.message(23, |_| {}),
            Self::Exit { code, runtime } => record.message(18, |exit| {
                exit.int(1, *code);
                exit.int(2, *runtime);
            }),
            Self::Other => {}
        }
        record.message(200, |info| info.text(1, run_id));
        record.into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut record = Self::Other;
        proto::read(bytes, |field, value| {
            match field {
                21 => record = Self::Header,
                17 => record = Self::Run(Box::new(Run::decode(value.bytes()?)?)),
                12 => record = Self::Metric(Metric::decode(value.bytes()?)?),
                2 => record = decode_history(value.bytes()?)?,
                3 => record = Self::Summary(decode_items(value.bytes()?, 1)?),
                7 => record = decode_stats(value.bytes()?)?,
                13 => record = decode_output(value.bytes()?)?,
                6 => record = Self::Files(decode_files(value.bytes()?)?),
                8 => record = Self::Artifact(Box::new(Artifact::decode(value.bytes()?)?)),
                10 => record = Self::Alert(decode_alert(value.bytes()?)?),
                23 => record = Self::Preempting,
                18 => {
                    let (mut code, mut runtime) = (0, 0);
                    proto::read(value.bytes()?, |field, value| {
                        match field {
                            1 => code = value.int()?,
                            2 => runtime = value.int()?,
                            _ => {}
                        }
                        Ok(())
                    })?;
                    record = Self::Exit { code, runtime };
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(record)
    }
}

impl Run {
    fn encode(&self, run: &mut Message) {
        run.text(1, &self.id);
        run.text(2, &self.entity);
        run.text(3, &self.project);
        run.message(4, |config| encode_items(config, 1, &self.config));
        run.text(6, &self.group);
        run.text(7, &self.job_type);
        run.text(8, &self.name);
        run.text(9, &self.notes);
        for tag in &self.tags {
            run.text(10, tag);
        }
        run.text(13, &self.host);
        run.int(14, self.starting_step as i64);
        encode_time(run, 17, self.start_time);
        run.message(19, |telemetry| {
            telemetry.text(5, CLIENT_VERSION);
            telemetry.text(13, &platform());
        });
        run.int(20, self.runtime);
        run.message(21, |git| {
            git.text(1, &self.git_remote);
            git.text(2, &self.git_commit);
        });
        // Several logs of a run follow one another, whoever uploads them.
        run.int(24, 1);
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut run = Self::default();
        proto::read(bytes, |field, value| {
            match field {
                1 => run.id = value.text()?,
                2 => run.entity = value.text()?,
                3 => run.project = value.text()?,
                4 => run.config = decode_items(value.bytes()?, 1)?,
                6 => run.group = value.text()?,
                7 => run.job_type = value.text()?,
                8 => run.name = value.text()?,
                9 => run.notes = value.text()?,
                10 => run.tags.push(value.text()?),
                13 => run.host = value.text()?,
                14 => run.starting_step = value.int()?.max(0) as u64,
                17 => run.start_time = decode_time(value.bytes()?)?,
                20 => run.runtime = value.int()?,
                21 => proto::read(value.bytes()?, |field, value| {
                    match field {
                        1 => run.git_remote = value.text()?,
                        2 => run.git_commit = value.text()?,
                        _ => {}
                    }
                    Ok(())
                })?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(run)
    }
}

impl Metric {
    fn encode(&self, metric: &mut Message) {
        metric.text(1, &self.name);
        metric.text(2, &self.glob);
        metric.text(4, &self.step_metric);
        metric.message(6, |options| {
            options.int(1, i64::from(!self.step_metric.is_empty()));
            options.int(3, 1); // defined by the user, not found in a row
        });
        if !self.summary.is_empty() {
            metric.message(7, |summary| {
                for rule in &self.summary {
                    summary.int(rule.field(), 1);
                }
            });
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut metric = Self::default();
        proto::read(bytes, |field, value| {
            match field {
                1 => metric.name = value.text()?,
                2 => metric.glob = value.text()?,
                4 => metric.step_metric = value.text()?,
                7 => proto::read(value.bytes()?, |field, _| {
                    metric.summary.extend(SummaryRule::of_field(field));
                    Ok(())
                })?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(metric)
    }
}

impl Artifact {
    fn encode(&self, artifact: &mut Message) {
        artifact.text(2, &self.project);
        artifact.text(3, &self.entity);
        artifact.text(4, KIND);
        artifact.text(5, &self.name);
        artifact.text(6, &self.digest);
        artifact.text(8, &self.metadata);
        for alias in &self.aliases {
            artifact.text(11, alias);
        }
        artifact.message(12, |manifest| {
            manifest.int(1, 1);
            manifest.text(2, STORAGE_POLICY);
            manifest.message(3, |config| {
                config.text(1, "storageLayout");
                config.text(2, &format!("\"{STORAGE_LAYOUT}\""));
            });
            for file in &self.files {
                manifest.message(4, |entry| {
                    entry.text(1, &file.path);
                    entry.text(2, &file.digest);
                    entry.text(3, &file.address);
                    entry.int(4, file.bytes as i64);
                });
            }
        });
        artifact.int(14, 1);
        artifact.text(15, &self.client_id);
        artifact.text(16, &self.sequence_client_id);
        artifact.text(20, "MANIFEST_MD5");
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut artifact = Self::default();
        proto::read(bytes, |field, value| {
            match field {
                2 => artifact.project = value.text()?,
                3 => artifact.entity = value.text()?,
                5 => artifact.name = value.text()?,
                6 => artifact.digest = value.text()?,
                8 => artifact.metadata = value.text()?,
                11 => artifact.aliases.push(value.text()?),
                12 => proto::read(value.bytes()?, |field, value| {
                    if field == 4 {
                        artifact.files.push(decode_file(value.bytes()?)?);
                    }
                    Ok(())
                })?,
                15 => artifact.client_id = value.text()?,
                16 => artifact.sequence_client_id = value.text()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(artifact)
    }
}

fn decode_file(bytes: &[u8]) -> Result<Referenced, Malformed> {
    let mut file = Referenced::default();
    proto::read(bytes, |field, value| {
        match field {
            1 => file.path = value.text()?,
            2 => file.digest = value.text()?,
            3 => file.address = value.text()?,
            4 => file.bytes = value.int()?.max(0) as u64,
            _ => {}
        }
        Ok(())
    })?;
    Ok(file)
}

/// As W&B names it, such as `linux-x86_64`.
pub(super) fn platform() -> String {
    format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH)
}

fn encode_items(message: &mut Message, field: u32, items: &Items) {
    for (key, value) in items {
        message.message(field, |item| {
            item.text(1, key);
            item.text(16, value);
        });
    }
}

/// Fields `field` of a message. A nested key becomes one with dots, as the site shows it.
fn decode_items(bytes: &[u8], field: u32) -> Result<Items, Malformed> {
    let mut items = Items::new();
    proto::read(bytes, |found, value| {
        if found == field {
            let (key, value) = decode_item(value)?;
            items.insert(key, value);
        }
        Ok(())
    })?;
    Ok(items)
}

fn decode_item(item: Value<'_>) -> Result<(String, String), Malformed> {
    let (mut key, mut nested, mut json) = (String::new(), Vec::new(), String::new());
    proto::read(item.bytes()?, |field, value| {
        match field {
            1 => key = value.text()?,
            2 => nested.push(value.text()?),
            16 => json = value.text()?,
            _ => {}
        }
        Ok(())
    })?;
    if !nested.is_empty() {
        key = nested.join(".");
    }
    Ok((key, json))
}

fn encode_time(message: &mut Message, field: u32, time: f64) {
    message.message(field, |stamp| {
        let micros = (time * 1e6).round() as i64;
        stamp.int(1, micros.div_euclid(1_000_000));
        stamp.int(2, micros.rem_euclid(1_000_000) * 1000);
    });
}

fn decode_time(bytes: &[u8]) -> Result<f64, Malformed> {
    let (mut seconds, mut nanos) = (0, 0);
    proto::read(bytes, |field, value| {
        match field {
            1 => seconds = value.int()?,
            2 => nanos = value.int()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(seconds as f64 + (nanos / 1000) as f64 / 1e6)
}

fn decode_history(bytes: &[u8]) -> Result<Record, Malformed> {
    let items = decode_items(bytes, 1)?;
    let mut step = 0;
    proto::read(bytes, |field, value| {
        if field == 2 {
            proto::read(value.bytes()?, |field, value| {
                if field == 1 {
                    step = value.int()?;
                }
                Ok(())
            })?;
        }
        Ok(())
    })?;
    // What the row itself says is what other readers go by.
    let own = items.get("_step").and_then(|text| text.parse().ok());
    let step = own.unwrap_or(step.max(0) as u64);
    Ok(Record::History { step, items })
}

fn decode_stats(bytes: &[u8]) -> Result<Record, Malformed> {
    let items = decode_items(bytes, 3)?;
    let mut time = 0.0;
    proto::read(bytes, |field, value| {
        if field == 2 {
            time = decode_time(value.bytes()?)?;
        }
        Ok(())
    })?;
    Ok(Record::Stats { time, items })
}

fn decode_output(bytes: &[u8]) -> Result<Record, Malformed> {
    let (mut is_error, mut time, mut line) = (true, 0.0, String::new());
    proto::read(bytes, |field, value| {
        match field {
            1 => is_error = value.int()? == 0,
            2 => time = decode_time(value.bytes()?)?,
            3 => line = value.text()?,
            _ => {}
        }
        Ok(())
    })?;
    let line = line.strip_suffix('\n').unwrap_or(&line).to_owned();
    Ok(Record::Output {
        is_error,
        time,
        line,
    })
}

fn decode_files(bytes: &[u8]) -> Result<Vec<String>, Malformed> {
    let mut names = Vec::new();
    proto::read(bytes, |field, value| {
        if field == 1 {
            proto::read(value.bytes()?, |field, value| {
                if field == 1 {
                    names.push(value.text()?);
                }
                Ok(())
            })?;
        }
        Ok(())
    })?;
    Ok(names)
}

/// As the server names it.
pub(super) fn level_word(level: AlertLevel) -> &'static str {
    match level {
        AlertLevel::Warning => "WARN",
        AlertLevel::Error => "ERROR",
    }
}

fn decode_alert(bytes: &[u8]) -> Result<Alert, Malformed> {
    let mut alert = Alert::default();
    proto::read(bytes, |field, value| {
        match field {
            1 => alert.title = value.text()?,
            2 => alert.text = value.text()?,
            3 if value.text()? == level_word(AlertLevel::Error) => alert.level = AlertLevel::Error,
            _ => {}
        }
        Ok(())
    })?;
    Ok(alert)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_reads_back() {
        let items = Items::from([
            ("_step".to_owned(), "7".to_owned()),
            ("loss".to_owned(), "NaN".to_owned()),
        ]);
        let run = Run {
            id: "k3v8x0qa".into(),
            entity: "us".into(),
            project: "p".into(),
            config: items.clone(),
            group: "g".into(),
            job_type: "j".into(),
            name: "n".into(),
            notes: "t".into(),
            tags: vec!["a".into(), "b".into()],
            host: "h".into(),
            git_remote: "r".into(),
            git_commit: "c".into(),
            starting_step: 3,
            start_time: 1_795_817_291.479_471,
            runtime: 12,
        };
        let metric = Metric {
            name: "val_loss".into(),
            step_metric: "trainer/step".into(),
            summary: vec![SummaryRule::Min, SummaryRule::Last],
            ..Metric::default()
        };
        for record in [
            Record::Header,
            Record::Run(Box::new(run)),
            Record::Metric(metric),
            Record::History {
                step: 7,
                items: items.clone(),
            },
            Record::Summary(items.clone()),
            Record::Stats {
                time: 1.25,
                items: items.clone(),
            },
            Record::Output {
                is_error: true,
                time: 2.5,
                line: "ä".into(),
            },
            Record::Files(vec!["diff.patch".into()]),
            Record::Alert(Alert {
                title: "a".into(),
                text: "b".into(),
                level: AlertLevel::Error,
            }),
            Record::Artifact(Box::new(Artifact {
                entity: "us".into(),
                project: "p".into(),
                name: "checkpoint-a".into(),
                digest: "b".into(),
                metadata: "{}".into(),
                aliases: vec!["latest".into()],
                client_id: "c".into(),
                sequence_client_id: "d".into(),
                files: vec![Referenced {
                    path: "e".into(),
                    digest: "f".into(),
                    address: "file:///e".into(),
                    bytes: 1 << 40,
                }],
            })),
            Record::Preempting,
            Record::Exit {
                code: -1,
                runtime: 3,
            },
        ] {
            let bytes = record.encode(1, "k3v8x0qa");
            assert_eq!(Record::decode(&bytes).unwrap(), record);
        }
    }
}
