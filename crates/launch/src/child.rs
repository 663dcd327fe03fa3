//! The one place where child processes are started, each tied to its parent in one of three ways.
//!
//! | tie | process group | told to stop by | when its parent ends, in whatever way |
//! | --- | --- | --- | --- |
//! | [`Tie::Supervised`] | its parent's | signals that are passed on | it is killed |
//! | [`Tie::Ranks`] | its own | its pipe, closed, of which the first rank hears | it stops, as if it were asked to |
//! | [`Tie::Job`] | its own: a Ctrl-C reaches it by way of its parent alone | its pipe, closed | it saves and stops |
//!
//! The child does its part in [`begin`](crate::begin).

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};

use crate::parent_pipe;

/// How a child is tied to this process: see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    Supervised,
    /// Of a program that starts the ranks of a run, such as `mpirun`.
    Ranks,
    Job,
}

/// A process that was started here.
#[derive(Debug)]
pub struct Child(std::process::Child);

impl Child {
    pub fn start(command: &mut Command, tie: Tie) -> io::Result<Self> {
        match tie {
            Tie::Supervised => crate::worker::tie(command),
            // A launcher has ways of its own with signals.
            Tie::Ranks => {
                command.process_group(0);
                parent_pipe::tie(command);
                crate::worker::tie(command);
            }
            Tie::Job => {
                command.process_group(0);
                parent_pipe::tie(command);
            }
        }
        command.spawn().map(Self)
    }

    /// How it has ended, if it has.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // It has not been waited for, so the number is still its own; having ended meanwhile, it needs no signal.
        let _ = kill_process(Pid::from_child(&self.0), signal);
    }

    /// Ends it at once.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.0.kill()?;
        self.0.wait()
    }

    /// Lets a job, or the ranks of a run, save and stop.
    pub(crate) fn close_pipe(&mut self) {
        drop(self.0.stdin.take());
    }
}

/// Jobs that work side by side, each with a tag of the caller's. Dropped, it lets all of them save and stop.
#[derive(Debug)]
pub struct Pool<T> {
    size: usize,
    running: Vec<(T, Child)>,
}

impl<T> Pool<T> {
    /// For `size` jobs at a time.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            running: Vec::new(),
        }
    }

    pub fn has_room(&self) -> bool {
        self.running.len() < self.size
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub fn start(&mut self, tag: T, command: &mut Command) -> io::Result<()> {
        let child = Child::start(command, Tie::Job)?;
        self.running.push((tag, child));
        Ok(())
    }

    /// The jobs that have ended since this was asked last, in the order they were started in.
    pub fn take_ended(&mut self) -> io::Result<Vec<(T, ExitStatus)>> {
        let mut ended = Vec::new();
        let mut index = 0;
        while let Some((_, child)) = self.running.get_mut(index) {
            match child.try_wait()? {
                Some(exit) => ended.push((self.running.remove(index).0, exit)),
                None => index += 1,
            }
        }
        Ok(ended)
    }

    /// Lets all that run save and stop.
    pub fn stop(&mut self) {
        for (_, child) in &mut self.running {
            child.close_pipe();
        }
    }
}
