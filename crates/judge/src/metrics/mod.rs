//! Metrics: their names, and their computation from samples. `docs/measures.md` defines them for people.
//!
//! A metric of a request comes from the samples of that request. A metric of a process comes, by the same formula, from
//! the samples of all its measured requests. The figure of a round is that of the contender's process in that round.

mod amount;
mod possible;
mod steps;
mod table;
mod told;
mod turns;
mod work;

use protocol::CaseSample;
use statistics::median;
use strum::EnumMessage;

use crate::evidence::Evidence;
use crate::run::Run;
use plan::{Generation, Plan};

pub use amount::detectable;
use table::ENTRIES;
pub use table::Metric;
use told::{Amount, Told};
pub use work::Work;

/// The definition of one metric.
struct Entry {
    metric: Metric,
    /// Its name in JSON, CSV and the history.
    key: &'static str,
    /// The heading of its row or column, with the unit.
    title: &'static str,
    /// A shorter title that leaves room for other columns, if there is one.
    short_title: Option<&'static str>,
    /// Its name in sentences and flags.
    words: &'static str,
    unit: &'static str,
    higher_is_better: bool,
    source: Source,
    /// Whether the main table has a row for it. Such metrics are also tested for differences.
    in_table: bool,
    /// Whether it decides when automatic rounds end; exactly one metric does.
    decides: bool,
    /// The metric that replaces it for requests of one token, which decode nothing.
    without_decoding: Option<Metric>,
    /// What it is for requests of masked diffusion.
    when_denoising: Denoising,
    /// A metric with the same meaning, which is reported in its place.
    follows: Option<Metric>,
    /// Whether a slower machine makes it worse.
    depends_on_speed: bool,
    /// Its place among the figures of a single prompt, if it is one of them.
    place_of_prompt: Option<usize>,
    /// The form in which the size of a difference is given.
    amount: Amount,
    /// The words for a difference, if it has words of its own.
    told: Option<Told>,
}

/// A metric, where requests generate by masked diffusion.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Denoising {
    /// The same as elsewhere.
    Alike,
    /// Another takes its place.
    Replaced(Metric),
    /// It speaks of decoding.
    Never,
    /// It speaks of steps, and is of such requests alone.
    Alone,
}

impl Denoising {
    /// Whether requests can have the metric, which denoise or do not.
    fn is_shown(self, denoises: bool) -> bool {
        match self {
            Denoising::Alike => true,
            Denoising::Alone => denoises,
            Denoising::Replaced(_) | Denoising::Never => !denoises,
        }
    }
}

/// The source of a metric's figures.
enum Source {
    /// The samples of one request, or of all measured requests of a process.
    Samples(fn(&Samples<'_>) -> Option<f64>),
    /// Values that a process reports beside its samples, or figures computed from others.
    Process(fn(&Run, Work) -> Option<f64>),
}

/// The samples that one figure is computed from.
struct Samples<'a> {
    cases: Vec<&'a CaseSample>,
    batch: usize,
    /// Number of prompt tokens of all these requests, in all sequences of the batch.
    prompt_tokens: usize,
}

impl Samples<'_> {
    fn gaps_ns(&self) -> Vec<u64> {
        self.cases.iter().flat_map(|case| case.gaps_ns.iter().copied()).collect()
    }

    fn median(&self, figure: fn(&CaseSample) -> f64) -> Option<f64> {
        median(&self.cases.iter().map(|case| figure(case)).collect::<Vec<_>>())
    }
}

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

    /// Those that are also given for each prompt alone, of requests that go token by token.
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

    /// A metric with the same meaning, which is reported in this one's place.
    pub fn follows(self) -> Option<Metric> {
        self.entry().follows
    }

    /// Whether a slower machine makes it worse.
    pub fn depends_on_speed(self) -> bool {
        self.entry().depends_on_speed
    }

    /// The metrics that are tested for differences. A request for one token decodes nothing.
    pub fn tested(generation: Generation) -> [Metric; IN_TABLE] {
        Metric::TABLE.map(|metric| metric.replaced(generation))
    }

    /// The metrics of the main table.
    pub fn in_table(generation: Generation) -> [Metric; IN_TABLE] {
        match generation {
            Generation::OneToken => Metric::TABLE,
            _ => Metric::tested(generation),
        }
    }

    /// The metrics that are also given for each prompt alone.
    pub fn of_a_prompt(generation: Generation) -> [Metric; OF_A_PROMPT] {
        match generation {
            Generation::Denoising => Metric::OF_A_PROMPT.map(|metric| metric.replaced(generation)),
            _ => Metric::OF_A_PROMPT,
        }
    }

    /// Every metric that such requests can have.
    pub fn all(generation: Generation) -> Vec<Metric> {
        let denoises = generation == Generation::Denoising;
        let has = |metric: &Metric| metric.entry().when_denoising.is_shown(denoises);
        Metric::ALL.into_iter().filter(has).collect()
    }

    /// The metric that decides when automatic rounds end: the one that people ask for most. Of those in the table, its
    /// differences are the smallest.
    pub fn deciding(generation: Generation) -> Metric {
        let deciding = Metric::ALL.into_iter().find(|metric| metric.entry().decides);
        deciding.unwrap_or(Metric::Throughput).replaced(generation)
    }

    /// The metric in its place.
    fn replaced(self, generation: Generation) -> Metric {
        match (generation, self.entry().when_denoising) {
            (Generation::OneToken, _) => self.entry().without_decoding.unwrap_or(self),
            (Generation::Denoising, Denoising::Replaced(metric)) => metric,
            _ => self,
        }
    }

    /// The figure of one request, in the metric's unit; `work` is that of the request. `None` for a metric that
    /// requests do not have, and for too few samples.
    pub fn of_request(self, case: &CaseSample, work: Work) -> Option<f64> {
        match self.entry().source {
            Source::Samples(figure) => {
                figure(&Samples { cases: vec![case], batch: work.batch, prompt_tokens: work.prompt_tokens })
            }
            Source::Process(_) => None,
        }
    }

    /// The figure of one process, in the metric's unit; `work` is that of an iteration. `None` if the run ended too
    /// early or the system does not tell.
    pub fn of_process(self, run: &Run, work: Work) -> Option<f64> {
        match self.entry().source {
            Source::Samples(figure) => {
                let iterations = run.iterations();
                figure(&Samples {
                    cases: iterations.iter().flat_map(|iteration| &iteration.cases).collect(),
                    batch: work.batch,
                    prompt_tokens: work.prompt_tokens * iterations.len(),
                })
            }
            Source::Process(figure) => figure(run, work),
        }
    }
}

/// The name in sentences of the metric with this key. A metric of a newer version keeps its key as its name.
pub fn words(key: &str) -> String {
    Metric::parse(key).map_or_else(|| key.replace('_', " "), |metric| metric.words().to_owned())
}

/// The figures of one contender, by round; `None` for a round without one. The last round may be one that the user
/// interrupted.
pub fn by_round(metric: Metric, plan: &Plan, evidence: &Evidence, label: &str) -> Vec<Option<f64>> {
    let work = Work::new(plan);
    of_rounds(evidence, label, |run| metric.of_process(run, work))
}

/// The figures of one contender that are held against another's, by round. Where contenders take turns they come from
/// the turns of all ([`statistics::of_turns`]): what disturbed a block or a turn cancels. Where groups do, figures of
/// every group are shifted, so that the anchor has the same in all: contenders of two groups are compared by way of it.
/// Else they are those of [`by_round`]; of a process whose start was disturbed, load and cold start are not compared.
pub fn to_compare(metric: Metric, plan: &Plan, evidence: &Evidence, label: &str) -> Vec<Option<f64>> {
    let work = Work::new(plan);
    let is_of_requests = matches!(metric.entry().source, Source::Samples(_));
    if !is_of_requests && metric.depends_on_speed() && !plan.accept_noise {
        let is_quiet = |run: &Run| run.noise.as_ref().is_none_or(|noise| noise.complaints().is_empty());
        return of_rounds(evidence, label, |run| metric.of_process(run, work).filter(|_| is_quiet(run)));
    }
    if !plan.schedule.has_turns() || !is_of_requests {
        return by_round(metric, plan, evidence, label);
    }
    of_rounds(evidence, label, |run| turns::figure(metric, plan, evidence, run))
}

fn of_rounds(evidence: &Evidence, label: &str, figure: impl Fn(&Run) -> Option<f64>) -> Vec<Option<f64>> {
    let figure = |round: usize| figure(evidence.complete(label).find(|run| run.round == round)?);
    let rounds = evidence.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    (0..rounds).map(figure).collect()
}

#[cfg(test)]
mod tests;
