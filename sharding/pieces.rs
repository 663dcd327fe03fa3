//! Reading a tensor by ranges where several ranks have it, as a checkpoint is written.

use std::ops::Range;
use std::sync::Arc;

use tt_dist::Communicator;
use tt_tensor::{Shard, Tensor, WithDType};

use crate::error::Result;

/// A tensor of which each rank has a part. All ranks read the same ranges in the same order.
pub struct Pieces {
    own: Tensor,
    /// By rank; of parts that several have, only the first's.
    parts: Vec<Option<Shard>>,
    world: Arc<dyn Communicator>,
}

impl Pieces {
    /// `own` is the part `shard` that this rank has. All ranks do this together.
    pub fn new(own: Tensor, shard: &Shard, world: &Arc<dyn Communicator>) -> Result<Self> {
        let numbers = shard.ranges().iter().flat_map(|it| [it.start, it.end]);
        let bytes: Vec<u8> = numbers.flat_map(|it| (it as u64).to_le_bytes()).collect();
        let heard = world.all_gather(bytes)?;
        let mut parts: Vec<Option<Shard>> = Vec::new();
        for bytes in &heard {
            let words = bytes.chunks_exact(8).map(|word| {
                let word = word.try_into().expect("eight bytes");
                u64::from_le_bytes(word) as usize
            });
            let numbers: Vec<usize> = words.collect();
            let ranges = numbers.chunks_exact(2).map(|pair| pair[0]..pair[1]);
            let part = Some(Shard::new(shard.shape(), ranges.collect())?);
            let is_new = !parts.contains(&part);
            parts.push(part.filter(|_| is_new));
        }
        Ok(Self {
            own,
            parts,
            world: Arc::clone(world),
        })
    }

    /// Appends the elements `range` of the whole.
    pub fn append<T>(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<()>
    where
        T: WithDType + bytemuck::NoUninit,
    {
        let rank = self.world.rank();
        let mut own = Vec::new();
        let mut values = Vec::<T>::new();
        for (_, local) in self.overlaps(rank, &range) {
            self.own.read_range_into(local, &mut values)?;
            own.extend_from_slice(bytemuck::cast_slice(&values));
        }
        // Who has all of it need not be asked: all know that it does.
        if let Some(first) = &self.parts[0]
            && first.is_whole()
        {
            if rank == 0 {
                out.extend_from_slice(&own);
            } else {
                out.resize(out.len() + range.len() * size_of::<T>(), 0);
            }
            return Ok(());
        }
        let heard = self.world.all_gather(own)?;
        let begin = out.len();
        out.resize(begin + range.len() * size_of::<T>(), 0);
        for (rank, bytes) in heard.iter().enumerate() {
            let mut at = 0;
            for (logical, _) in self.overlaps(rank, &range) {
                let len = logical.len() * size_of::<T>();
                let to = begin + (logical.start - range.start) * size_of::<T>();
                out[to..to + len].copy_from_slice(&bytes[at..at + len]);
                at += len;
            }
        }
        Ok(())
    }

    /// What `rank` has of `range`: elements of the whole, and where they are in its part.
    fn overlaps(
        &self,
        rank: usize,
        range: &Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let mut local = 0;
        let runs = self.parts[rank].iter().flat_map(Shard::runs);
        runs.filter_map(move |run| {
            let offset = local;
            local += run.len();
            let start = run.start.max(range.start);
            let end = run.end.min(range.end);
            (start < end).then(|| {
                let first = offset + start - run.start;
                (start..end, first..first + (end - start))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tt_dist::threads;
    use tt_tensor::Device;

    use super::*;

    /// What rank 0 reads of 0, 1, 2, ... in pieces of three.
    fn read(shape: &[usize], parts: &[Vec<Range<usize>>]) -> Vec<f32> {
        let len: usize = shape.iter().product();
        let ranks = threads::group(parts.len(), None);
        let read = |world: Arc<dyn Communicator>| {
            let shard = Shard::new(shape, parts[world.rank()].clone()).unwrap();
            let values: Vec<f32> = shard.runs().flatten().map(|it| it as f32).collect();
            let own = Tensor::from_slice(&values, shard.local_shape(), Device::Cpu).unwrap();
            let pieces = Pieces::new(own, &shard, &world).unwrap();
            let mut bytes = Vec::new();
            for start in (0..len).step_by(3) {
                pieces
                    .append::<f32>(start..len.min(start + 3), &mut bytes)
                    .unwrap();
            }
            assert_eq!(bytes.len(), 4 * len);
            let values = bytes
                .chunks_exact(4)
                .map(bytemuck::pod_read_unaligned::<f32>);
            values.collect::<Vec<f32>>()
        };
        thread::scope(|scope| {
            let read = &read;
            let spawn = |world| scope.spawn(move || read(world));
            let handles: Vec<_> = ranks.into_iter().map(spawn).collect();
            let mut found = handles.into_iter().map(|it| it.join().unwrap());
            found.next().unwrap()
        })
    }

    #[test]
    fn rank_zero_reads_the_whole_wherever_its_parts_are() {
        for (shape, parts) in [
            (vec![5, 4], vec![vec![0..2, 0..4], vec![2..5, 0..4]]),
            (vec![5, 4], vec![vec![0..5, 0..1], vec![0..5, 1..4]]),
            (vec![7], vec![vec![0..0], vec![0..4], vec![4..7]]),
            // Held by two, and by all.
            (
                vec![4],
                vec![vec![0..2], vec![2..4], vec![0..2], vec![2..4]],
            ),
            (vec![2, 3], vec![vec![0..2, 0..3]; 3]),
        ] {
            let len = shape.iter().product::<usize>();
            let all: Vec<f32> = (0..len).map(|it| it as f32).collect();
            assert_eq!(read(&shape, &parts), all, "{shape:?} {parts:?}");
        }
    }
}
