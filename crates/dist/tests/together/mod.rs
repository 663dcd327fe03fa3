//! What any group of ranks does, whatever they are: facts that each rank of a world finds for itself.

use half::bf16;
use tt_dist::{Communicator, Error};

/// What a rank finds for itself.
type Fact = fn(&dyn Communicator);

/// The facts by name. Every rank calls the same, in the same order.
pub const FACTS: [(&str, Fact); 8] = [
    (
        "sums are those of the ranks in their order",
        sums_are_in_order,
    ),
    ("a share may be of any size", a_share_may_be_of_any_size),
    (
        "everybody hears what each says",
        everybody_hears_what_each_says,
    ),
    ("what is sent arrives in order", what_is_sent_arrives),
    ("a split group is one of its own", a_split_group),
    ("many rounds never mix", many_rounds_never_mix),
    (
        "long messages arrive whole, and short ones at any edge",
        long_messages_arrive_whole,
    ),
    ("mail and what all do are kept apart", mail_is_kept_apart),
];

fn sums_are_in_order(world: &dyn Communicator) {
    // In f32, 1e8 + 1 - 1e8 is 0 and 1e8 - 1e8 + 1 is 1.
    let of = |rank: usize| [1e8, -1e8, 1.0].get(rank).copied().unwrap_or_default();
    let expected = if world.size() == 2 { 0.0 } else { 1.0 };
    for len in [0, 1, 2, 7, 4096, 4097, 10_007] {
        let sums = world.all_reduce(vec![of(world.rank()); len]).unwrap();
        assert_eq!(sums, vec![expected; len]);
    }
}

fn a_share_may_be_of_any_size(world: &dyn Communicator) {
    let (rank, size) = (world.rank(), world.size());
    // The first has two, the second none, any other three.
    let shares: Vec<usize> = (0..size)
        .map(|it| [2, 0].get(it).copied().unwrap_or(3))
        .collect();
    let values = |rank: usize| (0..shares.iter().sum()).map(move |i: usize| (i + 10 * rank) as f32);
    let rounded = values(rank).map(bf16::from_f32).collect();
    let sums = world.reduce_scatter(values(rank).collect(), &shares);
    let sums = sums.unwrap();
    assert_eq!(world.reduce_scatter_bf16(rounded, &shares).unwrap(), sums);
    let begin: usize = shares[..rank].iter().sum();
    let of = |i: usize| (0..size).map(|it| values(it).nth(i).unwrap()).sum::<f32>();
    let expected: Vec<f32> = (begin..begin + shares[rank]).map(of).collect();
    assert_eq!(sums, expected);
}

fn everybody_hears_what_each_says(world: &dyn Communicator) {
    let of = |rank: usize| vec![rank as u8; rank];
    let all = world.all_gather(of(world.rank())).unwrap();
    let all: Vec<Vec<u8>> = all.iter().map(|it| it.to_vec()).collect();
    assert_eq!(all, (0..world.size()).map(of).collect::<Vec<_>>());
    let last = world.size() - 1;
    for root in [0, last] {
        let said = world.broadcast(of(world.rank()), root).unwrap();
        assert_eq!(*said, of(root));
    }
}

fn what_is_sent_arrives(world: &dyn Communicator) {
    let (rank, size) = (world.rank(), world.size());
    for i in 0..100u8 {
        world.send(vec![i], (rank + 1) % size).unwrap();
    }
    for i in 0..100u8 {
        let from = (rank + size - 1) % size;
        assert_eq!(world.receive(from).unwrap(), [i]);
    }
}

fn a_split_group(world: &dyn Communicator) {
    let (rank, size) = (world.rank(), world.size());
    let half = world.split(rank % 2).unwrap();
    assert_eq!(half.rank(), rank / 2);
    assert_eq!(half.size(), (size + 1 - rank % 2) / 2);
    let members = (0..size).filter(|it| it % 2 == rank % 2);
    let expected = members.map(|it| it as f32).sum::<f32>();
    // The halves do not wait for each other.
    for _ in 0..=rank % 2 {
        let sum = half.all_reduce(vec![rank as f32]).unwrap();
        assert_eq!(sum, [expected]);
    }
    // Nor do groups mix that the same ranks are in.
    let again = world.split(rank % 2).unwrap();
    let all = world.split(0).unwrap();
    for round in 0..10u8 {
        for group in [&half, &again, &all] {
            let said = group.broadcast(vec![round], 0).unwrap();
            assert_eq!(*said, [round]);
        }
    }
    assert_eq!(all.size(), size);
}

fn many_rounds_never_mix(world: &dyn Communicator) {
    let ranks: usize = (1..=world.size()).sum();
    for round in 0..500 {
        let sum = world.all_reduce(vec![(round * (world.rank() + 1)) as f32; 5]);
        assert_eq!(sum.unwrap(), [(ranks * round) as f32; 5]);
    }
}

fn long_messages_arrive_whole(world: &dyn Communicator) {
    const PIECE: usize = 16 << 20;
    // Each block of a page begins with its number.
    let of = |rank: usize, len: usize| {
        let mut bytes = vec![rank as u8; len];
        let pages = bytes.chunks_mut(4096).zip(0u32..);
        pages.for_each(|(page, i)| page[0] = i as u8);
        bytes
    };
    for len in [PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 3] {
        let heard = world.all_gather(of(world.rank(), len)).unwrap();
        for (from, bytes) in heard.iter().enumerate() {
            assert!(**bytes == of(from, len), "{len} bytes of rank {from}");
        }
    }
}

fn mail_is_kept_apart(world: &dyn Communicator) {
    let (rank, size) = (world.rank(), world.size());
    world.send(vec![7], (rank + 1) % size).unwrap();
    world.barrier().unwrap();
    assert_eq!(world.all_gather(vec![rank as u8]).unwrap().len(), size);
    assert_eq!(world.receive((rank + size - 1) % size).unwrap(), [7]);
}

/// The last rank fails while each of the others waits for something else.
pub fn a_failure_ends_the_waiting_of_all(world: &dyn Communicator) {
    let (rank, last) = (world.rank(), world.size() - 1);
    let pair = world.split(rank / 2).unwrap();
    if rank == last {
        // They have said that they are about to wait.
        for other in 0..last {
            world.receive(other).unwrap();
        }
        pair.fail("out of disk");
        pair.fail("a later reason");
        assert_eq!(world.failure(), None, "nobody has told it");
        return;
    }
    world.send(Vec::new(), last).unwrap();
    let error = match rank {
        0 => pair.receive(pair.size() - 1).map(drop),
        1 => world.receive(last).map(drop),
        _ => pair.barrier(),
    };
    let error = error.unwrap_err();
    assert_eq!(world.failure(), Some(error.clone()));
    match error {
        Error::Failed { rank, why } => assert_eq!((rank.rank, &*why), (last, "out of disk")),
        other => panic!("{other}"),
    }
}

/// Rank 1 does not come. `world` has a limit.
pub fn a_rank_that_is_not_heard_of_is_named(world: &dyn Communicator) {
    world.barrier().unwrap();
    if world.rank() == 1 {
        return;
    }
    match world.barrier().unwrap_err() {
        Error::Timeout {
            operation, missing, ..
        } => {
            assert_eq!(operation, "barrier");
            // On a busy machine others may be late too.
            let is_named = missing.iter().any(|it| it.rank == 1);
            assert!(is_named, "{missing:?}");
        }
        other => panic!("{other}"),
    }
}

/// Rank 0 does something else than the others.
pub fn ranks_that_do_not_do_the_same_are_told(world: &dyn Communicator) {
    world.barrier().unwrap();
    let outcome = match world.rank() {
        0 => world.barrier(),
        _ => world.all_gather(Vec::new()).map(drop),
    };
    match outcome.unwrap_err() {
        Error::OutOfStep { .. } => world.fail("out of step"),
        Error::Failed { .. } => {}
        other => panic!("{other}"),
    }
}
