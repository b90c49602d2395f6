//! The lines below the table: what its signs mean, why a ratio has two ends, what was measured, and whose code that is.

use judge::Metric;
use judge::report::{Kind, Report, Row};
use plan::KernelCache;

use super::grid::{are_rows, parity};
use super::sentences::listed;
use super::standing::{Mark, Standing, cause, split};
use super::{has_verdicts, rounds};
use crate::words::effort;

/// Most pairs that a line names.
const FEW: usize = 2;

/// The lines below the table of this width.
pub(crate) fn notes(report: &Report, width: usize) -> Vec<String> {
    let (are_rows, marked) = (are_rows(report, width), marked(report, width));
    let lines =
        [legend(report, &marked, are_rows), ends(report, &marked), hidden(report), uniform(report, are_rows)];
    lines.into_iter().flatten().chain([about(report)]).collect()
}

/// The metrics with marks.
fn marked(report: &Report, width: usize) -> Vec<Metric> {
    match (has_verdicts(report), are_rows(report, width)) {
        (false, _) => Vec::new(),
        (true, true) => vec![Metric::deciding(report.plan.work.kind())],
        (true, false) => report.table_metrics(),
    }
}

fn legend(report: &Report, marked: &[Metric], are_rows: bool) -> Option<String> {
    let marks: Vec<Mark> = marked
        .iter()
        .map(|&metric| Standing::of_report(report, metric))
        .flat_map(|standing| standing.labels().map(|label| standing.mark(label)).collect::<Vec<_>>())
        .collect();
    let times =
        marks.iter().find_map(|mark| if let Mark::Times(_) = mark { Some(mark.text()) } else { None });
    let of = if are_rows { "column" } else { "row" };
    let rounds = rounds(report);
    let signs = [
        times.map(|text| {
            format!("{text}: {} times worse than the best of the {of}.", text.trim_end_matches('x'))
        }),
        marks.contains(&Mark::Open).then(|| format!("~: too close to call in {rounds} rounds.")),
        marks.contains(&Mark::Equal).then(|| format!("=: equal within {} %.", 100.0 * report.plan.margin)),
    ];
    let signs: Vec<String> = signs.into_iter().flatten().collect();
    (!signs.is_empty()).then(|| signs.join(" "))
}

/// Why cells have two ends: "tch in throughput: two speeds (7 and 3 of 10 rounds)".
fn ends(report: &Report, marked: &[Metric]) -> Option<String> {
    let kind = report.plan.work.kind();
    let mut told = Vec::new();
    for &metric in marked.iter().filter(|metric| metric.follows(kind).is_none()) {
        let standing = Standing::of_report(report, metric);
        let Some(best) = standing.best() else { continue };
        for label in standing.labels().filter(|label| *label != best) {
            let Some(split) = standing.pair(best, label).and_then(split) else { continue };
            let prompt = |case| report.plan.work.case_name(case).to_owned();
            told.push(format!("{label} in {}: {}", metric.words(), cause(split, prompt)));
        }
    }
    (!told.is_empty()).then(|| format!("Two ends: {}.", told.join("; ")))
}

/// Precision and parity where contenders are rows: "All: f32, parity ok."
fn uniform(report: &Report, are_rows: bool) -> Option<String> {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.state.has_figures()).collect();
    let first = rows.first().filter(|_| are_rows)?;
    let told = |row: &Row| format!("{}, parity {}", row.precision_words(), parity(row));
    let usual = told(first);
    let others = rows.iter().filter(|row| told(row) != usual);
    let others: Vec<String> = others.map(|row| format!("{}: {}", row.framework, told(row))).collect();
    Some(match others.is_empty() {
        true => format!("All: {usual}."),
        false => format!("{usual}; {}.", others.join("; ")),
    })
}

/// What was measured, and whose code: "smollm2 (f32, made from the file's Q4_1), 2 threads of an AMD EPYC; prompts …".
pub(crate) fn about(report: &Report) -> String {
    let plan = &report.plan;
    let model = if report.model.name.is_empty() { &plan.model } else { &report.model.name };
    let processor = report.environment.processor(&plan.device);
    let article = if processor.starts_with(['A', 'E', 'I', 'O', 'N']) { "an" } else { "a" };
    let threads = format!("{} thread{}", plan.threads, if plan.threads == 1 { "" } else { "s" });
    let place = match (processor.is_empty(), plan.is_on_gpu()) {
        (true, _) => threads,
        (false, true) => format!("{article} {processor}"),
        (false, false) => format!("{threads} of {article} {processor}"),
    };
    let schedule = effort::schedule(plan).map_or_else(String::new, |schedule| format!("; {schedule}"));
    let rounds = format!("{} round{}", report.rounds, if report.rounds == 1 { "" } else { "s" });
    format!(
        "{model} ({}), {place}; {}{}, {rounds}{schedule}. {}",
        precision(report),
        plan.work.words(),
        unusual(report),
        whose(report)
    )
    .trim_end()
    .to_owned()
}

fn precision(report: &Report) -> String {
    let with_figures = || report.rows.iter().filter(|row| row.state.has_figures());
    let name =
        with_figures().next().map_or_else(|| report.plan.precision.name().to_owned(), Row::precision_words);
    if with_figures().any(|row| row.precision_words() != name) {
        return "in several precisions".to_owned();
    }
    match with_figures().find_map(|row| row.precision.stored.as_ref()) {
        Some(stored) => format!("{name}, made from the file's {stored}"),
        None => name,
    }
}

/// Settings that differ from the usual ones.
fn unusual(report: &Report) -> String {
    let plan = &report.plan;
    let asked = plan.contenders.iter().find_map(|contender| contender.cache.precision);
    let cache = asked.filter(|asked| !asked.is_auto()).map(|asked| format!(", KV cache in {}", asked.name()));
    let has_caches = plan.contenders.iter().any(|contender| !contender.engine.kernel_cache.is_empty());
    let is_fresh = has_caches && plan.kernel_cache == KernelCache::Fresh;
    cache.into_iter().chain(is_fresh.then(|| ", fresh kernel caches".to_owned())).collect()
}

fn whose(report: &Report) -> String {
    let of = |kind: Kind| -> Vec<&str> {
        report.rows.iter().filter(|row| row.kind == kind).map(|row| row.framework.as_str()).collect()
    };
    match (of(Kind::Tuned).as_slice(), of(Kind::Stock).as_slice()) {
        ([], []) => String::new(),
        (_, []) => "Photofinish's own model code on each framework; the frameworks' own: --frameworks stock."
            .to_owned(),
        ([], _) => "The frameworks' own code.".to_owned(),
        (ours, theirs) if ours.len() <= theirs.len() => {
            format!("{}: Photofinish's own model code; the others: the frameworks' own.", listed(ours))
        }
        (_, theirs) => format!("{}: the framework's own code; the others: Photofinish's.", listed(theirs)),
    }
}

/// The open pairs that the table cannot show, in one line.
fn hidden(report: &Report) -> Option<String> {
    if !has_verdicts(report) {
        return None;
    }
    let kind = report.plan.work.kind();
    let tested = Metric::tested(kind).into_iter().filter(|metric| metric.follows(kind).is_none());
    let standings: Vec<Standing<'_>> = tested.map(|metric| Standing::of_report(report, metric)).collect();
    let pairs: Vec<String> = standings
        .iter()
        .flat_map(|standing| standing.hidden())
        .map(|found| format!("{}, {} in {}", found.a, found.b, found.metric.words()))
        .collect();
    let told = if pairs.len() <= FEW { pairs.join("; ") } else { format!("{} pairs", pairs.len()) };
    (!pairs.is_empty()).then(|| format!("Too close to call, and not in the table: {told}."))
}
