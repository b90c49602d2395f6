//! The findings of a check or a diff, in sentences.

use history::Machine;
use judge::metrics;
use judge::regression::preflight::{OtherSetting, Undecidable};
use judge::regression::{Document, Finding, Kind, Reason, Side, Verdict};
use judge::report::number;
use statistics::MIN_ROUNDS;

/// The outcome in one line.
pub fn conclusion(document: &Document) -> String {
    let named = |verdict: Verdict| {
        let told = document.with(verdict).filter(|finding| finding.follows.is_none());
        let told =
            told.map(|finding| format!("{} of {}", metrics::words(&finding.metric), finding.framework));
        told.collect::<Vec<_>>()
    };
    match document.exit_code {
        1 => {
            let names: Vec<&str> = document.failures.iter().map(|broken| broken.framework.as_str()).collect();
            format!("failed: {}", names.join(", "))
        }
        4 => format!("regression: {}", named(Verdict::Regression).join(", ")),
        3 => match &document.unmeasurable {
            Some(reason) => format!("not measurable: {reason}"),
            None => format!("not measurable: {}", named(Verdict::NotMeasurable).join(", ")),
        },
        _ if document.kind == Kind::Diff => format!("{} figures compared", document.findings.len()),
        _ => match named(Verdict::Inconclusive).as_slice() {
            [] => "no regression".to_owned(),
            unclear => format!("no regression shown; inconclusive: {}", unclear.join(", ")),
        },
    }
}

/// A run: "20260101T000000Z-host, commit 0123abc, on host (A Processor)".
pub(super) fn side(side: &Side) -> String {
    let commit = side.git_commit.as_ref().map(|_| format!(", commit {}", commit(side)));
    let Machine { host, cpu, .. } = &side.machine;
    format!("{}{}, on {host} ({cpu})", side.run, commit.unwrap_or_default())
}

/// The commit, shortened, with a mark for local changes.
pub(super) fn commit(side: &Side) -> String {
    let commit = side.git_commit.as_deref().unwrap_or_default();
    let modified = if side.git_modified == Some(true) { " and changes" } else { "" };
    format!("{}{modified}", commit.get(..9).unwrap_or(commit))
}

/// A finding in one sentence. A diff has no threshold.
pub(super) fn sentence(finding: &Finding, kind: Kind) -> String {
    let Finding { framework, metric, unit, threshold, .. } = finding;
    let start = format!("{framework}: {}", metrics::words(metric));
    let (Some(baseline), Some(current), Some(ratio), Some(bounds)) =
        (finding.baseline, finding.current, finding.ratio, finding.interval)
    else {
        return format!("{start} is not measurable: {}", reason(finding));
    };
    let (a, b) = finding.rounds;
    let rounds = if a == b { format!("{a} rounds") } else { format!("{a} and {b} rounds") };
    let interval = match interval(bounds) {
        Some(interval) => format!("95 % interval {interval}, {rounds}"),
        None => format!("too few rounds for an interval, {rounds}"),
    };
    let figures =
        format!("{}, {} against {} {unit}", percent(ratio - 1.0), number(current), number(baseline));
    let limit = 100.0 * threshold;
    match finding.verdict {
        Verdict::Regression => {
            format!("{start} regressed: {figures} ({interval}), beyond the threshold of {limit} %")
        }
        Verdict::Worse if kind != Kind::Diff => {
            format!("{start} is worse, within the threshold of {limit} %: {figures} ({interval})")
        }
        Verdict::Worse => format!("{start} is worse: {figures} ({interval})"),
        Verdict::Better => format!("{start} is better: {figures} ({interval})"),
        Verdict::Equivalent => format!("{start} is equivalent within {limit} %: {figures} ({interval})"),
        Verdict::Inconclusive => {
            let p = finding.p_adjusted.unwrap_or(1.0);
            let needed = more_rounds(finding).map_or(String::new(), |needed| format!("; {needed}"));
            format!("{start} is inconclusive: {figures} ({interval}, adjusted p = {p:.2}){needed}")
        }
        Verdict::NotMeasurable => {
            format!("{start} is not measurable: {}: {figures} ({interval})", reason(finding))
        }
    }
}

/// The part of a finding that its table does not show; `None` if it shows all. Findings without a verdict are
/// listed together elsewhere, by their reason.
pub(super) fn remark(finding: &Finding) -> Option<String> {
    let name = metrics::words(&finding.metric);
    match finding.verdict {
        Verdict::Regression => {
            Some(format!("{name} is worse by more than the threshold of {} %", 100.0 * finding.threshold))
        }
        Verdict::Inconclusive => Some(format!("{name} is inconclusive: {}", more_rounds(finding)?)),
        Verdict::NotMeasurable | Verdict::Worse | Verdict::Better | Verdict::Equivalent => None,
    }
}

/// The number of rounds that would decide, if the estimate exceeds the threshold.
fn more_rounds(finding: &Finding) -> Option<String> {
    finding.is_beyond().then(|| match finding.rounds_needed {
        Some(rounds) => format!("about {rounds} rounds in each run would decide (--rounds {rounds})"),
        None => "more rounds would decide (--rounds)".to_owned(),
    })
}

/// Why there is no verdict.
pub(super) fn reason(finding: &Finding) -> String {
    let few = |side, rounds| format!("{side} has {rounds} rounds of the {MIN_ROUNDS} that a verdict takes");
    let (baseline, current) = finding.rounds;
    let told = match finding.reason {
        Some(Reason::NotInBaseline) => "the baseline has no figures of it",
        Some(Reason::NotInCurrent) => "the current run has no figures of it",
        Some(Reason::Figures) => "there are too few figures, or some that are not positive",
        Some(Reason::RoundsOfBaseline) => return few("the baseline", baseline),
        Some(Reason::RoundsOfCurrent) => return few("the current run", current),
        Some(Reason::SlowerMachine) => "the machine itself was slower, which may account for it",
        Some(Reason::FasterMachine) => "the machine itself was faster, which may hide one",
        None => "there are no figures",
    };
    told.to_owned()
}

/// A verdict for tables. Only a regression is in capitals.
pub(super) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Regression => "REGRESSION",
        Verdict::Worse => "worse",
        Verdict::Better => "better",
        Verdict::Equivalent => "equivalent",
        Verdict::Inconclusive => "inconclusive",
        Verdict::NotMeasurable => "not measurable",
    }
}

/// A share as "+8.0 %", or as "120x" if it is too large to read in percent.
pub(super) fn percent(share: f64) -> String {
    match share {
        share if !share.is_finite() => "not known".to_owned(),
        share if share < 100.0 => format!("{:+.1} %", 100.0 * share),
        share => format!("{:.0}x", share + 1.0),
    }
}

/// The interval of a ratio: "-1.0 % to +8.0 %"; `None` where it says nothing, because there are too few rounds.
pub(super) fn interval((low, high): (f64, f64)) -> Option<String> {
    let tells = low > 0.001 && high.is_finite() && high <= 100.0;
    tells.then(|| format!("{} to {}", percent(low - 1.0), percent(high - 1.0)))
}

/// Why no measurement could be judged against the baseline `source` now, and what to do.
pub fn undecidable(reason: &Undecidable, source: &str) -> String {
    const REMEDY: &str = "measure a new baseline, or name another with --baseline";
    match reason {
        Undecidable::NoisyBaseline(noise) => {
            format!("the machine was too noisy in the baseline {source} ({noise}): {REMEDY}")
        }
        Undecidable::NoFigures(why) => {
            let why = why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
            format!("no framework has valid figures in the baseline {source}{why}: {REMEDY}")
        }
        Undecidable::RoundsOfBaseline(rounds) => {
            let counted = match rounds {
                0 => "no figures".to_owned(),
                1 => "1 round".to_owned(),
                rounds => format!("{rounds} rounds"),
            };
            format!(
                "the baseline {source} has {counted}, and a verdict takes {MIN_ROUNDS}: nothing measured now could decide; \
                 measure a new baseline with --rounds {MIN_ROUNDS} or more, or name another with --baseline"
            )
        }
        Undecidable::RoundsAsked(rounds) => format!(
            "--rounds {rounds} can decide nothing: a verdict takes {MIN_ROUNDS} rounds; give {MIN_ROUNDS} or more, or \
             leave --rounds out"
        ),
        Undecidable::QuickLook => {
            "--quick can decide nothing: it is for a look at figures, and a verdict takes more rounds"
                .to_owned()
        }
    }
}

/// A setting that makes the request another case: "--batch: 1 (baseline), 8 (asked for)".
pub fn other_setting(OtherSetting { flag, baseline, asked }: &OtherSetting) -> String {
    format!("{flag}: {baseline} (baseline), {asked} (asked for)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_that_says_nothing_is_not_told() {
        assert_eq!(interval((0.99, 1.08)).unwrap(), "-1.0 % to +8.0 %");
        assert_eq!(interval((1e-9, 1e9)), None);
        assert_eq!(interval((0.0, f64::INFINITY)), None);
    }

    #[test]
    fn what_cannot_be_decided_names_the_baseline_and_what_to_do() {
        let told = |reason| undecidable(&reason, "latest");
        let few = told(Undecidable::RoundsOfBaseline(2));
        assert!(few.contains("the baseline latest has 2 rounds, and a verdict takes 6"), "{few}");
        let noisy = told(Undecidable::NoisyBaseline("other processes used 50 %".into()));
        assert!(noisy.contains("too noisy in the baseline latest (other processes used 50 %)"), "{noisy}");
        assert!(told(Undecidable::RoundsAsked(5)).contains("--rounds 5 can decide nothing"));
        let batch = OtherSetting { flag: "--batch", baseline: "1".into(), asked: "8".into() };
        assert_eq!(other_setting(&batch), "--batch: 1 (baseline), 8 (asked for)");
    }
}
