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

mod boundaries;
mod integration;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use self::boundaries::Boundaries;
use self::boundaries::{Curve, Curves, levels};
use self::integration::{Continuation, Sides};
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
                integration::nominal_level(boundary, sides)
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

#[cfg(test)]
mod tests {
    use super::boundaries::{LEVELS_PER_DECADE, level};
    use super::*;

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
            nominal = integration::nominal_level(boundary, Sides::Two);
        }
        let found = looks.after(12, true).level(alpha);
        assert!((found / nominal - 1.0).abs() < 1e-3, "{found} is not {nominal}");
    }
}
