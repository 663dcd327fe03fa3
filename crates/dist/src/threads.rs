//! Ranks that are threads of one process.
//!
//! Everything is one exchange: each rank puts down a value, waits until all have, and takes up all of them. Two rounds
//! are kept apart, so that a rank may begin with the next while others still read; it cannot be two ahead. Values are
//! handed over and not copied; a round is let go when its last rank has read it.

use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use half::bf16;

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::sums::sums;

/// `size` ranks of one group. None waits for another longer than `timeout`; `None`: for ever.
pub fn group(size: usize, timeout: Option<Duration>) -> Vec<Arc<dyn Communicator>> {
    let job = Arc::new(Job {
        failure: Mutex::default(),
        told: Mutex::default(),
        groups: Mutex::default(),
        timeout,
    });
    let group = Group::new((0..size).collect(), &job);
    (0..size)
        .map(|rank| Arc::new(Rank::new(rank, &group)) as Arc<dyn Communicator>)
        .collect()
}

/// What all groups of a job have in common.
struct Job {
    failure: Mutex<Option<Error>>,
    /// The ranks that it has reached.
    told: Mutex<HashSet<usize>>,
    /// To be woken when a rank fails.
    groups: Mutex<Vec<std::sync::Weak<Group>>>,
    timeout: Option<Duration>,
}

struct Group {
    /// Of the whole job, which messages name.
    names: Vec<usize>,
    job: Arc<Job>,
    rounds: Mutex<Rounds>,
    changed: Condvar,
}

#[derive(Default)]
struct Rounds {
    /// Even ones and odd ones.
    rounds: [Round; 2],
    /// Sent and not received, by (from, to).
    mail: HashMap<(usize, usize), VecDeque<Vec<u8>>>,
}

type Value = Arc<dyn Any + Send + Sync>;

#[derive(Default)]
struct Round {
    values: HashMap<usize, (&'static str, Value)>,
    /// Of how many ranks it has been read.
    read: usize,
}

struct Rank {
    rank: usize,
    group: Arc<Group>,
    /// Exchanges so far.
    round: Mutex<usize>,
}

impl Group {
    fn new(names: Vec<usize>, job: &Arc<Job>) -> Arc<Self> {
        let group = Arc::new(Self {
            names,
            job: Arc::clone(job),
            rounds: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut groups = job.groups.lock().expect("no panic while adding");
        groups.push(Arc::downgrade(&group));
        drop(groups);
        group
    }

    fn lock(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().expect("no panic while exchanging")
    }

    /// Rank `rank` waits until `done` gives something. `missing` says for which ranks.
    fn wait<T>(
        &self,
        rank: usize,
        operation: &'static str,
        mut done: impl FnMut(&mut Rounds) -> Result<Option<T>>,
        missing: impl Fn(&Rounds) -> Vec<usize>,
    ) -> Result<T> {
        let begun = Instant::now();
        let mut rounds = self.lock();
        loop {
            if let Some(failure) = &*self.job.failure.lock().expect("no panic while failing") {
                let mut told = self.job.told.lock().expect("no panic while telling");
                told.insert(self.names[rank]);
                return Err(failure.clone());
            }
            if let Some(value) = done(&mut rounds)? {
                return Ok(value);
            }
            rounds = match self.job.timeout {
                None => self.changed.wait(rounds).expect("no panic while waiting"),
                Some(limit) => {
                    let left = limit.saturating_sub(begun.elapsed());
                    if left.is_zero() {
                        let missing = missing(&rounds);
                        return Err(Error::Timeout {
                            operation,
                            after: limit,
                            missing: missing
                                .into_iter()
                                .map(|it| self.names[it].into())
                                .collect(),
                        });
                    }
                    let waited = self.changed.wait_timeout(rounds, left);
                    waited.expect("no panic while waiting").0
                }
            };
        }
    }
}

impl Rank {
    fn new(rank: usize, group: &Arc<Group>) -> Self {
        Self {
            rank,
            group: Arc::clone(group),
            round: Mutex::new(0),
        }
    }

    /// What every rank gives, by rank.
    fn exchange<T: Send + Sync + 'static>(
        &self,
        operation: &'static str,
        value: T,
    ) -> Result<Vec<Arc<T>>> {
        let (rank, group, size) = (self.rank, &*self.group, self.size());
        let mut round = self.round.lock().expect("one thread is a rank");
        let at = *round % 2;
        *round += 1;
        let value: Value = Arc::new(value);
        let mut value = Some(value);
        // Those of the round before the last may still be reading.
        group.wait(
            rank,
            operation,
            |rounds| {
                let round = &mut rounds.rounds[at];
                if round.values.contains_key(&rank) {
                    return Ok(None);
                }
                let value = value.take().expect("put down once");
                round.values.insert(rank, (operation, value));
                Ok(Some(()))
            },
            |_| Vec::new(),
        )?;
        group.changed.notify_all();
        let all = group.wait(
            rank,
            operation,
            |rounds| {
                let round = &mut rounds.rounds[at];
                let other = round.values.iter().find(|(_, (it, _))| *it != operation);
                if let Some((&other, (found, _))) = other {
                    return Err(Error::OutOfStep {
                        rank: group.names[other],
                        found,
                        own_rank: group.names[rank],
                        own: operation,
                    });
                }
                if round.values.len() < size {
                    return Ok(None);
                }
                let all: Vec<Value> = (0..size).map(|it| round.values[&it].1.clone()).collect();
                round.read += 1;
                if round.read == size {
                    *round = Round::default();
                }
                Ok(Some(all))
            },
            |rounds| {
                let values = &rounds.rounds[at].values;
                (0..size).filter(|it| !values.contains_key(it)).collect()
            },
        )?;
        group.changed.notify_all();
        let all = all.into_iter().map(Arc::downcast::<T>);
        let all: std::result::Result<_, _> = all.collect();
        Ok(all.expect("an operation has one type of value"))
    }

    fn sums<T: Copy + Into<f32> + Send + Sync + 'static>(
        &self,
        operation: &'static str,
        values: Vec<T>,
        shares: &[usize],
    ) -> Result<Vec<f32>> {
        let start = shares[..self.rank].iter().sum();
        let own = start..start + shares[self.rank];
        let all = self.exchange(operation, values)?;
        let parts: Vec<&[T]> = all.iter().map(|it| &it[own.clone()]).collect();
        Ok(sums(&parts))
    }
}

impl Communicator for Rank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.group.names.len()
    }

    fn all_reduce(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        let (len, size) = (values.len(), self.size());
        // Each sums a part for all: else all would sum everything.
        let bound = |rank: usize| rank * len / size;
        let shares: Vec<usize> = (0..size).map(|it| bound(it + 1) - bound(it)).collect();
        let own = self.sums("all_reduce", values, &shares)?;
        let parts = self.exchange("all_reduce", own)?;
        Ok(parts.iter().flat_map(|part| part.iter().copied()).collect())
    }

    fn reduce_scatter(&self, values: Vec<f32>, shares: &[usize]) -> Result<Vec<f32>> {
        self.sums("reduce_scatter", values, shares)
    }

    fn reduce_scatter_bf16(&self, values: Vec<bf16>, shares: &[usize]) -> Result<Vec<f32>> {
        self.sums("reduce_scatter of bf16", values, shares)
    }

    fn all_gather(&self, bytes: Vec<u8>) -> Result<Vec<Arc<Vec<u8>>>> {
        self.exchange("all_gather", bytes)
    }

    fn broadcast(&self, bytes: Vec<u8>, root: usize) -> Result<Arc<Vec<u8>>> {
        let own = if self.rank == root { bytes } else { Vec::new() };
        let mut all = self.exchange("broadcast", own)?;
        Ok(all.swap_remove(root))
    }

    fn send(&self, bytes: Vec<u8>, to: usize) -> Result<()> {
        let mut rounds = self.group.lock();
        let mail = rounds.mail.entry((self.rank, to)).or_default();
        mail.push_back(bytes);
        drop(rounds);
        self.group.changed.notify_all();
        Ok(())
    }

    fn receive(&self, from: usize) -> Result<Vec<u8>> {
        let way = (from, self.rank);
        self.group.wait(
            self.rank,
            "receive",
            |rounds| Ok(rounds.mail.get_mut(&way).and_then(VecDeque::pop_front)),
            |_| vec![from],
        )
    }

    fn barrier(&self) -> Result<()> {
        self.exchange("barrier", ()).map(drop)
    }

    fn split(&self, color: usize) -> Result<Arc<dyn Communicator>> {
        let colors = self.exchange("split", color)?;
        let members: Vec<usize> = (0..self.size())
            .filter(|&it| *colors[it] == color)
            .collect();
        let names = members.iter().map(|&it| self.group.names[it]).collect();
        let first = members[0] == self.rank;
        let made = first.then(|| Group::new(names, &self.group.job));
        let groups = self.exchange("split", made)?;
        let group = groups[members[0]].as_ref().clone();
        let group = group.expect("the first of a color makes its group");
        let rank = members.iter().position(|&it| it == self.rank);
        let rank = rank.expect("a rank has its own color");
        Ok(Arc::new(Self::new(rank, &group)))
    }

    fn fail(&self, why: &str) {
        let rank = self.group.names[self.rank].into();
        let mut failure = self
            .group
            .job
            .failure
            .lock()
            .expect("no panic while failing");
        failure.get_or_insert_with(|| Error::Failed {
            rank,
            why: why.to_owned(),
        });
        drop(failure);
        let groups = self.group.job.groups.lock().expect("no panic while adding");
        for group in groups.iter().filter_map(std::sync::Weak::upgrade) {
            // Whoever is about to wait has seen the failure, or is woken.
            drop(group.lock());
            group.changed.notify_all();
        }
    }

    fn failure(&self) -> Option<Error> {
        let Job { failure, told, .. } = &*self.group.job;
        let told = told.lock().expect("no panic while telling");
        let is_told = told.contains(&self.group.names[self.rank]);
        let failure = failure.lock().expect("no panic while failing");
        failure.clone().filter(|_| is_told)
    }
}
