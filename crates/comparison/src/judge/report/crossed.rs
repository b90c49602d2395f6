//! The effects of crossed switches: all of them against none, and each by itself, in both orders and on
//! average.

use serde::{Deserialize, Serialize};
use statistics::{Decision, Outcome, Series, Settings, contrast};

use crate::facts::evidence::Evidence;
use crate::judge::metrics::Metric;
use crate::judge::report::verdicts::Verdict;
use crate::judge::report::warnings::Figures;
use crate::plan;
use crate::plan::{Plan, StudySettings};

/// The outcome of arms that cross switches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Crossed {
    /// The metric of all ratios.
    pub metric: Metric,
    /// The effect of each switch.
    pub switches: Vec<Contribution>,
    /// The same for all together: `share` is all on against all off, and the other two are the products of
    /// the switches'.
    pub together: Contribution,
    /// The arms that take no part, so that some ratios are missing.
    pub missing: Vec<String>,
}

/// The effect of a switch, by the order in which it is switched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contribution {
    /// "cache", "JIT", "bf16", "fused"; "all" for all together.
    pub switch: String,
    /// Itself on and the others off, against all off.
    pub alone: Option<Effect>,
    /// All on, against all on except itself.
    pub left_out: Option<Effect>,
    /// The mean over all orders (Shapley 1953): shares multiply to the whole.
    pub share: Option<Effect>,
}

/// A ratio of figures, from paired rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// How many times better with than without: above 1 if the switch helps.
    pub ratio: f64,
    /// 95 % interval of the ratio.
    #[serde(deserialize_with = "crate::facts::agreement::interval")]
    pub interval: Option<(f64, f64)>,
    /// The verdict on "with" over "without"; `null` for a product of several, which is not tested.
    pub verdict: Option<Verdict>,
}

/// The name of all switches together.
pub const ALL: &str = "all";

/// The outcome, if the plan crosses switches. `compared`: the labels that take part in verdicts;
/// `unmeasurable`: why there can be no verdict on speed.
pub fn outcome(
    plan: &Plan,
    evidence: &Evidence,
    compared: &[String],
    unmeasurable: Option<&str>,
) -> Option<Crossed> {
    let study = study(plan)?;
    let arms = Arms::new(plan, evidence, study, compared);
    let mut effects = arms.effects(plan, evidence, unmeasurable).into_iter();
    let mut next = || effects.next().flatten();
    let whole = next();
    let contribution = |switch: &plan::Switch, next: &mut dyn FnMut() -> Option<Effect>| Contribution {
        switch: study.title(*switch).to_owned(),
        alone: next(),
        left_out: next(),
        share: next(),
    };
    let switches = study.crossed.iter().map(|switch| contribution(switch, &mut next)).collect();
    let [alone, left_out] = arms.products(plan, evidence);
    let absent = study.arms.iter().filter(|arm| !compared.contains(&arm.label));
    Some(Crossed {
        metric: Metric::deciding(plan.work.kind()),
        switches,
        together: Contribution { switch: ALL.to_owned(), alone, left_out, share: whole },
        missing: absent.map(|arm| arm.label.clone()).collect(),
    })
}

/// The decisions so far on all tested contrasts, the whole first; `None` if the plan crosses no switches.
pub(crate) fn decisions(plan: &Plan, evidence: &Evidence) -> Option<Vec<Option<Decision>>> {
    let study = study(plan)?;
    let runs = |label: &&String| !evidence.absent.contains_key(*label);
    let labels: Vec<String> = study.arms.iter().map(|arm| &arm.label).filter(runs).cloned().collect();
    Some(Arms::new(plan, evidence, study, &labels).decide(
        &tested(study.crossed.len()),
        plan,
        evidence,
        false,
    ))
}

fn study(plan: &Plan) -> Option<&StudySettings> {
    let study = &plan.request.study;
    let is_crossed = !study.crossed.is_empty() && study.arms.len() == 1 << study.crossed.len();
    is_crossed.then_some(study)
}

/// Every tested contrast: the whole, then alone, left out and share of each switch.
fn tested(count: usize) -> Vec<Vec<f64>> {
    let of_switch = |switch: usize| {
        [contrast::alone(count, switch), contrast::left_out(count, switch), contrast::share(count, switch)]
    };
    [contrast::whole(count)].into_iter().chain((0..count).flat_map(of_switch)).collect()
}

/// Figures of every combination of the switches.
struct Arms {
    /// By subset and round, in the sense "more is better"; `None` for an arm that takes no part. Only rounds
    /// that all have: shares multiply to the whole only if they are based on the same rounds.
    figures: Vec<Vec<Option<f64>>>,
    count: usize,
}

impl Arms {
    fn new(plan: &Plan, evidence: &Evidence, study: &StudySettings, compared: &[String]) -> Arms {
        let count = study.crossed.len();
        let metric = Metric::deciding(plan.work.kind());
        let all = Figures::new(metric, plan, evidence);
        let mut figures = vec![Vec::new(); 1 << count];
        for arm in study.arms.iter().filter(|arm| compared.contains(&arm.label)) {
            let bit = |(place, switch)| if arm.on.contains(switch) { 1_usize << place } else { 0 };
            let subset: usize = study.crossed.iter().enumerate().map(bit).sum();
            if let Some(place) = plan.contenders.iter().position(|contender| contender.label == arm.label) {
                figures[subset] = all.compared(place).to_vec();
            }
        }
        let rounds = figures.iter().map(Vec::len).filter(|&rounds| rounds > 0).min().unwrap_or(0);
        for round in 0..rounds {
            let mut measured = figures.iter_mut().filter(|figures| !figures.is_empty());
            if measured.any(|figures| figures[round].is_none()) {
                figures
                    .iter_mut()
                    .filter_map(|figures| figures.get_mut(round))
                    .for_each(|figure| *figure = None);
            }
        }
        if !metric.higher_is_better() {
            let inverse = |figure: &mut Option<f64>| *figure = figure.map(f64::recip);
            figures.iter_mut().flatten().for_each(inverse);
        }
        Arms { figures, count }
    }

    /// One family: its error rate is that of all of them.
    fn decide(
        &self,
        contrasts: &[Vec<f64>],
        plan: &Plan,
        evidence: &Evidence,
        last: bool,
    ) -> Vec<Option<Decision>> {
        let sides: Vec<_> =
            contrasts.iter().map(|contrast| contrast::sides(contrast, &self.figures)).collect();
        let family: Vec<Series<'_>> = sides.iter().map(|[a, b]| Series::new(a, b, 1.0)).collect();
        let significance = plan.schedule.significance();
        let settings = Settings { margin: plan.margin, significance, seed: plan.seed };
        statistics::decide(&family, &evidence.looks(plan), last, &settings)
    }

    fn effects(&self, plan: &Plan, evidence: &Evidence, unmeasurable: Option<&str>) -> Vec<Option<Effect>> {
        let verdict = |decision: &Decision| match (unmeasurable, decision.outcome) {
            (Some(_), _) => Verdict::NotMeasurable,
            (None, Outcome::Different) if decision.ratio < 1.0 => Verdict::Slower,
            (None, Outcome::Different) => Verdict::Faster,
            (None, Outcome::Equivalent) => Verdict::Equivalent,
            (None, Outcome::Inconclusive) => Verdict::Inconclusive,
        };
        let tested = tested(self.count);
        let undecided = if unmeasurable.is_some() { Verdict::NotMeasurable } else { Verdict::Inconclusive };
        self.estimates(&tested, plan, evidence, |decision| Some(decision.map_or(undecided, verdict)))
    }

    /// One round cannot separate a difference from chance, but it gives an estimate without an interval.
    fn estimates(
        &self,
        contrasts: &[Vec<f64>],
        plan: &Plan,
        evidence: &Evidence,
        verdict: impl Fn(Option<&Decision>) -> Option<Verdict>,
    ) -> Vec<Option<Effect>> {
        let estimate = |(contrast, decision): (&Vec<f64>, Option<Decision>)| {
            let single = || {
                let [a, b] = contrast::sides(contrast, &self.figures);
                a.iter().zip(&b).find_map(|(a, b)| Some((*a)? / (*b)?))
            };
            Some(Effect {
                ratio: decision.as_ref().map(|found| found.ratio).or_else(single)?,
                interval: decision.as_ref().map(|found| found.interval),
                verdict: verdict(decision.as_ref()),
            })
        };
        contrasts
            .iter()
            .zip(self.decide(contrasts, plan, evidence, evidence.is_last_look(plan)))
            .map(estimate)
            .collect()
    }

    /// The products of all switches' `alone`, and of all switches' `left_out`.
    fn products(&self, plan: &Plan, evidence: &Evidence) -> [Option<Effect>; 2] {
        let of = |contrast: fn(usize, usize) -> Vec<f64>| {
            let each: Vec<Vec<f64>> = (0..self.count).map(|switch| contrast(self.count, switch)).collect();
            contrast::product(&each)
        };
        [of(contrast::alone), of(contrast::left_out)].map(|contrast| {
            let found = self.estimates(&[contrast], plan, evidence, |_| None);
            found.into_iter().next().flatten()
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::{Arm, Request, Rounds, Switch};
    use protocol::{Marks, Sample};

    use super::*;
    use crate::facts::evidence::End;
    use crate::facts::testing;

    const SWITCHES: [Switch; 2] = [Switch::Cache, Switch::Jit];
    /// Milliseconds a token of no switch, the cache, the JIT and both.
    const MS: [f64; 4] = [12.0, 2.0, 8.0, 1.0];

    /// Arms of two switches.
    fn plan() -> Plan {
        let of = |subset: usize| -> Vec<Switch> {
            SWITCHES
                .into_iter()
                .enumerate()
                .filter(|(place, _)| subset & (1 << place) != 0)
                .map(|(_, on)| on)
                .collect()
        };
        let arm = |subset: usize| Arm { label: subset.to_string(), on: of(subset), ..Arm::default() };
        let mut request = Request::default();
        request.study.crossed = SWITCHES.to_vec();
        request.study.arms = (0..4).rev().map(arm).collect();
        let labels: Vec<&str> = ["3", "2", "1", "0"].to_vec();
        Plan { request, rounds: Rounds::Auto { max: 24, budget_s: 1e9 }, ..testing::plan(&labels) }
    }

    fn evidence(rounds: usize, noise: f64) -> Evidence {
        let run = |subset: usize, round: usize| {
            let factor = 1.0 + noise * ((round * 7 + subset * 3) % 5) as f64;
            let ns = (MS[subset] * 1e6 * factor) as u64;
            let case = Sample { marks_ns: Marks::new(ns, [ns; 3]), ..Sample::default() };
            testing::measured(&subset.to_string(), round, Vec::new(), vec![vec![case]])
        };
        let runs = (0..rounds).flat_map(|round| (0..4).map(move |subset| run(subset, round)));
        Evidence { runs: runs.collect(), rounds, end: End::Planned, ..Evidence::default() }
    }

    fn labels(subsets: &[usize]) -> Vec<String> {
        subsets.iter().map(usize::to_string).collect()
    }

    fn ratio(effect: &Option<Effect>) -> f64 {
        effect.as_ref().unwrap().ratio
    }

    #[test]
    fn contributions_are_told_by_both_orders_and_shares_multiply_to_the_whole() {
        let found = outcome(&plan(), &evidence(6, 0.01), &labels(&[0, 1, 2, 3]), None).unwrap();
        let [cache, jit] = &found.switches[..] else { panic!("two switches") };
        assert_eq!((cache.switch.as_str(), jit.switch.as_str()), ("cache", "JIT"));
        let near = |effect: &Option<Effect>, expected: f64| (ratio(effect) / expected - 1.0).abs() < 0.03;
        assert!(near(&cache.alone, 6.0) && near(&cache.left_out, 8.0), "{cache:?}");
        assert!(near(&jit.alone, 1.5) && near(&jit.left_out, 2.0), "{jit:?}");
        let whole = ratio(&found.together.share);
        assert!((ratio(&cache.share) * ratio(&jit.share) / whole - 1.0).abs() < 1e-9);
        assert!((ratio(&cache.alone) * ratio(&jit.alone) / ratio(&found.together.alone) - 1.0).abs() < 1e-9);
        let share = cache.share.as_ref().unwrap();
        let (low, high) = share.interval.unwrap();
        assert!(
            low < share.ratio && share.ratio < high && share.verdict == Some(Verdict::Faster),
            "{share:?}"
        );
        assert_eq!(found.together.alone.unwrap().verdict, None, "a product is not tested");
    }

    #[test]
    fn without_an_arm_only_what_rests_on_it_is_missing() {
        let found = outcome(&plan(), &evidence(6, 0.01), &labels(&[0, 2, 3]), None).unwrap();
        let [cache, jit] = &found.switches[..] else { panic!("two switches") };
        assert_eq!(found.missing, ["1"]);
        assert!(cache.alone.is_none() && cache.left_out.is_some() && cache.share.is_none(), "{cache:?}");
        assert!(jit.alone.is_some() && jit.left_out.is_none() && found.together.share.is_some());
        assert!(found.together.alone.is_none() && found.together.left_out.is_none());
    }

    #[test]
    fn a_round_that_lacks_one_arm_counts_for_none() {
        let mut evidence = evidence(7, 0.01);
        evidence.runs.retain(|run| (run.framework.as_str(), run.round) != ("2", 3));
        let all = outcome(&plan(), &evidence, &labels(&[0, 1, 2, 3]), None).unwrap();
        let shares = all.switches.iter().map(|switch| ratio(&switch.share)).product::<f64>();
        assert!((shares / ratio(&all.together.share) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn one_round_gives_an_estimate_and_noise_no_verdict() {
        let once = outcome(&plan(), &evidence(1, 0.0), &labels(&[0, 1, 2, 3]), None)
            .unwrap()
            .together
            .share
            .unwrap();
        assert_eq!((once.interval, once.verdict), (None, Some(Verdict::Inconclusive)));
        assert!((once.ratio - 12.0).abs() < 1e-6, "{once:?}");
        let noisy = outcome(&plan(), &evidence(6, 0.01), &labels(&[0, 1, 2, 3]), Some("noise")).unwrap();
        assert_eq!(noisy.together.share.unwrap().verdict, Some(Verdict::NotMeasurable));
    }

    #[test]
    fn nothing_is_crossed_where_no_study_asks_for_it() {
        assert_eq!(outcome(&testing::plan(&["a"]), &evidence(6, 0.0), &labels(&[0]), None), None);
        assert!(decisions(&testing::plan(&["a"]), &evidence(6, 0.0)).is_none());
    }
}
