//! Many hypotheses in one table.

/// Holm's step-down adjustment of a family of p values, in its weighted form (Holm 1979): the chance of any false
/// rejection stays below the significance level, however the hypotheses depend on each other.
///
/// Each hypothesis has a weight above 0. Only ratios of weights count. Hypotheses are ordered by p/w, and the
/// adjusted value is the largest so far of p·(sum of the weights not yet rejected)/w. Equal weights give
/// Holm's unweighted procedure.
pub fn holm(p: &[f64], weights: &[f64]) -> Vec<f64> {
    assert_eq!(p.len(), weights.len(), "a hypothesis has one p value and one weight");
    assert!(weights.iter().all(|weight| *weight > 0.0 && weight.is_finite()), "a weight is above 0");
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&i, &j| (p[i] / weights[i]).total_cmp(&(p[j] / weights[j])));
    // Summed from the end, so that the last hypothesis has exactly its own weight left.
    let mut left = vec![0.0; p.len()];
    let mut sum = 0.0;
    for &index in order.iter().rev() {
        sum += weights[index];
        left[index] = sum;
    }
    let mut adjusted = vec![0.0; p.len()];
    let mut largest: f64 = 0.0;
    for index in order {
        largest = largest.max(p[index] * (left[index] / weights[index])).min(1.0);
        adjusted[index] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(found: &[f64], expected: &[f64]) {
        let alike = found.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-12);
        assert!(alike && found.len() == expected.len(), "{found:?} is not {expected:?}");
    }

    #[test]
    fn holm_agrees_with_a_worked_example() {
        close(&holm(&[0.01, 0.04, 0.03, 0.005], &[1.0; 4]), &[0.03, 0.06, 0.06, 0.02]);
    }

    #[test]
    fn weighted_holm_agrees_with_a_worked_example() {
        // p/w is 0.025, 0.1, 0.3 and 0.04. By it, 0.02·1/0.8; then 0.002·0.2/0.05, 0.01·0.15/0.1, 0.015·0.05/0.05.
        let adjusted = holm(&[0.02, 0.01, 0.015, 0.002], &[0.8, 0.1, 0.05, 0.05]);
        close(&adjusted, &[0.025, 0.025, 0.025, 0.025]);
        // In the same order, 0.02/0.8; 0.01·0.2/0.05; 0.03·0.15/0.1; 0.2·0.05/0.05.
        let adjusted = holm(&[0.02, 0.03, 0.2, 0.01], &[0.8, 0.1, 0.05, 0.05]);
        close(&adjusted, &[0.025, 0.045, 0.2, 0.04]);
    }

    /// Holm's procedure in its textbook form, without weights.
    fn unweighted(p: &[f64]) -> Vec<f64> {
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
        let mut adjusted = vec![0.0; p.len()];
        let mut largest: f64 = 0.0;
        for (rank, index) in order.into_iter().enumerate() {
            largest = largest.max(p[index] * (p.len() - rank) as f64).min(1.0);
            adjusted[index] = largest;
        }
        adjusted
    }

    fn family() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
        proptest::collection::vec((0.0..1.0f64, 0.01..10.0f64), 1..20)
            .prop_map(|family| family.into_iter().unzip())
    }

    proptest! {
        #[test]
        fn equal_weights_are_no_weights((p, _) in family(), weight in 0.01..10.0f64) {
            close(&holm(&p, &vec![weight; p.len()]), &unweighted(&p));
        }

        #[test]
        fn holm_never_lowers_a_p_value((p, weights) in family()) {
            for (adjusted, raw) in holm(&p, &weights).iter().zip(&p) {
                prop_assert!(adjusted >= raw && *adjusted <= 1.0);
            }
        }

        #[test]
        fn only_ratios_of_weights_count((p, weights) in family(), by in 0.001..1000.0f64) {
            let scaled: Vec<f64> = weights.iter().map(|weight| weight * by).collect();
            close(&holm(&p, &scaled), &holm(&p, &weights));
        }
    }
}
