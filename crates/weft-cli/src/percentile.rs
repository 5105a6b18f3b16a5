//! Percentiles.

/// Returns the least value that this many of a thousand values do not exceed. `None` if there are
/// no values. They come in ascending order, each with the number of its occurrences.
pub(crate) fn percentile<T>(
    values: impl Iterator<Item = (T, u64)> + Clone,
    per_mille: u64,
) -> Option<T> {
    let total: u128 = values.clone().map(|(_, count)| u128::from(count)).sum();
    let rank = (total * u128::from(per_mille)).div_ceil(1_000).max(1);
    let mut count = 0;
    let mut values = values.skip_while(|(_, occurrences)| {
        count += u128::from(*occurrences);
        count < rank
    });
    values.next().map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let values = (1..=200).map(|value| (value, 1));
        let at = |per_mille| percentile(values.clone(), per_mille);
        assert_eq!([0, 500, 990, 999, 1_000].map(at), [1, 100, 198, 200, 200].map(Some));
        let middle = |values: &[u64]| percentile(values.iter().map(|&value| (value, 1)), 500);
        assert_eq!((middle(&[7]), middle(&[1, 9]), middle(&[])), (Some(7), Some(1), None));
    }

    #[test]
    fn each_occurrence_of_a_value_counts() {
        let values = [(1, 0), (2, 90), (3, 0), (4, 10)];
        let at = |per_mille| percentile(values.into_iter(), per_mille);
        assert_eq!([0, 900, 901, 1_000].map(at), [2, 2, 4, 4].map(Some));
        assert_eq!(percentile([(1, 0)].into_iter(), 500), None);
        let many = [(1, u64::MAX), (2, u64::MAX)];
        assert_eq!(percentile(many.into_iter(), 501), Some(2));
    }
}
