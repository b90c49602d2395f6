//! The outcome of a comparison as one value. Crate `render` makes tables and pages from it; nothing is
//! computed while rendering. `docs/reference/files.md` describes the JSON.

mod changes;
pub mod components;
pub mod crossed;
pub mod fairness;
mod figure;
pub mod floor;
mod gpu_work;
pub mod huge_pages;
pub mod hybrid;
mod input;
pub mod layer_parity;
mod loads;
mod pair;
pub mod prompts;
mod row;
pub mod slow_moments;
pub mod threads;
pub mod tokenisation;
pub mod verdicts;
mod warnings;
pub mod work;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use statistics::{Looks, median};

use crate::metrics::Metric;
use crossed::Crossed;
use facts::environment::Environment;
use facts::evidence::{self, BlocksChosen, End, Evidence, Probe, Slices, Stages};
use facts::noise::Noise;
use facts::reading;
use fairness::{Breach, MACHINE, RuleState};
use floor::Floor;
use plan::Plan;
use slow_moments::{Figures, SlowMoments};

use verdicts::Comparison;
use work::sanity::{self, Flag};

pub use changes::{Change, changes};
pub use figure::Figure;
pub use hybrid::Hybrid;
pub use input::{Facts, Prepared};
pub use loads::{LoadParts, Loads};
pub use row::{Energy, Kind, Reason, Requested, Row, State};
pub use warnings::Warning;

use prompts::PromptFigures;
use tokenisation::FromText;

/// Version of the JSON, and of the other files of a results directory.
pub const SCHEMA: u32 = 5;

/// Rejects a file of another version in one sentence.
pub fn check_schema(value: &Value) -> Result<(), String> {
    reading::schema(value, SCHEMA)
}

/// Reads `report.json` of a comparison back. The error is one sentence.
pub fn read(value: Value) -> Result<Report, String> {
    check_schema(&value)?;
    let mut report: Report = reading::typed(value, "the report of a comparison")?;
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
    #[serde(default)]
    pub blocks: Option<BlocksChosen>,
    /// How contenders took turns within requests.
    #[serde(default)]
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
    /// The effects of crossed switches, in a cell of `ab optimised`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crossed: Option<Crossed>,
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
        let probes = || work::limit::probes(plan, evidence);
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
        // With requests of one mark, it equals the cold start.
        if self.plan.work.marks() > 1
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
        let mut limits = work::limit::limits(plan, &model.config, evidence);
        let sanity = sanity::flags(plan, evidence, &limits);
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
        let slow_moments = slow_moments::slow_moments(asked, plan, evidence);
        let compared = rows.iter().filter(|row| row.state.takes_part()).map(|row| row.framework.clone());
        let (compared, noise): (Vec<String>, _) = (compared.collect(), noise(plan, &rules));
        let crossed = crossed::outcome(plan, evidence, &compared, noise.as_deref());
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
            floor: floor::floors(plan, &comparisons),
            warnings: warnings::warnings(facts, &rows, &rules),
            slow_moments,
            hybrids: hybrid::hybrids(plan, evidence, &rows, noise.as_deref()),
            rows,
            prompts: prompts::prompts(plan, evidence),
            from_text: tokenisation::from_text(plan, evidence),
            comparisons,
            crossed,
            rules,
            sanity,
            machine: Machine::new(plan, evidence),
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
    /// machine was too noisy.
    pub fn exit_code(&self) -> u8 {
        let bad = |row: &Row| matches!(row.state, State::Failed | State::Struck);
        if self.rows.iter().any(bad) {
            return 1;
        }
        if self.noise().is_some() {
            return 3;
        }
        match self.rows.iter().any(|row| row.state.takes_part()) {
            true => 0,
            // The limit is the user's, and no contender keeps to it.
            false if self.searches() => 2,
            false => 1,
        }
    }
}

impl Report {
    /// Whether the run searched for the highest rate at which answers are in time.
    fn searches(&self) -> bool {
        self.plan.work.load().is_some_and(|load| load.search.is_some())
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
