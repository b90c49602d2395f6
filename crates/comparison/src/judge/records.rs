//! Makes the records of the history from a report.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use statistics::median_interval;

use crate::facts::evidence::{Probe, Slices, of_rounds};
use crate::facts::run::Environment;
use crate::history::{Case, Figure, Machine, Parity, Record, SCHEMA, Settings, Verdict};
use crate::judge::report::memory::Parts;
use crate::judge::report::verdicts::Comparison;
use crate::judge::report::{self, Report, Row};
use crate::judge::work;
use crate::plan::Contender;

/// Name of the history within a results directory.
pub const HISTORY: &str = "history.jsonl";

/// Makes one record for each row of the report, including rows that could not run. `study` names the study that the run
/// is a cell of.
pub fn records(report: &Report, study: Option<&str>) -> Vec<Record> {
    report.rows.iter().map(|row| record(report, row, study)).collect()
}

fn record(report: &Report, row: &Row, study: Option<&str>) -> Record {
    let Report { environment, plan, .. } = report;
    let hello = row.hello.as_ref();
    Record {
        schema: SCHEMA,
        run: run(Path::new(&report.results), study),
        results: report.results.clone(),
        study: study.map(str::to_owned),
        time: environment.started.clone(),
        git_commit: environment.git_commit.clone(),
        git_modified: environment.git_modified,
        driver_version: environment.driver_version.clone(),
        command: environment.command.clone(),
        request: Some(plan.request.to_json()),
        machine: machine(environment, report),
        case: case(report, row),
        settings: settings(report),
        framework: row.framework.clone(),
        library: hello.map(|hello| hello.library.clone()),
        binding: hello.map(|hello| hello.binding.clone()),
        optimised: plan.contender(&row.framework).map(|contender| is_optimised(contender, row)),
        state: row.state,
        reasons: row.reasons.iter().map(|reason| reason.to_string().into()).collect(),
        rounds: row.rounds,
        interrupted: report.interrupted,
        noise: report.noise().map(Into::into),
        parity: row.agreement.as_ref().map(|agreement| Parity {
            agrees: agreement.broken.is_none(),
            text: row.parity_words().into(),
            reference: Some(agreement.reference.as_str().into()),
            max_abs: Some(agreement.max_abs()),
            top1: agreement.logits.map(|logits| logits.top1),
            other: Default::default(),
        }),
        metrics: row.metrics.iter().filter_map(figure).collect(),
        memory: row.memory.as_ref().map(memory).unwrap_or_default(),
        verdicts: report.comparisons.iter().filter_map(|found| verdict(found, &row.framework)).collect(),
        other: Default::default(),
    }
}

/// The computed case, and the settings of its measurement.
fn case(report: &Report, row: &Row) -> Case {
    let plan = &report.plan;
    let contender = plan.contender(&row.framework);
    Case {
        model: report.model.name.clone(),
        weights_sha256: weights(report, row),
        precision: name(&row.precision.requested),
        device: plan.device.clone(),
        threads: contender.map_or(plan.threads, |contender| contender.threads),
        batch: plan.work.batch(),
        prompt_tokens: (0..plan.work.cases()).map(|case| plan.work.case_tokens(case)).collect(),
        jit: contender.map_or(plan.jit, |contender| contender.jit),
        ..work::case(&plan.work, contender)
    }
}

fn settings(report: &Report) -> Settings {
    let plan = &report.plan;
    Settings {
        suite: plan.suite.clone(),
        fair_comparison: plan.fair_comparison,
        iterations: report.blocks.map_or(plan.iterations, |chosen| chosen.blocks / plan.work.cases().max(1)),
        schedule: plan.schedule,
        turn: match report.slices {
            Some(Slices::Tokens { .. }) => "slice".to_owned(),
            _ => "request".to_owned(),
        },
        huge_pages: plan.huge_pages,
        kernel_cache: plan.kernel_cache,
        margin: plan.margin,
        seed: plan.seed,
        accept_noise: plan.accept_noise,
        noise_accepted: report.noise_accepted(),
        // A suite for first looks accepts noise without the user asking for it.
        quick: plan.request.quick || (plan.accept_noise && !plan.request.accept_noise),
        round_s: round_s(report),
        other: Default::default(),
    }
}

fn round_s(report: &Report) -> Option<f64> {
    let rounds = report.rows.iter().map(|row| row.rounds).max().filter(|rounds| *rounds > 0)?;
    Some(of_rounds(&report.time)? / rounds as f64)
}

/// The parts of the peak, in bytes, by name.
fn memory(parts: &Parts) -> BTreeMap<String, f64> {
    let parts = parts.summands().into_iter().chain([("peak", parts.peak)]);
    let known = parts.filter(|(_, bytes)| bytes.is_finite());
    known.map(|(part, bytes)| (part.to_owned(), bytes)).collect()
}

/// The run's name: that of its directory. The directory of a cell is in that of its study, and only both
/// names together are unique.
fn run(directory: &Path, study: Option<&str>) -> String {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match directory.parent() {
        Some(parent) if study.is_some() => format!("{}/{}", name(parent), name(directory)),
        _ => name(directory),
    }
}

fn is_optimised(contender: &Contender, row: &Row) -> bool {
    // A framework without a switch is the same with and without the flag.
    let is_on = row.in_effect.as_ref().map_or(contender.jit, |in_effect| in_effect.optimised != Some(false));
    is_on && !contender.engine.name.ends_with("-base")
}

/// The figure; `None` if it is not finite. JSON has neither infinity nor NaN, the result of 0 ÷ 0.
fn figure(figure: &report::Figure) -> Option<(String, Figure)> {
    let is_finite = |value: &f64| value.is_finite();
    let kept = Figure {
        unit: figure.unit.clone(),
        higher_is_better: figure.metric.higher_is_better(),
        typical: figure.typical.filter(is_finite)?,
        interval: figure.interval.filter(|(low, high)| low.is_finite() && high.is_finite()),
        values: figure.compared().iter().map(|value| value.filter(is_finite)).collect(),
        other: Default::default(),
    };
    Some((figure.metric.name().to_owned(), kept))
}

/// The comparison from the side of `framework`; `None` if it is not one of the two.
fn verdict(found: &Comparison, framework: &str) -> Option<Verdict> {
    let is_a = found.a == framework;
    if !is_a && found.b != framework {
        return None;
    }
    let (against, verdict) =
        if is_a { (&found.b, found.verdict) } else { (&found.a, found.verdict.turned()) };
    let turn = |advantage: f64| if is_a { advantage } else { 1.0 / advantage };
    Some(Verdict {
        metric: found.metric.name().to_owned(),
        against: against.clone(),
        verdict: name(&verdict),
        advantage: found.advantage.map(turn).filter(|advantage| advantage.is_finite()),
        interval: found
            .interval
            .map(|(low, high)| if is_a { (low, high) } else { (1.0 / high, 1.0 / low) })
            .filter(|(low, high)| low.is_finite() && high.is_finite()),
        other: Default::default(),
    })
}

fn machine(environment: &Environment, report: &Report) -> Machine {
    let is_of_device = |probe: &&Probe| probe.device == report.plan.device.as_str();
    let probes = |of: fn(&Probe) -> f64| {
        report.machine.probes.iter().filter(is_of_device).map(of).collect::<Vec<f64>>()
    };
    Machine {
        fingerprint: fingerprint(environment),
        host: environment.host.clone(),
        os: environment.os.clone(),
        kernel: environment.kernel.clone(),
        cpu: environment.cpu.clone(),
        physical_cores: environment.physical_cores,
        available_cores: environment.available_cores,
        memory_bytes: environment.memory_bytes,
        gpus: environment.gpus.iter().map(|gpu| gpu.name.clone()).collect(),
        read_bandwidth: report.machine.read_bandwidth.as_ref().map(|spread| spread.median),
        arithmetic: report.machine.arithmetic.as_ref().map(|spread| spread.median),
        other: probe_intervals(&probes(|probe| probe.read_bandwidth), &probes(|probe| probe.arithmetic)),
    }
}

/// 95 % intervals of the medians of a run's probes, if there are enough probes. Two medians alone do not show
/// whether the machine was the same in two runs.
pub fn probe_intervals(read_bandwidth: &[f64], arithmetic: &[f64]) -> Map<String, Value> {
    let named = [("read_bandwidth_interval", read_bandwidth), ("arithmetic_interval", arithmetic)];
    let interval = |(name, values): (&str, &[f64])| Some((name.to_owned(), json!(median_interval(values)?)));
    named.into_iter().filter_map(interval).collect()
}

pub fn fingerprint(environment: &Environment) -> String {
    let gpus: Vec<String> = environment.gpus.iter().map(|gpu| gpu.name.clone()).collect();
    let Environment { physical_cores, available_cores, cpu_quota, memory_bytes, .. } = *environment;
    let cpu = &environment.cpu;
    MadeOf { cpu, physical_cores, available_cores, cpu_quota, memory_bytes, gpus: &gpus }.fingerprint()
}

/// The facts that the speed of a machine depends on.
pub struct MadeOf<'a> {
    pub cpu: &'a str,
    pub physical_cores: Option<usize>,
    pub available_cores: usize,
    pub cpu_quota: Option<f64>,
    pub memory_bytes: u64,
    pub gpus: &'a [String],
}

impl MadeOf<'_> {
    /// The first sixteen hexadecimal digits of a hash.
    pub fn fingerprint(&self) -> String {
        let made_of = json!([
            std::env::consts::OS,
            std::env::consts::ARCH,
            self.cpu,
            self.physical_cores,
            self.available_cores,
            self.cpu_quota,
            (self.memory_bytes as f64 / f64::from(1 << 30)).round(),
            self.gpus,
        ]);
        bundle::hexadecimal(&Sha256::digest(made_of.to_string())[..8])
    }
}

/// The sha256 of the file of its precision.
pub fn weights(report: &Report, row: &Row) -> Option<String> {
    let file = format!("{}.safetensors", row.precision.requested.name());
    Some(report.model.manifest.files.get(&file)?.sha256.clone())
}

/// The name of a plain value in JSON.
pub fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name,
        other => unreachable!("a value without a name: {other:?}"),
    }
}

// A case in words. Lists, page titles and checks all give a case the same name.

/// A case as "12+34 → 32, batch 4, 2 threads": prompt lengths, new tokens if there are any, and every unusual setting. Model
/// and precision are left out.
pub fn in_short(case: &Case) -> String {
    let mut text = work::size(case);
    let mut add = |said: bool, what: String| {
        if said {
            text += &format!(", {what}");
        }
    };
    add(case.batch > 1, format!("batch {}", case.batch));
    add(case.context > 0, format!("context {}", case.context));
    add(case.device != "cpu", case.device.clone());
    add(
        true,
        match case.threads {
            0 => "default threads".to_owned(),
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        },
    );
    let (by_token, by_step) = work::unusual(case);
    by_token.into_iter().for_each(|what| add(true, what));
    add(!case.jit, "no JIT".into());
    by_step.into_iter().for_each(|what| add(true, what));
    text
}

/// A case with model and precision: "a-model f32, 12+34 → 32, batch 4, 2 threads".
pub fn in_full(case: &Case) -> String {
    format!("{} {}, {}", case.model, case.precision, in_short(case))
}

/// The case that arms of an A/B study share: the optimisations that they switch are on.
pub fn shared_by_arms(case: &Case) -> Case {
    work::with_cache_on(Case { jit: true, ..case.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_told_by_what_is_not_as_usual() {
        let case = Case {
            model: "m".into(),
            precision: "f32".into(),
            device: "cuda:0".into(),
            prompt_tokens: vec![4, 9],
            threads: 1,
            batch: 4,
            ..Case::default()
        };
        assert_eq!(in_full(&case), "m f32, 4+9 tokens, batch 4, cuda:0, 1 thread, no JIT");
        assert_eq!(in_short(&shared_by_arms(&case)), "4+9 tokens, batch 4, cuda:0, 1 thread");
    }
}
