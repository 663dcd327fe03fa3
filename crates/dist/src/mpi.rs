//! Ranks that are processes, which `mpirun` or the like has started, perhaps on several machines.
//!
//! All calls of MPI are made by one thread, the post. It sends what it is given, takes in whatever arrives, and puts it
//! where the ranks' groups look for it: so a rank can wait with a limit, and hear of a failure, wherever it is. Nothing but
//! messages from one process to another is asked of MPI: sums are taken here, in the order of the ranks, as
//! [`threads`](crate::threads) takes them, and have the same bits.
//!
//! A message's tag says of which group it is and of which operation. Long ones go in pieces; one that is shorter than a
//! piece is the last.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use half::bf16;
use mpi::Threading;
use mpi::environment::Universe;
use mpi::request;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, Destination, Equivalence, Source};

use crate::communicator::Communicator;
use crate::error::{Error, Peer, Result};
use crate::sums::{FEW, sums};

/// Bytes at once: MPI counts them with 32 bits.
const PIECE: usize = 16 << 20;

/// Between two looks for what has arrived: while something is being sent or was waited for lately, and else.
const BUSY_PAUSE: Duration = Duration::from_micros(50);
const IDLE_PAUSE: Duration = Duration::from_millis(1);
/// How long nothing must have arrived for a wait to be a long one.
const LATELY: Duration = Duration::from_millis(200);

/// What a process that ends early waits for MPI to end the others.
const ABORT_WAIT: Duration = Duration::from_secs(3);

/// Whether this program can be one of several processes.
pub const IS_BUILT_IN: bool = true;

/// This process, among those of the run.
pub struct Processes {
    post: Arc<Post>,
    thread: Mutex<Option<JoinHandle<()>>>,
    neighbours: usize,
}

/// Where a process runs.
#[derive(PartialEq, Eq)]
struct Place {
    host: String,
    /// A mask, as the system writes it.
    cores: String,
}

impl Place {
    fn own() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let cores = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed:"));
        let name = rustix::system::uname();
        Self {
            host: name.nodename().to_string_lossy().into_owned(),
            cores: cores.unwrap_or_default().trim().to_owned(),
        }
    }

    fn parse(text: &str) -> Self {
        let (host, cores) = text.split_once('\n').unwrap_or((text, ""));
        Self {
            host: host.to_owned(),
            cores: cores.to_owned(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.host, self.cores)
    }
}

impl Processes {
    /// To be called once, by each of the processes. Errors: MPI knows of another number of them, or cannot be used here.
    pub fn begin(size: usize) -> Result<Self> {
        let (commands, received) = mpsc::channel();
        let (begun, has_begun) = mpsc::channel();
        let post = Arc::new(Post {
            place: OnceLock::new(),
            hosts: OnceLock::new(),
            commands: Mutex::new(commands),
            inbox: Mutex::default(),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            next_group: Mutex::new(1),
            are_linked: AtomicBool::new(false),
        });
        let shared = Arc::clone(&post);
        let work = move || {
            let desk = || {
                let universe = match begin_mpi(size) {
                    Ok(universe) => universe,
                    Err(error) => return drop(begun.send(Err(error))),
                };
                let desk = Desk::new(&universe, shared, received);
                let _ = begun.send(Ok(()));
                desk.serve();
            };
            // It has said why. A rank that waits for a post that is no more would wait for ever.
            if panic::catch_unwind(AssertUnwindSafe(desk)).is_err() {
                process::exit(1);
            }
        };
        let thread = thread::Builder::new().name("mpi".into()).spawn(work);
        let thread = thread.map_err(|error| Error::Mpi(error.to_string()))?;
        let begun = has_begun.recv();
        begun.unwrap_or_else(|_| Err(Error::Mpi("it does not begin".to_owned())))?;
        let mut this = Self {
            neighbours: 1,
            post,
            thread: Mutex::new(Some(thread)),
        };
        let own = Place::own();
        let heard = this.world(None).all_gather(own.to_string().into_bytes())?;
        let heard = heard.iter().map(|it| String::from_utf8_lossy(it));
        let places: Vec<Place> = heard.map(|it| Place::parse(&it)).collect();
        this.neighbours = places.iter().filter(|&it| *it == own).count();
        let hosts = places.into_iter().map(|it| it.host);
        let _ = this.post.hosts.set(hosts.collect());
        Ok(this)
    }

    /// Which of them this is, from 0.
    pub fn rank(&self) -> usize {
        self.post.place().0
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.post.place().1
    }

    /// The machine that each runs on, by rank.
    pub fn hosts(&self) -> &[String] {
        self.post.hosts.get().map_or(&[], Vec::as_slice)
    }

    /// How many of them run on the same cores as this one, itself among them.
    pub fn neighbours(&self) -> usize {
        self.neighbours
    }

    /// Whether one of them has failed: their run is over then, however far each is.
    pub fn have_failed(&self) -> bool {
        self.post.lock().failure.is_some()
    }

    /// All of them as one group. None waits for another longer than `timeout`; `None`: for ever.
    pub fn world(&self, timeout: Option<Duration>) -> Arc<dyn Communicator> {
        Arc::new(Group {
            rank: self.rank(),
            members: (0..self.size()).collect(),
            id: 0,
            post: Arc::clone(&self.post),
            timeout,
        })
    }

    /// From now on [`Communicator::has_links`] holds of the group of all.
    pub fn set_linked(&self) {
        self.post.are_linked.store(true, SeqCst);
    }

    /// Takes leave of the others, who do the same. To be called when nobody waits for anything any more.
    pub fn end(&self) {
        self.post.command(Command::End);
        let mut thread = self.thread.lock().expect("no panic while ending");
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }

    /// Ends all processes at once.
    pub fn abort(&self, code: u8) -> ! {
        self.post.command(Command::Abort(code));
        // What the post is in the middle of may never end: then it is for the launcher to notice.
        thread::sleep(ABORT_WAIT);
        process::exit(code.into())
    }
}

fn begin_mpi(size: usize) -> Result<Universe> {
    let begun = mpi::initialize_with_threading(Threading::Funneled);
    let (universe, level) = begun.ok_or_else(|| Error::Mpi("it has begun already".to_owned()))?;
    if level < Threading::Funneled {
        let why = "it was built without support for threads (MPI_THREAD_FUNNELED)";
        return Err(Error::Mpi(why.to_owned()));
    }
    let found = universe.world().size() as usize;
    if found == size {
        return Ok(universe);
    }
    Err(Error::Mpi(format!(
        "it knows of {found} processes where {size} were started: it is not the one of the launcher"
    )))
}

/// What the post and the groups of this process share.
struct Post {
    /// Rank and size.
    place: OnceLock<(usize, usize)>,
    hosts: OnceLock<Vec<String>>,
    commands: Mutex<Sender<Command>>,
    inbox: Mutex<Inbox>,
    changed: Condvar,
    /// Threads that wait for something to arrive.
    waiting: AtomicUsize,
    /// The least number that no group has had yet that this process is in.
    next_group: Mutex<u32>,
    /// The chips of all processes.
    are_linked: AtomicBool,
}

#[derive(Default)]
struct Inbox {
    arrived: HashMap<Way, VecDeque<(Operation, Vec<u8>)>>,
    failure: Option<Error>,
    /// The failure has ended something.
    is_told: bool,
}

/// Along which messages keep their order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Way {
    /// Rank of the world.
    from: usize,
    group: u32,
    /// What is sent to one rank, and not part of what all do.
    is_mail: bool,
}

enum Command {
    Send(Outgoing),
    /// Somebody waits.
    Look,
    End,
    Abort(u8),
}

struct Outgoing {
    /// Rank of the world.
    to: usize,
    tag: i32,
    payload: Payload,
    /// Of the payload's bytes.
    bytes: Range<usize>,
}

/// Shared by the messages that it is sent in.
#[derive(Clone)]
enum Payload {
    Bytes(Arc<Vec<u8>>),
    F32(Arc<Vec<f32>>),
    Bf16(Arc<Vec<bf16>>),
}

impl Payload {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::Bf16(values) => bytemuck::cast_slice(values),
        }
    }
}

impl Outgoing {
    /// The last is shorter than a piece.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let bytes = &self.payload.bytes()[self.bytes.clone()];
        let of = |i: usize| &bytes[i * PIECE..bytes.len().min((i + 1) * PIECE)];
        (0..=bytes.len() / PIECE).map(of)
    }
}

/// What a message is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Mail,
    Failure,
    AllReduce,
    ReduceScatter,
    ReduceScatterBf16,
    AllGather,
    Broadcast,
    Barrier,
    Split,
}

impl Operation {
    /// By number.
    const ALL: [Self; 9] = [
        Self::Mail,
        Self::Failure,
        Self::AllReduce,
        Self::ReduceScatter,
        Self::ReduceScatterBf16,
        Self::AllGather,
        Self::Broadcast,
        Self::Barrier,
        Self::Split,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Mail => "receive",
            Self::Failure => "fail",
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::ReduceScatterBf16 => "reduce_scatter of bf16",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
            Self::Split => "split",
        }
    }

    fn tag(self, group: u32) -> i32 {
        (group as i32) << 4 | self as i32
    }

    fn of_tag(tag: i32) -> (u32, Self) {
        let operation = Self::ALL.get((tag & 15) as usize).copied();
        let operation = operation.expect("all processes are of one program");
        ((tag >> 4) as u32, operation)
    }
}

/// Groups of one process that a tag can tell apart, where MPI has no more tags than it must.
const MOST_GROUPS: u32 = (1 << 15) / 16;

impl Post {
    fn place(&self) -> (usize, usize) {
        *self.place.get().expect("the post has begun")
    }

    fn peer(&self, rank: usize) -> Peer {
        let host = self.hosts.get().and_then(|hosts| hosts.get(rank));
        Peer {
            rank,
            host: host.cloned(),
        }
    }

    fn command(&self, command: Command) {
        let commands = self.commands.lock().expect("no panic while sending");
        // There is no post any more after the end.
        let _ = commands.send(command);
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().expect("no panic while taking up")
    }
}

/// What the thread of the post works with.
struct Desk {
    world: SimpleCommunicator,
    post: Arc<Post>,
    commands: Receiver<Command>,
    outgoing: Vec<Outgoing>,
    /// Pieces so far, by rank and tag.
    incomplete: HashMap<(usize, i32), Vec<u8>>,
    is_ending: bool,
}

impl Desk {
    fn new(universe: &Universe, post: Arc<Post>, commands: Receiver<Command>) -> Self {
        let world = universe.world();
        let place = (world.rank() as usize, world.size() as usize);
        let _ = post.place.set(place);
        Self {
            world,
            post,
            commands,
            outgoing: Vec::new(),
            incomplete: HashMap::new(),
            is_ending: false,
        }
    }

    fn serve(mut self) {
        let mut last = Instant::now();
        while !self.is_ending || !self.outgoing.is_empty() {
            let batch = mem::take(&mut self.outgoing);
            self.deliver(&batch);
            if self.take_in() {
                last = Instant::now();
            }
            let is_busy = self.post.waiting.load(SeqCst) > 0 && last.elapsed() < LATELY;
            let has_more = self.take_commands(if is_busy { BUSY_PAUSE } else { IDLE_PAUSE });
            if has_more {
                last = Instant::now();
            }
        }
    }

    /// Sends all of them. Those at the other end take in whatever arrives, as is done here meanwhile: it does not depend on
    /// what their ranks wait for.
    fn deliver(&mut self, batch: &[Outgoing]) {
        if batch.is_empty() {
            return;
        }
        request::scope(|scope| {
            let mut requests = Vec::new();
            for outgoing in batch {
                let to = self.world.process_at_rank(outgoing.to as i32);
                for piece in outgoing.pieces() {
                    requests.push(to.immediate_send_with_tag(scope, piece, outgoing.tag));
                }
            }
            loop {
                let sent = mem::take(&mut requests);
                requests = sent.into_iter().filter_map(|it| it.test().err()).collect();
                let has_arrived = self.take_in();
                if requests.is_empty() {
                    return;
                }
                // Not by yielding: where others compute, that gives them the core for as long as they are entitled to it.
                self.take_commands(if has_arrived {
                    Duration::ZERO
                } else {
                    BUSY_PAUSE
                });
                // One of those may be of a rank that is no more; the others are still to be told.
                let is_failure = |it: &mut Outgoing| it.tag == Operation::Failure.tag(0);
                let failures: Vec<_> = self.outgoing.extract_if(.., is_failure).collect();
                self.deliver(&failures);
            }
        });
    }

    /// Takes up what has been asked for, if anything has, and waits as long as `pause` for it.
    fn take_commands(&mut self, pause: Duration) -> bool {
        let Ok(first) = self.commands.recv_timeout(pause) else {
            return false;
        };
        for command in std::iter::once(first).chain(self.commands.try_iter()) {
            match command {
                Command::Send(outgoing) => self.outgoing.push(outgoing),
                Command::Look => {}
                Command::End => self.is_ending = true,
                Command::Abort(code) => self.world.abort(code.into()),
            }
        }
        true
    }

    /// Takes in what has arrived, if anything has.
    fn take_in(&mut self) -> bool {
        let mut has_arrived = false;
        while let Some((message, status)) = self.world.any_process().immediate_matched_probe() {
            has_arrived = true;
            let (from, tag) = (status.source_rank() as usize, status.tag());
            let count = status.count(u8::equivalent_datatype()) as usize;
            let bytes = self.incomplete.entry((from, tag)).or_default();
            let begun = bytes.len();
            bytes.resize(begun + count, 0);
            message.matched_receive_into(&mut bytes[begun..]);
            if count < PIECE {
                let bytes = mem::take(bytes);
                self.incomplete.remove(&(from, tag));
                self.put(from, tag, bytes);
            }
        }
        has_arrived
    }

    fn put(&self, from: usize, tag: i32, bytes: Vec<u8>) {
        let (group, operation) = Operation::of_tag(tag);
        let mut inbox = self.post.lock();
        if operation == Operation::Failure {
            inbox.failure.get_or_insert_with(|| Error::Failed {
                rank: self.post.peer(from),
                why: String::from_utf8_lossy(&bytes).into_owned(),
            });
        } else {
            let way = Way {
                from,
                group,
                is_mail: operation == Operation::Mail,
            };
            let letters = inbox.arrived.entry(way).or_default();
            letters.push_back((operation, bytes));
        }
        drop(inbox);
        self.post.changed.notify_all();
    }
}

fn decoded<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
    values
}

struct Group {
    rank: usize,
    /// Ranks of the world.
    members: Vec<usize>,
    id: u32,
    post: Arc<Post>,
    timeout: Option<Duration>,
}

impl Group {
    fn post(&self, operation: Operation, to: usize, payload: &Payload, bytes: Range<usize>) {
        self.post.command(Command::Send(Outgoing {
            to: self.members[to],
            tag: operation.tag(self.id),
            payload: payload.clone(),
            bytes,
        }));
    }

    /// The ranks of the group but this one.
    fn others(&self) -> impl Iterator<Item = usize> {
        let (rank, size) = (self.rank, self.members.len());
        (0..size).filter(move |&it| it != rank)
    }

    /// Waits for the next message of each of the ranks `from`, and gives them by rank of the group; of others, nothing.
    fn take(
        &self,
        operation: Operation,
        from: impl Iterator<Item = usize>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut missing: Vec<usize> = from.collect();
        let mut taken = vec![Vec::new(); self.members.len()];
        let begun = Instant::now();
        let _waiting = Waiting::begin(&self.post);
        let mut inbox = self.post.lock();
        loop {
            if let Some(failure) = inbox.failure.clone() {
                inbox.is_told = true;
                return Err(failure);
            }
            let mut still_missing = Vec::new();
            for rank in mem::take(&mut missing) {
                let way = Way {
                    from: self.members[rank],
                    group: self.id,
                    is_mail: operation == Operation::Mail,
                };
                let letters = inbox.arrived.get_mut(&way);
                match letters.and_then(VecDeque::pop_front) {
                    Some((found, bytes)) if found == operation => taken[rank] = bytes,
                    Some((found, _)) => {
                        return Err(Error::OutOfStep {
                            rank: self.members[rank],
                            found: found.name(),
                            own_rank: self.members[self.rank],
                            own: operation.name(),
                        });
                    }
                    None => still_missing.push(rank),
                }
            }
            missing = still_missing;
            if missing.is_empty() {
                return Ok(taken);
            }
            inbox = match self.timeout {
                None => self.post.changed.wait(inbox).expect("no panic in waiting"),
                Some(limit) => {
                    let left = limit.saturating_sub(begun.elapsed());
                    if left.is_zero() {
                        let peers = missing.iter().map(|&it| self.post.peer(self.members[it]));
                        return Err(Error::Timeout {
                            operation: operation.name(),
                            after: limit,
                            missing: peers.collect(),
                        });
                    }
                    let waited = self.post.changed.wait_timeout(inbox, left);
                    waited.expect("no panic in waiting").0
                }
            };
        }
    }

    /// What every other rank gives; for this one, nothing.
    fn exchange(&self, operation: Operation, payload: &Payload) -> Result<Vec<Vec<u8>>> {
        let all = 0..payload.bytes().len();
        self.others()
            .for_each(|to| self.post(operation, to, payload, all.clone()));
        self.take(operation, self.others())
    }

    /// Of the sums over the ranks, this rank's share.
    fn share_of_sums<T>(
        &self,
        operation: Operation,
        values: Arc<Vec<T>>,
        payload: &Payload,
        shares: &[usize],
    ) -> Result<Vec<f32>>
    where
        T: Copy + Into<f32> + bytemuck::Pod,
    {
        let end = |rank: usize| shares[..=rank].iter().sum::<usize>();
        let range = |rank: usize| end(rank) - shares[rank]..end(rank);
        for to in self.others() {
            let Range { start, end } = range(to);
            let bytes = start * size_of::<T>()..end * size_of::<T>();
            self.post(operation, to, payload, bytes);
        }
        let heard = self.take(operation, self.others())?;
        let heard: Vec<Vec<T>> = heard.iter().map(|it| decoded(it)).collect();
        let mut parts: Vec<&[T]> = heard.iter().map(Vec::as_slice).collect();
        parts[self.rank] = &values[range(self.rank)];
        Ok(sums(&parts))
    }
}

/// While it is there, the post is attentive.
struct Waiting<'a>(&'a Post);

impl<'a> Waiting<'a> {
    fn begin(post: &'a Post) -> Self {
        post.waiting.fetch_add(1, SeqCst);
        post.command(Command::Look);
        Self(post)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, SeqCst);
    }
}

impl Communicator for Group {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn all_reduce(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        let (len, size) = (values.len(), self.size());
        let values = Arc::new(values);
        let payload = Payload::F32(Arc::clone(&values));
        if len <= FEW {
            let heard = self.exchange(Operation::AllReduce, &payload)?;
            let heard: Vec<Vec<f32>> = heard.iter().map(|it| decoded(it)).collect();
            let mut parts: Vec<&[f32]> = heard.iter().map(Vec::as_slice).collect();
            parts[self.rank] = &values;
            return Ok(sums(&parts));
        }
        let bound = |rank: usize| rank * len / size;
        let shares: Vec<usize> = (0..size).map(|it| bound(it + 1) - bound(it)).collect();
        let own = self.share_of_sums(Operation::AllReduce, values, &payload, &shares)?;
        let own = Arc::new(own);
        let heard = self.exchange(Operation::AllReduce, &Payload::F32(Arc::clone(&own)))?;
        let mut all = Vec::with_capacity(len);
        for (rank, bytes) in heard.iter().enumerate() {
            if rank == self.rank {
                all.extend_from_slice(&own);
            } else {
                all.extend(decoded::<f32>(bytes));
            }
        }
        Ok(all)
    }

    fn reduce_scatter(&self, values: Vec<f32>, shares: &[usize]) -> Result<Vec<f32>> {
        let values = Arc::new(values);
        let payload = Payload::F32(Arc::clone(&values));
        self.share_of_sums(Operation::ReduceScatter, values, &payload, shares)
    }

    fn reduce_scatter_bf16(&self, values: Vec<bf16>, shares: &[usize]) -> Result<Vec<f32>> {
        let values = Arc::new(values);
        let payload = Payload::Bf16(Arc::clone(&values));
        self.share_of_sums(Operation::ReduceScatterBf16, values, &payload, shares)
    }

    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Arc<Vec<u8>>>> {
        let bytes = Arc::new(bytes);
        let heard = self.exchange(Operation::AllGather, &Payload::Bytes(Arc::clone(&bytes)))?;
        let mut all: Vec<_> = heard.into_iter().map(Arc::new).collect();
        all[self.rank] = bytes;
        Ok(all)
    }

    fn broadcast(&self, bytes: Vec<u8>, root: usize) -> Result<Arc<Vec<u8>>> {
        if self.rank != root {
            let mut heard = self.take(Operation::Broadcast, std::iter::once(root))?;
            return Ok(Arc::new(heard.swap_remove(root)));
        }
        let bytes = Arc::new(bytes);
        let payload = Payload::Bytes(Arc::clone(&bytes));
        for to in self.others() {
            self.post(Operation::Broadcast, to, &payload, 0..bytes.len());
        }
        Ok(bytes)
    }

    fn send(&self, bytes: Vec<u8>, to: usize) -> Result<()> {
        let all = 0..bytes.len();
        self.post(Operation::Mail, to, &Payload::Bytes(Arc::new(bytes)), all);
        Ok(())
    }

    fn receive(&self, from: usize) -> Result<Vec<u8>> {
        let mut heard = self.take(Operation::Mail, std::iter::once(from))?;
        Ok(heard.swap_remove(from))
    }

    fn barrier(&self) -> Result<()> {
        let nothing = Payload::Bytes(Arc::default());
        self.exchange(Operation::Barrier, &nothing).map(drop)
    }

    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>> {
        // The number of a group is one that none of its members has had for another: every pair that is together in two
        // groups tells them apart.
        let least = *self.post.next_group.lock().expect("no panic in counting");
        let own = [color as u64, least.into()];
        let bytes = bytemuck::cast_slice(&own).to_vec();
        let heard = self.exchange(Operation::Split, &Payload::Bytes(Arc::new(bytes)))?;
        let mut said: Vec<Vec<u64>> = heard.iter().map(|it| decoded(it)).collect();
        said[self.rank] = own.to_vec();
        let id = said.iter().map(|it| it[1]).max().unwrap_or_default() as u32;
        assert!(id < MOST_GROUPS, "more groups than tags can tell apart");
        *self.post.next_group.lock().expect("no panic in counting") = id + 1;
        let of_color = |rank: &usize| said[*rank][0] == color as u64;
        let ranks: Vec<usize> = (0..self.size()).filter(of_color).collect();
        let rank = ranks.iter().position(|&it| it == self.rank);
        Ok(Arc::new(Self {
            rank: rank.expect("a rank has its own color"),
            members: ranks.iter().map(|&it| self.members[it]).collect(),
            id,
            post: Arc::clone(&self.post),
            timeout: self.timeout,
        }))
    }

    /// Groups keep the order of the ranks.
    fn has_links(&self) -> bool {
        self.size() == self.post.place().1 && self.post.are_linked.load(SeqCst)
    }

    fn fail(&self, why: &str) {
        let (rank, size) = self.post.place();
        let mut inbox = self.post.lock();
        if inbox.failure.is_some() {
            return;
        }
        inbox.failure = Some(Error::Failed {
            rank: self.post.peer(rank),
            why: why.to_owned(),
        });
        drop(inbox);
        self.post.changed.notify_all();
        let why = Arc::new(why.as_bytes().to_vec());
        for to in (0..size).filter(|&it| it != rank) {
            self.post.command(Command::Send(Outgoing {
                to,
                tag: Operation::Failure.tag(0),
                bytes: 0..why.len(),
                payload: Payload::Bytes(Arc::clone(&why)),
            }));
        }
    }

    fn failure(&self) -> Option<Error> {
        let inbox = self.post.lock();
        inbox.failure.clone().filter(|_| inbox.is_told)
    }
}
