//! Checks before measuring whether any measurement could be judged. Failing at once saves minutes.

use history::{Figure, Record};
use plan::{Request, RoundsAsked};
use statistics::MIN_ROUNDS;

use crate::records::takes_part;
use crate::work;

/// Why no measurement could be judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undecidable {
    /// The machine was too noisy in the baseline, for this reason.
    NoisyBaseline(String),
    /// No framework has valid figures in the baseline; one of its reasons.
    NoFigures(Option<String>),
    /// The most rounds with figures that a framework has in the baseline.
    RoundsOfBaseline(usize),
    /// Too few rounds are asked for.
    RoundsAsked(u32),
    /// A quick look is asked for.
    QuickLook,
}

/// One setting in which the request is another case than the baseline's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherSetting {
    pub flag: &'static str,
    pub baseline: String,
    pub asked: String,
}

/// The reason why nothing measured now could be judged against this baseline; `None` if it could.
pub fn unfit(baseline: &[Record]) -> Option<Undecidable> {
    if let Some(noise) = baseline.iter().find_map(|record| record.noise.as_ref()) {
        return Some(Undecidable::NoisyBaseline(noise.to_string()));
    }
    let fit = baseline.iter().filter(|record| takes_part(record));
    match fit.map(rounds).max() {
        None => {
            let why = baseline.iter().find_map(|record| record.reasons.first());
            Some(Undecidable::NoFigures(why.map(ToString::to_string)))
        }
        Some(most) => (most < MIN_ROUNDS).then_some(Undecidable::RoundsOfBaseline(most)),
    }
}

/// The reason why this request could not be judged; `None` if it could.
pub fn too_few_rounds(asked: &Request) -> Option<Undecidable> {
    match asked.rounds {
        Some(RoundsAsked::Fixed(rounds)) if (rounds as usize) < MIN_ROUNDS => {
            Some(Undecidable::RoundsAsked(rounds))
        }
        None if asked.quick => Some(Undecidable::QuickLook),
        _ => None,
    }
}

/// Settings in which the request is certainly another case than the baseline's.
pub fn other_case(baseline: &Record, asked: &Request) -> Vec<OtherSetting> {
    let case = &baseline.case;
    let mut found = Vec::new();
    let mut note = |flag: &'static str, baseline: String, ours: Option<String>| {
        if let Some(asked) = ours.filter(|ours| *ours != baseline) {
            found.push(OtherSetting { flag, baseline, asked });
        }
    };
    let only = |values: &[u32]| match values {
        [one] => Some(one.to_string()),
        _ => None,
    };
    let (flag, theirs, ours) = work::tokens_asked(case, asked);
    note(flag, theirs.to_string(), only(ours));
    note("--batch", case.batch.to_string(), only(&asked.batch));
    note("--threads", case.threads.to_string(), only(&asked.threads));
    note("--precision", case.precision.clone(), asked.precisions.first().map(|name| name.name().to_owned()));
    note("--device", case.device.clone(), Some(asked.device.clone()));
    let jit = |on: bool| if on { "with JIT" } else { "without JIT" }.to_owned();
    note("--no-jit", jit(case.jit), Some(jit(asked.jit)));
    found
}

/// Rounds with a figure, of the metric that has most.
fn rounds(record: &Record) -> usize {
    let known = |figure: &Figure| figure.values.iter().flatten().count();
    record.metrics.values().map(known).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regression::testing::record;

    fn with_rounds(rounds: usize) -> Record {
        let mut record = record("one", 100.0);
        record.metrics.values_mut().for_each(|figure| figure.values.truncate(rounds));
        record
    }

    #[test]
    fn a_baseline_of_two_rounds_decides_nothing() {
        assert_eq!(unfit(&[with_rounds(2)]), Some(Undecidable::RoundsOfBaseline(2)));
        assert_eq!(unfit(&[with_rounds(6)]), None);
        assert_eq!(unfit(&[with_rounds(2), with_rounds(6)]), None, "one framework can be judged");
    }

    #[test]
    fn a_noisy_or_struck_baseline_decides_nothing() {
        let mut noisy = record("one", 100.0);
        noisy.noise = Some("other processes used 50 %".into());
        assert_eq!(unfit(&[noisy]), Some(Undecidable::NoisyBaseline("other processes used 50 %".into())));
        let mut struck = record("one", 100.0);
        (struck.state, struck.reasons) = ("struck".into(), vec!["R11: top-1 differs".into()]);
        assert_eq!(unfit(&[struck]), Some(Undecidable::NoFigures(Some("R11: top-1 differs".into()))));
    }

    #[test]
    fn too_few_rounds_are_seen_in_what_is_asked_for() {
        let asked = |rounds| Request { rounds: Some(RoundsAsked::Fixed(rounds)), ..Request::default() };
        assert_eq!(too_few_rounds(&asked(5)), Some(Undecidable::RoundsAsked(5)));
        assert_eq!(too_few_rounds(&asked(6)), None);
        assert_eq!(too_few_rounds(&Request::default()), None);
        assert!(too_few_rounds(&Request { quick: true, ..Request::default() }).is_some());
    }

    #[test]
    fn another_case_is_seen_in_what_is_asked_for() {
        let baseline = record("one", 100.0);
        assert_eq!(other_case(&baseline, &Request::default()), []);
        let asked = Request { batch: vec![8], threads: vec![2], jit: false, ..Request::default() };
        let other = |flag, baseline: &str, asked: &str| OtherSetting {
            flag,
            baseline: baseline.into(),
            asked: asked.into(),
        };
        let [batch, jit] = [other("--batch", "1", "8"), other("--no-jit", "with JIT", "without JIT")];
        assert_eq!(other_case(&baseline, &asked), [batch, jit]);
    }
}
