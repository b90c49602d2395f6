//! Recursive numerical integration on the canonical joint distribution of a group-sequential test
//! (Armitage, McPherson & Rowe 1969), on the grid of Jennison & Turnbull (2000, ch. 19): the standardised
//! statistic after information I is Z = S/√I, where S is a Brownian motion at time I.

use crate::normal::{density, upper_tail};

/// Fineness of the grid: 6·12 − 1 points and those between. Jennison & Turnbull use 16 for six figures; four
/// are plenty for a p value.
const FINENESS: usize = 12;
/// No boundary is beyond: P(Z > 10) < 10⁻²³.
const FARTHEST: f64 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sides {
    /// Rejects above the boundary.
    One,
    /// Rejects also below its mirror image; all is symmetric.
    Two,
}

impl Sides {
    fn count(self) -> f64 {
        match self {
            Sides::One => 1.0,
            Sides::Two => 2.0,
        }
    }
}

/// The distribution of Z over the paths that no boundary has stopped so far.
#[derive(Debug)]
pub(super) struct Continuation {
    information: f64,
    points: Vec<f64>,
    /// Density × quadrature weight.
    masses: Vec<f64>,
}

impl Continuation {
    /// Before any look.
    pub(super) fn start() -> Self {
        Self { information: 0.0, points: vec![0.0], masses: vec![1.0] }
    }

    /// The boundary that a path crosses at the look at `information` with this probability, or on either side
    /// its mirror image.
    pub(super) fn boundary(&self, information: f64, sides: Sides, probability: f64) -> f64 {
        let target = probability.ln();
        let (mut low, mut high) = (if sides == Sides::Two { 0.0 } else { -FARTHEST }, FARTHEST);
        // Newton's method on the logarithm, which is concave; by halves where it leaves the bracket.
        let mut boundary = 0.5 * (low + high);
        for _ in 0..60 {
            let (crossing, slope) = self.crossing(information, sides, boundary);
            let excess = crossing.ln() - target;
            if excess > 0.0 {
                low = boundary;
            } else {
                high = boundary;
            }
            let newton = boundary + excess * crossing / slope;
            let next = if newton > low && newton < high { newton } else { 0.5 * (low + high) };
            if (next - boundary).abs() < 1e-10 {
                return next;
            }
            boundary = next;
        }
        boundary
    }

    /// Probability to cross `boundary` at the look at `information`, and minus its derivative.
    fn crossing(&self, information: f64, sides: Sides, boundary: f64) -> (f64, f64) {
        let step = Step::new(self.information, information);
        let mut sums = (0.0, 0.0);
        for (point, mass) in self.points.iter().zip(&self.masses) {
            let z = step.standardised(*point, boundary);
            sums.0 += mass * upper_tail(z);
            sums.1 += mass * density(z);
        }
        (sides.count() * sums.0, sides.count() * step.scale * sums.1)
    }

    /// The paths that do not cross `boundary` at the look at `information`.
    pub(super) fn advance(&self, information: f64, sides: Sides, boundary: f64) -> Self {
        let lowest = if sides == Sides::Two { -boundary } else { f64::NEG_INFINITY };
        let (points, weights) = grid(lowest, boundary);
        let step = Step::new(self.information, information);
        let density_at = |z: f64| -> f64 {
            let before = self.points.iter().zip(&self.masses);
            step.scale * before.map(|(point, mass)| mass * density(step.standardised(*point, z))).sum::<f64>()
        };
        let masses = points.iter().zip(&weights).map(|(&z, weight)| weight * density_at(z)).collect();
        Self { information, points, masses }
    }
}

/// The nominal level of a test that rejects beyond `boundary`.
pub(super) fn nominal_level(boundary: f64, sides: Sides) -> f64 {
    (sides.count() * upper_tail(boundary)).min(1.0)
}

/// From one look to the next: given Z = u before, (Z′√I′ − u√I)/√(I′ − I) is standard normal.
struct Step {
    root_before: f64,
    root: f64,
    root_increment: f64,
    /// √(I′/(I′ − I)), of the change of variable.
    scale: f64,
}

impl Step {
    fn new(before: f64, now: f64) -> Self {
        let root_increment = (now - before).sqrt();
        Self {
            root_before: before.sqrt(),
            root: now.sqrt(),
            root_increment,
            scale: now.sqrt() / root_increment,
        }
    }

    fn standardised(&self, before: f64, now: f64) -> f64 {
        (now * self.root - before * self.root_before) / self.root_increment
    }
}

/// Points and Simpson weights on [`lowest`, `highest`] (Jennison & Turnbull 2000, §19.3.1): dense within
/// three standard deviations, ever sparser beyond.
fn grid(lowest: f64, highest: f64) -> (Vec<f64>, Vec<f64>) {
    let fine = FINENESS as f64;
    let outward = |i: usize| 3.0 + 4.0 * (fine / i as f64).ln();
    let left = (1..FINENESS).map(|i| -outward(i));
    let middle = (0..=4 * FINENESS).map(|i| -3.0 + 1.5 * i as f64 / fine);
    let right = (1..FINENESS).rev().map(outward);
    let inner: Vec<f64> = left.chain(middle).chain(right).collect();
    let mut ends: Vec<f64> = inner.iter().copied().filter(|&z| z > lowest && z < highest).collect();
    ends.insert(0, lowest.max(inner[0]).min(highest));
    ends.push(highest);
    let mut points = vec![ends[0]];
    let mut weights = vec![0.0];
    for pair in ends.windows(2) {
        let width = pair[1] - pair[0];
        if let Some(weight) = weights.last_mut() {
            *weight += width / 6.0;
        }
        points.extend([0.5 * (pair[0] + pair[1]), pair[1]]);
        weights.extend([4.0 * width / 6.0, width / 6.0]);
    }
    (points, weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nominal boundaries of a test with looks that spend these probabilities.
    fn boundaries(sides: Sides, looks: &[(f64, f64)]) -> Vec<f64> {
        let mut paths = Continuation::start();
        looks
            .iter()
            .map(|&(information, probability)| {
                let boundary = paths.boundary(information, sides, probability);
                paths = paths.advance(information, sides, boundary);
                boundary
            })
            .collect()
    }

    /// Probability that any of these looks crosses its boundary.
    fn crossing(sides: Sides, looks: &[(f64, f64)]) -> f64 {
        let mut paths = Continuation::start();
        looks
            .iter()
            .map(|&(information, boundary)| {
                let crossing = paths.crossing(information, sides, boundary).0;
                paths = paths.advance(information, sides, boundary);
                crossing
            })
            .sum()
    }

    #[test]
    fn pocock_and_obrien_fleming_agree_with_tables() {
        // Jennison & Turnbull 2000, tables 2.1 and 2.3: two-sided α = 0.05.
        for (looks, pocock, obrien_fleming) in [(2, 2.178, 1.977), (5, 2.413, 2.040), (10, 2.555, 2.087)] {
            let at = |boundary: &dyn Fn(f64) -> f64| -> Vec<(f64, f64)> {
                (1..=looks).map(|k| (f64::from(k), boundary(f64::from(k) / f64::from(looks)))).collect()
            };
            let p = crossing(Sides::Two, &at(&|_| pocock));
            assert!((p - 0.05).abs() < 1e-4, "Pocock, {looks} looks: {p}");
            let p = crossing(Sides::Two, &at(&|t: f64| obrien_fleming / t.sqrt()));
            assert!((p - 0.05).abs() < 1e-4, "O'Brien & Fleming, {looks} looks: {p}");
        }
    }

    #[test]
    fn the_probability_asked_for_is_the_probability_spent() {
        for sides in [Sides::One, Sides::Two] {
            let looks = [(6.0, 0.003), (10.0, 0.006), (15.0, 0.011), (24.0, 0.03)];
            let found = boundaries(sides, &looks);
            let spent = crossing(sides, &looks.map(|(i, _)| i).into_iter().zip(found).collect::<Vec<_>>());
            assert!((spent - 0.05).abs() < 1e-9, "{spent}");
        }
    }
}
