//! How one figure depends on another.

use crate::mean::mean;
use crate::normal::{student_critical, student_upper_tail};

/// A straight line through points by least squares, with the interval of its slope.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slope {
    pub slope: f64,
    pub interval: (f64, f64),
    /// That the slope is 0, two-sided.
    pub p: f64,
    /// The means of x and y, which the line goes through.
    pub centre: (f64, f64),
}

impl Slope {
    /// y on the line.
    pub fn at(&self, x: f64) -> f64 {
        self.centre.1 + self.slope * (x - self.centre.0)
    }
}

/// The slope of y over x: β = Sxy/Sxx with the standard error s/√Sxx, s² being the sum of squared residuals
/// over n − 2, and Student's t with n − 2 degrees of freedom (Montgomery, Peck & Vining 2012, *Introduction
/// to Linear Regression Analysis*, section 2.3). `level`: error rate of the interval.
///
/// `None` for fewer than four points, for x that are all alike, and for values that are not finite.
pub fn slope(x: &[f64], y: &[f64], level: f64) -> Option<Slope> {
    let is_finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
    if x.len() < 4 || x.len() != y.len() || !is_finite(x) || !is_finite(y) {
        return None;
    }
    let centre = (mean(x), mean(y));
    let squares: f64 = x.iter().map(|x| (x - centre.0).powi(2)).sum();
    let largest = x.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    // A spread from rounding of the mean alone is none.
    if squares.sqrt() <= 1e-13 * largest * (x.len() as f64).sqrt() {
        return None;
    }
    let products: f64 = x.iter().zip(y).map(|(x, y)| (x - centre.0) * (y - centre.1)).sum();
    let slope = products / squares;
    let residuals: f64 = x.iter().zip(y).map(|(x, y)| (y - centre.1 - slope * (x - centre.0)).powi(2)).sum();
    let freedom = x.len() as f64 - 2.0;
    let error = (residuals / freedom / squares).sqrt();
    let reach = student_critical(level / 2.0, freedom) * error;
    let p = if error > 0.0 { 2.0 * student_upper_tail((slope / error).abs(), freedom) } else { 0.0 };
    Some(Slope { slope, interval: (slope - reach, slope + reach), p, centre })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_agrees_with_a_worked_example() {
        // Sxx = 10, Sxy = 6, β = 0.6; residuals −0.8, 0.6, 1, −0.6, −0.2: 2.4/3 = 0.8; √(0.8/10) = 0.2828; t₀.₀₂₅,₃ = 3.182.
        let found = slope(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 4.0, 5.0, 4.0, 5.0], 0.05).unwrap();
        let close = |found: f64, asked: f64| assert!((found - asked).abs() < 1e-3, "{found} is not {asked}");
        close(found.slope, 0.6);
        close(found.interval.0, -0.3001);
        close(found.interval.1, 1.5001);
        close(found.p, 0.1240);
        close(found.at(5.0), 5.2);
    }

    #[test]
    fn what_has_no_slope_says_so() {
        assert_eq!(slope(&[1.0; 5], &[1.0, 2.0, 3.0, 4.0, 5.0], 0.05), None);
        // The mean of ten times 0.1 is not exactly 0.1.
        let ramp: Vec<f64> = (0..10).map(f64::from).collect();
        assert_eq!(slope(&[0.1; 10], &ramp, 0.05), None);
        assert_eq!(slope(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 0.05), None);
        assert_eq!(slope(&[1.0, 2.0, 3.0, f64::NAN], &[1.0; 4], 0.05), None);
        assert_eq!(slope(&[1.0, 2.0, 3.0, 4.0], &[2.0; 4], 0.05).map(|found| found.slope), Some(0.0));
    }
}
