//! The answer, which every output begins with: at most two sentences, one table, and the lines that explain it.

mod grid;
#[cfg(test)]
pub(crate) mod tests;

use comparison::judge::report::verdicts::{Comparison, Unmeasurable, Verdict};
use comparison::judge::report::{Row, State};
use comparison::judge::{Metric, Report};
use comparison::plan::{Plan, Rounds};
pub(crate) use grid::{about, grid, in_full, mark, notes, sorted};
use statistics::{Cause, MIN_ROUNDS, Split, Undecided};

use crate::words::verdicts::unmeasurable;
use crate::words::{between, count, figures, times, title};

/// The most rounds that a contender completed.
pub(crate) fn rounds(report: &Report) -> usize {
    report.rows.iter().map(|row| row.rounds).max().unwrap_or(0)
}

/// Whether there are rounds enough for verdicts, and the machine was quiet enough.
pub(crate) fn has_verdicts(report: &Report) -> bool {
    report.noise().is_none() && rounds(report) >= statistics::MIN_ROUNDS
}

// The sentences above the table: who wins the first question, and who wins another.

/// Longest advised time budget, in minutes. Beyond that, a quieter machine is the better advice.
const LONGEST_MIN: f64 = 60.0;

/// Most contenders that a sentence names.
const NAMED: usize = 3;

/// One or two sentences.
pub(crate) fn sentences(report: &Report) -> Vec<String> {
    let compared: Vec<&Row> = report.rows.iter().filter(|row| row.state.takes_part()).collect();
    let first = brief(report);
    if compared.len() < 2 {
        return [first].into_iter().chain(left_out(report).filter(|_| not_run(report).is_none())).collect();
    }
    let second = if has_verdicts(report) { but(report) } else { None };
    [first].into_iter().chain(second).collect()
}

/// The sentence on the first question.
pub(crate) fn brief(report: &Report) -> String {
    let compared: Vec<&Row> = report.rows.iter().filter(|row| row.state.takes_part()).collect();
    let deciding = Metric::deciding(report.plan.work.kind());
    let standing = Standing::of_report(report, deciding);
    match compared.as_slice() {
        [] if report.rows.is_empty() => "Nothing was measured.".into(),
        [] => match not_run(report) {
            Some(reason) => format!("Not measurable: {reason}."),
            None => "Nothing can be compared.".into(),
        },
        [only] => alone(only, deciding),
        _ => match report.noise() {
            Some(reason) => format!("Not measurable, because the machine was too noisy: {reason}."),
            None if rounds(report) < MIN_ROUNDS => first_look(report, &standing),
            None => verdict(report, &standing),
        },
    }
}

fn verdict(report: &Report, standing: &Standing<'_>) -> String {
    if let Some(winner) = standing.winner() {
        return wins(standing, winner);
    }
    let leaders = standing.leaders();
    let pairs = leaders.iter().enumerate().flat_map(|(at, x)| leaders[at + 1..].iter().map(move |y| (x, y)));
    // Without a verdict on every pair there is none.
    let verdicts: Option<Vec<&Comparison>> = pairs.map(|(x, y)| standing.pair(x, y)).collect();
    let verdicts = verdicts.unwrap_or_default();
    let open = verdicts.iter().find(|found| found.verdict == Verdict::NotMeasurable);
    if verdicts.is_empty() || open.is_some() {
        let metric = standing.metric.words();
        let reason = open.and_then(|found| found.reason.as_ref()).unwrap_or(&Unmeasurable::FiguresMissing);
        let why = unmeasurable(reason);
        return match (open, reason) {
            (Some(Comparison { a, b, .. }), Unmeasurable::Clocks { .. }) => {
                format!("No verdict on {metric}: {a} leads {b} by {why}, and a verdict needs both.")
            }
            _ => format!("No verdict on {metric}, because {why}."),
        };
    }
    match verdicts.iter().all(|it| it.verdict == Verdict::Equivalent) {
        true => equal(standing, &leaders, report.plan.margin),
        false => self::open(report, standing, &leaders, &verdicts),
    }
}

/// "candle decodes fastest: 54 tokens/s, 1.09x tch, 1.16x ort."
fn wins(standing: &Standing<'_>, winner: &str) -> String {
    let metric = standing.metric;
    let start = format!("{winner} {}: {}", superlative(metric), with_unit(standing, winner));
    let marked: Vec<(&str, String)> =
        standing.labels().filter(|it| *it != winner).map(|it| (it, standing.mark(it).text())).collect();
    let are_many = marked.len() > NAMED;
    let (Some((near, least)), Some((far, most))) = (marked.first(), marked.last()) else {
        return start + ".";
    };
    if metric.higher_is_better() {
        let of = |(label, times): &(&str, String)| format!("{times} {label}");
        return match are_many {
            true => format!("{start}, from {least} {near} to {most} {far}."),
            false => format!("{start}, {}.", marked.iter().map(of).collect::<Vec<_>>().join(", ")),
        };
    }
    let much = if metric.depends_on_speed() { "as long" } else { "as much" };
    match are_many {
        true => format!("{start}; {near} takes {least} {much}, {far} {most}."),
        false => {
            let of = |(at, (label, times)): (usize, &(&str, String))| {
                if at == 0 { format!("{label} takes {times} {much}") } else { format!("{label} {times}") }
            };
            format!("{start}; {}.", marked.iter().enumerate().map(of).collect::<Vec<_>>().join(", "))
        }
    }
}

/// "candle and tch decode equally fast (within 2 %): 54 and 53 tokens/s."
fn equal(standing: &Standing<'_>, leaders: &[&str], margin: f64) -> String {
    let metric = standing.metric;
    let equal = metric
        .phrases()
        .map_or_else(|| format!("have equal {}", metric.words()), |phrases| phrases.equal.to_owned());
    let values: Vec<f64> = leaders.iter().filter_map(|label| standing.figure(label)).collect();
    let values = if leaders.len() > NAMED { vec![values[0], values[values.len() - 1]] } else { values };
    let between = if leaders.len() > NAMED { " to " } else { " and " };
    let figures = match figures(&values).as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{}{between}{last}", first.join(", ")),
        other => other.join(", "),
    };
    format!("{} {equal} (within {} %): {figures} {}.", named(leaders), margin * 100.0, unit(metric))
}

/// "Too close to call: candle 54, tch 52 tokens/s; `--time-budget 6m` would settle it."
fn open(report: &Report, standing: &Standing<'_>, leaders: &[&str], verdicts: &[&Comparison]) -> String {
    let contest = match leaders {
        // One that none beats, and that does not beat all.
        [one] => standing.labels().filter(|it| it == one || !standing.beats(one, it)).collect(),
        many => many.to_vec(),
    };
    let figures = with_figures(standing, &contest);
    let best = |found: &&&Comparison| [&found.a, &found.b].iter().any(|it| it.as_str() == contest[0]);
    let mixed = verdicts.iter().filter(best).find_map(|found| split(found));
    if let Some(split) = mixed {
        let how = match split.cause {
            Cause::State => "depends on the state of the machine".to_owned(),
            Cause::Levels { .. } => "differs from round to round".to_owned(),
            Cause::Time { rounds: (before, _) } => format!("changed after round {before}"),
            Cause::Prompt { .. } => "differs by prompt".to_owned(),
        };
        return format!("Which {} {how}: {figures}.", superlative(standing.metric));
    }
    let open = verdicts.iter().filter(|found| found.verdict == Verdict::Inconclusive);
    let is_layout = |found: &&&Comparison| {
        found.statistics.as_ref().is_some_and(|statistics| statistics.reason == Some(Undecided::Layout))
    };
    // More rounds of the same layouts settle nothing.
    let (layout, open): (Vec<&&Comparison>, Vec<&&Comparison>) = open.partition(is_layout);
    if open.is_empty() && !layout.is_empty() {
        return format!("May be layout: {figures}.");
    }
    let settled =
        next(report, open.into_iter().copied()).map_or_else(String::new, |next| format!("; {next}"));
    format!("Too close to call: {figures}{settled}.")
}

/// How to settle an open answer.
fn next<'a>(report: &Report, open: impl Iterator<Item = &'a Comparison>) -> Option<String> {
    if report.interrupted {
        return None;
    }
    let times = open.map(|found| needed(found, &report.plan)).reduce(f64::max)?;
    let more = (rounds(report) as f64 * times).ceil();
    Some(match report.plan.rounds {
        Rounds::Auto { budget_s, max } => {
            let minutes = (budget_s / 60.0 * times).ceil();
            match minutes > LONGEST_MIN {
                true => "more than an hour would settle it, or a quieter machine".to_owned(),
                false if more > max as f64 => format!("`--rounds {more:.0}` would settle it"),
                false => format!("`--time-budget {minutes:.0}m` would settle it"),
            }
        }
        Rounds::Fixed(_) => format!("`--rounds {more:.0}` would settle it"),
    })
}

/// How many times as many rounds would settle an open pair: an interval narrows with their square root, and has to
/// leave out "no difference", or to be within the margin.
fn needed(found: &Comparison, plan: &Plan) -> f64 {
    let (Some(ratio), Some((low, high))) = (found.advantage, found.interval) else { return f64::INFINITY };
    let (distance, half) = (ratio.ln().abs(), 0.5 * (high.ln() - low.ln()));
    let narrow = distance.max(plan.margin.ln_1p() - distance);
    (half / narrow).powi(2).max(1.5)
}

/// The sentence on a question that another contender wins.
fn but(report: &Report) -> Option<String> {
    let kind = report.plan.work.kind();
    let deciding = Standing::of_report(report, Metric::deciding(kind));
    let first = deciding.winner();
    let costs = [Metric::PeakMemory, Metric::Load, Metric::ColdStart];
    let asked = Metric::questions(kind).into_iter().skip(1).chain(costs);
    asked.filter(|metric| metric.follows(kind).is_none()).find_map(|metric| {
        let standing = Standing::of_report(report, metric);
        let best = standing.best().filter(|best| Some(*best) != first)?;
        let is_best = standing.winner().is_some();
        let rival = first.or_else(|| standing.labels().nth(1)).filter(|rival| standing.beats(best, rival))?;
        let values = figures(&[standing.figure(best)?, standing.figure(rival)?]);
        let (unit, ours, theirs) = (unit(metric), &values[0], &values[1]);
        match (is_best, first, metric.phrases()) {
            (true, ..) => {
                Some(format!("{best} {}: {ours} {unit} ({rival} {theirs} {unit}).", superlative(metric)))
            }
            (false, Some(_), Some(phrases)) => {
                let (verb, comparative) = (phrases.verb, phrases.comparative);
                Some(format!("{best} {verb} {comparative} than {rival}: {ours} {unit} ({theirs} {unit})."))
            }
            _ => None,
        }
    })
}

fn first_look(report: &Report, standing: &Standing<'_>) -> String {
    let labels: Vec<&str> = standing.labels().collect();
    let count = count(rounds(report), "round");
    let how = if report.plan.request.quick {
        "without `--quick`".into()
    } else {
        format!("`--rounds {MIN_ROUNDS}`")
    };
    let figures = with_figures(standing, &labels);
    format!("A first look, {count} and no verdict: {figures}; a verdict takes {MIN_ROUNDS} ({how}).")
}

fn alone(only: &Row, metric: Metric) -> String {
    let does = metric.phrases().map_or("has", |phrases| phrases.verb);
    let figure =
        only.typical(metric).map_or_else(|| "no figure".to_owned(), |value| figures(&[value]).remove(0));
    format!("{} {does} {figure} {}; there is nothing to compare it with.", only.framework, unit(metric))
}

/// "candle 54, tch 52 tokens/s"
fn with_figures(standing: &Standing<'_>, labels: &[&str]) -> String {
    let known: Vec<(&str, f64)> =
        labels.iter().filter_map(|label| Some((*label, standing.figure(label)?))).collect();
    let texts = figures(&known.iter().take(NAMED).map(|(_, value)| *value).collect::<Vec<_>>());
    let each: Vec<String> =
        known.iter().zip(&texts).map(|((label, _), text)| format!("{label} {text}")).collect();
    let others = match labels.len().saturating_sub(each.len()) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    format!("{} {}{others}", each.join(", "), unit(standing.metric))
}

fn with_unit(standing: &Standing<'_>, label: &str) -> String {
    let value = standing.figure(label).map_or_else(String::new, |value| figures(&[value]).remove(0));
    format!("{value} {}", unit(standing.metric))
}

fn superlative(metric: Metric) -> String {
    let has = || format!("has the best {}", metric.words());
    metric.phrases().map_or_else(has, |phrases| phrases.superlative.to_owned())
}

fn unit(metric: Metric) -> &'static str {
    if metric.unit() == "tok/s" { "tokens/s" } else { metric.unit() }
}

/// "a, b and c", or "a, b, c and 4 more".
fn named(labels: &[&str]) -> String {
    match labels.len() {
        count if count > NAMED + 1 => format!("{} and {} more", labels[..NAMED].join(", "), count - NAMED),
        _ => listed(labels),
    }
}

/// "a", "a and b", "a, b and c".
pub(crate) fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Why the run ended before any contender's first round, with what disturbed it last.
fn not_run(report: &Report) -> Option<String> {
    let all = report.rows.iter().all(|row| row.state == State::NotRun);
    let reason = report.rows.first().filter(|_| all)?.reasons.first()?;
    let before = report.machine.before.iter().flat_map(|noise| noise.complaints());
    let disturbed = before.chain(report.machine.complaints.iter().cloned()).last();
    Some([Some(reason.to_string()), disturbed].into_iter().flatten().collect::<Vec<_>>().join("; "))
}

/// Requested contenders that take no part, with the reason in a word.
fn left_out(report: &Report) -> Option<String> {
    let told = |(state, is, are): (State, &str, &str)| {
        let names: Vec<String> = report.rows.iter().filter(|row| row.state == state).map(title).collect();
        (!names.is_empty()).then(|| format!("{} {}", listed(&names), if names.len() == 1 { is } else { are }))
    };
    let all = [
        (State::Struck, "was excluded from the verdicts", "were excluded from the verdicts"),
        (State::Failed, "failed", "failed"),
        (State::Unsupported, "cannot run this", "cannot run this"),
        (State::NotRun, "was not run", "were not run"),
    ];
    let all: Vec<String> = all.into_iter().filter_map(told).collect();
    (!all.is_empty()).then(|| format!("{}.", all.join("; ")))
}

// Which contender is better than which in one metric.

/// The contenders of one metric that take part in verdicts.
pub(crate) struct Standing<'a> {
    pub(crate) metric: Metric,
    /// With their figures, if they have one: the best first.
    contenders: Vec<(&'a str, Option<f64>)>,
    compared: Vec<&'a Comparison>,
}

/// What the table has beside a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mark {
    /// It was not compared.
    None,
    /// Nothing is better, and something is worse.
    Best,
    /// So many times worse than the best.
    Times(f64),
    /// The same, where one ratio does not describe all rounds: both ends.
    Ends(f64, f64),
    /// Equal to the best within the margin.
    Equal,
    /// Too close to call.
    Open,
}

impl Mark {
    pub(crate) fn text(self) -> String {
        match self {
            Mark::None => String::new(),
            Mark::Best => "best".to_owned(),
            Mark::Times(ratio) => times(ratio),
            Mark::Ends(low, high) => format!("{}x", between(low, high)),
            Mark::Equal => "=".to_owned(),
            Mark::Open => "~".to_owned(),
        }
    }
}

impl<'a> Standing<'a> {
    /// `figures`: of the contenders that take part.
    pub(crate) fn new(
        metric: Metric,
        comparisons: &'a [Comparison],
        figures: impl Iterator<Item = (&'a str, Option<f64>)>,
    ) -> Standing<'a> {
        let compared = comparisons.iter().filter(|found| found.metric == metric).collect();
        let mut standing = Standing { metric, contenders: Vec::new(), compared };
        let sign = if metric.higher_is_better() { -1.0 } else { 1.0 };
        let worth = |figure: Option<f64>| figure.map_or(f64::INFINITY, |figure| sign * figure);
        let mut contenders: Vec<(&str, Option<f64>)> = figures.collect();
        contenders.sort_by(|(one, x), (other, y)| {
            standing.rank(one).cmp(&standing.rank(other)).then(worth(*x).total_cmp(&worth(*y)))
        });
        standing.contenders = contenders;
        standing
    }

    pub(crate) fn of_report(report: &'a Report, metric: Metric) -> Standing<'a> {
        let rows = report.rows.iter().filter(|row| row.state.takes_part());
        Standing::new(
            metric,
            &report.comparisons,
            rows.map(|row| (row.framework.as_str(), row.typical(metric))),
        )
    }

    /// Those that take part, the best first.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &'a str> {
        self.contenders.iter().map(|(label, _)| *label)
    }

    pub(crate) fn figure(&self, label: &str) -> Option<f64> {
        self.contenders.iter().find(|(other, _)| *other == label)?.1
    }

    pub(crate) fn pair(&self, x: &str, y: &str) -> Option<&'a Comparison> {
        let is_pair = |it: &&&Comparison| (it.a == x && it.b == y) || (it.a == y && it.b == x);
        self.compared.iter().find(is_pair).copied()
    }

    /// Whether x is better than y for certain.
    pub(crate) fn beats(&self, x: &str, y: &str) -> bool {
        self.pair(x, y).is_some_and(|found| found.verdict == Verdict::Faster && found.a == x)
    }

    /// 1, and 1 more for each contender that is better for certain.
    pub(crate) fn rank(&self, label: &str) -> usize {
        1 + self.compared.iter().filter(|it| it.verdict == Verdict::Faster && it.b == label).count()
    }

    /// Those that none is better than for certain, the best figure first.
    pub(crate) fn leaders(&self) -> Vec<&'a str> {
        self.labels().filter(|label| self.rank(label) == 1).collect()
    }

    /// The contender that the others' marks compare with.
    pub(crate) fn best(&self) -> Option<&'a str> {
        self.contenders.iter().find(|(_, figure)| figure.is_some()).map(|(label, _)| *label)
    }

    /// The one that is better than all others for certain.
    pub(crate) fn winner(&self) -> Option<&'a str> {
        let best = self.best().filter(|_| self.contenders.len() > 1)?;
        self.labels().all(|other| other == best || self.beats(best, other)).then_some(best)
    }

    pub(crate) fn mark(&self, label: &str) -> Mark {
        let Some(best) = self.best() else { return Mark::None };
        if label != best {
            return self.pair(best, label).map_or(Mark::None, |found| against(found, best));
        }
        let marks: Vec<Mark> = self.labels().filter(|other| *other != best).map(|it| self.mark(it)).collect();
        let is_worse =
            |mark: &Mark| matches!(mark, Mark::Times(_)) || matches!(mark, Mark::Ends(low, _) if *low > 1.0);
        match marks {
            marks if marks.iter().any(is_worse) => Mark::Best,
            marks if marks.iter().any(|mark| matches!(mark, Mark::Open | Mark::Ends(..))) => Mark::Open,
            marks if marks.contains(&Mark::Equal) => Mark::Equal,
            _ => Mark::None,
        }
    }

    /// How a contender compares with a baseline: "1.09x better", "1.16x worse", "=", "~".
    pub(crate) fn than(&self, label: &str, baseline: &str) -> String {
        if label == baseline {
            return if self.compared.is_empty() { String::new() } else { "baseline".to_owned() };
        }
        match self.pair(baseline, label).map(|found| against(found, baseline)) {
            Some(Mark::Times(worse)) if worse < 1.0 => format!("{} better", times(1.0 / worse)),
            Some(Mark::Ends(low, high)) if high < 1.0 => {
                format!("{}x better", between(1.0 / high, 1.0 / low))
            }
            // Rounds that favour either.
            Some(Mark::Ends(low, _)) if low < 1.0 => Mark::Open.text(),
            Some(mark @ (Mark::Times(_) | Mark::Ends(..))) => format!("{} worse", mark.text()),
            mark => mark.unwrap_or(Mark::None).text(),
        }
    }

    /// The open pairs of which none is the best, which marks cannot show.
    pub(crate) fn hidden(&self) -> impl Iterator<Item = &'a Comparison> {
        let best = self.best();
        let is_hidden = move |found: &&&Comparison| {
            found.verdict == Verdict::Inconclusive
                && ![&found.a, &found.b].iter().any(|it| Some(it.as_str()) == best)
        };
        self.compared.iter().filter(is_hidden).copied()
    }
}

/// The mark of the other of a pair.
fn against(found: &Comparison, best: &str) -> Mark {
    let turn = |ratio: f64| if found.a == best { ratio } else { 1.0 / ratio };
    let ends = split(found).map(|split| {
        let (x, y) = (turn(split.ratios.0), turn(split.ratios.1));
        Mark::Ends(x.min(y), x.max(y))
    });
    match (found.verdict, ends) {
        (Verdict::Faster, ends) => {
            ends.unwrap_or(found.advantage.map_or(Mark::None, |it| Mark::Times(turn(it))))
        }
        (Verdict::Equivalent, _) => Mark::Equal,
        (Verdict::Inconclusive, Some(ends)) => ends,
        (Verdict::Inconclusive, None) if has_rounds(found) => Mark::Open,
        _ => Mark::None,
    }
}

/// Where one ratio does not describe all rounds, and both ends are shown in place of it: the widest split. An open pair
/// shows them only if they favour different contenders.
pub(crate) fn split(found: &Comparison) -> Option<&Split> {
    let splits = found.statistics.as_ref()?.splits.iter();
    let is_shown = |split: &&Split| match found.verdict {
        Verdict::Faster => true,
        Verdict::Inconclusive => split.is_mixed(),
        _ => false,
    };
    let width = |split: &Split| (split.ratios.0 / split.ratios.1).ln().abs();
    splits.filter(is_shown).max_by(|x, y| width(x).total_cmp(&width(y)))
}

/// Why one ratio does not describe all rounds: "two speeds (7 and 3 of 10 rounds)".
pub(crate) fn cause(split: &Split, prompt: impl Fn(usize) -> String) -> String {
    match split.cause {
        Cause::State => "depends on the state of the machine".to_owned(),
        Cause::Levels { rounds: (low, high) } => {
            format!("two speeds ({low} and {high} of {} rounds)", low + high)
        }
        Cause::Time { rounds: (before, _) } => format!("changed after round {before}"),
        Cause::Prompt { prompts: (low, high) } => {
            format!("differs by prompt ({}, {})", prompt(low), prompt(high))
        }
    }
}

/// Whether there were enough rounds for a verdict.
pub(crate) fn has_rounds(found: &Comparison) -> bool {
    let reason = found.statistics.as_ref().and_then(|statistics| statistics.reason);
    !matches!(reason, Some(Undecided::TooFewRounds { .. }))
}
