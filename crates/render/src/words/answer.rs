//! The answer: the sentences that every output begins with, and the next step if it is open.

mod versions;

use judge::Metric;
use judge::report::dependence::Dependence;
use judge::report::verdicts::{Comparison, Verdict};
use judge::report::{Report, Row, State, number};
use plan::{Plan, Rounds};
use statistics::MIN_ROUNDS;

use super::amount::{self, Differences};
use super::{dependence, title};

/// Longest advised time budget, in minutes. Beyond that, a quieter machine is the better advice.
const LONGEST_MIN: f64 = 60.0;

/// One to four sentences: the verdicts on speed, and how they depend on the state of the machine; then the
/// contenders left out, the one that needs the least memory, and the one that starts first.
pub(super) fn answer(report: &Report) -> Vec<String> {
    let compared = compared(report);
    let first = first(report, &compared, &Metric::questions(report.plan.work.kind()));
    let mut sentences: Vec<String> =
        versions::beside_others(report, compared.len()).into_iter().chain([first]).collect();
    if compared.len() > 1 {
        sentences.extend(versions::alone(report, &compared));
        sentences.extend(by_state(report));
        sentences.extend(left_out(report));
        let best = |metric: Metric| Standing::new(report, metric).best_sentence(report);
        sentences.extend(best(Metric::PeakMemory));
        sentences.extend(best(Metric::Load).or_else(|| best(Metric::ColdStart)));
    }
    sentences.truncate(4);
    sentences
}

/// The verdict on the deciding metric alone, in one sentence.
pub(crate) fn brief(report: &Report) -> String {
    first(report, &compared(report), &[Metric::deciding(report.plan.work.kind())])
}

fn compared(report: &Report) -> Vec<&Row> {
    report.rows.iter().filter(|row| row.state.takes_part()).collect()
}

/// The sentence on these questions, or on why there is no answer.
fn first(report: &Report, compared: &[&Row], questions: &[Metric]) -> String {
    match compared {
        [] => nothing(report),
        [only] => alone(report, only),
        _ => match report.noise() {
            Some(reason) => format!("No verdict, because the machine was too noisy: {reason}."),
            None if rounds(report) < MIN_ROUNDS => first_look(report, compared),
            None => speed(report, questions),
        },
    }
}

/// Most pairs that the answer names.
const MOST: usize = 3;

/// The pairs with a verdict and a ratio that depends on the state of the machine, with the ratio at both
/// ends: only the best's, if there is one.
fn by_state(report: &Report) -> Option<String> {
    let deciding = Metric::deciding(report.plan.work.kind());
    let best = Standing::new(report, deciding).best();
    let is_decided = |dependence: &&Dependence| {
        let labels = [&dependence.a, &dependence.b];
        if best.is_some_and(|best| !labels.iter().any(|label| *label == best)) {
            return false;
        }
        let concerns = |it: &&Comparison| labels.contains(&&it.a) && labels.contains(&&it.b);
        let mut found = report.comparisons.iter().filter(|it| it.metric == deciding).filter(concerns);
        dependence.metric == deciding
            && found.any(|it| matches!(it.verdict, Verdict::Faster | Verdict::Equivalent))
    };
    let mut decided: Vec<&Dependence> = report.dependences.iter().filter(is_decided).collect();
    let spread = |it: &Dependence| (it.ratios[1] / it.ratios[0]).ln().abs();
    decided.sort_by(|one, other| spread(other).total_cmp(&spread(one)));
    let clauses: Vec<String> = decided.into_iter().take(MOST).map(dependence::clause).collect();
    let range = |clauses: String| format!("Depending on the state of the machine, {clauses}.");
    (!clauses.is_empty()).then(|| range(clauses.join("; ")))
}

/// The verdicts on these questions of speed, in one sentence. If one contender is the best in all of them, the
/// sentence says that, with the differences in the first.
fn speed(report: &Report, questions: &[Metric]) -> String {
    let kind = report.plan.work.kind();
    // The deciding question is always answered: without a comparison it has no verdict, and says so.
    let is_asked =
        |asked: &Standing<'_>| asked.metric == Metric::deciding(kind) || !asked.compared.is_empty();
    let questions = questions.iter().map(|&metric| Standing::new(report, metric));
    let questions: Vec<Standing<'_>> = questions.filter(is_asked).collect();
    let best: Option<Vec<&str>> = questions.iter().map(Standing::best).collect();
    if let (Some(best), [first, ..]) = (best, questions.as_slice())
        && best.iter().all(|label| *label == best[0])
    {
        let superlatives: Vec<String> = questions.iter().map(|asked| asked.metric.superlative()).collect();
        let than = first.than(&first.beaten_by(best[0]), Metric::than);
        return format!("{} {}: it {} {than}.", best[0], listed(&superlatives), first.metric.does());
    }
    let clauses: Vec<String> = questions.iter().map(|asked| asked.clause(report)).collect();
    capital(&format!("{}.", clauses.join("; ")))
}

/// Capitalises a sentence that begins with "no". Names of columns keep their spelling.
fn capital(sentence: &str) -> String {
    match sentence.strip_prefix("no ") {
        Some(rest) => format!("No {rest}"),
        None => sentence.to_owned(),
    }
}

/// How to settle an open answer.
pub(super) fn next(report: &Report) -> Option<String> {
    let compared = report.rows.iter().filter(|row| row.state.takes_part()).count();
    if compared < 2 || report.interrupted || report.noise().is_some() {
        return None;
    }
    let speed = Standing::new(report, Metric::deciding(report.plan.work.kind()));
    if rounds(report) < MIN_ROUNDS {
        let how = if report.plan.request.quick {
            "leave out `--quick`".into()
        } else {
            format!("`--rounds {MIN_ROUNDS}`")
        };
        return Some(format!("For a verdict: {how}."));
    }
    let open = speed.open();
    let widest = open.iter().max_by(|a, b| needed(a, &report.plan).total_cmp(&needed(b, &report.plan)))?;
    let who = format!("{} and {}", widest.a, widest.b);
    let times = needed(widest, &report.plan);
    Some(match report.plan.rounds {
        Rounds::Auto { budget_s, max } => {
            let minutes = (budget_s / 60.0 * times).ceil();
            let rounds = (rounds(report) as f64 * times).ceil();
            if minutes > LONGEST_MIN {
                format!(
                    "To settle {who}, this machine would take more than an hour: try one with less other activity."
                )
            } else if rounds > max as f64 {
                format!("To settle {who}: `--rounds {rounds:.0}`.")
            } else {
                format!("To settle {who}: `--time-budget {minutes:.0}`.")
            }
        }
        Rounds::Fixed(rounds) => {
            format!("To settle {who}: `--rounds {:.0}`.", (rounds as f64 * times).ceil())
        }
    })
}

/// The most rounds that a contender completed.
fn rounds(report: &Report) -> usize {
    report.rows.iter().map(|row| row.rounds).max().unwrap_or(0)
}

/// How many times as many rounds would settle an open pair: an interval narrows with their square root, and has to
/// leave out "no difference", or to be within the margin.
fn needed(comparison: &Comparison, plan: &Plan) -> f64 {
    let (Some(ratio), Some((low, high))) = (comparison.advantage, comparison.interval) else {
        return f64::INFINITY;
    };
    let (distance, half) = (ratio.ln().abs(), 0.5 * (high.ln() - low.ln()));
    let margin = (1.0 + plan.margin).ln();
    // Half as much again for the corrections for several comparisons and looks.
    let narrow = distance.max(margin - distance) / 1.5;
    (half / narrow).powi(2).max(1.5)
}

/// The words of a comparative: [`Metric::than`], or briefer.
type Than = fn(Metric, &str, f64, Option<(f64, f64)>) -> String;

/// Which contender is better than which in one metric.
struct Standing<'a> {
    metric: Metric,
    compared: Vec<&'a Comparison>,
}

impl<'a> Standing<'a> {
    fn new(report: &'a Report, metric: Metric) -> Standing<'a> {
        let compared = report.comparisons.iter().filter(|comparison| comparison.metric == metric);
        Standing { metric, compared: compared.collect() }
    }

    fn labels(&self) -> Vec<&'a str> {
        let mut labels = Vec::new();
        for label in self.compared.iter().flat_map(|found| [found.a.as_str(), found.b.as_str()]) {
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        labels
    }

    /// Pairs in which `label` is better for certain, the smallest difference first.
    fn beaten_by(&self, label: &str) -> Vec<&'a Comparison> {
        let is_beaten = |found: &&&Comparison| found.verdict == Verdict::Faster && found.a == label;
        let mut beaten: Vec<&Comparison> = self.compared.iter().filter(is_beaten).copied().collect();
        beaten.sort_by(|x, y| x.advantage.unwrap_or(1.0).total_cmp(&y.advantage.unwrap_or(1.0)));
        beaten
    }

    /// Those that no other beats for certain.
    fn leaders(&self) -> Vec<&'a str> {
        let is_beaten =
            |label: &str| self.compared.iter().any(|c| c.verdict == Verdict::Faster && c.b == label);
        self.labels().into_iter().filter(|label| !is_beaten(label)).collect()
    }

    /// Open pairs among the leaders.
    fn open(&self) -> Vec<&'a Comparison> {
        let leaders = self.leaders();
        let is_open = |found: &&&Comparison| {
            found.verdict == Verdict::Inconclusive
                && leaders.contains(&found.a.as_str())
                && leaders.contains(&found.b.as_str())
        };
        self.compared.iter().filter(is_open).copied().collect()
    }

    /// The one that is better than all others for certain.
    fn best(&self) -> Option<&'a str> {
        let others = self.labels().len().checked_sub(1)?;
        self.labels().into_iter().find(|label| self.beaten_by(label).len() == others)
    }

    /// "candle needs the least memory: 0.550 GB, 20 % less memory than tch (20–21 %)."
    fn best_sentence(&self, report: &Report) -> Option<String> {
        let best = self.best()?;
        let row = report.rows.iter().find(|row| row.framework == best)?;
        let figure = format!("{} {}", number(row.typical(self.metric)?), self.metric.unit());
        Some(format!(
            "{best} {}: {figure}, {}.",
            self.metric.superlative(),
            self.than(&self.beaten_by(best), Metric::than_briefly)
        ))
    }

    /// The verdicts on one question: one contender is the best, several are equally good, or the best is not certain.
    fn clause(&self, report: &Report) -> String {
        let leaders = self.leaders();
        let mut clause = match self.best() {
            Some(_) => String::new(),
            None => self.of_leaders(report, &leaders),
        };
        // The beaten contenders, from the leader that beats most.
        let behind = leaders.iter().max_by_key(|label| self.beaten_by(label).len());
        if let Some((ahead, beaten)) = behind.map(|label| (label, self.beaten_by(label)))
            && !beaten.is_empty()
        {
            let joined = if clause.is_empty() { "" } else { ", and " };
            clause += &format!("{joined}{ahead} {} {}", self.metric.does(), self.than(&beaten, Metric::than));
        }
        clause
    }

    fn of_leaders(&self, report: &Report, leaders: &[&str]) -> String {
        let names = listed(leaders);
        let open = self.open();
        let words = self.metric.words();
        if leaders.is_empty() || self.compared.iter().any(|found| found.verdict == Verdict::NotMeasurable) {
            return format!("no verdict on {words}, because figures are missing");
        }
        if open.is_empty() && leaders.len() > 1 {
            return format!("{names} {} (within {} %)", self.metric.equality(), report.plan.margin * 100.0);
        }
        let least = open.iter().filter_map(|found| found.statistics.as_ref()?.detectable).reduce(f64::max);
        let shown = match least {
            Some(least) if least < amount::TELLING => {
                format!(" (this run could show differences above {})", amount::detectable(least))
            }
            _ => String::new(),
        };
        match leaders.len() {
            1 => format!("{names} leads in {words}, but not with certainty over all"),
            _ => format!("no clear winner in {words} between {names}{shown}"),
        }
    }

    /// "8 % faster than tch (3–14 %) and 19 % faster than ort (15–22 %)". Of many, the nearest and the farthest.
    fn than(&self, beaten: &[&Comparison], told: Than) -> String {
        let one = |found: &&Comparison| {
            let ratio = found.advantage.unwrap_or(1.0);
            let than = told(self.metric, &found.b, ratio, found.interval);
            match found.interval {
                Some(interval) => format!("{than} ({})", self.metric.interval(ratio, interval)),
                None => than,
            }
        };
        match beaten {
            [first, .., last] if beaten.len() > 3 => {
                format!("{}, the next, up to {}, the last", one(first), one(last))
            }
            _ => listed(&beaten.iter().map(one).collect::<Vec<_>>()),
        }
    }
}

/// "a", "a and b", "a, b and c".
fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn figure_of(report: &Report, row: &Row) -> String {
    let metric = Metric::deciding(report.plan.work.kind());
    row.typical(metric)
        .map_or_else(|| "no figure".into(), |value| format!("{} {}", number(value), metric.unit()))
}

fn first_look(report: &Report, compared: &[&Row]) -> String {
    let figures: Vec<String> =
        compared.iter().map(|row| format!("{} {}", row.framework, figure_of(report, row))).collect();
    let rounds = rounds(report);
    let count = if rounds == 1 { "1 round decides".to_owned() } else { format!("{rounds} rounds decide") };
    format!("A first look: {}. {count} nothing; a verdict takes {MIN_ROUNDS}.", figures.join(", "))
}

fn alone(report: &Report, only: &Row) -> String {
    let metric = Metric::deciding(report.plan.work.kind());
    let others = match left_out(report) {
        Some(reasons) => format!(" {reasons}"),
        None => String::new(),
    };
    format!(
        "{} {} {}; there is nothing to compare it with.{others}",
        only.framework,
        metric.does(),
        figure_of(report, only)
    )
}

fn nothing(report: &Report) -> String {
    match left_out(report) {
        Some(reasons) => format!("Nothing can be compared. {reasons}"),
        None => "Nothing was measured.".into(),
    }
}

/// Requested contenders that take no part, with the reason in a word.
fn left_out(report: &Report) -> Option<String> {
    let of = |state: State| -> Vec<&Row> { report.rows.iter().filter(|row| row.state == state).collect() };
    let told = |state: State, words: &str| {
        let names: Vec<String> = of(state).into_iter().map(title).collect();
        let were = if names.len() == 1 { "was" } else { "were" };
        (!names.is_empty()).then(|| format!("{} {}", listed(&names), words.replace("were", were)))
    };
    let all = [
        told(State::Struck, "were excluded from the verdicts"),
        told(State::Failed, "failed"),
        told(State::Unsupported, "cannot run this"),
        told(State::NotRun, "were not run"),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| format!("{}.", all.join("; ")))
}
