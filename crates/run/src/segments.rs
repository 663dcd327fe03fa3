//! A run's starts: with which config, where and over which steps it ran between one and the next.
//!
//! ```text
//! RUN/segments/001/          the first start, 002 the second, ...
//!   segment.json             see `Segment`
//!   .hydra/  resolved_config.json  environment.json   as in the run folder, which has those of the last start
//! ```
//!
//! A run that goes on from step 20 takes back what an earlier start did after it: the steps that a segment has are those
//! before the first of any later one.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::output_dir::subfolders;
use crate::record::{CONFIG_FILES, RecordedRun};
use crate::run_dir::{RESOLVED_CONFIG, RunDir, RunDirError, records};
use crate::same_run::{Difference, differences, read_config};

pub(crate) const SEGMENTS: &str = "segments";
const SEGMENT: &str = "segment.json";

/// What is noted of a start besides its config and its environment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// The first step that it makes, counted from 1.
    pub first_step: u64,
    /// When, in UTC; null if a version before segments has made it.
    pub started: Option<String>,
    pub host: Option<String>,
    pub instruction_set: Option<String>,
    /// That shared the model; null if a version before has made it.
    #[serde(default)]
    pub ranks: Option<usize>,
}

/// A segment of a run folder.
#[derive(Debug)]
pub struct RecordedSegment {
    /// Its folder, which can be read as a run's.
    pub folder: PathBuf,
    pub segment: Segment,
    /// The last step that is left of it; `None`: those that the run has made since.
    pub last_step: Option<u64>,
}

impl RecordedSegment {
    /// Whether later starts have taken back all of its steps.
    pub fn is_gone(&self) -> bool {
        self.last_step
            .is_some_and(|last| last < self.segment.first_step)
    }

    /// The keys in which it differs from what the run asked for in the segment before.
    pub fn differences(&self, before: &Self) -> Vec<Difference> {
        let read = |segment: &Self| read_config(&segment.folder).ok().flatten();
        match (read(before), read(self)) {
            (Some(before), Some(own)) => differences(&before, &own),
            _ => Vec::new(),
        }
    }

    /// What was asked for.
    pub fn overrides(&self) -> Vec<String> {
        RecordedRun::at(&self.folder)
            .overrides()
            .unwrap_or_default()
    }
}

/// The segments of the run in `folder`, in the order of their starts; none if a version before segments has made it. What
/// cannot be read is left out.
pub fn segments(folder: &Path) -> Vec<RecordedSegment> {
    let mut folders = subfolders(&folder.join(SEGMENTS)).unwrap_or_default();
    folders.sort_unstable();
    let mut found: Vec<RecordedSegment> = Vec::new();
    for folder in folders {
        let Ok(segment) = tt_disk::read_json::<Segment>(&folder.join(SEGMENT)) else {
            continue;
        };
        let before = segment.first_step.saturating_sub(1);
        for earlier in &mut found {
            earlier.last_step = Some(earlier.last_step.map_or(before, |last| last.min(before)));
        }
        found.push(RecordedSegment {
            folder,
            segment,
            last_step: None,
        });
    }
    found
}

/// Makes the folder of a new segment, and gives its path below the run's.
pub(crate) fn begin(run_dir: &RunDir, segment: &Segment) -> Result<String, RunDirError> {
    let all = run_dir.path().join(SEGMENTS);
    let failed = |source| RunDirError::Io {
        path: all.clone(),
        source,
    };
    if segment.first_step <= 1 && all.exists() {
        // Nothing is left of what came before.
        fs::remove_dir_all(&all).map_err(failed)?;
    }
    let mut count = subfolders(&all).map_err(failed)?.len();
    if count == 0 && segment.first_step > 1 {
        count += usize::from(keep_unsegmented(run_dir)?);
    }
    let name = format!("{SEGMENTS}/{:03}", count + 1);
    let text = serde_json::to_string_pretty(segment).expect("text and numbers");
    run_dir.write(&format!("{name}/{SEGMENT}"), &format!("{text}\n"))?;
    Ok(name)
}

/// Copies what a version before segments has recorded, before it is overwritten. Whether there is anything.
fn keep_unsegmented(run_dir: &RunDir) -> Result<bool, RunDirError> {
    let folder = run_dir.path();
    if !folder.join(RESOLVED_CONFIG).is_file() {
        return Ok(false);
    }
    let name = format!("{SEGMENTS}/001");
    let own = records(folder);
    let subdir = own.file_name().unwrap_or_default().to_string_lossy();
    let of_config = CONFIG_FILES.map(|file| format!("{subdir}/{file}"));
    let others = [RESOLVED_CONFIG, "environment.json"].map(str::to_owned);
    for file in of_config.iter().chain(&others) {
        if let Ok(text) = fs::read_to_string(folder.join(file)) {
            run_dir.write(&format!("{name}/{file}"), &text)?;
        }
    }
    let segment = Segment {
        first_step: 1,
        ..Segment::default()
    };
    let text = serde_json::to_string_pretty(&segment).expect("text and numbers");
    run_dir.write(&format!("{name}/{SEGMENT}"), &format!("{text}\n"))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started_at(run: &RunDir, first_step: u64) {
        let segment = Segment {
            first_step,
            ..Segment::default()
        };
        begin(run, &segment).unwrap();
    }

    fn steps(run: &RunDir) -> Vec<(u64, Option<u64>, bool)> {
        let all = segments(run.path()).into_iter();
        all.map(|it| (it.segment.first_step, it.last_step, it.is_gone()))
            .collect()
    }

    #[test]
    fn a_segment_ends_where_any_later_one_begins() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::open(root.path()).unwrap();
        started_at(&run, 1);
        started_at(&run, 31);
        // The checkpoint of step 30 was damaged.
        started_at(&run, 21);
        started_at(&run, 41);
        let expected = [
            (1, Some(20), false),
            (31, Some(20), true),
            (21, Some(40), false),
            (41, None, false),
        ];
        assert_eq!(steps(&run), expected);
        started_at(&run, 42);
        assert_eq!(steps(&run)[3], (41, Some(41), false), "of one step");
        started_at(&run, 1);
        assert_eq!(steps(&run), [(1, None, false)]);
    }

    #[test]
    fn starts_are_counted_whatever_the_folder_has_recorded_by_then() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::open(root.path()).unwrap();
        run.write(RESOLVED_CONFIG, "{}").unwrap();
        for first_step in [1, 11, 21] {
            started_at(&run, first_step);
        }
        let all = segments(run.path());
        let names: Vec<_> = all.iter().map(|it| it.folder.file_name()).collect();
        assert_eq!(names, ["001", "002", "003"].map(|name| Some(name.as_ref())));
    }

    #[test]
    fn a_segment_tells_what_was_asked_for_and_what_of_it_is_new() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::open(root.path()).unwrap();
        for (first_step, lr) in [(1, 0.1), (11, 0.2)] {
            started_at(&run, first_step);
            let folder = segments(run.path()).pop().unwrap().folder;
            let record = |name: &str, text: String| {
                let path = folder.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            record(RESOLVED_CONFIG, format!("{{\"lr\": {lr}}}"));
            record(".hydra/overrides.yaml", format!("- lr={lr}\n"));
        }
        let [first, second] = &segments(run.path())[..] else {
            panic!("two starts");
        };
        assert_eq!(second.overrides(), ["lr=0.2"]);
        let differences = second.differences(first);
        let differences: Vec<_> = differences.iter().map(ToString::to_string).collect();
        assert_eq!(differences, ["lr: 0.1 -> 0.2"]);
    }

    #[test]
    fn what_a_version_before_segments_recorded_becomes_the_first() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::open(root.path()).unwrap();
        run.write(RESOLVED_CONFIG, "{\"lr\": 1}").unwrap();
        run.write(".hydra/config.yaml", "lr: 1\n").unwrap();
        started_at(&run, 11);
        assert_eq!(steps(&run), [(1, Some(10), false), (11, None, false)]);
        let first = &segments(run.path())[0].folder;
        let read = |name| fs::read_to_string(first.join(name)).unwrap();
        assert_eq!(read(RESOLVED_CONFIG), "{\"lr\": 1}");
        assert_eq!(read(".hydra/config.yaml"), "lr: 1\n");
    }
}
