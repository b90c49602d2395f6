//! `ab optimised`: the switches of each framework in every combination, which gives the effect of each in
//! every order. Each framework is a comparison of its own, of 2ⁿ arms.

use bundle::Precision;
use configs::Engine;
use protocol::KvCache;
use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::plan::draft::Engines;
use crate::plan::{Arm, Axis, CellPlan, Failure, Request, Result, Setting, StudyPlan, StudyView, axes};

/// Its name on the command line, after `ab`.
pub(crate) const NAME: &str = "optimised";

/// Default number of new tokens: with neither cache nor JIT, a framework may need a tenth of a second for
/// each.
pub(crate) const NEW_TOKENS: u32 = 32;

/// Fewest switches: a single one has an A/B study of its own.
const FEWEST: usize = 2;

/// A cell for each place on the axes and each framework of `named`. `request` is complete except for its
/// arms.
pub(crate) fn plan(request: &Request, named: &[Engine], engines: &dyn Engines) -> Result<StudyPlan> {
    check(request)?;
    let mut cells = Vec::new();
    for (settings, cell) in axes::cells(request) {
        for engine in named {
            let (mut settings, mut cell) = (settings.clone(), cell.clone());
            settings.insert(Axis::Framework, Setting::Name(engine.name.clone()));
            match Crossing::new(engine, &cell).and_then(|crossing| crossing.arms(engines)) {
                Ok((switches, arms)) => {
                    let mut rules: Vec<String> =
                        switches.iter().map(|switch| switch.rule().to_owned()).collect();
                    rules.sort();
                    rules.dedup();
                    cell.study.varied = rules;
                    if switches.contains(&Switch::Precision) {
                        settings.remove(&Axis::Precision);
                        cell.precisions.clear();
                    }
                    (cell.study.crossed, cell.study.arms) = (switches, arms);
                }
                Err(reason) => cell.study.refused = Some(reason),
            }
            cells.push(CellPlan { settings, request: cell });
        }
    }
    let refused: Vec<&str> = cells.iter().filter_map(|cell| cell.request.study.refused.as_deref()).collect();
    if refused.len() == cells.len() {
        let mut reasons = refused;
        reasons.dedup();
        return Err(Failure::usage(reasons.join("; ")));
    }
    Ok(StudyPlan { name: format!("ab {NAME}"), view: StudyView::Crossed, cells })
}

/// Rejects requests that no framework supports.
fn check(request: &Request) -> Result<()> {
    if request.precisions.len() > 1 {
        return Err(Failure::usage(
            "`ab optimised` takes one --precision: the reduced one, which is compared with f32",
        ));
    }
    let typed = &request.study.crossed;
    let off = [
        (Switch::Jit, !request.jit, "--no-jit"),
        (Switch::Cache, !request.cache().is_on(), "--kv-cache off"),
    ];
    for (switch, is_off, flag) in off {
        if is_off && typed.contains(&switch) {
            return Err(Failure::usage(format!(
                "--switches {} and {flag} contradict each other: leave one out",
                switch.name()
            )));
        }
    }
    if typed.contains(&Switch::Precision) && request.precisions == [Precision::F32] {
        return Err(Failure::usage(
            "--switches precision holds a reduced precision against f32: name it with --precision",
        ));
    }
    if let [only] = typed[..] {
        let instead = match only {
            Switch::Cache => "kv-cache",
            Switch::Precision => "half",
            Switch::Jit | Switch::Fused => only.name(),
        };
        return Err(Failure::usage(format!(
            "crossing needs at least two switches; for a single one use `photofinish ab {instead}`"
        )));
    }
    Ok(())
}

/// The switches of a framework that are crossed.
struct Crossing<'a> {
    engine: &'a Engine,
    request: &'a Request,
    switches: Vec<Switch>,
    reduced: Option<Precision>,
}

impl<'a> Crossing<'a> {
    /// The typed switches, or all that `engine` has; the error names the missing one.
    fn new(engine: &'a Engine, request: &'a Request) -> std::result::Result<Crossing<'a>, String> {
        let (name, typed) = (&engine.name, &request.study.crossed);
        let has = |switch: &&Switch| lacks(engine, request, **switch).is_none();
        let all: Vec<Switch> = Switch::VARIANTS.iter().filter(has).copied().collect();
        if let Some((switch, why)) =
            typed.iter().find_map(|switch| Some((switch, lacks(engine, request, *switch)?)))
        {
            return Err(format!("{name} has no switch {}: {why}; {}", switch.name(), listed(&all)));
        }
        if all.len() < FEWEST {
            let why = format!("{name} has too few switches to cross: {}", listed(&all));
            return Err(format!("{why}; --switches and --precision name more"));
        }
        let switches = match typed.is_empty() {
            true => all,
            false => Switch::VARIANTS.iter().filter(|switch| typed.contains(switch)).copied().collect(),
        };
        let is_reduced = switches.contains(&Switch::Precision);
        Ok(Crossing { engine, request, switches, reduced: reduced(engine, request).filter(|_| is_reduced) })
    }

    /// An arm for each combination, from all on to all off.
    fn arms(&self, engines: &dyn Engines) -> std::result::Result<(Vec<Switch>, Vec<Arm>), String> {
        let subset = |bits: usize| -> Vec<Switch> {
            let on = self.switches.iter().enumerate().filter(|(place, _)| bits & (1 << place) != 0);
            on.map(|(_, switch)| *switch).collect()
        };
        let arms = (0..1_usize << self.switches.len()).rev().map(|bits| self.arm(subset(bits), engines));
        Ok((self.switches.clone(), arms.collect::<std::result::Result<_, _>>()?))
    }

    fn arm(&self, on: Vec<Switch>, engines: &dyn Engines) -> std::result::Result<Arm, String> {
        let Crossing { engine, request, .. } = self;
        let fixed = &engine.settings;
        let mut arm = Arm {
            label: self.label(&on),
            precision: Some(fixed.precision.unwrap_or(request.precision())),
            // A variant that lacks one switch may fix this one as well.
            jit: Some(request.jit && fixed.jit != Some(false)),
            ..Arm::default()
        }
        .keeping(request.cache().policy);
        let mut used = (*engine).clone();
        for switch in &self.switches {
            let is_on = on.contains(switch);
            match switch {
                Switch::Jit => arm.jit = Some(is_on),
                Switch::Precision => arm.precision = self.reduced.filter(|_| is_on).or(Some(Precision::F32)),
                Switch::Cache | Switch::Fused if is_on => {}
                Switch::Cache => match &used.without_cache {
                    Some(name) => used = self.variant(name, engines)?,
                    None => arm = arm.keeping(KvCache::Off),
                },
                Switch::Fused => used = self.variant(&without_fused(&used), engines)?,
            }
        }
        Ok(Arm { engine: used.name, on, ..arm })
    }

    fn variant(&self, name: &str, engines: &dyn Engines) -> std::result::Result<Engine, String> {
        engines.engine(name).map_err(|error| {
            format!(
                "{} has no variant {name}, which a combination of its switches needs: {error}",
                self.engine.name
            )
        })
    }

    fn label(&self, on: &[Switch]) -> String {
        let titles: Vec<&str> = on.iter().map(|switch| switch.title(self.reduced)).collect();
        let what = match on.len() {
            0 => "all off".to_owned(),
            count if count == self.switches.len() => "all on".to_owned(),
            _ => titles.join(" + "),
        };
        format!("{} ({what})", self.engine.name)
    }
}

/// Why an engine lacks a switch; `None` if it has it. Some are available only if named.
fn lacks(engine: &Engine, request: &Request, switch: Switch) -> Option<&'static str> {
    let is_named = request.study.crossed.contains(&switch);
    match switch {
        Switch::Cache if !request.cache().is_on() => Some("--kv-cache off"),
        // The engine is its own variant without a cache.
        Switch::Cache => {
            (engine.without_cache.as_ref() == Some(&engine.name)).then_some("it has no KV cache")
        }
        Switch::Jit if !request.jit => Some("--no-jit"),
        Switch::Jit => (engine.compiles.is_none() || engine.settings.jit == Some(false))
            .then_some("there is neither a JIT nor graph optimisation to switch off"),
        Switch::Precision if engine.settings.precision.is_some() => Some("its precision is fixed"),
        Switch::Precision => reduced(engine, request).is_none().then_some("no reduced precision was named"),
        Switch::Fused => (engine.without_fused.is_none() && !is_named)
            .then_some("no variant of it is without fused kernels"),
    }
}

/// The reduced precision: the one that was asked for, or else one for which the engine has dedicated kernels.
fn reduced(engine: &Engine, request: &Request) -> Option<Precision> {
    let is_named = request.study.crossed.contains(&Switch::Precision);
    match request.precisions.first() {
        Some(&asked) => (asked != Precision::F32).then_some(asked),
        None if request.is_on_gpu() || is_named => Some(request.half()),
        None => engine.reduced_precision,
    }
}

/// The name of the variant without fused kernels.
fn without_fused(engine: &Engine) -> String {
    engine.without_fused.clone().unwrap_or_else(|| format!("{}-base", engine.name))
}

fn listed(switches: &[Switch]) -> String {
    match switches {
        [] => "it has none".to_owned(),
        switches => {
            let names: Vec<&str> = switches.iter().map(|switch| switch.name()).collect();
            format!("it has {}", names.join(", "))
        }
    }
}

// Switches: optimisations of a contender that can be left out, one by one or together.

/// A switch that `ab optimised` crosses with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, VariantArray)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// The KV cache.
    Cache,
    /// The JIT, or graph optimisation.
    Jit,
    /// A reduced precision instead of f32.
    Precision,
    /// Fused kernels.
    Fused,
}

impl Switch {
    /// The switch with this name.
    pub fn named(name: &str) -> Option<Switch> {
        Switch::VARIANTS.iter().copied().find(|switch| switch.name() == name)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Switch::Cache => "cache",
            Switch::Jit => "jit",
            Switch::Precision => "precision",
            Switch::Fused => "fused",
        }
    }

    /// Id of the fairness rule that it varies.
    pub(crate) fn rule(self) -> &'static str {
        match self {
            Switch::Cache => "R13",
            Switch::Precision => "R2",
            Switch::Jit | Switch::Fused => "R14",
        }
    }

    /// Its name in outputs; `reduced` is the precision that it switches on.
    pub(crate) fn title(self, reduced: Option<Precision>) -> &'static str {
        match self {
            Switch::Jit => "JIT",
            Switch::Precision => reduced.map_or("precision", Precision::name),
            Switch::Cache | Switch::Fused => self.name(),
        }
    }
}
