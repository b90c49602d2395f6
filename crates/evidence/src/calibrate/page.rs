//! Figures with their limits, as Markdown.

use std::num::NonZero;
use std::ops::Range;
use std::{fmt, thread};

use comparison::judge::{Metric, WorkKind};
use statistics::{Decision, Outcome, quantile};

use crate::calibrate::simulated::{Comparison, Effort, Scenario};

/// Share of comparisons in which a weather has to be seen if it makes more of them wrong than are allowed.
const ENOUGH_SEEN: f64 = 0.8;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// At most the first, unless the product sees what is wrong in four of five comparisons; in this share it does.
    AtMostUnlessSeen(f64, f64),
    Within(f64, f64),
    /// Shown, not judged.
    None,
}

impl Limit {
    /// Whether the figure itself, not its Monte Carlo interval, is within the limit.
    fn is_kept(self, share: Share) -> bool {
        let value = share.value();
        match self {
            Limit::AtMost(most) => value <= most,
            Limit::AtMostUnlessSeen(most, seen) => value <= most || seen >= ENOUGH_SEEN,
            Limit::AtLeast(least) => value >= least,
            Limit::Within(least, most) => (least..=most).contains(&value),
            Limit::None => true,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::AtMost(most) => write!(f, "≤ {}", percent(*most, 0)),
            Limit::AtMostUnlessSeen(most, _) => write!(f, "≤ {} or seen", percent(*most, 0)),
            Limit::AtLeast(least) => write!(f, "≥ {}", percent(*least, 0)),
            Limit::Within(least, most) => write!(f, "{:.0}–{}", 100.0 * least, percent(*most, 0)),
            Limit::None => f.write_str("–"),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Table {
    title: &'static str,
    text: String,
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    judged: usize,
    failed: usize,
}

impl Table {
    /// The last column of the header names the share; its Monte Carlo interval, limit and result follow.
    pub fn new(title: &'static str, text: impl Into<String>, header: &[&'static str]) -> Self {
        let header: Vec<&str> = header.iter().copied().chain(["95 % MC interval", "limit", ""]).collect();
        Self::plain(title, text, &header)
    }

    /// A table of which nothing is judged.
    pub fn plain(title: &'static str, text: impl Into<String>, header: &[&'static str]) -> Self {
        let header = header.to_vec();
        Self { title, text: text.into(), header, rows: Vec::new(), judged: 0, failed: 0 }
    }

    pub fn plain_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// A cell with a further share of a row, which counts as judged.
    pub fn judge(&mut self, share: Share, limit: Limit) -> String {
        self.judged += 1;
        self.failed += usize::from(!limit.is_kept(share));
        let verdict = if limit.is_kept(share) { "" } else { " FAIL" };
        format!("{}{verdict}", percent(share.value(), 1))
    }

    /// `setting` has a cell for each column before the share.
    pub fn row(&mut self, setting: impl IntoIterator<Item = String>, share: Share, limit: Limit) {
        let (low, high) = share.interval();
        let result = match limit {
            Limit::None => "",
            Limit::AtMostUnlessSeen(most, _) if share.value() > most && limit.is_kept(share) => "seen",
            _ if limit.is_kept(share) => "PASS",
            _ => "FAIL",
        };
        self.judged += usize::from(!result.is_empty());
        self.failed += usize::from(result == "FAIL");
        let figures = [
            percent(share.value(), 2),
            format!("{:.2}–{}", 100.0 * low, percent(high, 2)),
            limit.to_string(),
            result.to_owned(),
        ];
        self.rows.push(setting.into_iter().chain(figures).collect());
    }

    pub fn failed(&self) -> usize {
        self.failed
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "## {}\n\n{}\n", self.title, self.text)?;
        writeln!(f, "| {} |", self.header.join(" | "))?;
        writeln!(f, "|{}", "---|".repeat(self.header.len()))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "| {} |", row.join(" | ")))
    }
}

/// "2.55 %".
pub fn percent(share: f64, decimals: usize) -> String {
    format!("{:.decimals$} %", 100.0 * share)
}

/// The whole page; the same for the same options and code.
pub fn render(options: &Options, tables: &[Table]) -> String {
    let Options { comparisons, seed } = options;
    let judged: usize = tables.iter().map(|table| table.judged).sum();
    let failed: usize = tables.iter().map(Table::failed).sum();
    let shares: f64 = (0..METRICS.len()).map(error_share).sum();
    let metrics: Vec<String> = (0..METRICS.len())
        .map(|metric| format!("{} {}", METRICS[metric].words(), percent(error_share(metric) / shares, 1)))
        .collect();
    let mut page = format!(
        "# Calibration\n\n\
         The verdicts of the statistics on comparisons with known truth. This page is written by\n\n\
         ```\ncargo xtask calibrate --comparisons {comparisons} --seed {seed}\n```\n\n\
         (version {}, {comparisons} comparisons of each row). {} of {judged} figures are within their \
         limits; {failed} are not and say FAIL. A figure passes by its own value; the Monte Carlo interval \
         (Wilson 1927) says what the true share may be.\n\n
         All comparisons are decided as in the product: rounds in its balanced random order, the state of \
         the machine shown by the other contenders, looks over the rounds that there may be, and an end \
         before the last of them only if throughput, first token and total time are all settled. Each \
         metric's hypotheses have a share of the error rate together: {}. Simulated processes vary as those \
         of `engine-mock` do; the first token is {} of a request. \"Planned\" is a fixed number of rounds, \
         the most that automatic rounds may be, or the seconds that they may take. \"Rounds taken\" is the \
         mean, with the 10 and 90 % quantiles in parentheses. Methods: `docs/explanation/methodology.md` \
         and `crates/statistics`.\n",
        env!("CARGO_PKG_VERSION"),
        judged - failed,
        metrics.join(", "),
        percent(PROMPT, 0),
    );
    for table in tables {
        page.push_str(&format!("\n{table}"));
    }
    page.lines().map(|line| wrapped(line) + "\n").collect()
}

/// A line of prose as lines of at most 120 columns; a row of a table as it is.
pub(crate) fn wrapped(line: &str) -> String {
    if line.starts_with('|') {
        return line.to_owned();
    }
    let mut text = String::new();
    let mut columns = 0;
    for word in line.split(' ') {
        let wide = word.chars().count();
        if columns > 0 && columns + 1 + wide > 120 {
            text.push('\n');
            columns = 0;
        } else if columns > 0 {
            text.push(' ');
            columns += 1;
        }
        text.push_str(word);
        columns += wide;
    }
    text
}

// The figures of a simulated process.

/// The metrics with a share of the error rate. Those that follow another are not simulated: they have its verdict.
pub const METRICS: [Metric; 5] =
    [Metric::Load, Metric::ColdStart, Metric::Throughput, Metric::FirstToken, Metric::Total];

pub const THROUGHPUT: usize = 2;

/// The places of the metrics of the answer, which decide whether rounds go on.
pub const ANSWER: Range<usize> = 2..5;

/// Share of a request's time before its first token.
pub(crate) const PROMPT: f64 = 0.1;

/// The figures of one process, in the order of [`METRICS`].
pub type Figures = [f64; METRICS.len()];

/// The share of the error rate that a metric's hypotheses have together.
pub fn error_share(metric: usize) -> f64 {
    METRICS[metric].error_share(WorkKind::TokenByToken)
}

// The outcomes of many simulated comparisons.

impl Options {
    pub fn simulate(&self, scenario: &Scenario) -> Vec<Comparison> {
        repeat(self.comparisons, self.seed, |seed| scenario.compare(seed))
    }
}

/// Whether anything in the table was decided as different.
pub fn any_different(comparison: &Comparison) -> bool {
    comparison.table.iter().any(|decision| is(decision, Outcome::Different))
}

/// Whether the last contender was found to be slower than every other.
pub fn last_is_slower(scenario: &Scenario, comparison: &Comparison) -> bool {
    let last = scenario.decode.len() - 1;
    let pairs = scenario.pairs();
    let mut of_last = pairs.iter().zip(comparison.throughput()).filter(|((_, b), _)| *b == last);
    of_last.all(|(_, decision)| is_slower(decision))
}

/// Whether the second of a pair was found to be slower.
pub(crate) fn is_slower(decision: &Option<Decision>) -> bool {
    is(decision, Outcome::Different) && decision.as_ref().is_some_and(|decision| decision.ratio > 1.0)
}

pub fn is(decision: &Option<Decision>, outcome: Outcome) -> bool {
    decision.as_ref().is_some_and(|decision| decision.outcome == outcome)
}

/// Whether one figure is said not to describe a ratio, in a metric of the answer and for one of these pairs.
pub fn is_split(comparison: &Comparison, pairs: &[usize]) -> bool {
    let mut all =
        ANSWER.flat_map(|metric| pairs.iter().map(move |&pair| &comparison.decisions(metric)[pair]));
    all.any(|decision| decision.as_ref().is_some_and(|decision| !decision.splits.is_empty()))
}

/// The mean error of the ratio of two contenders' throughputs, and how often its interval alone held the true one.
pub fn coverage(outcomes: &[Comparison], ratio: f64) -> (f64, Share) {
    let decisions: Vec<&Decision> = of_pairs(outcomes, &[0]).collect();
    let errors: Vec<f64> = decisions.iter().map(|decision| decision.ratio.ln() - ratio.ln()).collect();
    (mean(&errors), alone(&decisions, ratio))
}

/// How often the interval alone of throughput held the true ratio, for these pairs of equally fast contenders.
pub(crate) fn coverage_of_equals(outcomes: &[Comparison], pairs: &[usize]) -> Share {
    alone(&of_pairs(outcomes, pairs).collect::<Vec<_>>(), 1.0)
}

/// How often the interval alone contains this ratio.
pub(crate) fn alone(decisions: &[&Decision], ratio: f64) -> Share {
    Share::count(decisions, |decision| {
        let (low, high) = decision.interval_alone;
        low <= ratio && ratio <= high
    })
}

fn of_pairs<'a>(outcomes: &'a [Comparison], pairs: &'a [usize]) -> impl Iterator<Item = &'a Decision> {
    outcomes
        .iter()
        .flat_map(move |outcome| pairs.iter().filter_map(|&pair| outcome.throughput()[pair].as_ref()))
}

/// How often all intervals of the table held their true ratios together.
pub fn joint_coverage(scenario: &Scenario, outcomes: &[Comparison]) -> Share {
    let pairs = scenario.pairs();
    Share::count(outcomes, |outcome| {
        let hold = |(index, decision): (usize, &Option<Decision>)| {
            let (a, b) = pairs[index % pairs.len()];
            let slower = scenario.decode[b] / scenario.decode[a];
            let truth = match index / pairs.len() {
                metric if !ANSWER.contains(&metric) => 1.0,
                THROUGHPUT => slower,
                _ => slower.recip(),
            };
            decision.as_ref().is_none_or(|decision| holds(decision, truth))
        };
        outcome.table.iter().enumerate().all(hold)
    })
}

/// Whether the interval that agrees with the verdict has a ratio. That of a difference ends at 1 at the latest, which it
/// excludes.
pub(crate) fn holds(decision: &Decision, truth: f64) -> bool {
    let (low, high) = decision.interval;
    let is_excluded = decision.outcome == Outcome::Different && truth == 1.0;
    low <= truth && truth <= high && !is_excluded
}

/// Half of the length of the interval of throughput alone on the log scale, for the first pair; the median over comparisons.
pub(crate) fn half_width(outcomes: &[Comparison]) -> String {
    let halves: Vec<f64> = of_pairs(outcomes, &[0])
        .map(|decision| 0.5 * (decision.interval_alone.1 / decision.interval_alone.0).ln())
        .collect();
    percent(statistics::median(&halves).unwrap_or(f64::NAN), 1)
}

pub(crate) fn size(scenario: &Scenario) -> String {
    let contenders = scenario.decode.len();
    format!("{contenders} ({})", METRICS.len() * scenario.pairs().len())
}

/// Mean and quantiles of the rounds that there were.
pub(crate) fn rounds_taken(outcomes: &[Comparison]) -> String {
    let values: Vec<f64> =
        outcomes.iter().map(|Comparison { effort: Effort { rounds, .. }, .. }| *rounds as f64).collect();
    let [low, high] = [0.1, 0.9].map(|share| quantile(&values, share).unwrap_or(0.0));
    format!("{:.1} ({low:.0}–{high:.0})", mean(&values))
}

// Many simulated comparisons, and shares of them.

#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub comparisons: usize,
    pub seed: u64,
}

impl Options {
    /// The same with other seeds.
    pub(crate) fn fork(&self, index: u64) -> Self {
        Self { seed: seed_of(self.seed, index), ..*self }
    }
}

/// Calls `simulate` with a seed for each of `count` simulations, on all cores. The results are in the order
/// of the seeds.
pub fn repeat<T: Send>(count: usize, seed: u64, simulate: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let simulate = &simulate;
    let chunk = count.div_ceil(workers).max(1);
    thread::scope(|scope| {
        let start = |from: usize| {
            scope.spawn(move || {
                let of_chunk = from..(from + chunk).min(count);
                of_chunk.map(|index| simulate(seed_of(seed, index as u64))).collect::<Vec<T>>()
            })
        };
        let workers: Vec<_> = (0..count).step_by(chunk).map(start).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, Vec<T>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
    })
}

/// Unrelated seeds from neighbouring ones: the finaliser of splitmix64 (Steele, Lea & Flood 2014).
pub fn seed_of(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// How often something came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub hits: usize,
    pub of: usize,
}

impl Share {
    /// The share of `outcomes` that `hit` is true of.
    pub fn count<T>(outcomes: &[T], hit: impl Fn(&T) -> bool) -> Self {
        Self { hits: outcomes.iter().filter(|outcome| hit(outcome)).count(), of: outcomes.len() }
    }

    pub fn value(self) -> f64 {
        self.hits as f64 / self.of.max(1) as f64
    }

    /// Bounds of the true share.
    pub fn interval(self) -> (f64, f64) {
        score_interval(self.value(), self.of.max(1) as f64)
    }
}

/// Bounds of the true share where `share` of so many were seen: the 95 % score interval (Wilson 1927).
pub(crate) fn score_interval(share: f64, count: f64) -> (f64, f64) {
    const Z: f64 = 1.959_963_985;
    let shrink = 1.0 + Z * Z / count;
    let centre = (share + Z * Z / (2.0 * count)) / shrink;
    let reach = Z / shrink * (share * (1.0 - share) / count + (Z / (2.0 * count)).powi(2)).sqrt();
    ((centre - reach).max(0.0), (centre + reach).min(1.0))
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(hits: usize, limit: Limit) -> Table {
        let mut table = Table::new("T", "text", &["setting", "share"]);
        table.row(["s".into()], Share { hits, of: 100 }, limit);
        table
    }

    #[test]
    fn a_figure_beyond_its_limit_fails() {
        let failed = |hits, limit| table(hits, limit).failed();
        assert_eq!((failed(5, Limit::AtMost(0.05)), failed(6, Limit::AtMost(0.05))), (0, 1));
        assert_eq!((failed(90, Limit::AtLeast(0.9)), failed(89, Limit::AtLeast(0.9))), (0, 1));
        assert_eq!((failed(92, Limit::Within(0.93, 0.97)), failed(98, Limit::Within(0.93, 0.97))), (1, 1));
        assert_eq!(failed(100, Limit::None), 0);
    }

    #[test]
    fn the_page_gives_figure_interval_limit_and_result() {
        let options = Options { comparisons: 100, seed: 3 };
        let page = render(&options, &[table(6, Limit::AtMost(0.05))]);
        assert!(page.contains("--comparisons 100 --seed 3"));
        assert!(page.contains("| s | 6.00 % | 2.78–12.48 % | ≤ 5 % | FAIL |"), "{page}");
        assert!(page.contains("0 of 1 figures"));
    }

    #[test]
    fn every_metric_that_is_tested_by_itself_is_simulated() {
        let kind = WorkKind::TokenByToken;
        let mut tested = Metric::tested(kind);
        tested.retain(|metric| metric.follows(kind).is_none() && metric.depends_on_speed());
        let sorted = |metrics: &[Metric]| {
            let mut metrics = metrics.to_vec();
            metrics.sort_unstable();
            metrics
        };
        assert_eq!(sorted(&METRICS), tested);
        assert_eq!(sorted(&METRICS[ANSWER]), sorted(&Metric::questions(kind)));
        assert_eq!(METRICS[THROUGHPUT], Metric::deciding(kind));
    }

    #[test]
    fn results_come_in_the_order_of_their_seeds() {
        let seeds: Vec<u64> = (0..37).map(|index| seed_of(5, index)).collect();
        assert_eq!(repeat(37, 5, |seed| seed), seeds);
        assert!(repeat(0, 5, |seed| seed).is_empty());
    }

    #[test]
    fn wilsons_interval_agrees_with_a_worked_example() {
        // Newcombe 1998, table I: 81 of 263, and 0 of 20.
        let (low, high) = Share { hits: 81, of: 263 }.interval();
        assert!((low - 0.2553).abs() < 1e-4 && (high - 0.3662).abs() < 1e-4, "{low} {high}");
        let (low, high) = Share { hits: 0, of: 20 }.interval();
        assert!(low == 0.0 && (high - 0.1611).abs() < 1e-4, "{low} {high}");
    }
}
