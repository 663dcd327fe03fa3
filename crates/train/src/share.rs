//! Which micro-batches are which rank's.
//!
//! All ranks read the same data in the same order and take turns at its micro-batches: whatever the number of ranks, the
//! same rows make a step, and the position in the data is one. Each rank runs as many micro-batches as any, for they
//! gather weights together: one that has none left runs another's without its targets.

use tt_collators::{Batch, IGNORE};

/// The place of a rank among those that share micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// From 0.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
}

impl Default for Share {
    fn default() -> Self {
        Self { rank: 0, ranks: 1 }
    }
}

impl Share {
    /// Which of all micro-batches is the rank's n-th.
    pub fn index(self, n: usize) -> usize {
        n * self.ranks + self.rank
    }

    /// What the rank runs of `all`. The others are given to `spare`.
    pub fn take(self, all: Vec<Batch>, mut spare: impl FnMut(Batch)) -> Vec<Batch> {
        if self.ranks == 1 {
            return all;
        }
        let blank = self.is_short(all.len()).then(|| all.last().map(blank));
        let mut own = Vec::with_capacity(all.len().div_ceil(self.ranks));
        for (i, batch) in all.into_iter().enumerate() {
            if i % self.ranks == self.rank {
                own.push(batch);
            } else {
                spare(batch);
            }
        }
        own.extend(blank.flatten());
        own
    }

    /// All micro-batches in their order, of which [`Share::take`] has given `own` and spared `others`: on the first rank, which
    /// runs none for nothing.
    pub(crate) fn join<'a>(self, own: &'a [Batch], others: &'a [Batch]) -> Vec<&'a Batch> {
        let (mut own, mut others) = (own.iter(), others.iter());
        let is_own = |i: usize| i % self.ranks == self.rank;
        let all = (0..).map_while(|i| if is_own(i) { own.next() } else { others.next() });
        all.collect()
    }

    /// The same of batches that stay where they are; with it, what of them is to be blanked.
    pub(crate) fn of(self, all: &[Batch]) -> impl Iterator<Item = std::borrow::Cow<'_, Batch>> {
        use std::borrow::Cow;
        let own = all.iter().skip(self.rank).step_by(self.ranks);
        let blank = all.last().filter(|_| self.is_short(all.len())).map(blank);
        own.map(Cow::Borrowed).chain(blank.map(Cow::Owned))
    }

    /// Whether others have a micro-batch more.
    fn is_short(self, count: usize) -> bool {
        let last = count % self.ranks;
        last != 0 && self.rank >= last
    }
}

/// The same rows with nothing to predict.
fn blank(batch: &Batch) -> Batch {
    let mut blank = batch.clone();
    blank.labels.fill(IGNORE);
    blank.num_targets = 0;
    blank
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(count: usize) -> Vec<Batch> {
        let batch = |i| Batch {
            rows: i + 1,
            labels: vec![7],
            num_targets: 1,
            ..Batch::default()
        };
        (0..count).map(batch).collect()
    }

    #[test]
    fn ranks_take_turns_and_run_as_many() {
        for (count, ranks) in [(4, 2), (5, 3), (1, 4), (3, 3), (6, 4), (0, 2)] {
            let mut seen = vec![0; count];
            for rank in 0..ranks {
                let share = Share { rank, ranks };
                let mut others = Vec::new();
                let own = share.take(batches(count), |batch| others.push(batch));
                assert_eq!(own.len(), count.div_ceil(ranks), "{count} on {ranks}");
                for (n, batch) in own.iter().enumerate() {
                    if batch.num_targets > 0 {
                        assert_eq!(batch.rows, share.index(n) + 1);
                        seen[batch.rows - 1] += 1;
                    } else {
                        assert_eq!(batch.labels, [IGNORE]);
                    }
                }
                let real = own.iter().filter(|it| it.num_targets > 0).count();
                assert_eq!(others.len() + real, count);
                let all = batches(count);
                if rank == 0 {
                    assert!(share.join(&own, &others).into_iter().eq(&all));
                }
                let borrowed: Vec<_> = share.of(&all).map(|it| it.into_owned()).collect();
                assert_eq!(borrowed, own);
            }
            assert_eq!(seen, vec![1; count], "{count} on {ranks}");
        }
    }
}
