//! Whether two resolved configs are of the same run, and in what they differ.

use std::path::Path;

use serde_json::Value;

use crate::run_dir::RESOLVED_CONFIG;

/// The resolved config of the run in a folder, if there is one that can be read.
pub(crate) fn read_config(run: &Path) -> Option<Value> {
    tt_disk::read_json(&run.join(RESOLVED_CONFIG)).ok()
}

/// Whether two resolved configs are of the same run.
///
/// Left out is what cannot change a number of the run: where it is written, how it is called and shown, how it is
/// resumed, how many threads and cores it runs on, and what happens if these fail; and the instruction set, of which
/// resuming warns by itself.
pub fn same_run(a: &Value, b: &Value) -> bool {
    differences(a, b).is_empty()
}

/// The keys that matter to [`same_run`] and differ, as `key: old -> new`.
pub(crate) fn differences(old: &Value, new: &Value) -> Vec<String> {
    const LEFT_OUT: [&str; 16] = [
        "hydra",
        "resume",
        "logging",
        "device.threads",
        "device.isa",
        "device.cores",
        "device.memory_gb",
        "device.fallback",
        "device.sync",
        "device.timeout_seconds",
        "device.restart",
        "sweep",
        "data.num_workers",
        "trainer.log_interval",
        "name",
        "notes",
    ];
    let mut found = Vec::new();
    compare("", old, new, &mut |key, old, new| {
        let shown = |value: Option<&Value>| value.map_or("(absent)".to_owned(), Value::to_string);
        found.push(format!("{key}: {} -> {}", shown(old), shown(new)));
    });
    found.retain(|difference| {
        !LEFT_OUT.iter().any(|key| {
            let rest = difference.strip_prefix(key);
            rest.is_some_and(|rest| rest.starts_with(['.', ':']))
        })
    });
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
        assert_eq!(differences(&old, &new), expected);
    }
}
