//! The nominal level of a look as a function of the overall level, and back.

use std::sync::Arc;

/// The nominal level is computed for each of these overall levels α and interpolated between.
pub(super) const LEVELS_PER_DECADE: usize = 6;
const DECADES: usize = 12;

/// Overall levels, ascending to 1.
pub(super) fn levels() -> impl Iterator<Item = f64> {
    (0..=LEVELS_PER_DECADE * DECADES).map(level)
}

pub(super) fn level(index: usize) -> f64 {
    10f64.powf(index as f64 / LEVELS_PER_DECADE as f64 - DECADES as f64)
}

/// Converts the p values of one look.
#[derive(Debug, Clone)]
pub struct Boundaries {
    /// `None` for a first and last look, which costs nothing.
    pub(super) curves: Option<Arc<Curves>>,
}

#[derive(Debug)]
pub(super) struct Curves {
    pub(super) two_sided: Curve,
    pub(super) one_sided: Curve,
}

impl Boundaries {
    /// The two-sided p value of this look, made valid under the looks taken.
    pub fn two_sided(&self, p: f64) -> f64 {
        self.curves.as_ref().map_or(p, |curves| curves.two_sided.overall(p))
    }

    /// The one-sided p value of this look, made valid under the looks taken.
    pub fn one_sided(&self, p: f64) -> f64 {
        self.curves.as_ref().map_or(p, |curves| curves.one_sided.overall(p))
    }

    /// The nominal level of a two-sided test at this look that keeps to the overall level `alpha`.
    pub fn level(&self, alpha: f64) -> f64 {
        self.curves.as_ref().map_or(alpha, |curves| curves.two_sided.nominal(alpha))
    }
}

/// Nominal level of one look as a function of the overall level; interpolated linearly on log scales.
#[derive(Debug)]
pub(super) struct Curve {
    /// Logarithms, for each of the levels.
    nominal: Vec<f64>,
}

impl Curve {
    pub(super) fn new(nominal: Vec<f64>) -> Self {
        let mut nominal: Vec<f64> =
            nominal.into_iter().map(|level| level.max(f64::MIN_POSITIVE).ln()).collect();
        // A larger α never allows less; where rounding in the integration says otherwise, the smaller is
        // kept.
        for index in (1..nominal.len()).rev() {
            nominal[index - 1] = nominal[index - 1].min(nominal[index]);
        }
        Self { nominal }
    }

    /// The smallest overall level whose nominal level is at least `p`; 1 if there is none.
    fn overall(&self, p: f64) -> f64 {
        if p <= 0.0 {
            return 0.0;
        }
        let p = p.ln();
        let above = self.nominal.partition_point(|&nominal| nominal < p);
        if above == 0 {
            return level(0) * (p - self.nominal[0]).exp();
        }
        if above == self.nominal.len() {
            return 1.0;
        }
        let (low, high) = (self.nominal[above - 1], self.nominal[above]);
        let (from, to) = (level(above - 1).ln(), level(above).ln());
        (from + (to - from) * (p - low) / (high - low)).exp()
    }

    fn nominal(&self, alpha: f64) -> f64 {
        let position = (alpha.max(f64::MIN_POSITIVE).log10() + DECADES as f64) * LEVELS_PER_DECADE as f64;
        if position <= 0.0 {
            return alpha * (self.nominal[0] - level(0).ln()).exp();
        }
        let below = (position as usize).min(self.nominal.len() - 1);
        let above = (below + 1).min(self.nominal.len() - 1);
        let share = (position - below as f64).min(1.0);
        (self.nominal[below] + share * (self.nominal[above] - self.nominal[below])).exp()
    }
}
