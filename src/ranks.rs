//! The ranks of a run: threads of this process, or processes that `mpirun` or the like has started together.
//!
//! One rank decides: the first has the folder, the records and the console, and the others follow it. A follower that is
//! a process composes nothing: it waits until the first tells it what to do. What fails anywhere ends the waiting of all
//! others, and is said once, by the first, with the rank that it came from.

use std::any::Any;
use std::net::Ipv4Addr;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use tt_dist::mpi::Processes;
use tt_dist::{Communicator, Launched, launched, threads};
use tt_launch::worker;
use tt_metrics::terminal;
use tt_tpu::Links;

use crate::failure::Failure;
use crate::out;

/// How long the first has to say what has failed and to end all, before a follower does.
const LAST_WORDS: Duration = Duration::from_secs(60);
/// As long, where there is nothing else to do: the launcher ends all when the first has ended.
const FIRST_WORDS: Duration = Duration::from_secs(3);

static PROCESSES: OnceLock<Processes> = OnceLock::new();
static LINKS: OnceLock<Links> = OnceLock::new();

/// The processes of this run, if it has several and [`begin`] was called.
pub(crate) fn processes() -> Option<&'static Processes> {
    PROCESSES.get()
}

/// The chip that this process takes of its machine's: each has one.
pub(crate) fn chip() -> usize {
    let before_this = |processes: &Processes| {
        let (hosts, rank) = (processes.hosts(), processes.rank());
        let earlier = hosts[..rank].iter();
        earlier.filter(|host| **host == hosts[rank]).count()
    };
    processes().map_or(0, before_this)
}

/// The chips that this process's is linked with, after [`link`].
pub(crate) fn links() -> Option<Links> {
    LINKS.get().copied()
}

/// Links the chips of this run's processes: each opens its own when the others do, the followers by `device`, a group of the
/// config, and the first after this call. Error: they cannot be linked.
pub(crate) fn link(device: String) -> Result<(), Failure> {
    let Some(processes) = processes().filter(|_| links().is_none()) else {
        return Ok(());
    };
    let hosts = processes.hosts();
    if let Some(other) = hosts.iter().find(|host| **host != hosts[0]) {
        return Err(Failure::Request(anyhow!(
            "dist.backend=c2c: links join the chips of one machine, and there are ranks on {} and on {other}; dist.backend=host joins them over MPI",
            hosts[0]
        )));
    }
    // Another for every process, so that runs on one machine do not meet.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 64 | high, middle, low);
    tell(processes, &Order::Link { device, address });
    set_links(processes, address);
    Ok(())
}

fn set_links(processes: &Processes, address: Ipv4Addr) {
    let (rank, size) = (processes.rank(), processes.size());
    let _ = LINKS.set(Links {
        rank,
        size,
        address,
    });
    processes.set_linked();
}

/// What a follower is told, from the first to the last.
#[derive(Serialize, Deserialize)]
enum Order {
    /// To open its chip.
    Link {
        device: String,
        address: Ipv4Addr,
    },
    Train(Task),
    /// Nothing more: to end with this code.
    End(u8),
}

/// A run, for a rank in another process. Everything that is decided is in it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    /// Resolved, as YAML.
    pub(crate) config: String,
    pub(crate) checkpoint: Option<PathBuf>,
    pub(crate) run_length: Option<u64>,
}

/// If this process is one of several that were started together: finds the others. `Some`: it is a follower, and has done
/// with `open` and `follow` what it was told to.
pub(crate) fn begin(
    open: impl Fn(&str) -> Result<(), Failure>,
    follow: impl Fn(Task, &Processes) -> Result<(), Failure>,
) -> Result<Option<ExitCode>, Failure> {
    let Some(launched) = launched() else {
        return Ok(None);
    };
    // Started by this program, it has been told what is at the end.
    if !worker::is_worker() {
        terminal::is_handed_on();
    }
    let processes = match Processes::begin(launched.size) {
        Ok(processes) => PROCESSES.get_or_init(|| processes),
        Err(error) => return refused(launched, error),
    };
    if processes.rank() == 0 {
        return Ok(None);
    }
    let host = &processes.hosts()[processes.rank()];
    out::set_label(format!("rank {} ({host}): ", processes.rank()));
    panic::set_hook(Box::new(|panic| out::error_line(panic)));
    // The first may have data to fetch before it knows what is to be done, and a model to send when it is.
    let world = processes.world(None);
    loop {
        let Ok(told) = world.receive(0) else {
            give_up(processes);
        };
        let told = serde_json::from_slice(&told).context("what rank 0 says");
        match told.map_err(Failure::Run)? {
            Order::End(code) => {
                processes.end();
                return Ok(Some(ExitCode::from(code)));
            }
            Order::Link { device, address } => {
                set_links(processes, address);
                if !matches!(lead(&*world, || open(&device)), Some(Ok(()))) {
                    give_up(processes);
                }
            }
            Order::Train(task) => {
                let led = lead(&*world, || follow(task, processes));
                if !matches!(led, Some(Ok(()))) {
                    give_up(processes);
                }
            }
        }
    }
}

/// Said once. The others wait for that, for when one ends with an error all are ended.
fn refused(launched: Launched, error: tt_dist::Error) -> Result<Option<ExitCode>, Failure> {
    let Launched { by, rank, size } = launched;
    if rank > 0 {
        thread::sleep(FIRST_WORDS);
        return Ok(Some(ExitCode::from(2)));
    }
    Err(Failure::Request(anyhow!(
        "{by} has started {size} processes, for one run: {error}; on one machine device.ranks={size} needs no MPI"
    )))
}

/// Of a follower whose run has failed: the first says why, and ends all.
fn give_up(processes: &Processes) -> ! {
    thread::sleep(LAST_WORDS);
    if let Some(failure) = processes.world(None).failure() {
        out::error_line(format_args!("error: {failure}"));
    }
    processes.abort(1)
}

/// What cannot be done by several processes is refused.
pub(crate) fn refuse_processes(what: &str) -> Result<(), Failure> {
    let Some(processes) = processes() else {
        return Ok(());
    };
    Err(Failure::Request(anyhow!(
        "{what} works in one process, and {} were started; of several, only `train` makes one run",
        processes.size()
    )))
}

/// The first ends with `code`, and the others with it.
pub(crate) fn end(code: ExitCode) {
    let Some(processes) = processes().filter(|processes| processes.rank() == 0) else {
        return;
    };
    // A code does not give its number away.
    let number = (0..=u8::MAX).find(|&number| ExitCode::from(number) == code);
    let number = number.unwrap_or(1);
    if processes.have_failed() {
        processes.abort(number.max(1));
    }
    tell(processes, &Order::End(number));
    processes.end();
}

fn tell(processes: &Processes, order: &Order) {
    let told = serde_json::to_vec(order).expect("strings and numbers");
    let world = processes.world(None);
    for rank in 1..processes.size() {
        // It is only handed over here.
        let _ = world.send(told.clone(), rank);
    }
}

/// The other ranks of a run.
pub(crate) enum Others<F> {
    /// What each is made of.
    Threads(Vec<F>),
    /// What they are told.
    Processes(Task),
}

/// Runs `first` as the first rank, and `follow` with each follower that is a thread as the others. Gives what the first
/// gives, once all threads have ended. Error: that of the rank that has failed first.
pub(crate) fn run<F: Send, T>(
    others: Others<F>,
    timeout: Option<Duration>,
    follow: impl Fn(F, Arc<dyn Communicator>) -> Result<(), Failure> + Sync,
    first: impl FnOnce(Option<Arc<dyn Communicator>>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let followers = match (others, processes()) {
        (Others::Threads(followers), _) => followers,
        (Others::Processes(task), Some(processes)) => {
            tell(processes, &Order::Train(task));
            let world = processes.world(timeout);
            let outcome = lead(&*world, || first(Some(world.clone())));
            return judged(outcome, &*world);
        }
        (Others::Processes(_), None) => Vec::new(),
    };
    if followers.is_empty() {
        return first(None);
    }
    let mut ranks = threads::group(followers.len() + 1, timeout);
    let others = ranks.split_off(1);
    let world = ranks.swap_remove(0);
    thread::scope(|scope| {
        let follow = &follow;
        for (follower, rank) in followers.into_iter().zip(others) {
            let name = format!("rank {}", rank.rank());
            let work = move || lead(&*rank, || follow(follower, rank.clone()));
            let spawned = thread::Builder::new().name(name).spawn_scoped(scope, work);
            spawned.map_err(Failure::run).inspect_err(|_| {
                world.fail("there is no thread for a rank");
            })?;
        }
        let outcome = lead(&*world, || first(Some(world.clone())));
        judged(outcome, &*world)
    })
}

/// What the first has to say: another's failure goes before what it has made of it.
fn judged<T>(outcome: Option<Result<T, Failure>>, world: &dyn Communicator) -> Result<T, Failure> {
    match (outcome, world.failure()) {
        (Some(Err(_)), Some(failure)) => Err(Failure::run(failure)),
        (Some(outcome), _) => outcome,
        (None, _) => Err(Failure::run(anyhow!("rank 0 has panicked"))),
    }
}

/// Runs the work of a rank, and tells the others if it fails. `None`: it has panicked, and told of that.
fn lead<T>(
    rank: &dyn Communicator,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Option<Result<T, Failure>> {
    // What a panic leaves half done is the rank's own, and nobody's any more.
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    match &outcome {
        Ok(Ok(_)) => {}
        Ok(Err(failure)) => rank.fail(&match failure.error() {
            Some(error) => format!("{error:#}"),
            None => failure.to_string(),
        }),
        Err(panic) => rank.fail(&format!("it has panicked: {}", message(&**panic))),
    }
    outcome.ok()
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(owned).unwrap_or("no reason was given")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_three(
        follow: impl Fn(usize) -> Result<(), Failure> + Sync,
        first: impl FnOnce(&dyn Communicator) -> Result<(), Failure>,
    ) -> Option<String> {
        let limit = Some(Duration::from_secs(60));
        let follow = |number, world: Arc<dyn Communicator>| {
            follow(number)?;
            world.barrier().map_err(Failure::run)
        };
        let first = |world: Option<Arc<dyn Communicator>>| first(&*world.expect("of three"));
        let outcome = run(Others::Threads(vec![1, 2]), limit, follow, first);
        outcome.err().map(|failure| failure.to_string())
    }

    fn meet(world: &dyn Communicator) -> Result<(), Failure> {
        world.barrier().map_err(Failure::run)
    }

    fn fault() -> Failure {
        Failure::run(anyhow::anyhow!("no space left"))
    }

    #[test]
    fn ranks_that_end_well_end_well() {
        assert_eq!(run_three(|_| Ok(()), meet), None);
    }

    #[test]
    fn the_error_of_a_follower_is_told_with_its_rank() {
        let follow = |number| if number == 2 { Err(fault()) } else { Ok(()) };
        let told = run_three(follow, meet);
        assert_eq!(
            told.as_deref(),
            Some("error: rank 2 has failed: no space left")
        );
    }

    #[test]
    fn a_follower_that_panics_ends_all() {
        let follow = |number| {
            assert_ne!(number, 1, "a fault of its own");
            Ok(())
        };
        let told = run_three(follow, meet);
        let told = told.expect("an error");
        assert!(told.starts_with("error: rank 1 has failed: it has panicked: assertion"));
    }

    #[test]
    fn the_first_ranks_own_error_is_told_as_it_is() {
        let told = run_three(|_| Ok(()), |_| Err(fault()));
        assert_eq!(told.as_deref(), Some("error: no space left"));
    }
}
