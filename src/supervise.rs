//! Commands whose device may take the process with it run in a worker: see [`tt_launch::supervisor`].

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use tt_config::Composition;
use tt_launch::supervisor::{self, Limits};
use tt_launch::{Supervised, this_program, worker};
use tt_run::{ending, run_dir};

use crate::device::{DeviceConfig, DeviceKind};
use crate::failure::Failure;

/// The device of a command that this process must not run itself.
///
/// A config that is wrong opens no device; the command says what is wrong with it.
pub(crate) fn device_of_worker(composition: &Composition) -> Option<DeviceConfig> {
    let device: DeviceConfig = composition.section("device").extract().ok()?;
    (device.kind == DeviceKind::Tpu && !worker::is_worker()).then_some(device)
}

/// Runs the command of `arguments` in workers until one ends in order, or none may be started any more.
pub(crate) fn run(device: &DeviceConfig, arguments: &[String]) -> Result<ExitCode, Failure> {
    let this_command = ThisCommand {
        program: this_program().map_err(Failure::run)?,
        arguments,
        environment: device.environment(),
    };
    let limits = Limits {
        wait: device.timeout_seconds.map(Duration::from_secs),
        restarts: device.restart.max,
    };
    let code = supervisor::run(&this_command, limits).map_err(Failure::run)?;
    Ok(code.into())
}

struct ThisCommand<'a> {
    program: PathBuf,
    arguments: &'a [String],
    environment: Vec<(&'static str, OsString)>,
}

impl Supervised for ThisCommand<'_> {
    fn command(&self, resume: Option<&Path>) -> Command {
        let mut command = Command::new(&self.program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        match resume {
            Some(run) => command.args(ending::resuming(self.arguments, run)),
            None => command.args(self.arguments),
        };
        command
    }

    fn newest_checkpoint(&self, run: &Path) -> Option<(u64, PathBuf)> {
        let latest = tt_checkpoint::latest(&run_dir::checkpoints(run)).ok()?;
        let checkpoint = latest.checkpoint?;
        Some((checkpoint.step(), checkpoint.dir().to_owned()))
    }

    fn command_line(&self, run: &Path) -> String {
        ending::command_line(&ending::continuing(self.arguments, run))
    }
}
