//! What belongs to rows and is no number: histograms and samples, which the run keeps in files of their own, and images.
//!
//! | value of a key | file |
//! | --- | --- |
//! | `{"_type":"histogram","bins":[n+1 edges],"values":[n counts]}` | |
//! | `{"_type":"table-file","path":"media/table/KEY_STEP_HASH.table.json","sha256","size","ncols","nrows","log_mode"}` | `{"columns":[..],"data":[[..],..]}` |
//! | `{"_type":"image-file","path":"media/images/KEY_STEP_HASH.png","sha256","size","format","width","height"}` | PNG |
//!
//! A file is named by the step, and by the first 20 digits of its SHA-256, so it is never written twice with different
//! content. The reference client puts a table into an artifact besides, which a run's own page does without.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::digest::hex;
use super::record::Items;
use super::tail::Tail;
use crate::histogram::{Histogram, Histograms};
use crate::image::Image;
use crate::sample::Sample;

/// The key of the tables.
const SAMPLES: &str = "samples";

/// The files of histograms and samples of a run, read along with its rows.
pub(super) struct Media {
    histograms: Beside,
    samples: Beside,
}

/// A file of rows with a step.
struct Beside {
    lines: Tail,
    /// Behind the rows of earlier processes.
    live_from: u64,
    /// Read, and of later steps.
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    step: u64,
    is_live: bool,
    line: String,
}

/// What one process has made in one step.
#[derive(Default)]
pub(super) struct OfStep {
    pub(super) step: u64,
    /// Whether this process has made it.
    pub(super) is_live: bool,
    histograms: Vec<Histogram>,
    samples: Vec<Sample>,
}

/// A file to be sent, and the value of the row that names it.
pub(super) struct MediaFile {
    pub(super) name: String,
    pub(super) value: String,
}

impl Media {
    /// Those of the run in `folder`, from their beginning. What they hold now is of earlier processes.
    pub(super) fn of(folder: &Path) -> Self {
        Self {
            histograms: Beside::new(&folder.join("histograms.jsonl")),
            samples: Beside::new(&folder.join("samples.jsonl")),
        }
    }

    /// What there is of steps up to `step` that has not been given before, by step. Of a step whose row is followed by
    /// another one, it is all.
    pub(super) fn up_to(&mut self, step: u64) -> io::Result<Vec<OfStep>> {
        let mut found: Vec<OfStep> = Vec::new();
        for waiting in self.histograms.up_to(step)? {
            if let Ok(row) = serde_json::from_str::<Histograms>(&waiting.line) {
                at(&mut found, &waiting).histograms = row.histograms;
            }
        }
        for waiting in self.samples.up_to(step)? {
            if let Ok(sample) = serde_json::from_str(&waiting.line) {
                at(&mut found, &waiting).samples.push(sample);
            }
        }
        Ok(found)
    }
}

fn at<'a>(found: &'a mut Vec<OfStep>, waiting: &Waiting) -> &'a mut OfStep {
    let wanted = (waiting.step, waiting.is_live);
    let place = found.partition_point(|it| (it.step, it.is_live) < wanted);
    if found
        .get(place)
        .is_none_or(|it| (it.step, it.is_live) != wanted)
    {
        let of_step = OfStep {
            step: waiting.step,
            is_live: waiting.is_live,
            ..OfStep::default()
        };
        found.insert(place, of_step);
    }
    &mut found[place]
}

impl Beside {
    fn new(path: &Path) -> Self {
        Self {
            lines: Tail::new(path.to_owned(), 0),
            live_from: fs::metadata(path).map_or(0, |it| it.len()),
            waiting: VecDeque::new(),
        }
    }

    fn up_to(&mut self, step: u64) -> io::Result<Vec<Waiting>> {
        #[derive(Deserialize)]
        struct Row {
            step: u64,
        }
        let mut found = Vec::new();
        loop {
            while self.waiting.front().is_some_and(|it| it.step <= step) {
                found.extend(self.waiting.pop_front());
            }
            if !self.waiting.is_empty() {
                return Ok(found);
            }
            let lines = self.lines.lines(None)?;
            if lines.is_empty() {
                return Ok(found);
            }
            for (line, end) in lines {
                if let Ok(Row { step }) = serde_json::from_str(&line) {
                    let is_live = end > self.live_from;
                    self.waiting.push_back(Waiting {
                        step,
                        is_live,
                        line,
                    });
                }
            }
        }
    }
}

impl OfStep {
    /// The values of its histograms, by name.
    pub(super) fn histograms(&self) -> Items {
        let named = self.histograms.iter();
        named.map(|it| (it.name.clone(), histogram(it))).collect()
    }

    /// Its samples as a table in `files`; `None` if it has none. Texts go through `scrubbed`.
    pub(super) fn table(
        &self,
        files: &Path,
        scrubbed: &dyn Fn(&str) -> String,
    ) -> io::Result<Option<(&'static str, MediaFile)>> {
        if self.samples.is_empty() {
            return Ok(None);
        }
        let rows = self.samples.iter().map(|sample| {
            let texts = [&sample.prompt, &sample.continuation];
            let [prompt, continuation] = texts.map(|text| scrubbed(text));
            json!([self.step, prompt, continuation])
        });
        let rows: Vec<_> = rows.collect();
        let columns = ["step", "prompt", "continuation"];
        let (ncols, nrows) = (columns.len(), rows.len());
        let table = json!({"columns": columns, "data": rows}).to_string();
        let place = ("media/table", SAMPLES, self.step, "table.json");
        let value = json!({
            "_type": "table-file", "ncols": ncols, "nrows": nrows, "log_mode": "IMMUTABLE",
        });
        let file = store(files, place, table.as_bytes(), value)?;
        Ok(Some((SAMPLES, file)))
    }
}

/// An image, as a file in `files`.
pub(super) fn image(files: &Path, step: u64, image: &Image) -> io::Result<MediaFile> {
    let (width, height) = image.size();
    let place = ("media/images", image.name.as_str(), step, "png");
    let value = json!({
        "_type": "image-file", "format": "png", "width": width, "height": height,
    });
    store(files, place, &image.png, value)
}

/// Writes a file (folder, key, step, suffix) and says in the value what it is.
fn store(
    files: &Path,
    (folder, key, step, suffix): (&str, &str, u64, &str),
    content: &[u8],
    mut value: Value,
) -> io::Result<MediaFile> {
    let digest = hex(&Sha256::digest(content));
    let name = format!("{folder}/{key}_{step}_{}.{suffix}", &digest[..20]);
    let path = files.join(&name);
    tt_disk::create_dir(tt_disk::parent(&path))?;
    fs::write(&path, content)?;
    value["path"] = name.as_str().into();
    value["sha256"] = digest.into();
    value["size"] = content.len().into();
    let value = value.to_string();
    Ok(MediaFile { name, value })
}

fn histogram(histogram: &Histogram) -> String {
    let edges = histogram.edges();
    // In the precision of what is counted, which is half the digits, unless bins are narrower than that.
    let single: Vec<f32> = edges.iter().map(|&edge| edge as f32).collect();
    let is_exact = single.iter().all(|edge| edge.is_finite()) && single.is_sorted_by(|a, b| a < b);
    let edges = if is_exact {
        serde_json::to_string(&single)
    } else {
        serde_json::to_string(&edges)
    };
    let (edges, counts) = (edges.unwrap_or_default(), json!(histogram.counts));
    format!(r#"{{"_type":"histogram","bins":{edges},"values":{counts}}}"#)
}
