//! Pairs the records of two runs that measured the same thing.

use serde::Serialize;
use statistics::MIN_ROUNDS;

use crate::history::{Case, Figure, Machine, Record};
use crate::judge::records;
use crate::judge::work;
use crate::plan::{Request, RoundsAsked};

/// The same framework in the same case, in both runs.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    pub baseline: &'a Record,
    pub current: &'a Record,
}

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
            case: records::in_full(&record.case),
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
    let unnamed = |case: &Case| Case { model: String::new(), weights_sha256: None, ..case.clone() };
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
pub type Difference = (&'static str, String, String);

/// The differences of the settings, in words.
pub fn differences(pair: &Pair<'_>) -> Vec<String> {
    in_words(settings(pair.baseline, pair.current))
}

pub(super) fn in_words(differences: Vec<Difference>) -> Vec<String> {
    let words = |(what, a, b): Difference| format!("{what}: {a} (baseline), {b} (current)");
    differences.into_iter().map(words).collect()
}

/// The settings in which two records differ.
pub(crate) fn settings(a: &Record, b: &Record) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut note = |what: &'static str, a: String, b: String| {
        if a != b {
            found.push((what, a, b));
        }
    };
    if !is_same(&a.case, &b.case) {
        let mut said = [&a.case, &b.case].map(records::in_full);
        if said[0] == said[1] && hash(&a.case) == hash(&b.case) {
            said = [&a.case, &b.case].map(|case| serde_json::to_string(case).unwrap_or_default());
        }
        let [theirs, ours] = said;
        note("case", theirs, ours);
        note("weights", hash(&a.case), hash(&b.case));
    }
    if !(is_left_open(a) && is_left_open(b)) {
        note("iterations", a.settings.iterations.to_string(), b.settings.iterations.to_string());
    }
    note("schedule", records::name(&a.settings.schedule), records::name(&b.settings.schedule));
    note("turn", a.settings.turn.clone(), b.settings.turn.clone());
    note("huge pages", records::name(&a.settings.huge_pages), records::name(&b.settings.huge_pages));
    note("kernel cache", records::name(&a.settings.kernel_cache), records::name(&b.settings.kernel_cache));
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
    let fair = |record: &Record| (!record.settings.fair_comparison).to_string();
    note("--allow-unfair", fair(a), fair(b));
    found
}

/// Whether the number of iterations was left open. It then depends on the machine's variance of the day.
fn is_left_open(record: &Record) -> bool {
    let asked = record.request.as_ref().and_then(|request| request.get("iterations"));
    record.settings.schedule.has_turns() && asked.is_some_and(serde_json::Value::is_null)
}

fn hash(case: &Case) -> String {
    let hash = case.weights_sha256.as_deref().unwrap_or("unknown");
    hash.get(..12).unwrap_or(hash).to_owned()
}

// Checks before measuring whether any measurement could be judged. Failing at once saves minutes.

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
    let fit = baseline.iter().filter(|record| record.state.takes_part());
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

// Compares the machine's own speed in both runs, by its probes.

/// The change that the machine may explain, as factors on a time: the current run's conditions against the
/// baseline's. A framework waits for memory, for arithmetic or for neither. The machine's effect on it is
/// therefore between nothing and the larger of the two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Largest possible speed-up by the machine, as a factor of at most 1.
    pub least: f64,
    /// Largest possible slowdown by the machine, as a factor of at least 1.
    pub most: f64,
}

/// Largest change of the probes' median, as a share, if a record has no interval for it: the limit on drift of rule
/// R12.
const TOLERANCE: f64 = 0.10;

impl Speed {
    /// A machine that did not change.
    pub const SAME: Speed = Speed { least: 1.0, most: 1.0 };

    /// The change between two machines that may explain a finding.
    pub fn between(baseline: &Machine, current: &Machine) -> Speed {
        let changes = changes(baseline, current);
        let factors = || changes.iter().map(|change| change.factor);
        Speed { least: factors().fold(1.0, f64::min), most: factors().fold(1.0, f64::max) }
    }

    /// The remaining "so many times worse" after allowing for the machine.
    pub fn allowed_for(self, worse: f64) -> (f64, f64) {
        (worse / self.most, worse / self.least)
    }
}

/// A probe that shows that the machine changed.
pub struct Change {
    what: &'static str,
    unit: &'static str,
    baseline: f64,
    current: f64,
    /// Factor on a time: above 1 if the machine was slower.
    factor: f64,
}

/// The probes that changed by more than they vary. Their 95 % intervals of the median do not overlap; if a run has no
/// interval, they changed by more than a tenth.
pub fn changes(baseline: &Machine, current: &Machine) -> Vec<Change> {
    let probes = [
        ("memory bandwidth", "GB/s", baseline.read_bandwidth, current.read_bandwidth, "read_bandwidth"),
        ("f32 arithmetic", "GFLOP/s", baseline.arithmetic, current.arithmetic, "arithmetic"),
    ];
    let of_probe = |(what, unit, a, b, name)| {
        let (a, b): (f64, f64) =
            (Option::<f64>::filter(a, |a| *a > 0.0)?, Option::<f64>::filter(b, |b| *b > 0.0)?);
        let differs = match (interval(baseline, name), interval(current, name)) {
            (Some(a), Some(b)) => a.1 < b.0 || b.1 < a.0,
            _ => (a / b).max(b / a) > 1.0 + TOLERANCE,
        };
        differs.then(|| Change { what, unit, baseline: a, current: b, factor: a / b })
    };
    probes.into_iter().filter_map(of_probe).collect()
}

/// The 95 % interval of the median of a run's probes.
fn interval(machine: &Machine, probe: &str) -> Option<(f64, f64)> {
    let kept = machine.other.get(&format!("{probe}_interval"))?;
    serde_json::from_value(kept.clone()).ok()
}

impl Change {
    /// The change in a few words: "memory bandwidth 33 → 20 GB/s".
    pub fn in_short(&self) -> String {
        let Change { what, unit, baseline, current, .. } = self;
        format!("{what} {:.0} → {:.0} {unit}", baseline / 1e9, current / 1e9)
    }

    pub fn sentence(&self) -> String {
        let Change { what, unit, baseline, current, .. } = self;
        format!(
            "{what} was {:.0} {unit} in the current run and {:.0} {unit} in the baseline",
            current / 1e9,
            baseline / 1e9
        )
    }
}

/// The differences of two machines, in words; empty if there are none.
pub fn machine_differences(baseline: &Record, current: &Record) -> Vec<String> {
    in_words(hardware(&baseline.machine, &current.machine))
}

/// The differences in the hardware of the two.
pub(super) fn hardware(a: &Machine, b: &Machine) -> Vec<Difference> {
    if a.fingerprint == b.fingerprint {
        return Vec::new();
    }
    let mut found: Vec<Difference> = Vec::new();
    let mut note = |what: &'static str, a: String, b: String| {
        if a != b {
            found.push((what, a, b));
        }
    };
    note("processor", a.cpu.clone(), b.cpu.clone());
    note("physical cores", optional(a.physical_cores), optional(b.physical_cores));
    note("cores to use", a.available_cores.to_string(), b.available_cores.to_string());
    let gib = |bytes: u64| format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30));
    note("memory", gib(a.memory_bytes), gib(b.memory_bytes));
    note("GPUs", a.gpus.join(", "), b.gpus.join(", "));
    if found.is_empty() {
        found.push(("machine", a.fingerprint.clone(), b.fingerprint.clone()));
    }
    found
}

fn optional(count: Option<usize>) -> String {
    count.map_or_else(|| "unknown".into(), |count| count.to_string())
}

#[cfg(test)]
mod tests {
    use crate::judge::regression::testing::{self, record};
    use crate::judge::report::State;
    use crate::plan::Schedule;

    use super::*;

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
    fn cases_that_differ_in_callers_or_in_a_field_of_their_work_are_not_the_same() {
        let of = |name: &str, value: serde_json::Value| {
            let mut record = record("a", 1.0);
            record.case.other.insert(name.to_owned(), value);
            record
        };
        let plain = record("a", 1.0);
        let callers = [4, 16].map(|callers| of("serving", serde_json::json!({ "callers": callers })));
        let texts = of("texts", vec![1, 64].into());
        for (a, b) in [(&callers[0], &callers[1]), (&plain, &texts), (&plain, &of("prefill_chunk", 8.into()))]
        {
            assert!(!is_same(&a.case, &b.case));
            let found = differences(&Pair { baseline: a, current: b });
            assert!(found[0].starts_with("case: "), "{found:?}");
        }
        assert!(is_same(&texts.case, &texts.clone().case));
    }

    #[test]
    fn iterations_that_were_left_open_are_no_difference_and_another_schedule_is_one() {
        let interleaved = |iterations, asked: serde_json::Value| {
            let mut record = record("a", 1.0);
            record.settings.iterations = iterations;
            record.settings.schedule = Schedule::Interleaved;
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
        sliced.settings.turn = "slice".into();
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
        (struck.state, struck.reasons) = (State::Struck, vec!["R11: top-1 differs".into()]);
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

    fn machine(bandwidth: f64, interval: Option<(f64, f64)>) -> Machine {
        let mut machine = testing::record("one", 100.0).machine;
        (machine.read_bandwidth, machine.arithmetic) = (Some(bandwidth), Some(1e11));
        if let Some(interval) = interval {
            machine.other.insert("read_bandwidth_interval".into(), serde_json::json!(interval));
        }
        machine
    }

    #[test]
    fn a_slower_memory_may_explain_as_much_and_no_more() {
        let speed = Speed::between(&machine(60e9, None), &machine(40e9, None));
        assert_eq!((speed.least, speed.most), (1.0, 1.5));
        assert_eq!(speed.allowed_for(1.5), (1.0, 1.5));
    }

    #[test]
    fn a_faster_one_may_hide_something() {
        let speed = Speed::between(&machine(40e9, None), &machine(60e9, None));
        assert!(speed.allowed_for(1.0).1 > 1.49, "{speed:?}");
    }

    #[test]
    fn what_probes_vary_by_is_no_change() {
        assert_eq!(Speed::between(&machine(40e9, None), &machine(43e9, None)), Speed::SAME);
        let wide = machine(40e9, Some((35e9, 60e9)));
        assert_eq!(Speed::between(&wide, &machine(55e9, Some((50e9, 58e9)))), Speed::SAME);
        let narrow = machine(40e9, Some((39e9, 41e9)));
        assert!(Speed::between(&narrow, &machine(43e9, Some((42e9, 44e9)))).least < 0.94);
    }
}
