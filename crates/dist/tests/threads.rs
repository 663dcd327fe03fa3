//! What any group of ranks does, by threads.

mod together;

use std::thread;
use std::time::Duration;

use tt_dist::{Communicator, threads};

fn on_each_rank(size: usize, timeout: Option<Duration>, work: impl Fn(&dyn Communicator) + Sync) {
    thread::scope(|scope| {
        let work = &work;
        for rank in threads::group(size, timeout) {
            scope.spawn(move || work(&*rank as &dyn Communicator));
        }
    });
}

#[test]
fn what_any_group_of_ranks_does_threads_do() {
    for size in [2, 3, 4] {
        for (_, fact) in together::FACTS {
            on_each_rank(size, Some(Duration::from_secs(60)), fact);
        }
    }
}

#[test]
fn a_rank_that_fails_ends_the_waiting_of_all() {
    let limit = Some(Duration::from_secs(60));
    on_each_rank(4, limit, together::a_failure_ends_the_waiting_of_all);
}

#[test]
fn a_rank_that_is_not_heard_of_is_named() {
    let limit = Duration::from_millis(500);
    on_each_rank(
        3,
        Some(limit),
        together::a_rank_that_is_not_heard_of_is_named,
    );
}

#[test]
fn ranks_that_do_not_do_the_same_are_told() {
    let limit = Some(Duration::from_secs(20));
    on_each_rank(2, limit, together::ranks_that_do_not_do_the_same_are_told);
}
