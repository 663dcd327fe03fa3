//! `tpu-train sync [FOLDER ...]`: sends to Weights & Biases what runs have logged and could not send, or were not to.
//!
//! Without a folder: `outputs`, `multirun` and `wandb`. It may be broken off and done again: nothing arrives twice.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use tt_metrics::wandb::{self, Environment, SyncError, Synced, Timing};

use crate::args::Options;
use crate::failure::Failure;
use crate::out;

pub(crate) fn run(folders: &[String], _options: &Options) -> Result<ExitCode, Failure> {
    let paths = given_or_usual(folders)?;
    let environment = Environment::of_process();
    let outcomes = wandb::sync(&paths, &environment, Timing::default(), &mut |text| {
        out::error_line(text)
    });
    let mut code = ExitCode::SUCCESS;
    for outcome in outcomes.map_err(Failure::request)? {
        match outcome {
            Ok(synced) => out::line(line(&synced)),
            Err(error @ SyncError::Stopped { .. }) => {
                out::error_line(format_args!(
                    "error: {error}; what is missing goes when `tpu-train sync` is run again"
                ));
                code = ExitCode::FAILURE;
            }
            Err(error) => return Err(Failure::request(error)),
        }
    }
    Ok(code)
}

fn given_or_usual(folders: &[String]) -> Result<Vec<PathBuf>, Failure> {
    let usual = ["outputs", "multirun", "wandb"].map(PathBuf::from);
    let paths: Vec<_> = if folders.is_empty() {
        usual.into_iter().filter(|path| path.is_dir()).collect()
    } else {
        folders.iter().map(PathBuf::from).collect()
    };
    if paths.is_empty() {
        return Err(Failure::Request(anyhow!(
            "there is no folder outputs, multirun or wandb here; name the run's"
        )));
    }
    Ok(paths)
}

fn line(synced: &Synced) -> String {
    let Synced {
        id,
        url,
        rows,
        rows_there,
    } = synced;
    match (url, rows_there) {
        (None, _) => format!("run {id}: sent before"),
        (Some(url), 0) => format!("run {id}: sent {rows} rows, {url}"),
        (Some(url), there) => format!("run {id}: sent {rows} rows, {there} were there, {url}"),
    }
}
