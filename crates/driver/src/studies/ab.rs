//! What an optimisation is worth: each framework with it and without it, in one comparison for each framework,
//! paired by round.

use comfy_table::{Table, TableStyle};
use protocol::KvCache;
use serde::Serialize;

use super::cell::{Cell, CellRow};
use super::scaling::{self, Scaling};
use super::table::{align, axes};
use super::{Document, Study, View};
use crate::axes::{self, Axis, Setting, Settings};
use crate::cli::CompareArgs;
use crate::configs::{self, Engine};
use crate::failure::{Failure, Result};
use crate::judge::metrics::Metric;
use crate::judge::verdicts::Verdict;
use crate::places::Places;
use crate::plan::{self, Arm};
use crate::report::number;

/// Tokens unless told: enough for the KV cache to matter.
const NEW_TOKENS: u32 = 64;
const PROMPT_TOKENS: u32 = 16;
const PROMPT: &str = "The quick brown fox jumps over the lazy dog, and then it runs off into";

/// One framework at one place, with and without.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Outcome {
    pub(super) settings: Settings,
    /// Why there is nothing to compare.
    pub(super) reason: Option<String>,
    pub(super) a: Option<Side>,
    pub(super) b: Option<Side>,
    /// Of decoding: a's throughput ÷ b's, with its 95 % interval, and the verdict on a.
    pub(super) speedup: Option<f64>,
    pub(super) interval: Option<(f64, f64)>,
    pub(super) verdict: Option<Verdict>,
    /// a's peak ÷ b's − 1.
    pub(super) memory_change: Option<f64>,
    /// Tokens chosen in the timed loop, and how many of them are the same in both arms.
    pub(super) tokens: usize,
    pub(super) same_tokens: usize,
    /// Of both arms against the reference.
    pub(super) parity: [String; 2],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Side {
    pub(super) contender: String,
    pub(super) precision: String,
    /// Tokens per second.
    pub(super) throughput: Option<f64>,
    /// Milliseconds of one request: its first token and all gaps.
    pub(super) total_ms: Option<f64>,
    /// Gigabytes.
    pub(super) peak_memory: Option<f64>,
}

/// What is switched, the names of both sides, and the rules whose subject it is.
struct Switch {
    names: [&'static str; 2],
    varied: &'static [&'static str],
    set: fn(&mut [Arm; 2], &CompareArgs),
}

fn switch(what: &str) -> Option<Switch> {
    Some(match what {
        "kv-cache" => Switch {
            names: ["KV cache", "none"],
            varied: &["R13"],
            set: |arms, _| (arms[0].kv_cache, arms[1].kv_cache) = (Some(KvCache::On), Some(KvCache::Off)),
        },
        "jit" => Switch {
            names: ["JIT", "none"],
            varied: &["R14"],
            set: |arms, _| (arms[0].jit, arms[1].jit) = (Some(true), Some(false)),
        },
        "half" => Switch {
            names: ["half", "f32"],
            varied: &["R2"],
            set: |arms, args| {
                let asked = args.model.precision.first().copied();
                let half = asked.unwrap_or(plan::half(&args.model));
                (arms[0].precision, arms[1].precision) = (Some(half), Some(bundle::Precision::F32));
            },
        },
        "fused" => Switch {
            names: ["fused", "base"],
            varied: &["R14"],
            set: |arms, _| arms[1].engine = format!("{}-base", arms[1].engine),
        },
        _ => return None,
    })
}

/// Rules that two named variants may differ in.
const VARIANTS: &[&str] = &["R2", "R13", "R14"];

pub(super) fn study(what: &[String], mut args: CompareArgs, places: &Places) -> Result<Study> {
    if !args.quantize.is_empty() {
        return Err(Failure::usage("--quantize is for `compare`"));
    }
    args.study.equal_warmup = true;
    if args.prompt.is_empty() && args.prompts.is_none() && args.suite.is_none() {
        args.prompt = vec![PROMPT.to_owned()];
    }
    if args.new_tokens.is_empty() {
        args.new_tokens = vec![NEW_TOKENS];
    }
    if args.prompt_tokens.is_empty() && args.context.is_empty() {
        args.prompt_tokens = vec![PROMPT_TOKENS];
    }
    if let [a, b] = what {
        return variants(a, b, args, places);
    }
    let what = what.first().map_or("", String::as_str);
    let switch = switch(what).ok_or_else(|| {
        Failure::usage(format!("{what:?} alone is no study; there are kv-cache, jit, half, fused, or two names from configs/engines"))
    })?;
    args.study.varied = switch.varied;
    let engines: Vec<Engine> = plan::engines(&args, places)?;
    let mut cells = Vec::new();
    for (settings, cell) in axes::cells(&args) {
        for engine in &engines {
            let (mut settings, mut cell) = (settings.clone(), cell.clone());
            settings.insert(Axis::Framework, Setting::Name(engine.name.clone()));
            let arm = |name: &str| Arm {
                label: format!("{} ({name})", engine.name),
                engine: engine.name.clone(),
                ..Arm::default()
            };
            let mut arms = switch.names.map(arm);
            (switch.set)(&mut arms, &cell);
            if let Err(error) = configs::engine(&places.configs, &arms[1].engine) {
                let name = &engine.name;
                cell.study.refused = Some(format!("{name} has no variant to hold it against: {error}"));
            }
            if what == "half" {
                settings.remove(&Axis::Precision);
                cell.model.precision.clear();
            }
            cell.study.arms = arms.into();
            cells.push((settings, cell));
        }
    }
    let names = switch.names.map(str::to_owned);
    Ok(Study { name: format!("ab {what}"), view: View::Ab(names), cells, shard: None })
}

fn variants(a: &str, b: &str, mut args: CompareArgs, places: &Places) -> Result<Study> {
    for name in [a, b] {
        configs::engine(&places.configs, name)?;
    }
    if !args.frameworks.is_empty() {
        return Err(Failure::usage("two variants are frameworks enough: leave --frameworks out"));
    }
    args.study.varied = VARIANTS;
    let arm = |name: &str, number: &str| Arm {
        label: if a == b { format!("{name}{number}") } else { name.to_owned() },
        engine: name.to_owned(),
        ..Arm::default()
    };
    args.study.arms = vec![arm(a, ""), arm(b, " (2)")];
    Ok(Study {
        name: format!("ab {a} {b}"),
        view: View::Ab([a.to_owned(), b.to_owned()]),
        cells: axes::cells(&args),
        shard: None,
    })
}

pub(super) fn outcomes(cells: &[Cell]) -> Vec<Outcome> {
    cells.iter().map(outcome).collect()
}

fn outcome(cell: &Cell) -> Outcome {
    let [a, b] = [cell.rows.first(), cell.rows.get(1)];
    let of_pair = |metric: Metric| {
        let verdict = cell.verdicts.iter().find(|verdict| verdict.metric == metric)?;
        let is_a = Some(verdict.a.as_str()) == a.map(|row| row.framework.as_str());
        let turned = |(low, high): (f64, f64)| if is_a { (low, high) } else { (1.0 / high, 1.0 / low) };
        let word = match verdict.verdict {
            Verdict::Faster if !is_a => Verdict::Slower,
            other => other,
        };
        let speedup = verdict.advantage.map(|times| if is_a { times } else { 1.0 / times });
        Some((speedup, verdict.interval.map(turned), word))
    };
    let (speedup, interval, verdict) = match of_pair(Metric::Throughput) {
        Some((speedup, interval, verdict)) => (speedup, interval, Some(verdict)),
        None => (None, None, None),
    };
    let peak = |row: Option<&CellRow>| row?.median(Metric::PeakMemory);
    // One round says nothing of chance, but it says this.
    let rate = |row: Option<&CellRow>| row?.median(Metric::Throughput);
    let speedup = speedup.or_else(|| Some(rate(a)? / rate(b)?));
    let (tokens, same_tokens) = same(a, b);
    let reasons =
        || cell.rows.iter().flat_map(|row| row.reasons.iter().map(|why| format!("{}: {why}", row.framework)));
    Outcome {
        settings: cell.settings.clone(),
        reason: cell.refused.clone().or_else(|| reasons().next()),
        a: a.map(side),
        b: b.map(side),
        speedup,
        interval,
        verdict,
        memory_change: peak(a).zip(peak(b)).map(|(a, b)| a / b - 1.0),
        tokens,
        same_tokens,
        parity: [a, b].map(|row| row.map_or("not run".into(), |row| row.parity.clone())),
    }
}

fn side(row: &CellRow) -> Side {
    Side {
        contender: row.framework.clone(),
        precision: row.precision.clone(),
        throughput: row.median(Metric::Throughput),
        total_ms: row.median(Metric::Total),
        peak_memory: row.median(Metric::PeakMemory),
    }
}

/// How many tokens both chose in the timed loop, and how many of them are the same.
fn same(a: Option<&CellRow>, b: Option<&CellRow>) -> (usize, usize) {
    let flat = |row: &CellRow| -> Option<Vec<u32>> {
        Some(row.tokens.as_ref()?.iter().flatten().flatten().copied().collect())
    };
    let Some((a, b)) = a.and_then(flat).zip(b.and_then(flat)) else { return (0, 0) };
    (a.len().max(b.len()), a.iter().zip(&b).filter(|(a, b)| a == b).count())
}

/// Along the new tokens: how the speed-up and the time of either side grow.
pub(super) fn scaling(outcomes: &[Outcome]) -> Vec<Scaling> {
    let mut places: Vec<Settings> = Vec::new();
    for outcome in outcomes {
        let mut rest = outcome.settings.clone();
        rest.remove(&Axis::NewTokens);
        if !places.contains(&rest) {
            places.push(rest);
        }
    }
    let mut all = Vec::new();
    for place in places {
        let here = outcomes.iter().filter(|outcome| {
            let mut rest = outcome.settings.clone();
            rest.remove(&Axis::NewTokens);
            rest == place
        });
        let here: Vec<&Outcome> = here.collect();
        for pick in [|o: &Outcome| o.a.clone(), |o: &Outcome| o.b.clone()] {
            let points = here.iter().filter_map(|outcome| {
                let Setting::Number(tokens) = outcome.settings.get(&Axis::NewTokens)? else { return None };
                Some((f64::from(*tokens), pick(outcome)?.total_ms?))
            });
            let points: Vec<(f64, f64)> = points.collect();
            let name = here.iter().find_map(|outcome| Some(pick(outcome)?.contender));
            let mut at = place.clone();
            at.remove(&Axis::Framework);
            let name = name.unwrap_or_default();
            all.extend(scaling::scaling(&name, Axis::NewTokens, at, Metric::Total, &points));
        }
    }
    all
}

pub(super) fn grid(document: &Document, arms: &[String; 2], style: TableStyle) -> String {
    let places = axes(document);
    let mut table = Table::new();
    table.load_style(style);
    let titles = places.iter().map(|axis| axis.title().to_owned());
    let figures = [
        format!("{} (tok/s)", arms[0]),
        format!("{} (tok/s)", arms[1]),
        "Speed-up".into(),
        "95 % interval".into(),
        "Verdict".into(),
        "Memory".into(),
        "Same tokens".into(),
        "Parity".into(),
    ];
    let fixed = places.len();
    table.set_header(titles.chain(figures));
    for outcome in &document.outcomes {
        let dash = || "–".to_owned();
        let place = |axis: &Axis| outcome.settings.get(axis).map_or_else(dash, ToString::to_string);
        let speed =
            |side: &Option<Side>| side.as_ref().and_then(|side| side.throughput).map_or_else(dash, number);
        let verdict = outcome.verdict.map_or_else(dash, |verdict| match verdict {
            Verdict::Faster => "faster".into(),
            Verdict::Slower => "slower".into(),
            Verdict::Equivalent => "equivalent".into(),
            Verdict::Inconclusive => "inconclusive".into(),
            Verdict::NotMeasurable => "not measurable".into(),
        });
        let [a, b] = &outcome.parity;
        let cells = [
            speed(&outcome.a),
            speed(&outcome.b),
            outcome.speedup.map_or_else(dash, |times| format!("{times:.2}x")),
            outcome.interval.map_or_else(dash, |(low, high)| format!("{low:.2}–{high:.2}")),
            verdict,
            outcome.memory_change.map_or_else(dash, |change| format!("{:+.1} %", 100.0 * change)),
            if outcome.tokens == 0 {
                dash()
            } else {
                format!("{} of {}", outcome.same_tokens, outcome.tokens)
            },
            if a == b { a.clone() } else { format!("{a} / {b}") },
        ];
        table.add_row(places.iter().map(place).chain(cells));
    }
    align(&mut table, fixed);
    table.to_string()
}

pub(super) fn sentences(document: &Document) -> Vec<String> {
    let mut lines = Vec::new();
    let mut frameworks: Vec<&Setting> = Vec::new();
    for outcome in &document.outcomes {
        if let Some(framework) = outcome.settings.get(&Axis::Framework)
            && !frameworks.contains(&framework)
        {
            frameworks.push(framework);
        }
    }
    for framework in frameworks {
        let along: Vec<(&Setting, f64)> = document
            .outcomes
            .iter()
            .filter(|outcome| outcome.settings.get(&Axis::Framework) == Some(framework))
            .filter_map(|outcome| Some((outcome.settings.get(&Axis::NewTokens)?, outcome.speedup?)))
            .collect();
        if let [(first, least), .., (last, most)] = along[..] {
            lines.push(format!(
                "{framework}: the speed-up goes from {least:.2}x at {first} new tokens to {most:.2}x at {last}"
            ));
        }
    }
    lines
}
