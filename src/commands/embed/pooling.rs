//! The pooling that a model was trained for, as `sentence-transformers` writes it down: `1_Pooling/config.json`, a switch for
//! each kind.
//!
//! Errors: a kind that there is not here, or several, by name. What `pooling` chooses is not looked at twice.

use anyhow::bail;
use serde_json::Value;

use super::config::{EmbedConfig, PoolingName};
use crate::setup::stored::Stored;

const FILE: &str = "1_Pooling/config.json";
/// What the names of the switches begin with.
const SWITCH: &str = "pooling_mode_";

/// What is configured, else what lies beside the weights, else the mean.
pub(super) fn of(config: &EmbedConfig, stored: &Stored) -> anyhow::Result<PoolingName> {
    if let Some(chosen) = config.pooling {
        return Ok(chosen);
    }
    let Some(file) = stored.file(FILE) else {
        return Ok(PoolingName::Mean);
    };
    let written: Value = tt_disk::read_json(&file)?;
    let modes = modes(&written);
    match modes.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["cls_token" | "cls"] => Ok(PoolingName::Cls),
        ["mean_tokens" | "mean"] => Ok(PoolingName::Mean),
        ["lasttoken"] => Ok(PoolingName::Last),
        [] => bail!("{} chooses no pooling: pooling=mean", file.display()),
        _ => bail!(
            "{}: the model was trained with the pooling {}, which there is not here; there are mean, cls, last: pooling=NAME takes another",
            file.display(),
            modes.join(" and ")
        ),
    }
}

/// The kinds that are switched on; newer files name one.
fn modes(written: &Value) -> Vec<String> {
    let switches = written.as_object().into_iter().flatten();
    let on = switches.filter(|(_, value)| **value == true);
    let mut modes: Vec<String> = on
        .filter_map(|(key, _)| Some(key.strip_prefix(SWITCH)?.to_owned()))
        .collect();
    if let Some(named) = written["pooling_mode"].as_str() {
        modes = vec![named.to_owned()];
    }
    modes
}
