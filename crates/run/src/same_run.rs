//! Whether two resolved configs are of the same run, and in what they differ.

use std::fmt;
use std::io;
use std::path::Path;

use serde_json::Value;

use crate::run_dir::RESOLVED_CONFIG;

/// What cannot change a number of a run, and is nobody's business.
const LEFT_OUT: [&str; 34] = [
    "hydra",
    "resume",
    "logging",
    "profile",
    "bench",
    "device.threads",
    "device.ranks", // as with `isa`, rounding alone
    "ici_mesh",
    "dcn_mesh",
    "dist",
    "model.sharding",
    "device.isa",
    "device.peak_tflops",
    "device.utilization",
    "device.chip", // as with `isa`, rounding alone
    "device.cores",
    "device.memory_gb",
    "device.fallback",
    "device.kernels", // as with `isa`, rounding alone
    "device.mode",
    "device.sync",
    "device.timeout_seconds",
    "device.restart",
    "sweep",
    "data.num_workers",
    "data.token_cache",
    "data.nulls", // with `error` there is no number where it would change one
    "trainer.log_interval",
    "trainer.checkpoint.hub",
    "trainer.checkpoint.hub_private",
    "trainer.checkpoint.hub_wait_seconds",
    "trainer.on_optimizer_change",
    "name",
    "notes",
];

/// What makes another run of it and yet the same experiment: its length, what is done on the way, and what is done about
/// a step that fails. It may change where a run goes on in its folder, and is said.
const MAY_CHANGE: [&str; 13] = [
    "trainer.max_steps",
    "trainer.num_epochs",
    "trainer.checkpoint_interval",
    "trainer.checkpoint",
    "trainer.eval_interval",
    "trainer.sample_interval",
    "trainer.sample",
    "trainer.optimizer_metrics",
    "trainer.bad_steps",
    "trainer.spike_guard",
    "model.remat",
    "project",
    "debug",
];

/// The resolved config of the run in a folder; `None` if none was recorded. Error: it cannot be read.
pub(crate) fn read_config(run: &Path) -> tt_disk::Result<Option<Value>> {
    match tt_disk::read_json(&run.join(RESOLVED_CONFIG)) {
        Ok(config) => Ok(Some(config)),
        Err(tt_disk::Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A key in which two configs differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub key: String,
    /// `None`: there is no such key.
    pub old: Option<Value>,
    pub new: Option<Value>,
}

impl Difference {
    fn is_in(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| {
            let rest = self.key.strip_prefix(key);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }

    /// Whether it makes another experiment of the run.
    pub(crate) fn is_refused(&self) -> bool {
        !self.is_in(&MAY_CHANGE)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            |value: &Option<Value>| value.as_ref().map_or("(absent)".into(), Value::to_string);
        let (key, old, new) = (&self.key, shown(&self.old), shown(&self.new));
        write!(f, "{key}: {old} -> {new}")
    }
}

/// Whether two resolved configs are of the same run.
///
/// Left out is what cannot change a number of the run: where it is written and sent, how it is called and shown, how it is
/// resumed (and what is said of another optimizer then), how many threads and cores it runs on, and what happens if these
/// fail; and the instruction set, of which resuming warns by itself.
pub fn same_run(a: &Value, b: &Value) -> bool {
    differences(a, b).is_empty()
}

/// The keys that matter to [`same_run`] and differ.
pub(crate) fn differences(old: &Value, new: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", old, new, &mut |key, old, new| {
        found.push(Difference {
            key: key.to_owned(),
            old: old.cloned(),
            new: new.cloned(),
        });
    });
    // Versions differ in the keys that they know; null asks nothing of one.
    let is_null = |value: &Option<Value>| value.as_ref().is_none_or(Value::is_null);
    let is_nothing = |one: &Difference| is_null(&one.old) && is_null(&one.new);
    found.retain(|one| !one.is_in(&LEFT_OUT) && !is_nothing(one));
    found
}

fn compare(
    key: &str,
    old: &Value,
    new: &Value,
    report: &mut impl FnMut(&str, Option<&Value>, Option<&Value>),
) {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        if old != new {
            report(key, Some(old), Some(new));
        }
        return;
    };
    let path = |name: &str| match key {
        "" => name.to_owned(),
        _ => format!("{key}.{name}"),
    };
    for (name, old) in old {
        match new.get(name) {
            Some(new) => compare(&path(name), old, new, report),
            None => report(&path(name), Some(old), None),
        }
    }
    for (name, new) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
        report(&path(name), None, Some(new));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_thread_count_does_not_make_another_run() {
        let a = json!({"device": {"type": "cpu", "threads": 1}});
        let b = json!({"device": {"type": "cpu", "threads": null}});
        let c = json!({"device": {"type": "tpu", "threads": 1}});
        assert!(same_run(&a, &b));
        assert!(!same_run(&a, &c));
    }

    #[test]
    fn what_happens_if_a_device_fails_does_not_make_another_run() {
        let a = json!({"device": {"type": "tpu", "restart": {"max": 0}, "timeout_seconds": 600, "sync": false}});
        let b = json!({"device": {"type": "tpu", "restart": {"max": 3}, "timeout_seconds": null, "sync": true}});
        assert!(same_run(&a, &b));
    }

    #[test]
    fn names_workers_and_the_pace_of_the_log_do_not_make_another_run() {
        let a = json!({"name": "a", "notes": null, "data": {"num_workers": 1}, "trainer": {"log_interval": 1}});
        let b = json!({"name": "b", "notes": "x", "data": {"num_workers": 2}, "trainer": {"log_interval": 5}});
        assert!(same_run(&a, &b));
    }

    #[test]
    fn differences_name_key_old_and_new() {
        let old = json!({"trainer": {"max_steps": 3, "gone": 1}, "loggings": 1});
        let new = json!({"trainer": {"max_steps": 5}, "loggings": 2});
        let expected = [
            "trainer.max_steps: 3 -> 5",
            "trainer.gone: 1 -> (absent)",
            "loggings: 1 -> 2",
        ];
        let found = differences(&old, &new);
        let found: Vec<_> = found.iter().map(Difference::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn length_and_what_is_done_on_the_way_may_change_and_nothing_else() {
        let old = json!({
            "lr": 1, "data": {"sequence_length": 8}, "device": {"type": "cpu"},
            "trainer": {"max_steps": 3, "sample": {"count": 1}, "sample_rate": 1},
        });
        let new = json!({
            "lr": 2, "data": {"sequence_length": 9}, "device": {"type": "tpu"}, "later": null,
            "trainer": {"max_steps": 5, "sample": {"count": 2}, "sample_rate": 2},
        });
        let found = differences(&old, &new);
        let refused = found.iter().filter(|one| one.is_refused());
        let refused: Vec<_> = refused.map(|one| one.key.as_str()).collect();
        let expected = [
            "lr",
            "data.sequence_length",
            "device.type",
            "trainer.sample_rate",
        ];
        assert_eq!(refused, expected);
    }

    #[test]
    fn a_config_that_cannot_be_read_is_not_taken_for_absent() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_config(folder.path()).unwrap(), None);
        std::fs::write(folder.path().join(RESOLVED_CONFIG), "{\"lr\": ").unwrap();
        assert!(read_config(folder.path()).is_err());
    }
}
