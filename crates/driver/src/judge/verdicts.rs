//! From paired figures to the words that people read.

use serde::Serialize;

use super::metrics::Metric;
use super::statistics::{self, EQUIVALENCE_MARGIN, MIN_ROUNDS, Paired, SIGNIFICANCE};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// `a` is better than `b`. Contenders are ordered so that the better is `a`.
    Faster,
    Equivalent,
    Inconclusive,
    NotMeasurable,
}

/// One metric of two contenders.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Comparison {
    pub(crate) metric: Metric,
    /// The better of the two by its estimate.
    pub(crate) a: String,
    pub(crate) b: String,
    /// How many times better a is than b: for times and memory b/a, for throughput a/b. `null` where
    /// nothing can be compared.
    pub(crate) advantage: Option<f64>,
    /// 95 % interval of the advantage.
    pub(crate) interval: Option<(f64, f64)>,
    pub(crate) p: Option<f64>,
    /// After Holm's adjustment over all comparisons of the table.
    pub(crate) p_adjusted: Option<f64>,
    pub(crate) rounds: usize,
    pub(crate) verdict: Verdict,
    pub(crate) sentence: String,
}

/// Figures of one contender by round, `None` where a round has none.
pub(crate) struct Series<'a> {
    pub(crate) label: &'a str,
    pub(crate) values: Vec<Option<f64>>,
}

/// Compares every pair of contenders on every metric of the table.
pub(crate) fn compare(metrics: &[(Metric, Vec<Series<'_>>)]) -> Vec<Comparison> {
    let mut pairs = Vec::new();
    for (metric, series) in metrics {
        for (i, a) in series.iter().enumerate() {
            for b in &series[i + 1..] {
                pairs.push((*metric, ordered(*metric, a, b)));
            }
        }
    }
    let p: Vec<f64> = pairs.iter().filter_map(|(_, pair)| pair.2.map(|paired| paired.p)).collect();
    let mut adjusted = statistics::holm(&p).into_iter();
    pairs
        .into_iter()
        .map(|(metric, (a, b, paired))| {
            let p_adjusted = paired.and_then(|_| adjusted.next());
            comparison(metric, a, b, paired, p_adjusted)
        })
        .collect()
}

/// The two labels, the better first, and their paired comparison in the sense "times better".
fn ordered(metric: Metric, a: &Series<'_>, b: &Series<'_>) -> (String, String, Option<Paired>) {
    let rounds = a.values.iter().zip(&b.values).filter_map(|(a, b)| Some(((*a)?, (*b)?)));
    let (of_a, of_b): (Vec<f64>, Vec<f64>) = rounds.unzip();
    let advantage_of = |x: &[f64], y: &[f64]| {
        if metric.higher_is_better() { statistics::paired(x, y) } else { statistics::paired(y, x) }
    };
    match advantage_of(&of_a, &of_b) {
        Some(paired) if paired.ratio < 1.0 => (b.label.into(), a.label.into(), advantage_of(&of_b, &of_a)),
        paired => (a.label.into(), b.label.into(), paired),
    }
}

fn comparison(
    metric: Metric,
    a: String,
    b: String,
    paired: Option<Paired>,
    p_adjusted: Option<f64>,
) -> Comparison {
    let verdict = verdict(paired.as_ref(), p_adjusted);
    let sentence = sentence(metric, &a, &b, paired.as_ref().zip(p_adjusted), verdict);
    Comparison {
        metric,
        a,
        b,
        advantage: paired.map(|paired| paired.ratio),
        interval: paired.map(|paired| paired.interval),
        p: paired.map(|paired| paired.p),
        p_adjusted,
        rounds: paired.map_or(0, |paired| paired.rounds),
        verdict,
        sentence,
    }
}

fn verdict(paired: Option<&Paired>, p_adjusted: Option<f64>) -> Verdict {
    let (Some(paired), Some(p)) = (paired, p_adjusted) else { return Verdict::NotMeasurable };
    let (low, high) = paired.equivalence_interval;
    let margin = 1.0 + EQUIVALENCE_MARGIN;
    if paired.rounds < MIN_ROUNDS {
        Verdict::Inconclusive
    } else if low > 1.0 / margin && high < margin {
        Verdict::Equivalent
    } else if p < SIGNIFICANCE {
        Verdict::Faster
    } else {
        Verdict::Inconclusive
    }
}

fn sentence(metric: Metric, a: &str, b: &str, paired: Option<(&Paired, f64)>, verdict: Verdict) -> String {
    let Some((paired, p)) = paired else {
        return format!("{a} and {b}: {} is not measurable", metric.title());
    };
    let times = times(paired.ratio);
    let evidence = format!(
        "(95 % interval {:.2}–{:.2}, {} rounds)",
        paired.interval.0, paired.interval.1, paired.rounds
    );
    match (verdict, metric) {
        (Verdict::Faster, Metric::Load) => format!("{a} loads {times} faster than {b} {evidence}"),
        (Verdict::Faster, Metric::ColdStart) => {
            format!("{a} gives its first token {times} sooner after loading than {b} {evidence}")
        }
        (Verdict::Faster, Metric::Throughput) => format!("{a} decodes {times} faster than {b} {evidence}"),
        (Verdict::Faster, Metric::PeakMemory) => format!("{a} needs {times} less memory than {b} {evidence}"),
        (Verdict::Faster, _) => format!("{a} has {times} better {} than {b} {evidence}", metric.title()),
        (Verdict::Equivalent, _) => {
            let margin = EQUIVALENCE_MARGIN * 100.0;
            format!("{a} and {b} are equivalent in {} within {margin:.0} % {evidence}", metric.title())
        }
        (Verdict::Inconclusive, _) if paired.rounds < MIN_ROUNDS => {
            format!(
                "{a} and {b}: no verdict on {}, {} rounds of the {MIN_ROUNDS} it takes",
                metric.title(),
                paired.rounds
            )
        }
        // The interval is of this pair alone; the p value answers for the whole table, and decides.
        (Verdict::Inconclusive | Verdict::NotMeasurable, _) => {
            let (low, high) = paired.interval;
            let evidence =
                format!("95 % interval {low:.2}–{high:.2}, adjusted p = {p:.2}, {} rounds", paired.rounds);
            format!("{a} and {b}: inconclusive in {} ({evidence})", metric.title())
        }
    }
}

/// "1.9x", with a second decimal where one would round the difference away.
fn times(ratio: f64) -> String {
    if ratio < 1.1 { format!("{ratio:.2}x") } else { format!("{ratio:.1}x") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(metric: Metric, a: &[f64], b: &[f64]) -> Comparison {
        let series =
            |label, values: &[f64]| Series { label, values: values.iter().copied().map(Some).collect() };
        compare(&[(metric, vec![series("a", a), series("b", b)])]).remove(0)
    }

    const STEADY: [f64; 6] = [10.0, 10.1, 9.9, 10.0, 10.05, 9.95];

    fn scaled(by: f64) -> Vec<f64> {
        STEADY.iter().enumerate().map(|(i, x)| x * by * (1.0 + 0.002 * (i % 3) as f64)).collect()
    }

    #[test]
    fn the_better_is_named_first_whichever_way_better_is() {
        let throughput = judge(Metric::Throughput, &STEADY, &scaled(1.9));
        assert!(throughput.sentence.starts_with("b decodes 1.9x faster than a"), "{}", throughput.sentence);
        let load = judge(Metric::Load, &STEADY, &scaled(2.0));
        assert!(load.sentence.starts_with("a loads 2.0x faster than b"), "{}", load.sentence);
    }

    #[test]
    fn five_rounds_are_never_enough() {
        let few = judge(Metric::Load, &STEADY[..5], &scaled(3.0)[..5]);
        assert_eq!(few.verdict, Verdict::Inconclusive);
        assert!(!few.sentence.contains("faster"), "{}", few.sentence);
    }

    #[test]
    fn a_small_but_certain_difference_is_equivalence_and_noise_is_inconclusive() {
        assert_eq!(judge(Metric::Latency, &STEADY, &scaled(1.004)).verdict, Verdict::Equivalent);
        let noisy = [5.0, 15.0, 9.0, 12.0, 8.0, 11.0];
        assert_eq!(judge(Metric::Latency, &STEADY, &noisy).verdict, Verdict::Inconclusive);
    }

    #[test]
    fn rounds_are_paired_and_gaps_left_out() {
        let series = |label, values: &[Option<f64>]| Series { label, values: values.to_vec() };
        let a = series("a", &[Some(1.0), None, Some(3.0)]);
        let b = series("b", &[Some(2.0), Some(9.0), Some(6.0)]);
        let result = compare(&[(Metric::Load, vec![a, b])]).remove(0);
        assert_eq!((result.rounds, result.advantage.map(|x| (x * 1e6).round() / 1e6)), (2, Some(2.0)));
    }

    #[test]
    fn what_nobody_measured_is_not_measurable() {
        let none = |label| Series { label, values: vec![None; 6] };
        let result = compare(&[(Metric::PeakMemory, vec![none("a"), none("b")])]).remove(0);
        assert_eq!(result.verdict, Verdict::NotMeasurable);
    }
}
