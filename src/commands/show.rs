//! `--cfg` and `--info`: print what a command would run with, instead of running it.

use std::process::ExitCode;

use tt_config::Composition;

use crate::args::{Args, Info, Show};
use crate::failure::Failure;
use crate::out;
use crate::plugins::Plugins;

pub(crate) fn run(
    composition: &Composition,
    plugins: &Plugins,
    show: Show,
    args: &Args,
) -> Result<ExitCode, Failure> {
    let package = args.package.as_deref();
    let text = match show {
        Show::Config(part) => composition.show(part, package, args.resolve)?,
        Show::Info(Info::Config) => composition.config_info(),
        Show::Info(Info::Defaults) => composition.defaults_list(),
        Show::Info(Info::DefaultsTree) => composition.defaults_tree(),
        Show::Info(Info::Origins) => composition.origins(package.unwrap_or_default())?,
        Show::Info(Info::Plugins) => plugins.listing(),
        Show::Info(Info::SearchPath) => composition.search_path(),
    };
    out::text(text);
    Ok(ExitCode::SUCCESS)
}
