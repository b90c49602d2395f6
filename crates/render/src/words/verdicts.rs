//! The verdict on each pair and metric, a line each.

use comparison::judge::Metric;
use comparison::judge::combined::{OtherRatio, OtherRuns};
use comparison::judge::report::hybrid::{HandOver, Hybrid, Memory, Predicted};
use comparison::judge::report::verdicts::{Comparison, Unmeasurable, Verdict};
use comparison::judge::report::warnings::SlowMoments;
use comparison::judge::report::{Reason, Report, State, Warning, number};
use statistics::{MIN_ROUNDS, Undecided};

use super::{Json, Line, between, figure, p, times};
use crate::table::Tone;
use crate::words::answer::{cause, has_rounds, rounds, split};

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
    let end = p_of(found).map_or_else(String::new, |value| format!(", {}", p(value)));
    let why = split(found).map_or_else(String::new, |split| {
        let (x, y) = split.ratios;
        format!("; {}x: {}", between(x.min(y), x.max(y)), cause(split, prompt))
    });
    match found.verdict {
        Verdict::Faster | Verdict::Slower => {
            format!("{}{}{end}{why}", difference(found), interval(found, ""))
        }
        Verdict::Equivalent => {
            let within = margin.map_or(String::new(), |margin| format!(" within {} %", margin * 100.0));
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
            let (start, end) = match statistics.as_ref().and_then(|found| found.reason) {
                Some(Undecided::Mixed) => ("no single verdict", String::new()),
                Some(Undecided::Layout) => ("may be layout", end),
                _ => ("too close to call", end),
            };
            format!("{start}: {a}, {b} in {words}{}{end}{why}", interval(found, "x"))
        }
    }
}

/// The p value of a verdict, adjusted for all of the table. An open pair has that of the test that did not reject.
fn p_of(found: &Comparison) -> Option<f64> {
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

pub(super) fn unmeasurable(reason: &Unmeasurable) -> String {
    match reason {
        Unmeasurable::FiguresMissing => "figures are missing".to_owned(),
        Unmeasurable::Noise(finding) => finding.clone(),
        Unmeasurable::Impossible { framework, finding } => format!("{framework}: {finding}"),
        Unmeasurable::Clocks { workers, driver } => {
            let driver = driver.map_or("none".to_owned(), times);
            format!("{} by the workers' own clocks, {driver} by the driver's", times(*workers))
        }
    }
}

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
    let rounds = rounds(report);
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
    let mut lines = Vec::new();
    for metric in Metric::asked(report.plan.work.kind()) {
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
        let tone = if row.state == State::Failed { Tone::Struck } else { Tone::of(row.state) };
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

// Warnings in words, each with what to do about it.

/// The warnings of a report, the gravest first.
pub(crate) fn warnings(report: &Report) -> Vec<String> {
    report.slow_moments.iter().map(slow).chain(report.warnings.iter().map(warnings_sentence)).collect()
}

/// "tch has slow moments of its own: 9 % of its time, 20 in 20 requests, 28 ms each; its averages are compared."
fn slow(found: &SlowMoments) -> String {
    let SlowMoments { contender, share, count, requests, length_ms, .. } = found;
    format!(
        "{contender} has slow moments of its own: {:.0} % of its time, {count} in {requests} requests, {} ms each; its \
         averages are compared",
        100.0 * share / (1.0 + share),
        figure(*length_ms)
    )
}

pub(crate) fn warnings_sentence(warning: &Warning) -> String {
    match warning {
        Warning::Interrupted => {
            "interrupted: the figures are those of the rounds that were done; run it again for a verdict".into()
        }
        Warning::Killed => {
            "the run was ended before it could save its report: the figures are those of the processes that were \
             saved; run it again for a verdict"
                .into()
        }
        Warning::NoReference(reason) => {
            format!("no reference for parity: {reason}; name another with --parity-reference")
        }
        Warning::SaysNothing { outputs, undefined, uniform } => {
            let (count, what) = match undefined {
                0 => (uniform, "one number throughout"),
                _ => (undefined, "not finite throughout (NaN or infinite)"),
            };
            format!("{count} of {outputs} outputs of the reference are {what}: agreement with them shows nothing")
        }
        Warning::AcceptedNoise { rule, finding } => {
            format!("{rule}: {finding}; on a quiet machine, leave out --accept-noise or --quick")
        }
        Warning::Disturbed { times, starts, last } => disturbed(*times, *starts, last),
        Warning::Varies { limit, contenders } => {
            let share = |(contender, share): &(String, f64)| format!("{contender} {:.0} %", 100.0 * share);
            format!(
                "throughput varies by more than {:.0} % from process to process: {}; trust the interval and not the \
                 figure, and measure on a quieter machine",
                100.0 * limit,
                contenders.iter().map(share).collect::<Vec<_>>().join(", ")
            )
        }
        Warning::MaxCv { metric, limit, contenders } => {
            let share = |(contender, share): &(String, Option<f64>)| match share {
                Some(share) => format!("{contender} {:.1} %", 100.0 * share),
                None => format!("{contender} not known from one process"),
            };
            format!(
                "{} varies by more than --max-cv {} %: {}; the exit code is 3",
                metric.words(),
                100.0 * limit,
                contenders.iter().map(share).collect::<Vec<_>>().join(", ")
            )
        }
        Warning::Unsteady(contenders) => {
            let count = |(contender, unsteady, all): &(String, usize, usize)| {
                format!("{contender} ({unsteady} of {all} processes)")
            };
            format!(
                "still changing: {}; their latency is of processes that slowed down or never settled; measure longer with \
                 --iterations",
                contenders.iter().map(count).collect::<Vec<_>>().join(", ")
            )
        }
        Warning::Unsettled { contender, unsettled, rounds } => format!(
            "{contender}: warm-up hit its limit before it had settled in {unsettled} of {rounds} processes; make it \
             longer with --warmup"
        ),
        Warning::Overloaded { contender, rate, answered, kept } => format!(
            "{contender} is overloaded: of {rate} requests a second it answers {answered:.1} ({kept:.0} % of the rate), \
             so that latency grows as long as they come"
        ),
        Warning::QualityUnknown { contender, reason } => {
            format!("{contender}: its quality is unknown: {reason}")
        }
        Warning::TokenizerNotTimed(reason) => {
            format!("the tokenizer was not timed in every round: {reason}")
        }
        Warning::Noted { rule, contender, finding, .. } => format!("{contender}: {finding} ({rule})"),
        Warning::Unverified { rule, reason } => format!("{rule} could not be verified: {reason}"),
        Warning::Missing(what) => format!("missing here: {what}"),
        Warning::NoProbe(reason) | Warning::Told(reason) => reason.clone(),
    }
}

fn disturbed(times: usize, starts: usize, last: &str) -> String {
    let times = match times {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    };
    let starts = match starts {
        0 => String::new(),
        1 => "; 1 start was beside other work, and counts".to_owned(),
        count => format!("; {count} starts were beside other work, and count"),
    };
    format!(
        "the machine was noisy {times}; what could be measured again was{starts}; {last}; a quieter machine gives \
         narrower intervals"
    )
}

// Sentences about one kind of work alone.

// A hybrid of two engines compared with its parts, in words.

/// Prediction and measurement, hand-over, memory, and whether it pays. `margin`: within which share times are
/// equivalent.
pub(in crate::words) fn sentences(hybrid: &Hybrid, margin: f64) -> Vec<String> {
    let name = &hybrid.framework;
    if let Some(alone) = &hybrid.alone {
        return vec![format!("{name} {alone}")];
    }
    let mut sentences: Vec<String> = prediction(hybrid).into_iter().collect();
    sentences.extend(handed_over(hybrid));
    sentences.extend(weights(hybrid));
    sentences.extend(pays(hybrid, margin));
    sentences.iter().map(|sentence| format!("{name}: {sentence}")).collect()
}

/// "predicted from tch's prompt, candle's gaps and the hand-over, and measured: total time 489 and 501 ms (+2.4 %)".
fn prediction(hybrid: &Hybrid) -> Option<String> {
    let (Some(prefill), Some(decode)) = (&hybrid.prefill, &hybrid.decode) else {
        return Some(
            "nothing is predicted of it: compare its parts as well, each under its own name".to_owned(),
        );
    };
    let one = |figure: &Predicted| {
        let Predicted { metric, predicted, measured, difference } = figure;
        let (predicted, measured) = (number(*predicted), number(*measured));
        let percent = 100.0 * difference;
        format!("{} {predicted} and {measured} {} ({percent:+.1} %)", metric.words(), metric.unit())
    };
    let figures: Vec<String> = hybrid.figures.iter().map(one).collect();
    let from = format!("predicted from {prefill}'s prompts, {decode}'s gaps and the hand-over");
    (!figures.is_empty()).then(|| format!("{from}, and measured: {}", figures.join("; ")))
}

fn handed_over(hybrid: &Hybrid) -> Option<String> {
    let HandOver { bytes, ms, addresses: [there, here], obstacle } = hybrid.hand_over.as_ref()?;
    if *bytes == 0.0 {
        let why = if there == here { "" } else { ", though at two addresses" };
        return Some(format!(
            "keys and values are handed over without a copy, in {ms:.3} ms: both engines keep them at {there:#x}{why}"
        ));
    }
    let why = obstacle.as_ref().map_or(String::new(), |why| format!(": {why}"));
    Some(format!("keys and values are handed over by one copy, {:.1} MB in {ms:.2} ms{why}", bytes / 1e6))
}

fn weights(hybrid: &Hybrid) -> Option<String> {
    let Memory { hybrid, prefill, decode, weights } = hybrid.memory.as_ref()?;
    Some(format!(
        "it holds two sets of weights of {weights:.2} GB: peak memory {hybrid:.2} GB, of its parts alone \
         {prefill:.2} and {decode:.2} GB"
    ))
}

/// By the verdict on the total time of a request.
fn pays(hybrid: &Hybrid, margin: f64) -> Option<String> {
    let verdict = hybrid.verdict.as_ref()?;
    let does = match verdict.verdict {
        Verdict::Faster if verdict.a == hybrid.framework => "it pays",
        Verdict::Faster | Verdict::Slower => "it does not pay",
        Verdict::Equivalent => "it does not pay, being no faster than the better of its parts",
        Verdict::Inconclusive | Verdict::NotMeasurable => "whether it pays is open",
    };
    Some(format!("{does}: {}", sentence(verdict, Some(margin))))
}

/// "run 5 of this case on this machine; the others: candle 1.09–1.17x ort in throughput".
pub(crate) fn others(runs: &OtherRuns) -> String {
    let start = format!("run {} of this case on this machine", runs.count + 1);
    let Some(first) = runs.ratios.first() else { return start };
    let of = |ratio: &OtherRatio| {
        let (low, high) = ratio.range;
        let range = if low == high { times(low) } else { format!("{}x", between(low, high)) };
        format!("{range} {}", ratio.b)
    };
    let ratios: Vec<String> = runs.ratios.iter().map(of).collect();
    let who = if runs.count == 1 { "the other" } else { "the others" };
    format!("{start}; {who}: {} {} in {}", first.a, ratios.join(", "), first.metric.words())
}

#[cfg(test)]
mod tests {
    use comparison::judge::Metric;
    use comparison::judge::report::verdicts::Comparison;

    use super::*;

    #[test]
    fn a_warning_that_was_read_is_told_as_it_was() {
        let read: Vec<Warning> = serde_json::from_value(serde_json::json!(["as it was", "killed"])).unwrap();
        assert_eq!(read[0], Warning::Told("as it was".into()));
        assert_eq!(warnings_sentence(&read[0]), "as it was");
        let noted = Warning::Noted {
            rule: "R5".into(),
            contender: "a".into(),
            finding: "it uses 1 of 2 threads".into(),
            is_compared: false,
        };
        assert_eq!(warnings_sentence(&noted), "a: it uses 1 of 2 threads (R5)");
        let kept: Warning = serde_json::from_value(serde_json::to_value(&noted).unwrap()).unwrap();
        assert_eq!(kept, noted, "the cells of a study that goes on keep their type");
    }

    #[test]
    fn disturbed_starts_are_counted() {
        let told = disturbed(2, 1, "others computed");
        assert!(
            told.starts_with("the machine was noisy 2 times; what could be measured again was; 1 start"),
            "{told}"
        );
    }

    fn hybrid(verdict: Verdict, ahead: &str) -> Hybrid {
        Hybrid {
            framework: "h".into(),
            prefill: Some("a".into()),
            decode: Some("b".into()),
            alone: None,
            hand_over: Some(HandOver {
                bytes: 2e6,
                ms: 2.0,
                addresses: [0x10, 0x20],
                obstacle: Some("a wants one piece".into()),
            }),
            figures: vec![Predicted {
                metric: Metric::FirstToken,
                predicted: 20.0,
                measured: 21.0,
                difference: 0.05,
            }],
            verdict: Some(Comparison {
                metric: Metric::Total,
                a: ahead.into(),
                b: "x".into(),
                advantage: Some(1.2),
                interval: None,
                statistics: None,
                verdict,
                reason: None,
            }),
            memory: Some(Memory { hybrid: 1.2, prefill: 0.6, decode: 0.7, weights: 0.5 }),
        }
    }

    #[test]
    fn prediction_hand_over_memory_and_whether_it_pays_are_told() {
        assert_eq!(
            sentences(&hybrid(Verdict::Faster, "h"), 0.02),
            [
                "h: predicted from a's prompts, b's gaps and the hand-over, and measured: time to first token 20.0 and \
                 21.0 ms (+5.0 %)",
                "h: keys and values are handed over by one copy, 2.0 MB in 2.00 ms: a wants one piece",
                "h: it holds two sets of weights of 0.50 GB: peak memory 1.20 GB, of its parts alone 0.60 and 0.70 GB",
                "h: it pays: total time: x takes 1.20x as long as h",
            ]
        );
        let last = |verdict, ahead| sentences(&hybrid(verdict, ahead), 0.02).pop().unwrap();
        assert!(last(Verdict::Faster, "b").starts_with("h: it does not pay: total time: x takes"));
        assert!(last(Verdict::Equivalent, "h").contains("being no faster than the better of its parts"));
    }

    #[test]
    fn memory_that_is_shared_is_told_by_its_address() {
        let mut shared = hybrid(Verdict::Faster, "h");
        shared.hand_over = Some(HandOver { bytes: 0.0, ms: 0.001, addresses: [0x10, 0x10], obstacle: None });
        let told = sentences(&shared, 0.02);
        assert!(told[1].ends_with("without a copy, in 0.001 ms: both engines keep them at 0x10"), "{told:?}");
        shared.prefill = None;
        assert!(sentences(&shared, 0.02)[0].contains("compare its parts as well"));
    }

    #[test]
    fn the_other_runs_are_one_sentence() {
        let ratio =
            |b: &str, range| OtherRatio { metric: Metric::Throughput, a: "a".into(), b: b.into(), range };
        let told = |count, ratios| others(&OtherRuns { count, ratios });
        assert_eq!(
            told(4, vec![ratio("b", (1.09, 1.17)), ratio("c", (0.98, 1.3))]),
            "run 5 of this case on this machine; the others: a 1.09–1.17x b, 0.98–1.30x c in throughput"
        );
        assert_eq!(
            told(1, vec![ratio("b", (1.1, 1.1))]),
            "run 2 of this case on this machine; the other: a 1.10x b in throughput"
        );
        assert_eq!(told(1, Vec::new()), "run 2 of this case on this machine");
    }
}
