//! Mean and variance.

pub(crate) fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

/// Unbiased. 0 for fewer than two.
pub(crate) fn variance(x: &[f64], mean: f64) -> f64 {
    x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len().saturating_sub(1).max(1) as f64
}
