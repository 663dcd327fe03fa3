//! `tpu-train report RUN ...`: the page and the plots of one run, or one page over several runs or a sweep.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use tt_run::program;
use tt_run::run_dir::REPORT;

use super::runs::run_folders;
use crate::args::Options;
use crate::failure::Failure;
use crate::{out, report};

pub(crate) fn run(folders: &[String], options: &Options) -> Result<ExitCode, Failure> {
    if folders.is_empty() {
        let name = program::running().name;
        let usage = anyhow!("report takes run folders, or that of a sweep: {name} report RUN");
        return Err(Failure::Request(usage));
    }
    let mut runs: Vec<PathBuf> = Vec::new();
    for folder in folders {
        let found = run_folders(Path::new(folder));
        if found.is_empty() {
            return Err(Failure::Request(anyhow!("there is no run in {folder}")));
        }
        runs.extend(found);
    }
    let path = match &runs[..] {
        [run] => {
            let (page, _) = report::write_run(run, options.x_is_log).map_err(Failure::Run)?;
            page
        }
        runs => {
            // Of a sweep, in its folder.
            let to = match folders {
                [folder] => Path::new(folder).join(REPORT),
                _ => PathBuf::from(REPORT),
            };
            report::write_comparison(runs, &to).map_err(Failure::Run)?;
            to
        }
    };
    out::line(path.display());
    Ok(ExitCode::SUCCESS)
}
