//! What a rank exchanges with others, counted where it happens: so a rehearsal has what the real step would.
//!
//! Every exchange is between all pairs of a group: a rank sends each of the others one message and hears one of each. Where
//! parts differ, the largest is counted for each: whoever has it sends it to all, and the others wait for that.

use tt_dist::{FEW, Peers};

/// What goes over a link, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Sent, and received as many.
    pub bytes: u64,
    /// Sent, and received as many.
    pub messages: u64,
}

/// By where the other ranks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// On the same host.
    pub within_host: Load,
    /// On other hosts.
    pub between_hosts: Load,
}

/// What a rank has exchanged so far, or within a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that it has received to gather weights.
    pub gathered_bytes: u64,
    /// Bytes that it has given away to sum gradients.
    pub reduced_bytes: u64,
    /// To gather weights that are waited for.
    pub gathers: Exchange,
    /// To gather weights while something else is computed.
    pub prefetches: Exchange,
    /// To sum gradients, and the few numbers that all ranks judge a step by.
    pub sums: Exchange,
}

impl Load {
    fn zip(self, other: Self, join: &impl Fn(u64, u64) -> u64) -> Self {
        Self {
            bytes: join(self.bytes, other.bytes),
            messages: join(self.messages, other.messages),
        }
    }
}

impl Exchange {
    /// `bytes` go to each of `peers`, and as many come.
    pub(crate) fn with_each(peers: Peers, bytes: usize) -> Self {
        let load = |peers: usize| Load {
            bytes: (peers * bytes) as u64,
            messages: peers as u64,
        };
        Self {
            within_host: load(peers.within_host),
            between_hosts: load(peers.between_hosts),
        }
    }

    /// `elements` numbers in f32 are summed over this rank and `peers`, for all of them.
    pub(crate) fn to_sum(peers: Peers, elements: usize) -> Self {
        if elements <= FEW {
            return Self::with_each(peers, elements * size_of::<f32>());
        }
        // Each sums a share, and then tells the others.
        let share = elements.div_ceil(peers.count() + 1) * size_of::<f32>();
        let half = Self::with_each(peers, share);
        half.zip(half, &|a, b| a + b)
    }

    pub(crate) fn add(&mut self, other: Self) {
        *self = self.zip(other, &|a, b| a + b);
    }

    fn zip(self, other: Self, join: &impl Fn(u64, u64) -> u64) -> Self {
        Self {
            within_host: self.within_host.zip(other.within_host, join),
            between_hosts: self.between_hosts.zip(other.between_hosts, join),
        }
    }
}

impl Traffic {
    /// Each of the numbers, with the other's.
    #[must_use]
    pub fn zip(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            gathered_bytes: join(self.gathered_bytes, other.gathered_bytes),
            reduced_bytes: join(self.reduced_bytes, other.reduced_bytes),
            gathers: self.gathers.zip(other.gathers, &join),
            prefetches: self.prefetches.zip(other.prefetches, &join),
            sums: self.sums.zip(other.sums, &join),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_many_is_two_exchanges_and_one_of_few_is_one() {
        let peers = Peers {
            within_host: 3,
            between_hosts: 4,
        };
        let few = Exchange::to_sum(peers, 10);
        assert_eq!((few.within_host.bytes, few.within_host.messages), (120, 3));
        assert_eq!(few.between_hosts.messages, 4);
        let many = Exchange::to_sum(peers, 80_000);
        let (bytes, messages) = (many.within_host.bytes, many.within_host.messages);
        assert_eq!((bytes, messages), (2 * 3 * 40_000, 6));
        assert_eq!(many.between_hosts.bytes, 2 * 4 * 40_000);
    }
}
