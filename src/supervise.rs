//! Commands whose device may take the process with it run in a worker: see [`tt_launch::supervisor`].
//!
//! The ranks of a run on TPUs are workers that the machine's `mpirun` starts, each with a chip of its own.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::anyhow;
use tt_config::Composition;
use tt_dist::mpi;
use tt_launch::supervisor::{self, Limits};
use tt_launch::{Supervised, this_program, worker};
use tt_run::{ending, run_dir};

use crate::device::{DeviceConfig, DeviceKind};
use crate::failure::Failure;

/// The variable that names another `mpirun` than the first in `PATH`.
const LAUNCHER: &str = "TT_MPIRUN";

/// The device of a command that this process must not run itself.
///
/// A config that is wrong opens no device; the command says what is wrong with it.
pub(crate) fn device_of_worker(composition: &Composition) -> Option<DeviceConfig> {
    let device: DeviceConfig = composition.section("device").extract().ok()?;
    (device.kind == DeviceKind::Tpu && !worker::is_worker()).then_some(device)
}

/// Runs the command of `arguments` in workers until one ends in order, or none may be started any more.
pub(crate) fn run(
    device: &DeviceConfig,
    num_ranks: usize,
    arguments: &[String],
) -> Result<ExitCode, Failure> {
    if num_ranks > 1 && !mpi::IS_BUILT_IN {
        return Err(Failure::Request(anyhow!(
            "`device.ranks`: {num_ranks}: each TPU takes a process, and they need MPI; this program was built without it: cargo build --release --features mpi"
        )));
    }
    let this_command = ThisCommand {
        program: this_program().map_err(Failure::run)?,
        arguments,
        num_ranks,
        environment: device.environment(),
    };
    let limits = Limits {
        wait: device.timeout_seconds.map(Duration::from_secs),
        restarts: device.restart.max,
    };
    let code = supervisor::run(&this_command, limits).map_err(|error| match error {
        tt_launch::Error::Start { .. } if num_ranks > 1 => Failure::Request(anyhow!(error).context(
            format!(
                "ranks on TPUs are started by the mpirun of an MPI on this machine (apt-get install openmpi-bin), or by what {LAUNCHER} names"
            ),
        )),
        error => Failure::run(error),
    })?;
    Ok(code.into())
}

struct ThisCommand<'a> {
    program: PathBuf,
    arguments: &'a [String],
    num_ranks: usize,
    environment: Vec<(&'static str, OsString)>,
}

impl Supervised for ThisCommand<'_> {
    fn command(&self, resume: Option<&Path>) -> Command {
        let mut command = match self.num_ranks {
            1 => Command::new(&self.program),
            several => {
                let mut command = launcher(several);
                command.arg(&self.program);
                command
            }
        };
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        match resume {
            Some(run) => command.args(ending::resuming(self.arguments, run)),
            None => command.args(self.arguments),
        };
        command
    }

    fn num_ranks(&self) -> usize {
        self.num_ranks
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

/// What starts so many processes on this machine; the program and its arguments are to follow.
///
/// Open MPI refuses more processes than cores, and root, who in a container is everybody; what it is told by its own variables
/// other launchers pass over. 4 and 5 have different ones.
fn launcher(processes: usize) -> Command {
    const OF_OPEN_MPI: [(&str, &str); 7] = [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
        ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
        ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ];
    let program = std::env::var_os(LAUNCHER).unwrap_or_else(|| "mpirun".into());
    let mut command = Command::new(program);
    command
        .envs(OF_OPEN_MPI)
        .arg("-n")
        .arg(processes.to_string());
    if !io::stdout().is_terminal() {
        // Open MPI gives its processes one in any case.
        command.env("TERM", "dumb");
    }
    command
}
