//! Order statistics of samples.

/// Quantile by linear interpolation between order statistics (type 7 of Hyndman & Fan 1996). `None` of
/// nothing.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = share * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    Some(below + position.fract() * (above - below))
}

/// The middle of a sample; between the two middle ones of an even number.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Interval that covers the median with at least 95 % of confidence, whatever the distribution: the narrowest
/// pair of order statistics, symmetric in rank, that does (the sign test's, Thompson 1936). `None` below
/// six values, of which not even the smallest and the largest do.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let count = values.len();
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    // P(fewer than `rank` of `count` values lie below the median), with binomial weights of 1/2.
    let (mut weight, mut below, mut found) = (0.5f64.powi(count as i32), 0.0, None);
    for rank in 0..count / 2 {
        below += weight;
        if 2.0 * below > 0.05 {
            break;
        }
        found = Some(rank);
        weight *= (count - rank) as f64 / (rank + 1) as f64;
    }
    found.map(|rank| (sorted[rank], sorted[count - 1 - rank]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[4.0, 1.0, 2.0, 3.0], 0.5), Some(2.5));
        assert_eq!(quantile(&(0..=100).map(f64::from).collect::<Vec<_>>(), 0.99), Some(99.0));
        assert_eq!(quantile(&[1.0, 2.0], 0.75), Some(1.75));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(median(&[4.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn a_median_has_an_interval_from_six_values_on() {
        let first = |count: u32| (1..=count).map(f64::from).rev().collect::<Vec<_>>();
        assert_eq!(median_interval(&first(5)), None);
        assert_eq!(median_interval(&first(6)), Some((1.0, 6.0)));
        // Of tables of the sign test: 9 values lose one on each side, 20 lose five.
        assert_eq!(median_interval(&first(9)), Some((2.0, 8.0)));
        assert_eq!(median_interval(&first(20)), Some((6.0, 15.0)));
    }
}
