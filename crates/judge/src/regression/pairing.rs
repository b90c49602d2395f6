//! Pairs the records of two runs that measured the same thing.

use history::{Case, Record};
use serde::Serialize;

use crate::records::case;

/// The same framework in the same case, in both runs.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    pub baseline: &'a Record,
    pub current: &'a Record,
}

/// A case in only one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alone {
    /// Its run: `baseline` or `current`.
    pub side: String,
    pub framework: String,
    pub case: String,
}

/// The records of two runs, paired as far as possible.
pub struct Pairing<'a> {
    pub pairs: Vec<Pair<'a>>,
    pub alone: Vec<Alone>,
}

/// Pairs records by framework and case. With `loosely`, it also pairs a framework's different cases if each run has one
/// left.
pub fn pair<'a>(baseline: &'a [Record], current: &'a [Record], loosely: bool) -> Pairing<'a> {
    let mut theirs: Vec<&Record> = baseline.iter().collect();
    let mut ours: Vec<&Record> = current.iter().collect();
    let mut pairs =
        take(&mut theirs, &mut ours, |a, b| a.framework == b.framework && is_same(&a.case, &b.case));
    if loosely {
        pairs.extend(take(&mut theirs, &mut ours, |a, b| a.framework == b.framework));
    }
    let alone = |side: &'static str| {
        move |record: &Record| Alone {
            side: side.to_owned(),
            framework: record.framework.clone(),
            case: case::in_full(&record.case),
        }
    };
    let of_baseline = theirs.into_iter().map(alone("baseline"));
    let alone = of_baseline.chain(ours.into_iter().map(alone("current"))).collect();
    Pairing { pairs, alone }
}

fn take<'a>(
    theirs: &mut Vec<&'a Record>,
    ours: &mut Vec<&'a Record>,
    is_pair: impl Fn(&Record, &Record) -> bool,
) -> Vec<Pair<'a>> {
    let mut pairs = Vec::new();
    theirs.retain(|baseline| {
        let Some(at) = ours.iter().position(|current| is_pair(baseline, current)) else { return true };
        pairs.push(Pair { baseline, current: ours.remove(at) });
        false
    });
    pairs
}

/// Whether the weights are the same: by their hash if both have it, because names of models are arbitrary.
pub fn is_same(a: &Case, b: &Case) -> bool {
    let unnamed = |case: &Case| Case {
        model: String::new(),
        weights_sha256: None,
        other: Default::default(),
        ..case.clone()
    };
    let same_weights = match (&a.weights_sha256, &b.weights_sha256) {
        (Some(a), Some(b)) => a == b,
        _ => a.model == b.model,
    };
    same_weights && unnamed(a) == unnamed(b)
}

/// The differences of the settings of all pairs, in words. A difference is listed once, with the frameworks
/// that have it; if all have it, without them.
pub fn all_differences(pairs: &[Pair<'_>]) -> Vec<String> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    for pair in pairs {
        for what in differences(pair) {
            match found.iter_mut().find(|(other, _)| *other == what) {
                Some((_, frameworks)) => frameworks.push(&pair.current.framework),
                None => found.push((what, vec![&pair.current.framework])),
            }
        }
    }
    let told = |(what, frameworks): (String, Vec<&str>)| match frameworks.len() == pairs.len() {
        true => what,
        false => format!("{}: {what}", frameworks.join(", ")),
    };
    found.into_iter().map(told).collect()
}

/// One setting in which two records differ: its name, and its value in each.
pub(super) type Difference = (&'static str, String, String);

/// The differences of the settings, in words.
pub fn differences(pair: &Pair<'_>) -> Vec<String> {
    in_words(settings(pair.baseline, pair.current))
}

pub(super) fn in_words(differences: Vec<Difference>) -> Vec<String> {
    let words = |(what, a, b): Difference| format!("{what}: {a} (baseline), {b} (current)");
    differences.into_iter().map(words).collect()
}

/// The settings in which two records differ.
pub(super) fn settings(a: &Record, b: &Record) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut note = |what: &'static str, a: String, b: String| {
        if a != b {
            found.push((what, a, b));
        }
    };
    if !is_same(&a.case, &b.case) {
        note("case", case::in_full(&a.case), case::in_full(&b.case));
        note("weights", hash(&a.case), hash(&b.case));
    }
    if !(is_left_open(a) && is_left_open(b)) {
        note("iterations", a.settings.iterations.to_string(), b.settings.iterations.to_string());
    }
    let schedule = |record: &Record| record.settings.schedule.clone().unwrap_or("sequential".to_owned());
    note("schedule", schedule(a), schedule(b));
    let turn = |record: &Record| record.settings.turn.clone().unwrap_or("request".to_owned());
    note("turn", turn(a), turn(b));
    if let (Some(a), Some(b)) = (&a.settings.huge_pages, &b.settings.huge_pages) {
        note("huge pages", a.clone(), b.clone());
    }
    if let (Some(a), Some(b)) = (&a.settings.kernel_cache, &b.settings.kernel_cache) {
        note("kernel cache", a.clone(), b.clone());
    }
    let warmup = |record: &Record| match record.request.as_ref().and_then(|request| request.get("warmup")) {
        Some(count) if !count.is_null() => format!("{count} iterations"),
        _ => "until it has settled".to_owned(),
    };
    note("warm-up", warmup(a), warmup(b));
    let chat = |record: &Record| match record.request.as_ref().and_then(|request| request.get("chat")) {
        Some(serde_json::Value::Bool(true)) => "through the chat template".to_owned(),
        _ => "as they are".to_owned(),
    };
    note("prompts", chat(a), chat(b));
    let mixed = |record: &Record| match record.case.other.get("mixed").and_then(|lengths| lengths.as_str()) {
        Some(lengths) => format!("all in one batch, of {lengths}"),
        None => "of one length in a batch".to_owned(),
    };
    note("lengths of prompts", mixed(a), mixed(b));
    let fair = |record: &Record| (!record.settings.fair_comparison).to_string();
    note("--allow-unfair", fair(a), fair(b));
    found
}

/// Whether the number of iterations was left open. It then depends on the machine's variance of the day.
fn is_left_open(record: &Record) -> bool {
    let asked = record.request.as_ref().and_then(|request| request.get("iterations"));
    matches!(record.settings.schedule.as_deref(), Some("interleaved" | "grouped"))
        && asked.is_some_and(serde_json::Value::is_null)
}

fn hash(case: &Case) -> String {
    let hash = case.weights_sha256.as_deref().unwrap_or("unknown");
    hash.get(..12).unwrap_or(hash).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regression::testing::record;

    #[test]
    fn a_framework_is_paired_with_itself_in_the_same_case() {
        let baseline = [record("a", 1.0), record("b", 1.0)];
        let mut current = [record("b", 1.0), record("a", 1.0)];
        current[0].case.batch += 1;
        let found = pair(&baseline, &current, false);
        assert_eq!((found.pairs.len(), found.pairs[0].current.framework.as_str()), (1, "a"));
        let sides: Vec<&str> = found.alone.iter().map(|alone| alone.side.as_str()).collect();
        assert_eq!(sides, ["baseline", "current"]);
        let found = pair(&baseline, &current, true);
        assert_eq!((found.pairs.len(), found.alone.len()), (2, 0));
        assert!(differences(&found.pairs[1])[0].starts_with("case: "), "{:?}", differences(&found.pairs[1]));
    }

    #[test]
    fn iterations_that_were_left_open_are_no_difference_and_another_schedule_is_one() {
        let interleaved = |iterations, asked: serde_json::Value| {
            let mut record = record("a", 1.0);
            record.settings.iterations = iterations;
            record.settings.schedule = Some("interleaved".into());
            record.request = Some(serde_json::json!({ "iterations": asked }));
            record
        };
        let found = |a: &Record, b: &Record| differences(&Pair { baseline: a, current: b });
        let (chosen, asked) = (interleaved(3, serde_json::Value::Null), interleaved(4, 4.into()));
        assert_eq!(found(&chosen, &interleaved(4, serde_json::Value::Null)), [""; 0]);
        assert_eq!(found(&chosen, &asked), ["iterations: 3 (baseline), 4 (current)"]);
        let older = record("a", 1.0);
        let sentences = found(&older, &asked);
        assert!(sentences.iter().any(|text| text.starts_with("schedule: sequential")), "{sentences:?}");
        let mut sliced = asked.clone();
        sliced.settings.turn = Some("slice".into());
        assert_eq!(found(&asked, &sliced), ["turn: request (baseline), slice (current)"]);
    }

    #[test]
    fn prompts_through_a_chat_template_are_other_prompts() {
        let plain = record("a", 1.0);
        let mut chat = plain.clone();
        chat.request = Some(serde_json::json!({ "chat": true }));
        let found = differences(&Pair { baseline: &plain, current: &chat });
        assert_eq!(found, ["prompts: as they are (baseline), through the chat template (current)"]);
    }

    #[test]
    fn a_difference_is_told_once_with_those_that_have_it() {
        let (a, mut b) = (record("a", 1.0), record("b", 1.0));
        let changed = |record: &Record| {
            let mut record = record.clone();
            record.settings.iterations = 9;
            record
        };
        let (one, both) = (changed(&a), changed(&b));
        let of_all = [Pair { baseline: &a, current: &one }, Pair { baseline: &b, current: &both }];
        assert_eq!(all_differences(&of_all), ["iterations: 2 (baseline), 9 (current)"]);
        b.settings.iterations = 9;
        let of_one = [Pair { baseline: &a, current: &one }, Pair { baseline: &b, current: &both }];
        assert_eq!(all_differences(&of_one), ["a: iterations: 2 (baseline), 9 (current)"]);
    }

    #[test]
    fn weights_are_known_by_their_hash_and_not_by_a_name() {
        let (a, mut b) = ([record("a", 1.0)], record("a", 1.0));
        b.case.model = "renamed".into();
        assert_eq!(pair(&a, &[b.clone()], false).pairs.len(), 1);
        b.case.weights_sha256 = Some("0".into());
        assert_eq!(pair(&a, &[b], false).pairs.len(), 0);
    }
}
