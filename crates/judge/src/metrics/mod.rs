//! Metrics: their names, and their computation from samples. `docs/reference/measures.md` defines them for people.
//!
//! Each metric says how the figure of a process comes from its requests ([`Source`]). Every process has one figure of
//! each metric, and every output shows the geometric mean of these over the rounds.

mod figures;
mod kinds;
mod phrases;
mod possible;
mod process;
mod table;
mod work;

use std::ops::Range;

use strum::EnumMessage;

use facts::evidence::Evidence;
use facts::run::Run;
use plan::{Plan, WorkKind};
use protocol::Sample;

pub use crate::metric::Metric;
use crate::work::Selection;
pub use crate::work::Size;
pub use phrases::Phrases;
use process::Form;
use table::ENTRIES;
use work::Request;

/// The definition of one metric.
struct Entry {
    metric: Metric,
    /// Its name in JSON, CSV and the history.
    key: &'static str,
    /// The kinds of work that have it; all if empty.
    kinds: &'static [WorkKind],
    /// The heading of its row or column, with the unit.
    title: &'static str,
    /// A shorter title that leaves room for other columns, if there is one.
    short_title: Option<&'static str>,
    /// Its name in sentences and flags.
    words: &'static str,
    unit: &'static str,
    higher_is_better: bool,
    source: Source,
    /// Whether the main table has a row for it.
    in_table: bool,
    /// Share of the table's error rate for all verdicts on it together; 0 if it is not tested.
    error_share: f64,
    /// Whether it decides when automatic rounds end; exactly one metric does.
    decides: bool,
    /// Whether a slower machine makes it worse.
    depends_on_speed: bool,
    /// Its place among the figures of a single prompt, if it is one of them.
    place_of_prompt: Option<usize>,
    /// The words for a difference, if it has words of its own.
    phrases: Option<Phrases>,
}

/// How the figure of a process is computed. There is no default, so that every metric states its own.
enum Source {
    /// The mean of its requests' figures. Shown is the average ([`process::Form`]) of each prompt, then the geometric mean
    /// over prompts; tested for each prompt the trimmed mean over turns ([`statistics::of_turns`]). Zeros, which have no
    /// logarithm, give the arithmetic mean.
    Mean(OfRequest),
    /// The same for the figures of slices, if turns were slices of requests. The function treats a slice as a
    /// request.
    Slices(OfRequest),
    /// This quantile of the latencies of all its measured requests (type 7 of Hyndman & Fan 1996, *Sample Quantiles in
    /// Statistical Packages*).
    Percentile(f64),
    /// This quantile of the latencies of all its processes together, of which one alone has too few.
    Pooled(f64),
    /// The highest figure of its requests.
    Peak(OfRequest),
    /// A value that the process has once.
    Reading(fn(&Run, Size) -> Option<f64>),
    /// The figure of the first metric divided by that of the second.
    Quotient(Metric, Metric),
}

/// The figure of one request, `None` where it has too few samples for it.
type OfRequest = fn(&Request<'_>) -> Option<f64>;

/// Number of marked entries, for the lengths of lists.
macro_rules! marked {
    ($field:ident $($is:tt)*) => {{
        let (mut count, mut at) = (0, 0);
        while at < ENTRIES.len() {
            count += ENTRIES[at].$field $($is)* as usize;
            at += 1;
        }
        count
    }};
}

const IN_TABLE: usize = marked!(in_table);
const OF_A_PROMPT: usize = marked!(place_of_prompt.is_some());

impl Metric {
    /// Every metric, in the order of files and tables.
    pub const ALL: [Metric; ENTRIES.len()] = {
        let mut all = [Metric::Load; ENTRIES.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = ENTRIES[at].metric;
            assert!(all[at] as usize == at, "entries stand in the order of the variants");
            at += 1;
        }
        all
    };

    /// The metrics of the main table, in its order.
    pub const TABLE: [Metric; IN_TABLE] = {
        let mut table = [Metric::Load; IN_TABLE];
        let (mut at, mut place) = (0, 0);
        while at < ENTRIES.len() {
            if ENTRIES[at].in_table {
                table[place] = ENTRIES[at].metric;
                place += 1;
            }
            at += 1;
        }
        table
    };

    /// Those that are also given for each prompt separately, for requests that go token by token.
    pub const OF_A_PROMPT: [Metric; OF_A_PROMPT] = {
        let mut of_a_prompt = [Metric::Load; OF_A_PROMPT];
        let mut at = 0;
        while at < ENTRIES.len() {
            if let Some(place) = ENTRIES[at].place_of_prompt {
                of_a_prompt[place] = ENTRIES[at].metric;
            }
            at += 1;
        }
        of_a_prompt
    };

    fn entry(self) -> &'static Entry {
        &ENTRIES[self as usize]
    }

    /// The metric with this key or name, in any case, with spaces, dashes or underscores.
    pub fn parse(text: &str) -> Option<Metric> {
        let plain = |text: &str| text.trim().to_lowercase().replace(['-', '_'], " ");
        let asked = plain(text);
        Metric::ALL.into_iter().find(|metric| plain(metric.name()) == asked || plain(metric.words()) == asked)
    }

    /// The key: the metric's name in JSON, CSV and the history.
    pub fn name(self) -> &'static str {
        self.entry().key
    }

    /// The heading of its row or column, with the unit.
    pub fn title(self) -> &'static str {
        self.entry().title
    }

    /// The title without the unit.
    pub fn plain_title(self) -> &'static str {
        self.title().split(" (").next().unwrap_or_default()
    }

    /// A title that leaves room for other columns.
    pub fn short_title(self) -> &'static str {
        self.entry().short_title.unwrap_or(self.title())
    }

    /// Its name in sentences.
    pub fn words(self) -> &'static str {
        self.entry().words
    }

    /// Its name in flags: the words, with dashes.
    pub fn flag(self) -> String {
        self.words().replace(' ', "-")
    }

    /// Its definition in one line: the comment of its variant.
    pub fn definition(self) -> &'static str {
        self.get_documentation().unwrap_or_default().trim_end_matches('.')
    }

    /// The unit of its figures.
    pub fn unit(self) -> &'static str {
        self.entry().unit
    }

    /// Whether more of it is better.
    pub fn higher_is_better(self) -> bool {
        self.entry().higher_is_better
    }

    /// Its words for differences, if it has words of its own.
    pub fn phrases(self) -> Option<&'static Phrases> {
        self.entry().phrases.as_ref()
    }

    /// The metric that this is another form of and shares the verdict with: one is a constant divided by the
    /// other, or a multiple of it.
    pub fn follows(self, kind: WorkKind) -> Option<Metric> {
        Selection::new(kind).followed_by(self)
    }

    /// Whether it is the mean over requests.
    pub fn is_of_requests(self) -> bool {
        matches!(self.entry().source, Source::Mean(_) | Source::Slices(_))
    }

    /// Whether a slower machine makes it worse.
    pub fn depends_on_speed(self) -> bool {
        self.entry().depends_on_speed
    }

    /// The metrics with verdicts, each once, in the order of tables. Those that follow another share its verdict.
    pub fn tested(kind: WorkKind) -> Vec<Metric> {
        let is_tested = |metric: &Metric| metric.entry().in_table || metric.entry().error_share > 0.0;
        let mut tested: Vec<Metric> =
            Metric::ALL.into_iter().filter(is_tested).map(|metric| metric.replaced(kind)).collect();
        tested.sort_unstable();
        tested.dedup();
        tested
    }

    /// Share of the table's error rate for all verdicts on a tested metric. Only ratios of shares count: if
    /// requests are of one kind, some metrics follow others and need none.
    pub fn error_share(self, kind: WorkKind) -> f64 {
        if self.follows(kind).is_some() {
            return 0.0;
        }
        let takes_its_place = |metric: &Metric| metric.replaced(kind) == self;
        let shares = Metric::ALL.into_iter().filter(takes_its_place).map(|metric| metric.entry().error_share);
        shares.fold(0.0, f64::max)
    }

    /// The questions about speed, in the order of the answer: which decodes fastest, which returns the first
    /// token soonest, which completes whole requests soonest.
    pub fn questions(kind: WorkKind) -> Vec<Metric> {
        let deciding = Metric::deciding(kind);
        let further = Metric::in_places_of(&[Metric::FirstToken, Metric::Total], kind);
        let is_asked = |metric: &Metric| *metric != deciding && metric.error_share(kind) > 0.0;
        [deciding].into_iter().chain(further.into_iter().filter(is_asked)).collect()
    }

    /// The metrics of the main table.
    pub fn in_table(kind: WorkKind) -> Vec<Metric> {
        Metric::in_places_of(&Metric::TABLE, kind)
    }

    /// The metrics that are also given for each prompt separately.
    pub fn of_a_prompt(kind: WorkKind) -> Vec<Metric> {
        Metric::in_places_of(&Metric::OF_A_PROMPT, kind)
    }

    /// The metrics in the places of these in tables, each once.
    fn in_places_of(metrics: &[Metric], kind: WorkKind) -> Vec<Metric> {
        let mut found = Vec::new();
        for metric in metrics.iter().map(|metric| metric.in_tables(kind)) {
            if !found.contains(&metric) {
                found.push(metric);
            }
        }
        found
    }

    /// Every metric of such requests.
    pub fn all(kind: WorkKind) -> Vec<Metric> {
        let has = |metric: &Metric| {
            let kinds = metric.entry().kinds;
            kinds.is_empty() || kinds.contains(&kind)
        };
        Metric::ALL.into_iter().filter(has).collect()
    }

    /// The metric that decides when automatic rounds end: the one asked for most. Of those in the table, its
    /// differences are the smallest.
    pub fn deciding(kind: WorkKind) -> Metric {
        let deciding = Metric::ALL.into_iter().find(|metric| metric.entry().decides);
        deciding.unwrap_or(Metric::Throughput).replaced(kind)
    }

    /// The metric in its place.
    fn replaced(self, kind: WorkKind) -> Metric {
        Selection::new(kind).in_place_of(self)
    }

    /// The metric in its place in tables.
    fn in_tables(self, kind: WorkKind) -> Metric {
        if Selection::new(kind).replaces_in_tables { self.replaced(kind) } else { self }
    }

    /// The figure of one request, in the metric's unit. `None` for a metric that requests do not have, and for too few
    /// samples.
    pub fn of_request(self, sample: &Sample, size: Size) -> Option<f64> {
        match self.entry().source {
            Source::Mean(figure) | Source::Slices(figure) | Source::Peak(figure) => {
                figure(&Request::new(sample, size))
            }
            Source::Percentile(_) | Source::Pooled(_) | Source::Reading(_) | Source::Quotient(..) => None,
        }
    }

    /// The compared figures of a request: of its slices, or of itself.
    pub fn of_parts(self, sample: &Sample, size: Size) -> Vec<f64> {
        match self.entry().source {
            Source::Slices(figure) => {
                Request::new(sample, size).slices().filter_map(|slice| figure(&slice)).collect()
            }
            _ => self.of_request(sample, size).into_iter().collect(),
        }
    }
}

/// The name in sentences of the metric with this key. A metric of a newer version keeps its key as its name.
pub fn words(key: &str) -> String {
    Metric::parse(key).map_or_else(|| key.replace('_', " "), |metric| metric.words().to_owned())
}

/// The figures of one contender that outputs show, by round; `None` for a round without one. The last round may have
/// been interrupted by the user.
///
/// If groups take turns, figures of every group are shifted so that the anchor has the same in all: contenders of two
/// groups are compared through it.
pub fn by_round(metric: Metric, plan: &Plan, evidence: &Evidence, label: &str) -> Vec<Option<f64>> {
    by_round_of(metric, 0..plan.work.cases(), plan, evidence, label)
}

/// The same for the requests of these prompts only.
pub fn by_round_of(
    metric: Metric,
    cases: Range<usize>,
    plan: &Plan,
    evidence: &Evidence,
    label: &str,
) -> Vec<Option<f64>> {
    of_rounds(evidence, label, |run| process::figure(metric, Form::Average, &cases, plan, evidence, run))
}

/// The figures of one contender without its slowest and its fastest moments, by round. If contenders take turns, the
/// figure of a process is computed from the turns of all in its round: the disturbance of a block or a turn cancels.
pub fn typical(
    metric: Metric,
    cases: Range<usize>,
    plan: &Plan,
    evidence: &Evidence,
    label: &str,
) -> Vec<Option<f64>> {
    of_rounds(evidence, label, |run| process::figure(metric, Form::Typical, &cases, plan, evidence, run))
}

/// The figure of all processes of a contender together, for a metric that has no figure of a single process.
pub fn pooled(metric: Metric, plan: &Plan, evidence: &Evidence, label: &str) -> Option<f64> {
    let Source::Pooled(share) = metric.entry().source else { return None };
    let runs: Vec<&Run> = evidence.complete(label).collect();
    process::pooled(share, &(0..plan.work.cases()), plan, &runs)
}

fn of_rounds(evidence: &Evidence, label: &str, figure: impl Fn(&Run) -> Option<f64>) -> Vec<Option<f64>> {
    let figure = |round: usize| figure(evidence.complete(label).find(|run| run.round == round)?);
    let rounds = evidence.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    (0..rounds).map(figure).collect()
}

#[cfg(test)]
mod tests;
