//! Warnings in words, each with what to do about it.

use judge::Metric;
use judge::report::slow_moments::SlowMoments;
use judge::report::{Report, Warning};

use super::amounts::figure;

/// The warnings of a report, the gravest first.
pub(crate) fn warnings(report: &Report) -> Vec<String> {
    report.slow_moments.iter().map(slow).chain(report.warnings.iter().map(sentence)).collect()
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

/// One warning.
pub(crate) fn sentence(warning: &Warning) -> String {
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
        Warning::Unsteady(contenders) => {
            let count = |(contender, unsteady, all): &(String, usize, usize)| {
                format!("{contender} ({unsteady} of {all} processes)")
            };
            format!(
                "still changing: {}; their {} is of processes that slowed down or never settled; measure longer with \
                 --new-tokens",
                contenders.iter().map(count).collect::<Vec<_>>().join(", "),
                Metric::Latency.plain_title()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_that_was_read_is_told_as_it_was() {
        let read: Vec<Warning> = serde_json::from_value(serde_json::json!(["as it was", "killed"])).unwrap();
        assert_eq!(read[0], Warning::Told("as it was".into()));
        assert_eq!(sentence(&read[0]), "as it was");
        let noted = Warning::Noted {
            rule: "R5".into(),
            contender: "a".into(),
            finding: "it uses 1 of 2 threads".into(),
            is_compared: false,
        };
        assert_eq!(sentence(&noted), "a: it uses 1 of 2 threads (R5)");
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
}
