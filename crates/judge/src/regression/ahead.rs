//! What is certain before anything is measured: that no measurement could be judged. Saying so at once saves minutes.

use history::{Figure, Record};
use plan::{Request, RoundsAsked};
use statistics::MIN_ROUNDS;

use crate::records::takes_part;
use crate::work;

/// The reason why nothing measured now could be judged against this baseline, and what to do; `None` if it could.
pub fn unfit(source: &str, baseline: &[Record]) -> Option<String> {
    const REMEDY: &str = "measure a new baseline, or name another with --baseline";
    if let Some(noise) = baseline.iter().find_map(|record| record.noise.as_ref()) {
        return Some(format!("the machine was too noisy in the baseline {source} ({noise}): {REMEDY}"));
    }
    let fit: Vec<&Record> = baseline.iter().filter(|record| takes_part(record)).collect();
    let Some(most) = fit.iter().map(|record| rounds(record)).max() else {
        let why = baseline.iter().find_map(|record| record.reasons.first());
        let why = why.map_or_else(String::new, |reason| format!(" ({reason})"));
        return Some(format!("no framework has valid figures in the baseline {source}{why}: {REMEDY}"));
    };
    (most < MIN_ROUNDS).then(|| {
        format!(
            "the baseline {source} has {}, and a verdict takes {MIN_ROUNDS}: nothing measured now could decide; measure a \
             new baseline with --rounds {MIN_ROUNDS} or more, or name another with --baseline",
            counted(most)
        )
    })
}

/// The reason why this request could not be judged, and what to do; `None` if it could.
pub fn too_few_rounds(asked: &Request) -> Option<String> {
    match asked.rounds {
        Some(RoundsAsked::Fixed(rounds)) if (rounds as usize) < MIN_ROUNDS => Some(format!(
            "--rounds {rounds} can decide nothing: a verdict takes {MIN_ROUNDS} rounds; give {MIN_ROUNDS} or more, or \
             leave --rounds out"
        )),
        None if asked.quick => Some(
            "--quick can decide nothing: it is for a look at figures, and a verdict takes more rounds".into(),
        ),
        _ => None,
    }
}

/// Settings in which what is asked for is certainly another case than the baseline's.
pub fn other_case(baseline: &Record, asked: &Request) -> Vec<String> {
    let case = &baseline.case;
    let mut found = Vec::new();
    let mut note = |flag: &str, theirs: String, ours: Option<String>| {
        if let Some(ours) = ours.filter(|ours| *ours != theirs) {
            found.push(format!("{flag}: {theirs} (baseline), {ours} (asked for)"));
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

fn counted(rounds: usize) -> String {
    match rounds {
        0 => "no figures".into(),
        1 => "1 round".into(),
        rounds => format!("{rounds} rounds"),
    }
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
        let text = unfit("latest", &[with_rounds(2)]).unwrap();
        assert!(text.contains("the baseline latest has 2 rounds, and a verdict takes 6"), "{text}");
        assert_eq!(unfit("latest", &[with_rounds(6)]), None);
        assert_eq!(unfit("latest", &[with_rounds(2), with_rounds(6)]), None, "one framework can be judged");
    }

    #[test]
    fn a_noisy_or_struck_baseline_decides_nothing() {
        let mut noisy = record("one", 100.0);
        noisy.noise = Some("other processes used 50 %".into());
        assert!(unfit("x", &[noisy]).unwrap().contains("too noisy in the baseline x (other processes"));
        let mut struck = record("one", 100.0);
        (struck.state, struck.reasons) = ("struck".into(), vec!["R11: top-1 differs".into()]);
        assert!(unfit("x", &[struck]).unwrap().contains("no framework has valid figures"));
    }

    #[test]
    fn too_few_rounds_are_seen_in_what_is_asked_for() {
        let asked = |rounds| Request { rounds: Some(RoundsAsked::Fixed(rounds)), ..Request::default() };
        assert!(too_few_rounds(&asked(5)).unwrap().contains("--rounds 5 can decide nothing"));
        assert_eq!(too_few_rounds(&asked(6)), None);
        assert_eq!(too_few_rounds(&Request::default()), None);
        assert!(too_few_rounds(&Request { quick: true, ..Request::default() }).is_some());
    }

    #[test]
    fn another_case_is_seen_in_what_is_asked_for() {
        let baseline = record("one", 100.0);
        assert_eq!(other_case(&baseline, &Request::default()), [""; 0]);
        let asked = Request { batch: vec![8], threads: vec![2], jit: false, ..Request::default() };
        assert_eq!(
            other_case(&baseline, &asked),
            [
                "--batch: 1 (baseline), 8 (asked for)",
                "--no-jit: with JIT (baseline), without JIT (asked for)"
            ]
        );
    }
}
