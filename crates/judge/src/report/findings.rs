//! The sentences below the table: reasons, verdicts, details, warnings.

use super::{Facts, Report, Row, Spread, State, Summary, effort};
use crate::evidence::{End, Evidence};
use crate::fairness::RuleState;
use crate::limit::{Bound, Limit, Share};
use crate::metrics::Metric;
use crate::run::Run;
use crate::verdicts::{Comparison, Verdict};
use plan::{Contender, Plan, Rounds};

/// The verdicts, and other findings.
pub fn findings(report: &Report) -> (Vec<String>, Vec<String>) {
    let mut lines = Vec::new();
    for row in &report.rows {
        if row.state == State::Measured {
            continue;
        }
        let word = row.state.words();
        lines.extend(row.reasons.iter().map(|reason| format!("{} {word}: {reason}", row.framework)));
    }
    let told = summary(report);
    lines.extend(told.verdicts);
    lines
        .extend(report.sanity.iter().map(|flag| format!("impossible: {}: {}", flag.framework, flag.finding)));
    let warnings = report.warnings.iter().map(|warning| format!("warning: {warning}"));
    (lines, told.details.into_iter().chain(warnings).collect())
}

pub(super) fn summary(report: &Report) -> Summary {
    let mut details = quantisation(report).into_iter().collect::<Vec<_>>();
    details.extend(loads(report));
    details.extend(limits(report));
    details.extend(memory(report));
    details.extend(steadiness(report));
    details.extend(energy(report));
    details.extend(effort::details(report));
    details.extend(libraries(report));
    Summary {
        answer: Vec::new(),
        heading: heading(report),
        verdicts: sentences(report).into_iter().chain(floor(report)).collect(),
        details,
    }
}

/// The deciding metric for every pair; for the others the best contender against each of the rest. A metric that
/// follows another, as latency follows throughput, stays in the JSON.
fn sentences(report: &Report) -> Vec<String> {
    let compared = &report.comparisons;
    if let Some(reason) = report.noise() {
        return vec![format!("not measurable: {reason}")];
    }
    let rounds = report.rows.iter().map(|row| row.rounds).max().unwrap_or(0);
    let fewest = statistics::MIN_ROUNDS;
    if !compared.is_empty() && rounds < fewest {
        return vec![format!(
            "inconclusive: a verdict takes {fewest} rounds, and there were {rounds} (--rounds)"
        )];
    }
    let mut sentences = Vec::new();
    let deciding = Metric::deciding(usize::MAX);
    let told = Metric::TABLE.into_iter().filter(|&metric| metric != deciding && metric.follows().is_none());
    for metric in [deciding].into_iter().chain(told) {
        let mut of_metric: Vec<&Comparison> = compared.iter().filter(|c| c.metric == metric).collect();
        of_metric.sort_by(|x, y| y.advantage.unwrap_or(0.0).total_cmp(&x.advantage.unwrap_or(0.0)));
        let best = of_metric.first().map(|c| c.a.clone());
        let told = of_metric.into_iter().filter(|c| {
            metric == deciding || best.as_deref() == Some(&c.a) || c.verdict == Verdict::NotMeasurable
        });
        sentences.extend(told.map(|comparison| comparison.sentence.clone()));
    }
    sentences
}

fn floor(report: &Report) -> Option<String> {
    let first = report.floor.first()?;
    let of = |metric: Metric| {
        let worst = report.floor.iter().filter(|f| f.metric == metric).map(|f| f.share).reduce(f64::max)?;
        Some(format!("{:.1} % in {}", worst * 100.0, metric.title()))
    };
    let shares: Vec<String> = Metric::TABLE.into_iter().filter_map(of).collect();
    Some(format!(
        "A/A floor: {} and {} are the same; differences up to {} can be chance here",
        first.a,
        first.b,
        shares.join(", ")
    ))
}

/// Share from which on a page cache counts as warm: the missing part is read in a millisecond or two.
const WARM: f64 = 0.98;

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn loads(report: &Report) -> Vec<String> {
    let measured: Vec<&Row> = report.rows.iter().filter(|row| row.rounds > 0).collect();
    let warm = measured.iter().filter_map(|row| row.load.warm_resident_before).reduce(f64::min);
    let load = Metric::Load.plain_title();
    let table = match warm {
        Some(share) if share >= WARM => {
            format!("{load} is from a warm page cache ({} of the weights resident before)", percent(share))
        }
        Some(share) => format!(
            "{load} is not from a warm page cache: as little as {} of the weights were resident before",
            percent(share)
        ),
        None => format!("{load}: what the page cache held before is not available"),
    };
    let cold = measured.iter().map(|row| {
        let load = &row.load;
        match (load.cold_median, load.cold_resident_before, &load.cold_unavailable) {
            (Some(seconds), Some(share), _) => {
                format!("{} {seconds:.2} s ({} resident)", row.framework, percent(share))
            }
            (_, _, reason) => {
                format!("{} not available ({})", row.framework, reason.as_deref().unwrap_or("no reading"))
            }
        }
    });
    let cold: Vec<String> = cold.collect();
    match cold.is_empty() {
        true => Vec::new(),
        false if report.plan.cold_loads == 0 => vec![table],
        false => vec![format!("{table}; from a cold one: {}", cold.join(", "))],
    }
}

/// The readings of the machine's probes, and each contender's share of the machine's limit.
fn limits(report: &Report) -> Vec<String> {
    let of_phase = |phase: &str, of: fn(&Limit) -> Option<&Share>| {
        let of_row = |row: &Row| {
            let share = of(row.limit.as_ref()?)?;
            let (limit, unit) =
                (share.limit / 1e9, if share.bound == Bound::Memory { "GB/s" } else { "GFLOP/s" });
            Some(format!("{} {} of {limit:.0} {unit}", row.framework, percent(share.median)))
        };
        let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
        (!known.is_empty()).then(|| format!("share of the machine's limit, {phase}: {}", known.join("; ")))
    };
    let phases = [
        of_phase("decode", |limit| limit.decode.as_ref()),
        of_phase("prefill", |limit| limit.prefill.as_ref()),
    ];
    phases.into_iter().flatten().chain(machine(report)).collect()
}

fn machine(report: &Report) -> Option<String> {
    let machine = &report.machine;
    let of = |spread: &Spread, unit: &str| {
        let [median, min, best] = [spread.median, spread.min, spread.best].map(|value| value / 1e9);
        format!("{median:.0} {unit} (range {min:.0}–{best:.0})")
    };
    Some(format!(
        "the machine: memory bandwidth {}, f32 arithmetic {}",
        of(machine.read_bandwidth.as_ref()?, "GB/s"),
        of(machine.arithmetic.as_ref()?, "GFLOP/s")
    ))
}

fn memory(report: &Report) -> Vec<String> {
    let of_row = |row: &Row| {
        let parts = row.memory.as_ref()?;
        let mb = |bytes: f64| format!("{:.0}", bytes.abs() / 1e6);
        Some(format!(
            "{} {} framework + {} parameters + {} KV cache + {} activations {} {} remainder = {}",
            row.framework,
            mb(parts.framework),
            mb(parts.parameters),
            mb(parts.kv_cache),
            mb(parts.activations),
            if parts.remainder < 0.0 { '−' } else { '+' },
            mb(parts.remainder),
            mb(parts.peak)
        ))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    let against = |row: &Row| {
        let parts = row.memory.as_ref()?;
        Some(format!("{} {:.2}x of {:.0} MB", row.framework, parts.times_needed, parts.needed / 1e6))
    };
    let times: Vec<String> = report.rows.iter().filter_map(against).collect();
    let peak = Metric::PeakMemory.words();
    let lines = [
        format!("{peak} by part (MB): {}", known.join("; ")),
        format!("{peak} against weights + KV cache: {}", times.join("; ")),
    ];
    if known.is_empty() { Vec::new() } else { lines.into() }
}

fn steadiness(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let s = &row.steadiness;
        let classes = [
            (s.flat, "flat"),
            (s.warm_up, "warming up"),
            (s.slowdown, "slowing down"),
            (s.no_steady_state, "without a steady state"),
            (s.unclassified, "too short to say"),
        ];
        let classes: Vec<String> = classes
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let time = s.time_to_steady_ms.map_or(String::new(), |ms| format!(", steady after {ms:.0} ms"));
        (!classes.is_empty()).then(|| format!("{} {}{time}", row.framework, classes.join(", ")))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("processes: {}", known.join("; ")))
}

/// The cost of quantising. It is not part of parity, which gives engines the same codes and scales.
fn quantisation(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let loss = row.agreement.as_ref()?.quantisation_loss?;
        let top1 = 100.0 * loss.top1;
        Some(format!("{} {top1:.1} % of its top-1 tokens, mean KL {:.1e}", row.framework, loss.mean_kl))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("against the unquantised model in f32: {}", known.join("; ")))
}

fn energy(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let energy = row.energy.as_ref()?;
        Some(format!("{} {:.3} J ({})", row.framework, energy.joules_per_token, energy.method))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("energy by token: {}", known.join("; ")))
}

/// The workers' own descriptions, so that a pasted table says what it compared.
fn libraries(report: &Report) -> Option<String> {
    let of_row = |row: &Row| {
        let hello = row.hello.as_ref()?;
        let binding =
            if hello.binding == hello.library { String::new() } else { format!(" ({})", hello.binding) };
        Some(format!("{}: {}{binding}", row.framework, hello.library))
    };
    let known: Vec<String> = report.rows.iter().filter_map(of_row).collect();
    (!known.is_empty()).then(|| format!("versions: {}", known.join("; ")))
}

pub(super) fn warnings(facts: &Facts, rows: &[Row], rules: &[RuleState]) -> Vec<String> {
    let Facts { plan, evidence, model, .. } = facts;
    let mut warnings = Vec::new();
    if evidence.end == End::Interrupted {
        warnings.push("interrupted: the figures are those of the rounds that were done".into());
    }
    if evidence.end == End::Killed {
        warnings.push("the run was ended before it could save its report: the figures are those of the processes that were saved".into());
    }
    if model.config.is_none() {
        warnings.push("these results do not hold the model's shapes: shares of the limit and memory by part are not available".into());
    }
    if let Some(reason) = &evidence.no_reference {
        warnings.push(format!("no reference for parity: {reason}"));
    }
    warnings.extend(evidence.no_probe.clone());
    for (label, score) in &evidence.texts {
        warnings.extend(score.as_ref().err().map(|reason| format!("{label}: no perplexity: {reason}")));
    }
    warnings.extend(unsettled(plan, evidence));
    warnings.extend(rows.iter().filter_map(unsteady));
    let notes = |rule: &RuleState| {
        let id = &rule.id;
        let note =
            |breach: &crate::fairness::Breach| format!("{}: {} ({id})", breach.framework, breach.finding);
        rule.notes.iter().map(note).collect::<Vec<_>>()
    };
    warnings.extend(rules.iter().flat_map(notes));
    let machine = rules.iter().flat_map(|rule| rule.broken_by.iter().map(move |breach| (&rule.id, breach)));
    let accepted = machine.filter(|(_, b)| b.framework == crate::fairness::MACHINE && plan.accept_noise);
    warnings.extend(accepted.map(|(id, breach)| format!("{id}: {}", breach.finding)));
    if !plan.accept_noise && !evidence.complaints.is_empty() && !matches!(evidence.end, End::Noisy { .. }) {
        let last = evidence.complaints.last().map_or("", |s| s);
        let times = match evidence.complaints.len() {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        let quiet = |run: &&Run| run.noise.as_ref().is_none_or(|noise| noise.complaints().is_empty());
        let starts = match evidence.runs.iter().filter(|run| !quiet(run)).count() {
            0 => String::new(),
            1 => "; 1 start stayed disturbed, and its load and cold start are not compared".to_owned(),
            count => {
                format!("; {count} starts stayed disturbed, and their load and cold start are not compared")
            }
        };
        warnings
            .push(format!("the machine was noisy {times}; what could be measured again was{starts}; {last}"));
    }
    let unverified = rules.iter().filter_map(|rule| Some((&rule.id, rule.unverified.as_ref()?)));
    warnings.extend(unverified.map(|(id, reason)| format!("{id} could not be verified: {reason}")));
    warnings
}

/// Contenders whose warm-up ended before they had settled.
fn unsettled(plan: &Plan, evidence: &Evidence) -> Vec<String> {
    // Where its length was fixed, settling was not what ended it.
    if plan.warmup.min_iterations == plan.warmup.max_iterations {
        return Vec::new();
    }
    let warning = |contender: &Contender| {
        let runs = evidence.runs.iter().filter(|run| run.framework == contender.label);
        let unsettled = runs.filter(|run| run.warmup().is_some_and(|warmup| !warmup.settled)).count();
        (unsettled > 0).then(|| {
            format!(
                "{}: warm-up hit its limit before it had settled in {unsettled} of {} processes",
                contender.label, evidence.rounds
            )
        })
    };
    plan.contenders.iter().filter_map(warning).collect()
}

/// The reason why most processes of a row show no steady state, if that is so.
fn unsteady(row: &Row) -> Option<String> {
    let unsteady = row.steadiness.no_steady_state + row.steadiness.slowdown;
    (2 * unsteady > row.rounds).then(|| {
        format!(
            "{}: {unsteady} of {} processes slowed down or reached no steady state",
            row.framework, row.rounds
        )
    })
}

pub(super) fn heading(report: &Report) -> String {
    let plan = &report.plan;
    let prompts: Vec<String> = plan.prompts.iter().map(|prompt| prompt.tokens.len().to_string()).collect();
    let tokens = format!("prompts of {} tokens, {} new tokens each", prompts.join(" and "), plan.new_tokens);
    let batch = if plan.batch > 1 { format!(", batch {}", plan.batch) } else { String::new() };
    let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let why = match (&report.end, plan.rounds) {
        (End::Clear, _) => " (automatic: enough)",
        (End::Budget, _) => " (automatic: the time budget was used up)",
        (End::Noisy { .. }, _) => " before the machine was too noisy",
        (End::Planned, Rounds::Auto { .. }) => " (automatic: the most there are)",
        _ => "",
    };
    format!(
        "{} on {} with {}: {tokens}{batch}, {}{why}",
        plan.model,
        report.environment.processor(&plan.device),
        count(plan.threads, "thread"),
        count(report.rounds, "round"),
    )
}
