//! A pipe that ties a job to its parent: the standard input of the job's process.
//!
//! Nothing is ever written to it. When it closes, the job saves and stops as on SIGTERM: because the parent let go of
//! it, or because the parent's process has ended, in whatever way. So no job outlives who started it, and no process has
//! to be signalled by number.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread;

use signal_hook::consts::SIGTERM;
use tt_dist::launched;

/// The variable that tells a process that its standard input is such a pipe.
const VARIABLE: &str = "TPU_TRAIN_SWEEP_JOB";

/// Makes the process that `command` starts watch its standard input, whose other end its `Child` then holds.
pub(crate) fn tie(command: &mut Command) {
    command.stdin(Stdio::piped()).env(VARIABLE, "1");
}

/// In a process that was started so: stop when the parent lets go. In any other process, nothing. Of the ranks of a run
/// the first has the pipe, and when it stops all do.
pub(crate) fn watch() -> io::Result<()> {
    let is_follower = launched().is_some_and(|it| it.rank > 0);
    if is_follower || std::env::var_os(VARIABLE).is_none() {
        return Ok(());
    }
    thread::Builder::new()
        .name("parent-pipe".into())
        .spawn(|| {
            // Ends at end of file; an error means that the other end is gone, too.
            let _ = io::stdin().lock().read_to_end(&mut Vec::new());
            // The one way to stop: handled where SIGTERM is, and before that is set up it ends the process.
            let _ = signal_hook::low_level::raise(SIGTERM);
        })?;
    Ok(())
}
