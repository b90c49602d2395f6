//! The verdicts in words: clear ones first, and the inconclusive ones in one line.

use judge::Metric;
use judge::report::verdicts::{Comparison, Verdict};
use judge::report::{Report, State};

use super::Line;
use crate::screen::Tone;

/// Why rows have no figures or no part in verdicts; then the clear verdicts, the deciding metric's first.
pub(super) fn clear(report: &Report) -> Vec<Line> {
    let mut lines = reasons(report);
    if let Some(reason) = report.noise() {
        lines.push(Line::new(Tone::Struck, format!("not measurable: {reason}")));
        return lines;
    }
    let rounds = report.rows.iter().map(|row| row.rounds).max().unwrap_or(0);
    let fewest = statistics::MIN_ROUNDS;
    if !report.comparisons.is_empty() && rounds < fewest {
        let text =
            format!("inconclusive: a verdict takes {fewest} rounds, and there were {rounds} (--rounds)");
        lines.push(Line::plain(text));
        return lines;
    }
    let is_clear = |found: &&Comparison| found.verdict != Verdict::Inconclusive;
    let line = |found: &Comparison| {
        let is_decided = found.verdict != Verdict::NotMeasurable;
        Line::new(if is_decided { Tone::Clear } else { Tone::Plain }, found.sentence.clone())
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
    inconclusive(report).into_iter().map(|found| found.sentence.clone()).collect()
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
    if report.noise().is_some() || rounds < statistics::MIN_ROUNDS {
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
        let line = |reason: &String| Line::new(tone, format!("{} {word}: {reason}", row.framework));
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
