//! The ranks of a run that are threads of this process: the first is the thread that began, the others follow it.
//!
//! One rank decides: the first has the folder, the records and the console. What fails anywhere ends the waiting of all
//! others, and is said once, with the rank that it came from.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tt_dist::{Communicator, threads};

use crate::failure::Failure;

/// Runs `first` as the first of `followers.len() + 1` ranks and `follow` with each follower as the others. Gives what the
/// first gives, once all have ended. Error: that of the rank that has failed first.
pub(crate) fn run<F: Send, T>(
    followers: Vec<F>,
    timeout: Option<Duration>,
    follow: impl Fn(F, Arc<dyn Communicator>) -> Result<(), Failure> + Sync,
    first: impl FnOnce(Option<Arc<dyn Communicator>>) -> Result<T, Failure>,
) -> Result<T, Failure> {
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
        match (outcome, world.failure()) {
            (Some(Err(_)), Some(failure)) => Err(Failure::run(anyhow::anyhow!(failure))),
            (Some(outcome), _) => outcome,
            (None, _) => Err(Failure::run(anyhow::anyhow!("rank 0 has panicked"))),
        }
    })
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
        Err(_) => rank.fail("it has panicked"),
    }
    outcome.ok()
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
        let outcome = run(vec![1, 2], limit, follow, first);
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
        assert_eq!(
            told.as_deref(),
            Some("error: rank 1 has failed: it has panicked")
        );
    }

    #[test]
    fn the_first_ranks_own_error_is_told_as_it_is() {
        let told = run_three(|_| Ok(()), |_| Err(fault()));
        assert_eq!(told.as_deref(), Some("error: no space left"));
    }
}
