//! The similarity of two orders.

use std::cmp::Ordering;

/// Kendall's τ-b (Kendall 1945, *The treatment of ties in ranking problems*) between the orders of two lists of numbers:
/// 1 for the same order, −1 for the opposite one. `None` if the lists have different lengths, a list does not order
/// anything, or a number is NaN.
pub fn kendall_tau(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() != b.len() {
        return None;
    }
    // Pairs that both order alike, less those that they order differently; pairs that each list orders at
    // all.
    let (mut alike, mut ordered) = (0_i64, [0_i64; 2]);
    for (second, (x, y)) in a.iter().zip(b).enumerate() {
        for (other_x, other_y) in a.iter().zip(b).take(second) {
            let signs = [sign(x.partial_cmp(other_x)?), sign(y.partial_cmp(other_y)?)];
            alike += signs[0] * signs[1];
            ordered.iter_mut().zip(signs).for_each(|(sum, sign)| *sum += sign.abs());
        }
    }
    let scale = (ordered[0] as f64 * ordered[1] as f64).sqrt();
    (scale > 0.0).then(|| alike as f64 / scale)
}

fn sign(order: Ordering) -> i64 {
    match order {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_alike_opposite_or_between() {
        assert_eq!(kendall_tau(&[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0]), Some(1.0));
        assert_eq!(kendall_tau(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), Some(-1.0));
        // Five of six pairs alike, one not.
        let found = kendall_tau(&[1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 4.0, 3.0]).unwrap();
        assert!((found - 4.0 / 6.0).abs() < 1e-12, "{found}");
    }

    #[test]
    fn a_tie_orders_nothing() {
        // Of six pairs the second list orders five, all as the first does: 5 / √(6 · 5).
        let found = kendall_tau(&[1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 2.0, 3.0]).unwrap();
        assert!((found - 5.0 / 30f64.sqrt()).abs() < 1e-12, "{found}");
        assert_eq!(kendall_tau(&[1.0, 1.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn what_has_no_order_has_no_likeness() {
        assert_eq!(kendall_tau(&[1.0, 2.0], &[1.0]), None);
        assert_eq!(kendall_tau(&[1.0, f64::NAN], &[1.0, 2.0]), None);
    }
}
