//! Corrects for looking at the evidence more than once.
//!
//! Every look at accumulating data is another chance to be wrong. The error rate is spent over the looks by a
//! spending function (Lan & DeMets 1983), the power family of Kim & DeMets (1987): once a share t of the
//! planned rounds has been seen, α·t² has been spent; the last look, ended by the plan or the time budget,
//! spends all of it. The nominal level of each look follows by recursive numerical integration (Armitage,
//! McPherson & Rowe 1969; [`integration`]) and is applied to the p values of t tests by the significance
//! level approach (Jennison & Turnbull 2000, §3.3).
//!
//! Inverted, that gives a sequential p value (Liu & Anderson 2008): the smallest α that gives a nominal level
//! of at least p at this look. It is valid at any planned look, so Holm's procedure may be applied to it (Ye,
//! Li, Liu & Yao 2013). Only the present look counts, not the best one so far: the conclusion agrees with the
//! figures shown, and the error is on the safe side.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::descriptive::{density, upper_tail};
use crate::limits::MIN_ROUNDS;

/// Exponent of the spending function. 1 would spend like Pocock (1977), 3 nearly like O'Brien & Fleming
/// (1979).
const RHO: i32 = 2;

/// The planned looks, and their boundaries.
#[derive(Debug)]
pub struct Looks {
    /// In rounds; ascending, never empty; the last is the most rounds there may be.
    planned: Vec<usize>,
    computed: Mutex<Computed>,
}

/// Results computed so far; the rest is computed on demand.
#[derive(Debug, Default)]
struct Computed {
    /// The continuation after each planned look that was needed so far.
    stages: Vec<Arc<Stage>>,
    boundaries: BTreeMap<(usize, bool), Boundaries>,
}

/// The paths that no look so far has stopped, for each of the levels.
#[derive(Debug)]
struct Stage {
    two_sided: Vec<Continuation>,
    one_sided: Vec<Continuation>,
}

impl Looks {
    /// Looks after 6, 8, 10, 12, 15, 18, 21, 24 rounds, then every 3, and after `max_rounds`.
    pub fn automatic(max_rounds: usize) -> Self {
        let early = (MIN_ROUNDS..12).step_by(2);
        let late = (12..).step_by(3);
        let planned = early.chain(late).take_while(|&rounds| rounds < max_rounds);
        Self::new(planned.chain([max_rounds.max(1)]).collect())
    }

    /// One look, after `rounds`.
    pub fn fixed(rounds: usize) -> Self {
        Self::new(vec![rounds.max(1)])
    }

    fn new(planned: Vec<usize>) -> Self {
        Self { planned, computed: Mutex::default() }
    }

    /// The rounds after which to look, ascending.
    pub fn planned(&self) -> &[usize] {
        &self.planned
    }

    /// The most rounds there may be.
    pub fn max_rounds(&self) -> usize {
        self.planned[self.planned.len() - 1]
    }

    /// Whether the look after `rounds` is the last: the plan ends there, or `last` says that something else ends it.
    pub(crate) fn ends(&self, rounds: usize, last: bool) -> bool {
        last || rounds >= self.max_rounds()
    }

    pub fn is_look(&self, rounds: usize) -> bool {
        self.planned.binary_search(&rounds).is_ok()
    }

    /// Boundaries for the look after `rounds`, the earlier planned looks having been taken. `last`: no look
    /// will follow, so the rest of the error rate is spent.
    pub fn after(&self, rounds: usize, last: bool) -> Boundaries {
        let rounds = rounds.max(1);
        let last = self.ends(rounds, last);
        // The last planned look ends the run. Where there are more rounds, it was not taken.
        let earlier = self.planned.partition_point(|&look| look < rounds).min(self.planned.len() - 1);
        if earlier == 0 && last {
            return Boundaries { curves: None };
        }
        let mut computed = self.computed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = computed.boundaries.get(&(rounds, last)) {
            return known.clone();
        }
        while computed.stages.len() < earlier {
            let index = computed.stages.len();
            let before = computed.stages.last().cloned();
            let stage = self.stage_after(index, before.as_deref());
            computed.stages.push(Arc::new(stage));
        }
        let stage = earlier.checked_sub(1).map(|index| Arc::clone(&computed.stages[index]));
        let spent_before = earlier.checked_sub(1).map_or(0.0, |index| self.spent(self.planned[index]));
        let spent = if last { 1.0 } else { self.spent(rounds) };
        let curve = |sides: Sides, before: Option<&[Continuation]>| {
            let nominal = levels().enumerate().map(|(index, level)| {
                let start = Continuation::start();
                let before = before.map_or(&start, |before| &before[index]);
                let boundary = before.boundary(rounds as f64, sides, level * (spent - spent_before));
                nominal_level(boundary, sides)
            });
            Curve::new(nominal.collect())
        };
        let boundaries = Boundaries {
            curves: Some(Arc::new(Curves {
                two_sided: curve(Sides::Two, stage.as_deref().map(|stage| &*stage.two_sided)),
                one_sided: curve(Sides::One, stage.as_deref().map(|stage| &*stage.one_sided)),
            })),
        };
        computed.boundaries.insert((rounds, last), boundaries.clone());
        boundaries
    }

    /// The continuation after the planned look `index`.
    fn stage_after(&self, index: usize, before: Option<&Stage>) -> Stage {
        let rounds = self.planned[index];
        let spent_before = index.checked_sub(1).map_or(0.0, |index| self.spent(self.planned[index]));
        let share = self.spent(rounds) - spent_before;
        let advance = |sides: Sides, before: Option<&[Continuation]>| -> Vec<Continuation> {
            let advanced = levels().enumerate().map(|(index, level)| {
                let start = Continuation::start();
                let before = before.map_or(&start, |before| &before[index]);
                let boundary = before.boundary(rounds as f64, sides, level * share);
                before.advance(rounds as f64, sides, boundary)
            });
            advanced.collect()
        };
        Stage {
            two_sided: advance(Sides::Two, before.map(|stage| &*stage.two_sided)),
            one_sided: advance(Sides::One, before.map(|stage| &*stage.one_sided)),
        }
    }

    /// Share of the error rate that is spent after this number of rounds.
    fn spent(&self, rounds: usize) -> f64 {
        (rounds as f64 / self.max_rounds() as f64).min(1.0).powi(RHO)
    }
}

// The nominal level of a look as a function of the overall level, and back.

/// The nominal level is computed for each of these overall levels α and interpolated between.
const LEVELS_PER_DECADE: usize = 6;

const DECADES: usize = 12;

/// Overall levels, ascending to 1.
fn levels() -> impl Iterator<Item = f64> {
    (0..=LEVELS_PER_DECADE * DECADES).map(level)
}

fn level(index: usize) -> f64 {
    10f64.powf(index as f64 / LEVELS_PER_DECADE as f64 - DECADES as f64)
}

/// Converts the p values of one look.
#[derive(Debug, Clone)]
pub struct Boundaries {
    /// `None` for a first and last look, which costs nothing.
    curves: Option<Arc<Curves>>,
}

#[derive(Debug)]
struct Curves {
    two_sided: Curve,
    one_sided: Curve,
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
struct Curve {
    /// Logarithms, for each of the levels.
    nominal: Vec<f64>,
}

impl Curve {
    fn new(nominal: Vec<f64>) -> Self {
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

// Recursive numerical integration on the canonical joint distribution of a group-sequential test
// (Armitage, McPherson & Rowe 1969), on the grid of Jennison & Turnbull (2000, ch. 19): the standardised
// statistic after information I is Z = S/√I, where S is a Brownian motion at time I.

/// Fineness of the grid: 6·12 − 1 points and those between. Jennison & Turnbull use 16 for six figures; four
/// are plenty for a p value.
const FINENESS: usize = 12;

/// No boundary is beyond: P(Z > 10) < 10⁻²³.
const FARTHEST: f64 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sides {
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
struct Continuation {
    information: f64,
    points: Vec<f64>,
    /// Density × quadrature weight.
    masses: Vec<f64>,
}

impl Continuation {
    /// Before any look.
    fn start() -> Self {
        Self { information: 0.0, points: vec![0.0], masses: vec![1.0] }
    }

    /// The boundary that a path crosses at the look at `information` with this probability, or on either side
    /// its mirror image.
    fn boundary(&self, information: f64, sides: Sides, probability: f64) -> f64 {
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
    fn advance(&self, information: f64, sides: Sides, boundary: f64) -> Self {
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
fn nominal_level(boundary: f64, sides: Sides) -> f64 {
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
    use super::{LEVELS_PER_DECADE, level, *};

    #[test]
    fn automatic_looks_end_at_the_most_rounds() {
        assert_eq!(Looks::automatic(24).planned(), [6, 8, 10, 12, 15, 18, 21, 24]);
        assert_eq!(Looks::automatic(31).planned(), [6, 8, 10, 12, 15, 18, 21, 24, 27, 30, 31]);
        assert_eq!(Looks::automatic(7).planned(), [6, 7]);
        assert_eq!(Looks::automatic(6).planned(), [6]);
        assert_eq!(Looks::automatic(3).planned(), [3]);
        assert_eq!(Looks::fixed(5).planned(), [5]);
        let looks = Looks::automatic(24);
        assert!(looks.is_look(6) && looks.is_look(24) && !looks.is_look(7) && !looks.is_look(5));
    }

    #[test]
    fn one_look_costs_nothing() {
        for (looks, rounds, last) in [
            (Looks::fixed(6), 6, false),
            (Looks::automatic(5), 5, true),
            (Looks::automatic(24), 4, true),
            (Looks::fixed(6), 7, false),
        ] {
            let boundaries = looks.after(rounds, last);
            assert_eq!((boundaries.two_sided(0.0312), boundaries.one_sided(0.0123)), (0.0312, 0.0123));
            assert_eq!(boundaries.level(0.05), 0.05);
        }
    }

    #[test]
    fn the_first_look_may_spend_its_share() {
        // t = 6/24: a sixteenth of the error rate.
        let boundaries = Looks::automatic(24).after(6, false);
        assert!((boundaries.two_sided(0.001) / 0.016 - 1.0).abs() < 1e-6);
        assert!((boundaries.one_sided(0.001) / 0.016 - 1.0).abs() < 1e-6);
        assert!((boundaries.level(0.05) / (0.05 / 16.0) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_later_look_costs_what_the_earlier_ones_spent() {
        let looks = Looks::automatic(24);
        let last = looks.after(24, true).level(0.05);
        assert!(last > 0.03 && last < 0.05, "{last}");
        // A budget that ends early leaves more to spend than the plan would at that look.
        assert!(looks.after(12, true).level(0.05) > 3.0 * looks.after(12, false).level(0.05));
    }

    #[test]
    fn reading_a_p_value_and_asking_for_a_level_are_inverse() {
        let boundaries = Looks::automatic(24).after(15, false);
        for alpha in [1e-14, 1e-9, 0.003_3, 0.01, 0.05, 0.3] {
            let there_and_back = boundaries.two_sided(boundaries.level(alpha));
            assert!((there_and_back / alpha - 1.0).abs() < 1e-9, "{alpha} → {there_and_back}");
        }
        assert_eq!((boundaries.two_sided(0.0), boundaries.two_sided(1.0)), (0.0, 1.0));
    }

    #[test]
    fn a_sequential_p_value_is_never_below_the_nominal_one() {
        let looks = Looks::automatic(24);
        for &rounds in looks.planned() {
            for last in [false, true] {
                let boundaries = looks.after(rounds, last);
                let mut before = 0.0;
                for p in (1..=200).map(|i| f64::from(i) / 200.0) {
                    for found in [boundaries.two_sided(p), boundaries.one_sided(p)] {
                        assert!(found >= p - 1e-9 && found <= 1.0, "{rounds}, {last}: {p} → {found}");
                    }
                    assert!(boundaries.two_sided(p) >= before);
                    before = boundaries.two_sided(p);
                }
            }
        }
    }

    #[test]
    fn interpolating_between_levels_loses_nothing_that_matters() {
        // Between two of the precomputed levels, against integration at that very level.
        let (looks, alpha) = (Looks::automatic(12), level(LEVELS_PER_DECADE * 10 + 3) * 1.21);
        let mut paths = Continuation::start();
        let mut spent = 0.0;
        let mut nominal = 0.0;
        for &rounds in looks.planned() {
            let boundary = paths.boundary(rounds as f64, Sides::Two, alpha * (looks.spent(rounds) - spent));
            paths = paths.advance(rounds as f64, Sides::Two, boundary);
            spent = looks.spent(rounds);
            nominal = nominal_level(boundary, Sides::Two);
        }
        let found = looks.after(12, true).level(alpha);
        assert!((found / nominal - 1.0).abs() < 1e-3, "{found} is not {nominal}");
    }

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
