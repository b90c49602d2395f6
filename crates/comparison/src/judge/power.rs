//! What a comparison can show, before it is measured: from the noise and the costs of the last runs on the machine.

use serde_json::Value;
use statistics::{Moments, SIGNIFICANCE, detectable_shift, median};

use crate::history::Record;
use crate::judge::combined::{by_run, unfit};
use crate::judge::{Metric, work};
use crate::plan::{Request, Rounds};

/// Share of comparisons that shall find the difference.
const POWER: f64 = 0.8;

/// Runs whose noise counts, the latest.
const RUNS: usize = 5;

/// Fields of a request that say how much is measured and by what, not what is computed.
const HOW: [&str; 10] = [
    "frameworks",
    "rounds",
    "time_budget_min",
    "margin_percent",
    "max_cv",
    "accept_noise",
    "patience_s",
    "fair_comparison",
    "reference",
    "seed",
];

/// What is to be measured.
#[derive(Debug)]
pub struct Asked<'a> {
    pub request: &'a Request,
    pub contenders: usize,
    pub rounds: Rounds,
}

/// The smallest differences that so many rounds find in four of five comparisons.
#[derive(Debug, PartialEq)]
pub struct Power {
    pub rounds: usize,
    /// By metric, the share by which a contender must be slower.
    pub differences: Vec<(Metric, f64)>,
    /// Number of runs that the noise is known from.
    pub runs: usize,
}

impl Power {
    /// `records`: of this machine, in the order of time. `None` if none of them is of this case, or too short to show its
    /// noise. Runs without verdicts do not count, as where runs are combined.
    pub fn expected(records: &[Record], asked: &Asked<'_>) -> Option<Power> {
        let own = case(asked.request.to_json());
        let is_own = |record: &&Record| {
            record.state.takes_part()
                && record.request.as_ref().is_some_and(|other| case(other.clone()) == own)
        };
        let mut runs: Vec<Vec<&Record>> = Vec::new();
        for run in by_run(records).into_iter().rev().filter(|run| unfit(run).is_none()) {
            runs.push(run.iter().filter(is_own).collect());
        }
        runs.retain(|run| run.len() > 1);
        runs.truncate(RUNS);
        let rounds = rounds(&runs, asked)?;
        let kind = work::kind(&runs[0][0].case);
        let all: f64 = Metric::ALL.iter().map(|metric| metric.error_share(kind)).sum();
        let pairs = asked.contenders * asked.contenders.saturating_sub(1) / 2;
        let mut differences = Vec::new();
        for metric in Metric::questions(kind) {
            let share = metric.error_share(kind) / all / pairs as f64;
            let found =
                smallest(rounds, deviation(&runs, metric)?, share, asked.request.margin_percent / 100.0);
            differences.push((metric, found));
        }
        Some(Power { rounds, differences, runs: runs.len() })
    }

    /// "about 11 rounds, which find 4 % in throughput, 15 % in time to first token in 4 of 5 comparisons (noise of the
    /// last 3 runs of this case here)".
    pub fn words(&self) -> String {
        let of = |(metric, share): &(Metric, f64)| {
            let percent = 100.0 * share;
            let digits = usize::from(percent < 9.95);
            format!("{percent:.digits$} % in {}", metric.words())
        };
        let differences: Vec<String> = self.differences.iter().map(of).collect();
        let (rounds, runs) = (self.rounds, self.runs);
        format!(
            "about {rounds} rounds, which find {} in 4 of 5 comparisons (noise of the last {} of this case here)",
            differences.join(", "),
            if runs == 1 { "run".to_owned() } else { format!("{runs} runs") }
        )
    }
}

/// The share by which a contender must be slower to be found so by four of five comparisons: the test must see it, and must
/// not see that both are equal within `margin`. `deviation`: of log ratios from round to round. `share`: that of the error
/// rate at Holm's first step, which a difference faces if it is the only one.
pub fn smallest(rounds: usize, deviation: f64, share: f64, margin: f64) -> f64 {
    let shift =
        |power| detectable_shift(rounds, (rounds - 1) as f64, SIGNIFICANCE * share, power) * deviation;
    let is_open = margin.ln_1p() - shift(1.0 - POWER);
    shift(POWER).max(is_open).exp() - 1.0
}

/// What a request computes.
fn case(mut request: Value) -> Value {
    if let Value::Object(fields) = &mut request {
        fields.retain(|name, _| !HOW.contains(&name.as_str()));
    }
    request
}

/// As many rounds as were asked for, or as the time allows at the cost of the latest run.
fn rounds(runs: &[Vec<&Record>], asked: &Asked<'_>) -> Option<usize> {
    let latest = runs.first()?;
    match asked.rounds {
        Rounds::Fixed(rounds) => Some(rounds).filter(|rounds| *rounds > 1),
        Rounds::Auto { max, budget_s } => {
            let of_one = latest[0].settings.round_s? / latest.len() as f64;
            let allowed = budget_s / (of_one * asked.contenders as f64);
            Some((allowed as usize).clamp(statistics::MIN_ROUNDS, max))
        }
    }
}

/// Standard deviation of the logarithms of two contenders' ratios from round to round: the median of all pairs of all
/// runs, since one run with a bad moment says little of the next.
fn deviation(runs: &[Vec<&Record>], metric: Metric) -> Option<f64> {
    let mut deviations = Vec::new();
    for run in runs {
        let figures: Vec<&[Option<f64>]> =
            run.iter().filter_map(|record| Some(&record.metrics.get(metric.name())?.values[..])).collect();
        for (place, a) in figures.iter().enumerate() {
            for b in &figures[place + 1..] {
                let ratios: Vec<f64> =
                    a.iter().zip(*b).filter_map(|(a, b)| Some(((*a)? / (*b)?).ln())).collect();
                if ratios.len() >= statistics::MIN_ROUNDS {
                    deviations.extend(Moments::new(&ratios).and_then(|found| found.standard_deviation));
                }
            }
        }
    }
    median(&deviations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::regression::testing::{record, set};
    use crate::plan::WorkKind;

    /// A run of two contenders whose log ratios have this deviation from round to round.
    fn run(time: &str, deviation: f64) -> Vec<Record> {
        let of = |framework: &str, values: Vec<f64>| {
            let mut record = record(framework, 50.0);
            record.time = time.to_owned();
            record.settings.round_s = Some(20.0);
            record.request = Some(Request::default().to_json());
            for metric in Metric::questions(WorkKind::TokenByToken) {
                set(&mut record, metric, 50.0);
                let figure = record.metrics.get_mut(metric.name()).unwrap();
                figure.values = values.iter().copied().map(Some).collect();
            }
            record
        };
        // Of +1, -1, … in equal numbers, the deviation is sqrt(10/9).
        let ratio = |round: usize| (if round.is_multiple_of(2) { deviation } else { -deviation }).exp();
        let scale = (9.0_f64 / 10.0).sqrt();
        let values = (0..10).map(|round| 50.0 * ratio(round).powf(scale)).collect();
        vec![of("a", vec![50.0; 10]), of("b", values)]
    }

    fn asked(records: &[Record], contenders: usize, rounds: Rounds) -> Option<Power> {
        let asked = Asked { request: &Request { seed: Some(1), ..Request::default() }, contenders, rounds };
        Power::expected(records, &asked)
    }

    #[test]
    fn differences_are_those_of_the_t_test_at_holms_first_step() {
        let records = run("2026-11-28T10:00:00Z", 0.02);
        let found = asked(&records, 3, Rounds::Fixed(10)).unwrap();
        // An independent audit's table for three contenders and a deviation of 2 %, in 10 rounds.
        for (place, (metric, audited)) in
            [(Metric::Throughput, 0.026), (Metric::FirstToken, 0.035)].into_iter().enumerate()
        {
            let (found, share) = found.differences[place];
            assert!(found == metric && (share / audited - 1.0).abs() < 0.1, "{metric:?}: {share}");
        }
        let words = found.words();
        assert!(words.starts_with("about 10 rounds, which find 2.8 % in throughput, 3."), "{words}");
        assert!(
            words.ends_with(" in 4 of 5 comparisons (noise of the last run of this case here)"),
            "{words}"
        );
    }

    #[test]
    fn a_difference_within_the_margin_is_found_to_be_none() {
        let least = |deviation| smallest(10, deviation, 0.5, 0.02);
        assert!((least(1e-6) - 0.02).abs() < 1e-4, "{}", least(1e-6));
        assert!((0.01..0.02).contains(&least(0.003)), "{}", least(0.003));
        assert_eq!(least(0.05), smallest(10, 0.05, 0.5, 0.0));
    }

    #[test]
    fn rounds_are_what_the_time_allows_at_the_last_cost() {
        let records = run("2026-11-28T10:00:00Z", 0.02);
        let rounds = |contenders, budget_s| {
            asked(&records, contenders, Rounds::Auto { max: 30, budget_s }).map(|found| found.rounds)
        };
        assert_eq!(rounds(2, 180.0), Some(9));
        assert_eq!(rounds(3, 180.0), Some(6));
        assert_eq!(rounds(2, 3600.0), Some(30));
    }

    #[test]
    fn only_runs_of_the_same_case_count() {
        let mut records = run("2026-11-28T10:00:00Z", 0.02);
        records.extend(run("2026-11-28T11:00:00Z", 0.02));
        assert_eq!(asked(&records, 2, Rounds::Fixed(10)).unwrap().runs, 2);
        let other = Request { new_tokens: vec![7], ..Request::default() };
        records[2..].iter_mut().for_each(|record| record.request = Some(other.to_json()));
        assert_eq!(asked(&records, 2, Rounds::Fixed(10)).unwrap().runs, 1);
        assert_eq!(asked(&records[..1], 2, Rounds::Fixed(10)), None);
    }
}
