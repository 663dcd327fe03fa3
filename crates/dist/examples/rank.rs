//! One rank of those that the test `mpi` starts: `mpirun -n 4 rank CASE`.

#[path = "../tests/together/mod.rs"]
mod together;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use tt_dist::mpi::Processes;
use tt_dist::{Communicator, launched};

fn main() {
    let case = std::env::args().nth(1).unwrap_or_default();
    let launched = launched().expect("started by mpirun");
    let processes = Processes::begin(launched.size).unwrap();
    assert_eq!(processes.rank(), launched.rank);
    assert_eq!(processes.hosts().len(), launched.size);
    let world = processes.world(Some(Duration::from_secs(60)));
    let say = |what: &str| {
        let _ = writeln!(io::stdout(), "rank {}: {what}", world.rank());
    };
    match &*case {
        "facts" => {
            for (name, fact) in together::FACTS {
                let begun = Instant::now();
                fact(&*world);
                say(&format!("{name} ({:.2} s)", begun.elapsed().as_secs_f64()));
            }
            links(&*world, &processes);
            say("links");
            processes.end();
        }
        "failure" => {
            together::a_failure_ends_the_waiting_of_all(&*world);
            say("told");
            leave(&processes);
        }
        "timeout" => {
            let limit = Duration::from_secs(2);
            together::a_rank_that_is_not_heard_of_is_named(&*processes.world(Some(limit)));
            say("told");
            leave(&processes);
        }
        "out of step" => {
            together::ranks_that_do_not_do_the_same_are_told(&*world);
            say("told");
            leave(&processes);
        }
        // Ends when it is killed.
        "waiting" => {
            say(&format!("pid {}", std::process::id()));
            let error = loop {
                if let Err(error) = world.all_reduce(vec![1.0; 100_000]) {
                    break error;
                }
            };
            say(&error.to_string());
            leave(&processes);
        }
        "speed" => speed(&*world, &processes, say),
        other => panic!("no case {other}"),
    }
}

/// Links are those of all, in their order, and of no fewer.
fn links(world: &dyn Communicator, processes: &Processes) {
    assert!(!world.has_links());
    processes.set_linked();
    let (all, own) = (world.split(7).unwrap(), world.split(world.rank()).unwrap());
    assert!(world.has_links() && all.has_links() && !own.has_links());
    assert_eq!(all.rank(), world.rank());
}

/// As after a failure: the first ends all, when they have had time to say what they have found.
fn leave(processes: &Processes) {
    if processes.rank() == 0 {
        std::thread::sleep(Duration::from_secs(1));
        processes.abort(3);
    }
    std::thread::sleep(Duration::from_secs(60));
}

fn speed(world: &dyn Communicator, processes: &Processes, say: impl Fn(&str)) {
    for len in [1, 1 << 10, 1 << 16, 1 << 20, 1 << 22] {
        let rounds = ((1 << 22) / len).clamp(3, 300);
        world.barrier().unwrap();
        let begun = Instant::now();
        for _ in 0..rounds {
            world.all_reduce(vec![1.0; len]).unwrap();
        }
        let each = begun.elapsed().as_secs_f64() * 1e3 / f64::from(rounds as u32);
        if world.rank() == 0 {
            say(&format!("all_reduce of {len} f32: {each:.3} ms"));
        }
    }
    processes.end();
}
