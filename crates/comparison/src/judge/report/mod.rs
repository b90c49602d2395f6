//! The outcome of a comparison as one value. Crate `render` makes tables and pages from it; nothing is
//! computed while rendering. `docs/reference/files.md` describes the JSON.

pub mod fairness;
pub mod generate;
pub mod hybrid;
pub mod layer_parity;
pub mod limit;
pub mod memory;
pub mod prompts;
pub mod row;
#[cfg(test)]
mod tests;
pub mod variation;
pub mod verdicts;
pub mod warnings;

use std::collections::{BTreeMap, BTreeSet};

use bundle::{Manifest, ModelConfig, TensorSpec};
use fairness::{Breach, MACHINE, RuleState};
pub use hybrid::Hybrid;
use limit::Flag;
use prompts::PromptFigures;
pub use prompts::{LoadParts, Loads};
use protocol::{GpuWork, Memory, Unit, untrusted};
use row::Floor;
pub use row::{Energy, Kind, Reason, Requested, Row};
use serde::{Deserialize, Serialize};
use statistics::{Looks, Moments, geometric_interval, geometric_mean, median};
use verdicts::Comparison;
pub use warnings::Warning;
use warnings::{Figures, SlowMoments};

use crate::facts::agreement;
use crate::facts::evidence::{self, BlocksChosen, End, Evidence, Probe, Slices, Stages};
use crate::facts::run::{Environment, Noise, Run};
pub use crate::history::State;
use crate::judge::combined::OtherRuns;
use crate::judge::metrics::{self, Metric};
use crate::judge::report::verdicts::Verdict;
use crate::judge::work::encode::{self, FromText};
use crate::plan::Plan;

/// Version of the JSON, and of the other files of a results directory.
pub const SCHEMA: u32 = 5;

/// Reads `report.json` of a comparison back. The error is one sentence.
pub fn read(text: &str) -> Result<Report, String> {
    let mut report: Report = agreement::document(text, SCHEMA, "the report of a comparison")?;
    report.check()?;
    let noise = report.noise();
    report.comparisons.iter_mut().for_each(|found| found.explain(noise.as_deref(), &report.sanity));
    let of_hybrids = report.hybrids.iter_mut().filter_map(|hybrid| hybrid.verdict.as_mut());
    of_hybrids.for_each(|found| found.explain(noise.as_deref(), &[]));
    Ok(report)
}

/// The outcome of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: u32,
    pub environment: Environment,
    pub plan: Plan,
    pub model: Prepared,
    /// Number of complete rounds that count.
    pub rounds: usize,
    /// The number of blocks of the last rounds, if it was left open, and the basis of that choice.
    pub blocks: Option<BlocksChosen>,
    /// How contenders took turns within requests.
    pub slices: Option<Slices>,
    /// The wall time, in seconds by stage.
    #[serde(default)]
    pub time: Stages,
    pub end: End,
    /// The most rounds that the time budget allowed, if it was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<usize>,
    pub rows: Vec<Row>,
    /// The figures of each prompt by itself.
    pub prompts: Vec<PromptFigures>,
    /// Batches of texts from text to vector, if the tokenizer was timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_text: Vec<FromText>,
    pub comparisons: Vec<Comparison>,
    /// Contenders with slow moments of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow_moments: Vec<SlowMoments>,
    /// The differences that the machine cannot show, if one engine was measured under two labels.
    pub floor: Vec<Floor>,
    pub rules: Vec<RuleState>,
    /// Impossible results.
    pub sanity: Vec<Flag>,
    /// Hybrids of two engines compared with their parts.
    #[serde(default)]
    pub hybrids: Vec<Hybrid>,
    pub machine: Machine,
    pub warnings: Vec<Warning>,
    /// The other runs of this case on this machine, if the history had any when the run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_runs: Option<OtherRuns>,
    pub interrupted: bool,
    /// Directory that holds every sample.
    pub results: String,
}

/// Other activity of the machine during the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub before: Option<Noise>,
    /// Other activity in each round, including repeated rounds.
    pub rounds: Vec<Noise>,
    /// Between processes.
    pub probes: Vec<Probe>,
    /// Over all probes of the device that computed: bytes and operations per second.
    pub read_bandwidth: Option<Spread>,
    pub arithmetic: Option<Spread>,
    /// Operations per second of the CPU's units for narrower numbers, medians of the probes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub units: BTreeMap<Unit, f64>,
    /// Largest drift that a probe saw, as a share.
    pub drift: Option<f64>,
    /// The reasons why rounds were repeated, or were noisy and accepted.
    pub complaints: Vec<String>,
    /// Number of processes with figures that were set aside because their round was repeated.
    pub put_aside: usize,
}

/// A speed that changes: median and least of the probes' averages, and the highest single reading.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub best: f64,
}

impl Machine {
    fn new(plan: &Plan, evidence: &Evidence) -> Machine {
        let probes = || limit::probes(plan, evidence);
        let spread = |mean: fn(&Probe) -> f64, best: fn(&Probe) -> f64| {
            let means: Vec<f64> = probes().map(mean).collect();
            Some(Spread {
                median: median(&means)?,
                min: means.iter().copied().reduce(f64::min)?,
                best: probes().map(best).reduce(f64::max)?,
            })
        };
        Machine {
            before: evidence.before.clone(),
            rounds: evidence.noises.clone(),
            read_bandwidth: spread(|probe| probe.read_bandwidth, |probe| probe.best_read_bandwidth),
            arithmetic: spread(|probe| probe.arithmetic, |probe| probe.best_arithmetic),
            units: probes()
                .flat_map(|probe| probe.units.keys())
                .filter_map(|unit| {
                    let speeds: Vec<f64> =
                        probes().filter_map(|probe| probe.units.get(unit).copied()).collect();
                    Some((*unit, median(&speeds)?))
                })
                .collect(),
            drift: probes().map(|probe| probe.drift).reduce(f64::max),
            probes: evidence.probes.clone(),
            complaints: evidence.complaints.clone(),
            put_aside: evidence.repeated.len(),
        }
    }
}

/// Share by which a first request must exceed a steady one for the table to show it.
const SHOWN_EXCESS: f64 = 0.10;

impl Report {
    /// The metrics of the table, in its order; with the first request if it took noticeably longer than later
    /// ones.
    pub fn table_metrics(&self) -> Vec<Metric> {
        let mut metrics = Metric::in_table(self.plan.work.kind()).to_vec();
        let is_shown = |row: &Row| row.first_request_excess.is_some_and(|excess| excess > SHOWN_EXCESS);
        // With requests of one mark, it equals the cold start; of a sequence of runs, no figure is of a whole request.
        if self.plan.work.marks() > 1
            && metrics.contains(&Metric::Total)
            && self.rows.iter().any(is_shown)
            && let Some(cold) = metrics.iter().position(|&metric| metric == Metric::ColdStart)
        {
            metrics.insert(cold + 1, Metric::FirstRequest);
        }
        metrics
    }

    /// The rounds after which the evidence was looked at.
    pub fn looks(&self) -> Looks {
        evidence::looks(self.plan.rounds, self.allowed)
    }

    /// Rejects impossible figures: this program excludes contenders that report such readings, and writes
    /// none.
    fn check(&self) -> Result<(), String> {
        let of_rows = self.rows.iter().map(|row| (&row.framework, &row.metrics));
        let of_prompts = self.prompts.iter().flat_map(|prompt| &prompt.rows);
        let of_prompts = of_prompts.map(|row| (&row.framework, &row.metrics));
        for (framework, figures) in of_rows.chain(of_prompts) {
            figures.iter().try_for_each(|figure| figure.check(framework))?;
        }
        Ok(())
    }

    /// Judges.
    pub fn new(facts: &Facts) -> Report {
        let Facts { environment, plan, model, evidence, results } = facts;
        let judged = fairness::Judged {
            plan,
            manifest: &model.manifest,
            evidence,
            runs: evidence.runs.iter().filter(|run| run.is_complete()).collect(),
        };
        let rules = fairness::judge(&judged);
        let mut limits = limit::limits(plan, &model.config, evidence);
        let sanity = limit::flags(plan, evidence, &limits);
        let kind = plan.work.kind();
        let figures: Vec<(Metric, Figures)> = Metric::all(kind)
            .into_iter()
            .map(|metric| (metric, Figures::new(metric, plan, evidence)))
            .collect();
        let limits = plan.contenders.iter().map(|contender| limits.remove(&contender.label));
        let rows: Vec<Row> = limits
            .enumerate()
            .map(|(place, limit)| Row::new(place, &figures, facts, &rules, limit))
            .collect();
        let asked = Metric::questions(kind);
        let asked = figures.iter().filter(|(metric, _)| asked.contains(metric));
        let asked = asked.map(|(metric, figures)| (*metric, figures));
        let slow_moments = warnings::slow_moments(asked, plan, evidence);
        let compared = rows.iter().filter(|row| row.state.takes_part()).map(|row| row.framework.clone());
        let (compared, noise): (Vec<String>, _) = (compared.collect(), noise(plan, &rules));
        let comparisons = verdicts::compare(plan, evidence, compared, noise.as_deref());
        let comparisons = verdicts::without_impossible(comparisons, &sanity);
        Report {
            schema: SCHEMA,
            environment: environment.clone(),
            plan: plan.clone(),
            model: model.clone(),
            rounds: evidence.rounds,
            // The latest choice may be for a round that was not run.
            blocks: evidence
                .blocks
                .iter()
                .rev()
                .find(|chosen| chosen.from_round < evidence.rounds.max(1))
                .copied(),
            slices: evidence.slices.clone(),
            time: evidence.time.clone(),
            end: evidence.ended(plan),
            allowed: evidence.allowed,
            floor: row::floors(plan, &comparisons),
            warnings: warnings::warnings(facts, &rows, &rules),
            slow_moments,
            hybrids: hybrid::hybrids(plan, evidence, &rows, noise.as_deref()),
            rows,
            prompts: prompts::prompts(plan, evidence),
            from_text: encode::from_text(plan, evidence),
            comparisons,
            rules,
            sanity,
            machine: Machine::new(plan, evidence),
            other_runs: None,
            interrupted: matches!(evidence.end, End::Interrupted | End::Killed),
            results: results.clone(),
        }
    }

    /// The reason why nothing is measurable; `None` unless the machine was too noisy and that was not
    /// accepted.
    pub fn noise(&self) -> Option<String> {
        noise(&self.plan, &self.rules)
    }

    /// The disturbance of the run, if that was accepted.
    pub fn noise_accepted(&self) -> Option<String> {
        let of_machine = breaches_of_machine(&self.rules).filter(|_| self.plan.accept_noise);
        of_machine.map(|breach| breach.finding.clone()).next()
    }

    /// 0 when everything was measured, or is not supported by its framework; 1 when a framework failed, was
    /// excluded, or nothing could be measured; 2 when no framework keeps to a limit of the user's; 3 when the
    /// machine was too noisy, or a column varies by more than was asked for.
    pub fn exit_code(&self) -> u8 {
        let bad = |row: &Row| matches!(row.state, State::Failed | State::Struck);
        if self.rows.iter().any(bad) {
            return 1;
        }
        if self.noise().is_some() || self.is_beyond_max_cv() {
            return 3;
        }
        match self.rows.iter().any(|row| row.state.takes_part()) {
            true => 0,
            // The search for a rate has the user's limit, and no contender keeps to it.
            false if self.plan.work.load().is_some_and(|load| load.search.is_some()) => 2,
            false => 1,
        }
    }
}

impl Report {
    /// Whether a column varies by more than `--max-cv`.
    pub(crate) fn is_beyond_max_cv(&self) -> bool {
        warnings::beyond_max_cv(&self.plan, &self.rows).is_some()
    }
}

fn breaches_of_machine(rules: &[RuleState]) -> impl Iterator<Item = &Breach> {
    rules.iter().flat_map(|rule| &rule.broken_by).filter(|breach| breach.framework == MACHINE)
}

fn noise(plan: &Plan, rules: &[RuleState]) -> Option<String> {
    breaches_of_machine(rules)
        .filter(|_| !plan.accept_noise)
        .map(|breach| format!("{}; {}", breach.finding, breach.remedy))
        .next()
}

/// Three significant digits, but never fewer than the unit.
pub fn number(value: f64) -> String {
    // A value that rounds up to the next power of ten gets that power's digits: 9.9999 is 10.0.
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

// Differences between two judgements of one run.

/// One decision that differs between two reports of one run.
#[derive(Debug)]
pub enum Change<'a> {
    /// The state of a row.
    State { was: State, now: &'a Row },
    /// A pair that was not compared before.
    New(&'a Comparison),
    /// Another verdict.
    Verdict { was: &'a Comparison, now: &'a Comparison },
    /// A pair that is no longer compared.
    Gone(&'a Comparison),
}

/// The decisions that differ between two reports of one run.
pub fn changes<'a>(before: &'a Report, now: &'a Report) -> Vec<Change<'a>> {
    let mut changes = Vec::new();
    for row in &now.rows {
        let earlier = before.rows.iter().find(|earlier| earlier.framework == row.framework);
        if let Some(earlier) = earlier.filter(|earlier| earlier.state != row.state) {
            changes.push(Change::State { was: earlier.state, now: row });
        }
    }
    let same = |a: &Comparison, b: &Comparison| {
        a.metric == b.metric && ((a.a == b.a && a.b == b.b) || (a.a == b.b && a.b == b.a))
    };
    for found in &now.comparisons {
        let earlier = before.comparisons.iter().find(|earlier| same(earlier, found));
        let is_other = |earlier: &&Comparison| {
            earlier.verdict != found.verdict || (found.verdict == Verdict::Faster && earlier.a != found.a)
        };
        match earlier {
            None => changes.push(Change::New(found)),
            Some(was) if is_other(&was) => changes.push(Change::Verdict { was, now: found }),
            Some(_) => {}
        }
    }
    let gone =
        before.comparisons.iter().filter(|earlier| !now.comparisons.iter().any(|it| same(earlier, it)));
    changes.extend(gone.map(Change::Gone));
    changes
}

// A metric of one contender over the rounds.

/// A metric of one contender. Outputs show [`Figure::typical`]: the geometric mean over rounds, so that throughput is
/// the reciprocal of latency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub metric: Metric,
    pub unit: String,
    /// Geometric mean over rounds; the median if a value is zero, because then there is no geometric mean and no
    /// verdict; a percentile of all processes together where one has too few. `null`: not available.
    pub typical: Option<f64>,
    /// 95 % interval of the geometric mean, `null` below six rounds; of a percentile of all processes together, that of
    /// order statistics.
    #[serde(default, deserialize_with = "crate::facts::agreement::interval")]
    pub interval: Option<(f64, f64)>,
    /// Median over processes. `null`: not available.
    pub median: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub mean: Option<f64>,
    /// Between processes, with n − 1; `null` for one process.
    pub standard_deviation: Option<f64>,
    /// Standard deviation ÷ mean.
    pub coefficient_of_variation: Option<f64>,
    /// By round.
    pub values: Vec<Option<f64>>,
    /// By round, the values that verdicts compare, if they differ: without the slowest and the fastest moments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compared: Vec<Option<f64>>,
}

impl Figure {
    /// From the values of each round, and from the compared values if they differ.
    pub fn new(metric: Metric, values: Vec<Option<f64>>, compared: Vec<Option<f64>>) -> Figure {
        let known: Vec<f64> = values.iter().copied().flatten().collect();
        let moments = Moments::new(&known);
        Figure {
            metric,
            unit: metric.unit().to_owned(),
            typical: geometric_mean(&known).or_else(|| median(&known)),
            interval: geometric_interval(&known),
            median: median(&known),
            min: known.iter().copied().reduce(f64::min),
            max: known.iter().copied().reduce(f64::max),
            mean: moments.map(|moments| moments.mean),
            standard_deviation: moments.and_then(|moments| moments.standard_deviation),
            coefficient_of_variation: moments.and_then(Moments::coefficient_of_variation),
            values,
            compared,
        }
    }

    /// The figure of the contender at this place, with its compared values.
    pub(crate) fn of_row(
        metric: Metric,
        figures: &Figures,
        place: usize,
        plan: &Plan,
        evidence: &Evidence,
    ) -> Figure {
        let label = &plan.contenders[place].label;
        let (values, compared) = (figures.average[place].clone(), figures.compared(place).to_vec());
        let differs = compared.iter().any(Option::is_some) && compared != values;
        let found = Figure::new(metric, values, if differs { compared } else { Vec::new() });
        match metrics::pooled(metric, plan, evidence, label) {
            Some((typical, interval)) => Figure { typical: Some(typical), interval, ..found },
            None => found,
        }
    }

    /// Rejects impossible figures in a report that was read.
    fn check(&self, framework: &str) -> Result<(), String> {
        let Figure { typical, median, min, max, mean, values, compared, .. } = self;
        let whole = [*typical, *median, *min, *max, *mean];
        self.metric.check(framework, whole.into_iter().chain(values.iter().chain(compared).copied()))
    }

    /// By round, the values compared with another contender's figure. A figure without any is still shown.
    pub fn compared(&self) -> &[Option<f64>] {
        if self.compared.iter().all(Option::is_none) { &self.values } else { &self.compared }
    }
}

// The facts that a report is made from.

#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub environment: Environment,
    pub plan: Plan,
    pub model: Prepared,
    pub evidence: Evidence,
    /// Directory that holds every sample.
    pub results: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    pub name: String,
    pub architecture: String,
    pub bundle: String,
    pub manifest: Manifest,
    pub config: ModelConfig,
    /// Number of its parameters; `null` for an ONNX file.
    pub parameters: Option<u64>,
}

impl Prepared {
    /// The part of a bundle that a report keeps.
    pub fn new(bundle: &bundle::Bundle) -> Prepared {
        Prepared {
            name: bundle.manifest().name.clone(),
            architecture: format!("{:?}", bundle.config().architecture).to_lowercase(),
            bundle: bundle.directory().display().to_string(),
            manifest: bundle.manifest().clone(),
            config: bundle.config().clone(),
            parameters: parameters(bundle.config()),
        }
    }

    /// The parameters that one token goes through: of experts, those that are chosen.
    pub fn active_parameters(&self) -> f64 {
        let shares = self.config.expert_shares();
        let of_token = |tensor: &TensorSpec| {
            let share = shares.get(&tensor.name).copied().unwrap_or(1.0);
            share * tensor.shape.iter().product::<usize>() as f64
        };
        self.config.tensors().iter().map(of_token).sum()
    }
}

fn parameters(config: &ModelConfig) -> Option<u64> {
    if config.graph.is_some() {
        return None;
    }
    let count = |shape: &[usize]| shape.iter().map(|&size| size as u64).product::<u64>();
    Some(config.tensors().iter().map(|tensor| count(&tensor.shape)).sum())
}

// How much of a process's memory is in huge pages.

/// Share of a process's memory in huge pages that counts as complete: stacks and small allocations have none.
pub const COMPLETE: f64 = 0.95;

/// Anonymous memory, in bytes, below which the kind of pages makes no difference.
const LITTLE: u64 = 64 << 20;

/// The share of a process's own memory that is in huge pages; `None` if it has little memory, or if the
/// system does not report it.
pub fn huge_share(memory: &Memory) -> Option<f64> {
    let anonymous = memory.anonymous_bytes.filter(|&bytes| bytes >= LITTLE)?;
    Some(memory.huge_bytes? as f64 / anonymous as f64)
}

// Readings of a GPU, over all processes of a contender.

/// Over all processes of a contender; `None` if none of them has readings.
fn work(complete: &[&Run]) -> Option<GpuWork> {
    let all: Vec<&GpuWork> = complete.iter().filter_map(|run| run.usage()?.gpu.as_ref()).collect();
    let least = |of: fn(&GpuWork) -> Option<u64>| all.iter().filter_map(|work| of(work)).min();
    let most = |of: fn(&GpuWork) -> Option<u64>| all.iter().filter_map(|work| of(work)).max();
    let said = |of: fn(&GpuWork) -> &untrusted::Foreigns| {
        let texts: BTreeSet<&str> = all.iter().flat_map(|work| of(work)).map(|text| text.as_str()).collect();
        texts.into_iter().collect()
    };
    let means: Vec<f64> = all.iter().filter_map(|work| Some(work.held_mean_bytes? as f64)).collect();
    (!all.is_empty()).then(|| GpuWork {
        slowest_mhz: least(|work| work.slowest_mhz),
        fastest_mhz: most(|work| work.fastest_mhz),
        most_mhz: most(|work| work.most_mhz),
        celsius: most(|work| work.celsius),
        held_mean_bytes: median(&means).map(|mean| mean as u64),
        held_most_bytes: most(|work| work.held_most_bytes),
        held_back: said(|work| &work.held_back),
        remarks: said(|work| &work.remarks),
    })
}
