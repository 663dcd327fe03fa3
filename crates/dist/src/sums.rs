//! The one way to sum over ranks: in their order, in f32. Whoever carries the values, the sums have the same bits.

/// Processes take a sum of at most so many elements each for itself, which is one exchange and not two.
pub const FEW: usize = 4096;

/// Of each element, the sum over `parts`, which are those of the ranks in their order and of equal length.
pub(crate) fn sums<T: Copy + Into<f32>>(parts: &[&[T]]) -> Vec<f32> {
    let mut sums: Vec<f32> = parts[0].iter().map(|&it| it.into()).collect();
    for part in &parts[1..] {
        for (sum, &value) in sums.iter_mut().zip(*part) {
            *sum += value.into();
        }
    }
    sums
}
