//! Many hypotheses in one table.

/// Holm's step-down adjustment of a family of p values (Holm 1979): the chance of any false rejection
/// stays below the significance level, however the hypotheses depend on each other.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let mut adjusted = vec![0.0; p.len()];
    let mut largest: f64 = 0.0;
    for (rank, &index) in order.iter().enumerate() {
        largest = largest.max(p[index] * (p.len() - rank) as f64).min(1.0);
        adjusted[index] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn holm_agrees_with_a_worked_example() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        assert!(adjusted.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-12), "{adjusted:?}");
    }

    proptest! {
        #[test]
        fn holm_never_lowers_a_p_value(p in proptest::collection::vec(0.0..1.0f64, 1..20)) {
            for (adjusted, raw) in holm(&p).iter().zip(&p) {
                prop_assert!(adjusted >= raw && *adjusted <= 1.0);
            }
        }
    }
}
