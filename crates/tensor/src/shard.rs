//! Which elements of a tensor are held here: all of them on one rank, a box of them where several share it.
//!
//! The *logical* shape is that of the whole tensor, as a checkpoint holds it; the *local* one is that of the part. Both
//! number their elements in row-major order.

use std::ops::Range;

use crate::error::{Error, Result};

/// Which part of a parameter is held here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    shape: Vec<usize>,
    /// By dim.
    ranges: Vec<Range<usize>>,
}

impl Shard {
    /// All of a tensor of this shape.
    pub fn whole(shape: impl Into<Vec<usize>>) -> Self {
        let shape = shape.into();
        Self {
            ranges: shape.iter().map(|&len| 0..len).collect(),
            shape,
        }
    }

    /// These indices of each dim. Error: they are not within `shape`.
    pub fn new(shape: impl Into<Vec<usize>>, ranges: Vec<Range<usize>>) -> Result<Self> {
        let shape = shape.into();
        let fits =
            |(range, &len): (&Range<usize>, &usize)| range.start <= range.end && range.end <= len;
        if ranges.len() != shape.len() || !ranges.iter().zip(&shape).all(fits) {
            let why = format!("{ranges:?} is no part of {shape:?}");
            return Err(Error::invalid("shard", why));
        }
        Ok(Self { shape, ranges })
    }

    /// The logical shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The indices of each dim.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// The local shape.
    pub fn local_shape(&self) -> Vec<usize> {
        self.ranges.iter().map(Range::len).collect()
    }

    /// Whether that is all of it.
    pub fn is_whole(&self) -> bool {
        let is_all = |(range, &len): (&Range<usize>, &usize)| *range == (0..len);
        self.ranges.iter().zip(&self.shape).all(is_all)
    }

    /// With one index in place of `dim`'s many, as sums over it have.
    #[must_use]
    pub fn reduced(mut self, dim: usize) -> Self {
        self.shape[dim] = 1;
        self.ranges[dim] = 0..1;
        self
    }

    /// The logical elements that are held here, as runs of consecutive ones: together, and in this order, the local ones.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        // A run goes over the trailing dims that are held whole, and over the part of the one before them.
        let is_all = |dim: usize| self.ranges[dim] == (0..self.shape[dim]);
        let rank = self.shape.len();
        let inner = (0..rank).rev().find(|&dim| !is_all(dim)).unwrap_or(0);
        let stride = |dim: usize| self.shape[dim + 1..].iter().product::<usize>();
        let (offset, len) = match rank {
            0 => (0, 1),
            _ => (
                self.ranges[inner].start * stride(inner),
                self.ranges[inner].len() * stride(inner),
            ),
        };
        let outer = &self.ranges[..inner.min(rank)];
        let num_runs = outer.iter().map(Range::len).product::<usize>();
        let num_runs = if len == 0 { 0 } else { num_runs };
        (0..num_runs).map(move |run| {
            let (mut rest, mut start) = (run, offset);
            for (dim, range) in outer.iter().enumerate().rev() {
                start += (range.start + rest % range.len()) * stride(dim);
                rest /= range.len();
            }
            start..start + len
        })
    }

    /// Where the consecutive logical elements `elements` are among the local ones; `None` if not all are held here.
    pub fn local(&self, elements: Range<usize>) -> Option<Range<usize>> {
        if self.is_whole() {
            return Some(elements);
        }
        let mut start = 0;
        for run in self.runs() {
            if run.start <= elements.start && elements.end <= run.end {
                let first = start + elements.start - run.start;
                return Some(first..first + elements.len());
            }
            start += run.len();
        }
        None
    }
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    clippy::reversed_empty_ranges,
    reason = "runs are ranges, of which there may be one, or one that is wrong"
)]
mod tests {
    use super::*;

    fn runs(shape: &[usize], ranges: &[Range<usize>]) -> Vec<Range<usize>> {
        Shard::new(shape, ranges.to_vec()).unwrap().runs().collect()
    }

    #[test]
    fn a_whole_tensor_is_one_run() {
        for shape in [&[][..], &[5], &[2, 3, 4]] {
            let whole = Shard::whole(shape);
            assert!(whole.is_whole());
            assert_eq!(whole.local_shape(), shape);
            let len = shape.iter().product::<usize>();
            assert_eq!(whole.runs().collect::<Vec<_>>(), [0..len]);
            assert_eq!(whole.local(0..len), Some(0..len));
        }
        assert_eq!(Shard::whole([0, 3]).runs().count(), 0);
    }

    #[test]
    fn rows_are_one_run_and_columns_one_for_each_row() {
        assert_eq!(runs(&[4, 3], &[1..3, 0..3]), [3..9]);
        assert_eq!(runs(&[4, 3], &[0..4, 1..3]), [1..3, 4..6, 7..9, 10..12]);
        assert_eq!(runs(&[2, 2, 3], &[0..2, 1..2, 0..3]), [3..6, 9..12]);
        assert_eq!(runs(&[2, 2, 3], &[1..2, 0..2, 0..1]), [6..7, 9..10]);
        assert_eq!(runs(&[4, 3], &[2..2, 0..3]), [] as [Range<usize>; 0]);
    }

    #[test]
    fn logical_elements_are_found_among_the_local_ones() {
        let columns = Shard::new([4, 3], vec![0..4, 1..3]).unwrap();
        assert_eq!(columns.local_shape(), [4, 2]);
        assert_eq!(columns.local(4..6), Some(2..4));
        assert_eq!(columns.local(5..6), Some(3..4));
        assert_eq!(columns.local(5..7), None, "held by another");
        assert_eq!(columns.local(0..1), None);
    }

    #[test]
    fn a_shard_beyond_its_tensor_is_refused() {
        for ranges in [vec![0..5, 0..3], vec![0..4], vec![3..2, 0..3]] {
            assert!(Shard::new([4, 3], ranges).is_err());
        }
    }

    #[test]
    fn sums_over_a_dim_are_shared_out_as_the_others_are() {
        let rows = Shard::new([4, 3], vec![1..3, 0..3]).unwrap();
        assert_eq!(
            rows.clone().reduced(1),
            Shard::new([4, 1], vec![1..3, 0..1]).unwrap()
        );
        assert!(rows.reduced(0).is_whole());
    }
}
