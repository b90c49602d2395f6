//! The verdict on each pair and metric, a line each.

use judge::Metric;
use judge::report::verdicts::{Comparison, Unmeasurable, Verdict};
use judge::report::{Reason, Report, State};
use statistics::{MIN_ROUNDS, Undecided};

use super::amounts::{between, p, times};
use super::{Json, Line};
use crate::screen::Tone;
use crate::words::answer::standing::{cause, has_rounds, split};

/// The heading of the verdicts.
pub(crate) const HEADING: &str = "Verdicts; their intervals hold together with 95 % certainty. That of an open pair says \
                                  how many times better the first may be";

/// A verdict in one sentence. `margin`: within which share figures are equivalent, where that is known.
pub(crate) fn sentence(found: &Comparison, margin: Option<f64>) -> String {
    with_prompts(found, margin, &|case| format!("prompt {}", case + 1))
}

/// The same with the names of prompts.
pub(crate) fn of_report(report: &Report, found: &Comparison) -> String {
    with_prompts(found, Some(report.plan.margin), &|case| report.plan.work.case_name(case).to_owned())
}

fn with_prompts(found: &Comparison, margin: Option<f64>, prompt: &dyn Fn(usize) -> String) -> String {
    let Comparison { metric, a, b, statistics, .. } = found;
    let words = metric.words();
    let why = split(found).map(|split| {
        let (x, y) = split.ratios;
        format!("{}x: {}", between(x.min(y), x.max(y)), cause(split, prompt))
    });
    match found.verdict {
        Verdict::Faster | Verdict::Slower => {
            let end = p_of(found).map_or_else(String::new, |value| format!(", {}", p(value)));
            format!(
                "{}{}{end}{}",
                difference(found),
                interval(found, ""),
                why.map_or_else(String::new, |why| format!("; {why}"))
            )
        }
        Verdict::Equivalent => {
            let within = margin.map_or(String::new(), |margin| format!(" within {} %", margin * 100.0));
            let end = p_of(found).map_or_else(String::new, |value| format!(", {}", p(value)));
            format!("equal{within}: {a}, {b} in {words}{}{end}", interval(found, "x"))
        }
        Verdict::NotMeasurable => {
            let why = found.reason.as_ref().map_or(String::new(), |why| format!(": {}", unmeasurable(why)));
            format!("not measurable: {a}, {b} in {words}{why}")
        }
        Verdict::Inconclusive if !has_rounds(found) => {
            let rounds = statistics.as_ref().map_or(0, |found| found.rounds);
            format!(
                "no verdict: {a}, {b} in {words}: {rounds} rounds of the {MIN_ROUNDS} that a verdict takes"
            )
        }
        Verdict::Inconclusive => {
            let is_mixed = statistics.as_ref().is_some_and(|found| found.reason == Some(Undecided::Mixed));
            let end =
                p_of(found).filter(|_| !is_mixed).map_or_else(String::new, |value| format!(", {}", p(value)));
            let start = if is_mixed { "no single verdict" } else { "too close to call" };
            let why = why.map_or_else(String::new, |why| format!("; {why}"));
            format!("{start}: {a}, {b} in {words}{}{end}{why}", interval(found, "x"))
        }
    }
}

/// The p value of a verdict, adjusted for all of the table. An open pair has that of the test that did not reject.
pub(crate) fn p_of(found: &Comparison) -> Option<f64> {
    let statistics = found.statistics.as_ref().filter(|_| has_rounds(found))?;
    Some(match found.verdict {
        Verdict::Equivalent => statistics.p_equivalence,
        Verdict::Inconclusive => statistics.p_adjusted.max(statistics.p_sign_flip),
        _ => statistics.p_adjusted,
    })
}

fn interval(found: &Comparison, unit: &str) -> String {
    found.interval.map_or_else(String::new, |(low, high)| format!(" ({}{unit})", between(low, high)))
}

/// "candle decodes 1.09x as fast as tch", "load: ort takes 3.4x as long as candle".
fn difference(found: &Comparison) -> String {
    let Comparison { metric, a, b, advantage, .. } = found;
    let ratio = times(advantage.unwrap_or(1.0));
    match metric.phrases() {
        Some(phrases) if metric.higher_is_better() && phrases.comparative == "faster" => {
            format!("{a} {} {ratio} as fast as {b}", phrases.verb)
        }
        _ if metric.higher_is_better() => format!("{}: {a} has {ratio} that of {b}", metric.words()),
        _ if metric.depends_on_speed() => format!("{}: {b} takes {ratio} as long as {a}", metric.words()),
        _ => format!("{}: {b} takes {ratio} as much as {a}", metric.words()),
    }
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
pub(crate) fn tell(json: &mut Json, found: &Comparison, sentence: String) {
    json.set("verdict_of_b", Json::new(&found.verdict.turned()));
    json.set("sentence", sentence.into());
}

/// Every pair in every metric that does not follow from another: the first question first, then in the order of the
/// table; clear ones first. Without rounds enough, or on a noisy machine, one line says that.
pub(super) fn all(report: &Report) -> Vec<Line> {
    let rounds = report.rows.iter().map(|row| row.rounds).max().unwrap_or(0);
    if report.comparisons.is_empty() {
        return Vec::new();
    }
    if let Some(reason) = report.noise() {
        return vec![Line::new(Tone::Struck, format!("not measurable: {reason}"))];
    }
    if rounds < MIN_ROUNDS {
        let text = format!(
            "no verdicts: one takes {MIN_ROUNDS} rounds, and there were {rounds} (--rounds {MIN_ROUNDS})"
        );
        return vec![Line::plain(text)];
    }
    let kind = report.plan.work.kind();
    let deciding = Metric::deciding(kind);
    let mut asked: Vec<Metric> =
        Metric::tested(kind).into_iter().filter(|metric| metric.follows(kind).is_none()).collect();
    asked.sort_by_key(|metric| *metric != deciding);
    let mut lines = Vec::new();
    for metric in asked {
        let mut found: Vec<&Comparison> =
            report.comparisons.iter().filter(|found| found.metric == metric).collect();
        let is_open = |it: &Comparison| matches!(it.verdict, Verdict::Inconclusive | Verdict::NotMeasurable);
        let advantage = |it: &Comparison| it.advantage.unwrap_or(0.0);
        found.sort_by(|x, y| is_open(x).cmp(&is_open(y)).then(advantage(y).total_cmp(&advantage(x))));
        lines.extend(found.into_iter().map(|found| {
            Line::new(if is_open(found) { Tone::Plain } else { Tone::Clear }, of_report(report, found))
        }));
    }
    lines
}

/// Why rows have no figures or no part in verdicts.
pub(super) fn reasons(report: &Report) -> Vec<Line> {
    let mut lines = Vec::new();
    for row in report.rows.iter().filter(|row| row.state != State::Measured) {
        let word = row.state.words();
        let tone = match row.state {
            State::Struck | State::Failed => Tone::Struck,
            _ => Tone::Plain,
        };
        let line = |reason: &Reason| Line::qualifying(tone, format!("{} {word}: {reason}", row.framework));
        lines.extend(row.reasons.iter().map(line));
    }
    lines
}

/// The differences that chance shows between two labels of one engine.
pub(super) fn floor(report: &Report) -> Option<String> {
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
