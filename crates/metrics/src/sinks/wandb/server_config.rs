//! The config of a run in the server's words.

use serde_json::{Map, Value, json};

use super::json;
use super::record::{CLIENT_VERSION, Metric, Run, platform};

/// The config as the server wants it: each value wrapped, and what the client is. Without `_wandb.t` a run counts as one
/// that never began.
pub(super) fn config_json(run: &Run, metrics: &[Metric]) -> String {
    let mut fields: Vec<_> = run
        .config
        .iter()
        .map(|(key, value)| format!("{}:{{\"value\":{value}}}", json::string(key)))
        .collect();
    let own = json!({"value": {
        "cli_version": CLIENT_VERSION,
        "t": {"5": CLIENT_VERSION, "12": CLIENT_VERSION, "13": platform()},
        "m": metric_list(metrics),
    }});
    fields.push(format!("\"_wandb\":{own}"));
    format!("{{{}}}", fields.join(","))
}

/// Metrics by field number; a step metric is named by its place in the list, counted from 1.
fn metric_list(metrics: &[Metric]) -> Vec<Value> {
    let place = |name: &str| metrics.iter().position(|metric| metric.name == name);
    let entry = |metric: &Metric| {
        let mut entry = Map::new();
        let (field, name) = if metric.glob.is_empty() {
            ("1", &metric.name)
        } else {
            ("2", &metric.glob)
        };
        entry.insert(field.into(), name.as_str().into());
        let step = place(&metric.step_metric).filter(|_| !metric.step_metric.is_empty());
        let mut options = vec![3];
        if let Some(place) = step {
            entry.insert("5".into(), (place + 1).into());
            options.insert(0, 1);
        }
        entry.insert("6".into(), options.into());
        let rules: Vec<_> = metric.summary.iter().map(|rule| rule.field()).collect();
        entry.insert("7".into(), rules.into());
        Value::Object(entry)
    };
    metrics.iter().map(entry).collect()
}

/// The config as a YAML file: JSON is YAML, so only the outermost mapping is spelled out.
pub(super) fn config_yaml(config: &str) -> String {
    let Ok(Value::Object(config)) = serde_json::from_str(config) else {
        return String::new();
    };
    let entry = |(key, value): (String, Value)| format!("{}: {value}\n", json::string(&key));
    config.into_iter().map(entry).collect()
}
