//! `sweep optimised`: all switches of a framework on, and each alone, against the same framework with all of them off.
//! Each comparison is an A/B of two arms.

#[cfg(test)]
mod tests;

use bundle::Precision;
use configs::Engine;
use protocol::KvCache;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::plan::draft::Engines;
use crate::plan::{Arm, Axis, CellPlan, Failure, Request, Result, Setting, StudyPlan, StudyView, axes};

/// Its name on the command line, after `ab`.
pub(crate) const NAME: &str = "optimised";

/// Default number of new tokens: with neither cache nor JIT, a framework may need a tenth of a second for
/// each.
pub(crate) const NEW_TOKENS: u32 = 32;

/// Fewest switches: a single one has an A/B study of its own.
const MIN_SWITCHES: usize = 2;

const ALL_ON: &str = "all on";

const ALL_OFF: &str = "all off";

/// Cells for each place on the axes and each framework of `named`: one with all switches on, one with each alone.
/// `request` is complete except for its arms.
pub(crate) fn plan(request: &Request, named: &[Engine], engines: &dyn Engines) -> Result<StudyPlan> {
    check(request)?;
    let mut cells = Vec::new();
    for (settings, cell) in axes::cells(request) {
        for engine in named {
            let mut settings = settings.clone();
            settings.insert(Axis::Framework, Setting::Name(engine.name.clone()));
            match Switched::new(engine, &cell) {
                Ok(switched) => cells.extend(switched.cells(&settings, engines)),
                Err(reason) => {
                    settings.insert(Axis::Switch, Setting::Name(ALL_ON.to_owned()));
                    let mut cell = cell.clone();
                    cell.study.refused = Some(reason);
                    cells.push(CellPlan { settings, request: cell });
                }
            }
        }
    }
    let refused: Vec<&str> = cells.iter().filter_map(|cell| cell.request.study.refused.as_deref()).collect();
    if refused.len() == cells.len() {
        let mut reasons = refused;
        reasons.dedup();
        return Err(Failure::usage(reasons.join("; ")));
    }
    let view = StudyView::Ab(["switched on", ALL_OFF].map(str::to_owned));
    Ok(StudyPlan { name: format!("ab {NAME}"), view, cells })
}

/// Rejects requests that no framework supports.
fn check(request: &Request) -> Result<()> {
    if request.precisions.len() > 1 {
        return Err(Failure::usage(
            "`sweep optimised` takes one --precision: the reduced one, which is compared with f32",
        ));
    }
    let typed = &request.study.switches;
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
            "--switches precision compares a reduced precision with f32: name it with --precision",
        ));
    }
    if let [only] = typed[..] {
        let instead = match only {
            Switch::Cache => "kv-cache",
            Switch::Precision => "half",
            Switch::Jit | Switch::Fused => only.name(),
        };
        return Err(Failure::usage(format!(
            "`sweep optimised` needs at least two switches; for a single one use `photofinish sweep {instead}`"
        )));
    }
    Ok(())
}

/// The switches of a framework that are compared.
struct Switched<'a> {
    engine: &'a Engine,
    request: &'a Request,
    switches: Vec<Switch>,
    reduced: Option<Precision>,
}

impl<'a> Switched<'a> {
    /// The typed switches, or all that `engine` has; the error names the missing one.
    fn new(engine: &'a Engine, request: &'a Request) -> std::result::Result<Switched<'a>, String> {
        let (name, typed) = (&engine.name, &request.study.switches);
        let has = |switch: &Switch| lacks(engine, request, *switch).is_none();
        let all: Vec<Switch> = Switch::VARIANTS.iter().copied().filter(has).collect();
        for switch in typed {
            if let Some(why) = lacks(engine, request, *switch) {
                return Err(format!("{name} has no switch {}: {why}; {}", switch.name(), listed(&all)));
            }
        }
        if all.len() < MIN_SWITCHES {
            let why = format!("{name} has too few switches: {}", listed(&all));
            return Err(format!("{why}; --switches and --precision name more"));
        }
        let switches = match typed.is_empty() {
            true => all,
            false => Switch::VARIANTS.iter().filter(|switch| typed.contains(switch)).copied().collect(),
        };
        let reduced = reduced(engine, request).filter(|_| switches.contains(&Switch::Precision));
        Ok(Switched { engine, request, switches, reduced })
    }

    /// A cell with all switches on, then one for each alone. A cell that no variant can compute says so.
    fn cells(&self, place: &axes::Settings, engines: &dyn Engines) -> Vec<CellPlan> {
        let each = self.switches.iter().map(|&switch| (switch.title(self.reduced), vec![switch]));
        let sides = [(ALL_ON, self.switches.clone())].into_iter().chain(each);
        let cell = |(title, on): (&str, Vec<Switch>)| {
            let (mut settings, mut cell) = (place.clone(), self.request.clone());
            settings.insert(Axis::Switch, Setting::Name(title.to_owned()));
            if self.switches.contains(&Switch::Precision) {
                settings.remove(&Axis::Precision);
                cell.precisions.clear();
            }
            cell.study.varied = on.iter().map(|switch| switch.rule().to_owned()).collect();
            cell.study.varied.sort();
            cell.study.varied.dedup();
            let arms = [self.arm(title, &on, engines), self.arm(ALL_OFF, &[], engines)];
            match arms.into_iter().collect() {
                Ok(arms) => cell.study.arms = arms,
                Err(reason) => cell.study.refused = Some(reason),
            }
            CellPlan { settings, request: cell }
        };
        sides.map(cell).collect()
    }

    fn arm(&self, title: &str, on: &[Switch], engines: &dyn Engines) -> std::result::Result<Arm, String> {
        let Switched { engine, request, .. } = self;
        let fixed = &engine.settings;
        let mut arm = Arm {
            label: format!("{} ({title})", engine.name),
            precision: Some(fixed.precision.unwrap_or(request.precision())),
            // A variant that lacks one switch may fix this one as well.
            jit: Some(request.jit && fixed.jit != Some(false)),
            kv_cache: Some(request.cache().policy),
            ..Arm::default()
        };
        let mut used = (*engine).clone();
        for switch in &self.switches {
            let is_on = on.contains(switch);
            match switch {
                Switch::Jit => arm.jit = Some(is_on),
                Switch::Precision => arm.precision = self.reduced.filter(|_| is_on).or(Some(Precision::F32)),
                Switch::Cache | Switch::Fused if is_on => {}
                Switch::Cache => match &used.without_cache {
                    Some(name) => used = self.variant(name, engines)?,
                    None => arm.kv_cache = Some(KvCache::Off),
                },
                Switch::Fused => used = self.variant(&without_fused(&used), engines)?,
            }
        }
        Ok(Arm { engine: used.name, ..arm })
    }

    fn variant(&self, name: &str, engines: &dyn Engines) -> std::result::Result<Engine, String> {
        engines.engine(name).map_err(|error| {
            let engine = &self.engine.name;
            format!("{engine} has no variant {name}, which it needs without its switches: {error}")
        })
    }
}

/// Why an engine lacks a switch; `None` if it has it. Some are available only if named.
fn lacks(engine: &Engine, request: &Request, switch: Switch) -> Option<&'static str> {
    let is_named = request.study.switches.contains(&switch);
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
    let is_named = request.study.switches.contains(&Switch::Precision);
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

/// A switch of `sweep optimised`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
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
        self.into()
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
