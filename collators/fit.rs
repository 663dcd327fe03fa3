//! First fit, the longest first: which examples go into which row.

/// Rows of `room` tokens for examples of these lengths, as lists of their indices: rows in the order of what comes first in
/// them, and so within a row. One that is longer than a row has a row to itself.
///
/// Takes at most a ninth more rows than the best packing does, and two thirds of a row.
pub(crate) fn fit(lengths: &[usize], room: usize) -> Vec<Vec<usize>> {
    let mut longest_first: Vec<usize> = (0..lengths.len()).collect();
    longest_first.sort_by_key(|&i| std::cmp::Reverse(lengths[i])); // stable, so the same on every machine
    let mut rows: Vec<(usize, Vec<usize>)> = Vec::new();
    for i in longest_first {
        let len = lengths[i].min(room);
        match rows.iter_mut().find(|(left, _)| *left >= len) {
            Some((left, row)) => {
                *left -= len;
                row.push(i);
            }
            None => rows.push((room - len, vec![i])),
        }
    }
    let mut rows: Vec<Vec<usize>> = rows.into_iter().map(|(_, row)| row).collect();
    rows.iter_mut().for_each(|row| row.sort_unstable());
    rows.sort_unstable();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_go_first_each_where_there_is_room() {
        assert_eq!(
            fit(&[2, 5, 4, 7, 1, 3, 8], 10),
            [vec![0, 6], vec![1, 2, 4], vec![3, 5]]
        );
        assert_eq!(fit(&[], 10), Vec::<Vec<usize>>::new());
        assert_eq!(fit(&[30, 1], 10), [vec![0], vec![1]]);
    }
}
