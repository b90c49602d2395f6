//! The verdicts in words: clear ones first, and the inconclusive ones in one line.

use judge::Metric;
use judge::report::verdicts::{Comparison, Unmeasurable, Verdict};
use judge::report::{Reason, Report, State};
use statistics::MIN_ROUNDS;

use super::amount::{self, Differences};
use super::{Json, Line};
use crate::screen::Tone;

/// A verdict in one sentence. `margin`: within which share figures are equivalent, where that is known.
pub(crate) fn sentence(found: &Comparison, margin: Option<f64>) -> String {
    let Comparison { metric, a, b, advantage, interval, statistics, .. } = found;
    let (words, ratio) = (metric.words(), advantage.unwrap_or(1.0));
    let rounds = statistics.as_ref().map(|found| format!("{} rounds", found.rounds));
    let of = |told: String| format!("95 % interval {told}");
    let open = || interval.map(|interval| of(metric.open_interval(ratio, interval)));
    match found.verdict {
        Verdict::Faster | Verdict::Slower => {
            let told = metric.difference(a, b, ratio, *interval);
            noted(told, [interval.map(|interval| of(metric.interval(ratio, interval))), rounds, None])
        }
        Verdict::Equivalent => {
            let within = margin.map_or(String::new(), |margin| format!(" within {} %", margin * 100.0));
            noted(format!("{a} and {b} are equivalent in {words}{within}"), [open(), rounds, None])
        }
        Verdict::NotMeasurable => {
            let why = found.reason.as_ref().map_or(String::new(), |why| format!(": {}", unmeasurable(why)));
            format!("{a} and {b}: {words} is not measurable{why}")
        }
        Verdict::Inconclusive => {
            let told = format!("{a} and {b}: inconclusive in {words}");
            let Some(statistics) = statistics else { return noted(told, [open(), None, None]) };
            let (rounds, (low, high)) = (statistics.rounds, statistics.interval);
            let shown = match statistics.detectable {
                _ if rounds < MIN_ROUNDS => {
                    return format!("{told}: {rounds} rounds of the {MIN_ROUNDS} that a verdict takes");
                }
                Some(ratio) if ratio < amount::TELLING => {
                    let least = amount::detectable(ratio);
                    format!("; this run could only have shown differences above {least}")
                }
                Some(_) if high / low >= amount::TELLING => {
                    return format!("{told}: too few processes ({rounds} rounds)");
                }
                _ => String::new(),
            };
            // The interval is for this pair alone. The p value is corrected for the whole table, and decides.
            let p = format!("adjusted p = {:.2}", statistics.p_adjusted);
            noted(told, [open(), Some(p), Some(format!("{rounds} rounds{shown}"))])
        }
    }
}

/// A sentence with these notes in brackets.
fn noted(told: String, notes: [Option<String>; 3]) -> String {
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    if notes.is_empty() { told } else { format!("{told} ({})", notes.join(", ")) }
}

fn unmeasurable(reason: &Unmeasurable) -> String {
    match reason {
        Unmeasurable::FiguresMissing => "figures are missing".to_owned(),
        Unmeasurable::Noise(finding) => finding.clone(),
        Unmeasurable::Impossible { framework, finding } => format!("{framework}: {finding}"),
    }
}

/// A verdict in a word or two.
pub(crate) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::Equivalent => "equivalent",
        Verdict::Inconclusive => "inconclusive",
        Verdict::NotMeasurable => "not measurable",
    }
}

/// Adds to a comparison in JSON the verdict on b, and the sentence.
pub(crate) fn tell(json: &mut Json, found: &Comparison, margin: Option<f64>) {
    json.set("verdict_of_b", Json::new(&found.verdict.turned()));
    json.set("sentence", sentence(found, margin).into());
}

/// Why rows have no figures or no part in verdicts; then the clear verdicts, the deciding metric's first.
pub(super) fn clear(report: &Report) -> Vec<Line> {
    let mut lines = reasons(report);
    if let Some(reason) = report.noise() {
        lines.push(Line::new(Tone::Struck, format!("not measurable: {reason}")));
        return lines;
    }
    let rounds = report.rows.iter().map(|row| row.rounds).max().unwrap_or(0);
    let fewest = MIN_ROUNDS;
    if !report.comparisons.is_empty() && rounds < fewest {
        let text =
            format!("inconclusive: a verdict takes {fewest} rounds, and there were {rounds} (--rounds)");
        lines.push(Line::plain(text));
        return lines;
    }
    let is_clear = |found: &&Comparison| found.verdict != Verdict::Inconclusive;
    let line = |found: &Comparison| {
        let is_decided = found.verdict != Verdict::NotMeasurable;
        let told = sentence(found, Some(report.plan.margin));
        Line::new(if is_decided { Tone::Clear } else { Tone::Plain }, told)
    };
    lines.extend(told(report).into_iter().filter(is_clear).map(line));
    lines.extend(floor(report).map(Line::plain));
    lines
}

/// "inconclusive: load: candle and ort (0.9–3.1x), candle and tch (−5 to 60 %); …"
pub(super) fn open(report: &Report) -> Option<String> {
    let open = in_words(report);
    (!open.is_empty()).then(|| format!("inconclusive: {}", open.join("; ")))
}

/// The inconclusive verdicts, a sentence each.
pub(super) fn open_sentences(report: &Report) -> Vec<String> {
    inconclusive(report).into_iter().map(|found| sentence(found, Some(report.plan.margin))).collect()
}

fn in_words(report: &Report) -> Vec<String> {
    let mut by_metric: Vec<(Metric, Vec<String>)> = Vec::new();
    for found in inconclusive(report) {
        let interval = match (found.advantage, found.interval) {
            (Some(ratio), Some(interval)) => {
                format!(" ({})", found.metric.open_interval(ratio, interval))
            }
            _ => String::new(),
        };
        let pair = format!("{} and {}{interval}", found.a, found.b);
        match by_metric.iter_mut().find(|(metric, _)| *metric == found.metric) {
            Some((_, pairs)) => pairs.push(pair),
            None => by_metric.push((found.metric, vec![pair])),
        }
    }
    by_metric.into_iter().map(|(metric, pairs)| format!("{}: {}", metric.words(), pairs.join(", "))).collect()
}

fn inconclusive(report: &Report) -> Vec<&Comparison> {
    let rounds = report.rows.iter().map(|row| row.rounds).max().unwrap_or(0);
    if report.noise().is_some() || rounds < MIN_ROUNDS {
        return Vec::new();
    }
    told(report).into_iter().filter(|found| found.verdict == Verdict::Inconclusive).collect()
}

fn reasons(report: &Report) -> Vec<Line> {
    let mut lines = Vec::new();
    for row in report.rows.iter().filter(|row| row.state != State::Measured) {
        let word = row.state.words();
        let tone = match row.state {
            State::Struck | State::Failed => Tone::Struck,
            _ => Tone::Plain,
        };
        let line = |reason: &Reason| Line::new(tone, format!("{} {word}: {reason}", row.framework));
        lines.extend(row.reasons.iter().map(line));
    }
    lines
}

/// The deciding metric for every pair; for the others the best contender against each of the rest. A metric that
/// follows another, as latency follows throughput, stays in the JSON.
fn told(report: &Report) -> Vec<&Comparison> {
    let deciding = Metric::deciding(report.plan.work.kind());
    let tested = Metric::tested(report.plan.work.kind()).into_iter();
    let others =
        tested.filter(|&metric| metric != deciding && metric.follows(report.plan.work.kind()).is_none());
    let mut all = Vec::new();
    for metric in [deciding].into_iter().chain(others) {
        let mut of_metric: Vec<&Comparison> =
            report.comparisons.iter().filter(|found| found.metric == metric).collect();
        of_metric.sort_by(|x, y| y.advantage.unwrap_or(0.0).total_cmp(&x.advantage.unwrap_or(0.0)));
        let best = of_metric.first().map(|found| found.a.clone());
        all.extend(of_metric.into_iter().filter(|found| {
            metric == deciding || best.as_deref() == Some(&found.a) || found.verdict == Verdict::NotMeasurable
        }));
    }
    all
}

fn floor(report: &Report) -> Option<String> {
    let first = report.floor.first()?;
    let of = |metric: Metric| {
        let worst = report.floor.iter().filter(|f| f.metric == metric).map(|f| f.share).reduce(f64::max)?;
        Some(format!("{:.1} % in {}", worst * 100.0, metric.words()))
    };
    let shares: Vec<String> = Metric::in_table(report.plan.work.kind()).into_iter().filter_map(of).collect();
    Some(format!(
        "A/A floor: {} and {} are the same; differences up to {} can be chance here",
        first.a,
        first.b,
        shares.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use statistics::{Decision, Outcome};

    use super::*;

    fn decided(verdict: Verdict, rounds: usize, detectable: Option<f64>) -> Comparison {
        let (outcome, interval) = (Outcome::Inconclusive, (1.8, 2.0));
        let statistics = Decision {
            rounds,
            ratio: 1.9,
            interval,
            state_slope: None,
            p_t: 0.2,
            p_sign_flip: 0.2,
            p_welch: 0.2,
            p_mann_whitney: 0.2,
            p_sequential: 0.2,
            p_adjusted: 0.25,
            p_equivalence: 1.0,
            detectable,
            outcome,
            reason: None,
        };
        Comparison {
            metric: Metric::Throughput,
            a: "a".into(),
            b: "b".into(),
            verdict,
            reason: None,
            advantage: Some(1.9),
            interval: Some(interval),
            statistics: Some(statistics),
        }
    }

    #[test]
    fn a_verdict_has_its_interval_and_its_rounds() {
        let told = |verdict| sentence(&decided(verdict, 6, None), Some(0.02));
        assert_eq!(told(Verdict::Faster), "a decodes 1.9x faster than b (95 % interval 1.8–2.0x, 6 rounds)");
        assert_eq!(
            told(Verdict::Equivalent),
            "a and b are equivalent in throughput within 2 % (95 % interval 1.8–2.0x, 6 rounds)"
        );
        let of_an_older_study = Comparison { statistics: None, ..decided(Verdict::Equivalent, 6, None) };
        let told = sentence(&of_an_older_study, None);
        assert_eq!(told, "a and b are equivalent in throughput (95 % interval 1.8–2.0x)");
    }

    #[test]
    fn an_open_verdict_says_what_could_have_been_shown() {
        let told = |rounds, detectable| sentence(&decided(Verdict::Inconclusive, rounds, detectable), None);
        assert_eq!(
            told(5, None),
            "a and b: inconclusive in throughput: 5 rounds of the 6 that a verdict takes"
        );
        assert_eq!(
            told(6, Some(1.12)),
            "a and b: inconclusive in throughput (95 % interval 1.8–2.0x, adjusted p = 0.25, 6 rounds; this run could \
             only have shown differences above 12 %)"
        );
        let mut wide = decided(Verdict::Inconclusive, 6, Some(9.0));
        wide.statistics.as_mut().unwrap().interval = (0.5, 5.0);
        let told = sentence(&wide, None);
        assert_eq!(told, "a and b: inconclusive in throughput: too few processes (6 rounds)");
    }

    #[test]
    fn a_missing_verdict_says_why() {
        let told = |reason| {
            let found = Comparison { reason, ..decided(Verdict::NotMeasurable, 6, None) };
            sentence(&found, None)
        };
        assert_eq!(told(None), "a and b: throughput is not measurable");
        let missing = told(Some(Unmeasurable::FiguresMissing));
        assert_eq!(missing, "a and b: throughput is not measurable: figures are missing");
        let impossible = Unmeasurable::Impossible { framework: "b".into(), finding: "too fast".into() };
        assert!(told(Some(impossible)).ends_with("is not measurable: b: too fast"));
    }
}
