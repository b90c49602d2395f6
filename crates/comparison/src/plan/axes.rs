//! The axes of a sweep: flags that take a list. A comparison has one value of each.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bundle::Precision;
use configs::{Engine, Published};
use protocol::{KvCache, Serve};
use serde::{Deserialize, Serialize};

use crate::plan::draft::Engines;
use crate::plan::plan::{CellPlan, StudyKind, StudyPlan, StudyRequest, StudyView};
use crate::plan::sweep::{self, SweepKind};
use crate::plan::work::denoise;
use crate::plan::{CacheAsked, Contender, Failure, Request, Result, Switch, ab};

/// A setting that may differ from cell to cell of a study.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// The framework: an axis of A/B studies, which vary something else in their arms.
    Framework,
    Model,
    Precision,
    Threads,
    Batch,
    Context,
    PromptTokens,
    NewTokens,
    /// Tokens of a prompt that are read at once.
    PrefillChunk,
    Steps,
    /// Callers that make requests, one at a time each.
    Callers,
    /// Requests a second at random times.
    Rate,
    /// The mistake: an axis of `sweep mistakes`.
    Mistake,
    /// The switches that are on: an axis of `sweep optimised`.
    Switch,
}

/// A cell's place on an axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    Number(u32),
    Name(String),
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Setting::Number(number) => number.fmt(f),
            Setting::Name(name) => name.fmt(f),
        }
    }
}

/// The place of a cell: its value on each axis.
pub type Settings = BTreeMap<Axis, Setting>;

impl Axis {
    /// The axes that are flags, in the order in which cells are nested. The outermost come first: models and
    /// precisions, which must be prepared.
    const TYPED: [Axis; 11] = [
        Axis::Model,
        Axis::Precision,
        Axis::Threads,
        Axis::Batch,
        Axis::Context,
        Axis::PromptTokens,
        Axis::NewTokens,
        Axis::PrefillChunk,
        Axis::Steps,
        Axis::Callers,
        Axis::Rate,
    ];

    /// The heading of the column of this axis, and its command-line flag.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Axis::Framework => ("Framework", "--frameworks"),
            Axis::Model => ("Model", "--model"),
            Axis::Precision => ("Precision", "--precision"),
            Axis::Threads => ("Threads", "--threads"),
            Axis::Batch => ("Batch", "--batch"),
            Axis::Context => ("Context", "--context"),
            Axis::PromptTokens => ("Prompt", "--prompt-tokens"),
            Axis::NewTokens => ("New tokens", "--new-tokens"),
            Axis::PrefillChunk => ("Chunk", "--prefill-chunk"),
            Axis::Steps => ("Steps", "--steps"),
            Axis::Callers => ("Callers", "--callers"),
            Axis::Rate => ("Requests a second", "--rate"),
            Axis::Mistake => ("Mistake", "sweep mistakes"),
            Axis::Switch => ("Switch", "sweep optimised"),
        }
    }

    /// The heading of the column of this axis.
    pub fn title(self) -> &'static str {
        self.names().0
    }

    pub fn flag(self) -> &'static str {
        self.names().1
    }

    /// The list of a request that has the values of this axis.
    fn list(self, request: &mut Request) -> List<'_> {
        match self {
            Axis::Framework | Axis::Mistake | Axis::Switch => List::None,
            Axis::Model => List::Names(&mut request.models),
            Axis::Precision => List::Precisions(&mut request.precisions),
            Axis::Threads => List::Numbers(&mut request.threads),
            Axis::Batch => List::Numbers(&mut request.batch),
            Axis::Context => List::Numbers(&mut request.context),
            Axis::PromptTokens => List::Numbers(&mut request.prompt_tokens),
            Axis::NewTokens => List::Numbers(&mut request.new_tokens),
            Axis::PrefillChunk => List::Numbers(&mut request.prefill_chunk),
            Axis::Steps => List::Numbers(&mut request.denoise.steps),
            Axis::Callers => List::Numbers(&mut request.serving.callers),
            Axis::Rate => List::Numbers(&mut request.serving.rate),
        }
    }

    /// The values of this axis, as typed.
    pub fn values(self, request: &Request) -> Vec<Setting> {
        match self.list(&mut request.clone()) {
            List::None => Vec::new(),
            List::Numbers(values) => values.iter().copied().map(Setting::Number).collect(),
            List::Names(values) => values.iter().cloned().map(Setting::Name).collect(),
            List::Precisions(values) => values.iter().map(|p| Setting::Name(p.name().into())).collect(),
        }
    }

    /// Keeps only the value at `index`.
    fn keep(self, request: &mut Request, index: usize) {
        match self.list(request) {
            List::None => {}
            List::Numbers(values) => *values = vec![values[index]],
            List::Names(values) => *values = vec![values[index].clone()],
            List::Precisions(values) => *values = vec![values[index]],
        }
    }
}

/// The values of an axis within a request.
enum List<'a> {
    None,
    Numbers(&'a mut Vec<u32>),
    Names(&'a mut Vec<String>),
    Precisions(&'a mut Vec<Precision>),
}

/// Every combination of the typed values, each with its comparison. An axis without a value is left to the comparison.
pub fn cells(request: &Request) -> Vec<(Settings, Request)> {
    let mut cells = vec![(Settings::new(), request.clone())];
    for axis in Axis::TYPED {
        let values = axis.values(request);
        if values.is_empty() {
            continue;
        }
        let with = |(settings, request): &(Settings, Request)| -> Vec<_> {
            let each = values.iter().enumerate().map(|(index, value)| {
                let (mut settings, mut request) = (settings.clone(), request.clone());
                settings.insert(axis, value.clone());
                axis.keep(&mut request, index);
                (settings, request)
            });
            each.collect()
        };
        cells = cells.iter().flat_map(with).collect();
    }
    cells
}

/// The axes with several values.
pub fn varied(request: &Request) -> Vec<Axis> {
    Axis::TYPED.into_iter().filter(|axis| axis.values(request).len() > 1).collect()
}

/// Rejects a list if only one comparison is possible. Batches are for [`check_batches`].
pub fn check_single(request: &Request) -> Result<()> {
    varied(request).into_iter().find(|&axis| axis != Axis::Batch).map_or(Ok(()), |axis| Err(several(axis)))
}

/// Rejects several batch sizes, unless each is a request of its own: in a comparison that `encodes` texts.
pub fn check_batches(request: &Request, encodes: bool) -> Result<()> {
    if encodes || request.batch.len() < 2 { Ok(()) } else { Err(several(Axis::Batch)) }
}

fn several(axis: Axis) -> Failure {
    let flag = axis.flag();
    let study = if flag == "--precision" { "sweep precision" } else { "sweep generate" };
    Failure::usage(format!("{flag} takes one value here; several are a sweep: `photofinish {study}`"))
}

// Parts of a comparison that cannot be typed: its sides, and its purpose.

/// Settings of a comparison that only a study can make.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StudySettings {
    /// Name of the study, as in "sweep forward"; empty outside a study.
    pub name: String,
    /// The contenders, if they are not simply the frameworks: the sides of an A/B comparison.
    pub arms: Vec<Arm>,
    /// The switches of `sweep optimised` that were named; if empty, those that a framework has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<Switch>,
    /// Ids of the fairness rules that the comparison itself varies. Departures from these are noted and
    /// exclude no row.
    pub varied: Vec<String>,
    /// Whether warm-up has exactly as many iterations as the measurement.
    pub equal_warmup: bool,
    /// Whether quality is judged too: perplexity of the bundled text and agreement with f32, or the search results
    /// of the bundled queries.
    pub text: bool,
    /// The analysis of the suite that named the study: its conclusions and their limits.
    pub analysis: String,
    /// Published figures shown next to those of the study.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<Published>,
    /// The reason why this comparison makes no sense, if there is one.
    pub refused: Option<String>,
}

impl StudySettings {
    pub fn is_default(&self) -> bool {
        *self == StudySettings::default()
    }
}

/// One side of an A/B comparison: an engine, and the settings fixed for it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Arm {
    pub label: String,
    /// A name from configs/engines.
    pub engine: String,
    pub precision: Option<Precision>,
    pub jit: Option<bool>,
    pub kv_cache: Option<KvCache>,
    /// Directory of the workers of another build.
    pub workers: Option<PathBuf>,
    /// A number of threads other than the budget's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<ThreadsAsked>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub anew: bool,
    /// A file that it runs in place of the model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artefact: Option<PathBuf>,
}

/// A number of threads other than the budget's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadsAsked {
    /// The framework's own default, on all CPUs.
    Default,
    /// Two for each thread of the budget, on the budget's CPUs.
    Twice,
}

impl ThreadsAsked {
    /// The number that replaces the budget; 0 is the framework's own.
    pub(crate) fn of_budget(self, budget: usize) -> usize {
        match self {
            ThreadsAsked::Default => 0,
            ThreadsAsked::Twice => 2 * budget,
        }
    }
}

impl Arm {
    /// The engine of this side. If its worker is from another build, it is named by the side's label, because
    /// it is not this program's own engine.
    pub fn built(&self, mut engine: Engine) -> Engine {
        if let Some(file) = &self.artefact {
            engine.options.insert(configs::ARTEFACT.to_owned(), file.display().to_string());
        }
        match &self.workers {
            None => engine,
            Some(directory) => {
                // A program that a user's file names by its path has the same name in the other build.
                let file = engine.worker.rsplit('/').next().unwrap_or_default();
                let worker = directory.join(file).display().to_string();
                Engine { name: self.label.clone(), worker, ..engine }
            }
        }
    }
}

// Divides a study into its cells.

impl StudyRequest {
    /// Every cell, with the settings that the study fixes.
    pub fn plan(&self, engines: &dyn Engines) -> Result<StudyPlan> {
        let mut plan = match &self.kind {
            StudyKind::Sweep(kind) => self.sweep(*kind, engines)?,
            StudyKind::Ab(what) => ab::plan(what, &self.request, engines)?,
        };
        for cell in &mut plan.cells {
            cell.request.study.name.clone_from(&plan.name);
        }
        Ok(plan)
    }

    fn sweep(&self, kind: SweepKind, engines: &dyn Engines) -> Result<StudyPlan> {
        let mut request = sweep::completed(kind, &self.request, engines)?;
        if kind == SweepKind::Warmup && request.jit {
            let arms = sweep::beside_no_jit(&ab::engines_of(&request, engines)?);
            // The JIT is the subject of the study.
            if arms.iter().any(|arm| arm.jit.is_some()) {
                request.study.arms = arms;
                request.study.varied = vec!["R14".to_owned()];
            }
        }
        let mut cells = self::cells(&request);
        if kind == SweepKind::Denoise {
            cells = denoise::beside_token_by_token(cells);
        }
        let cells = cells.into_iter();
        Ok(StudyPlan {
            name: format!("sweep {}", kind.name()),
            view: StudyView::Sweep(kind),
            cells: cells.map(|(settings, request)| CellPlan { settings, request }).collect(),
        })
    }
}

// The columns of a comparison: which engines, under which labels and settings.

/// The columns: the sides of an A/B comparison, or the engines. Engines named twice are numbered.
pub(crate) fn contenders(
    engines: Vec<Engine>,
    request: &Request,
    available_threads: usize,
) -> Vec<Contender> {
    // Several GPUs share the weights of each contender.
    let devices = request.devices();
    let own_file = |mut engine: Engine| {
        if let Some(file) = request.graph.artefacts.get(&engine.name) {
            engine.options.insert(configs::ARTEFACT.to_owned(), file.display().to_string());
        }
        if engine.is_server() && request.shared_prefix > 0 {
            engine.options.insert("shared_prefix".to_owned(), request.shared_prefix.to_string());
        }
        engine
    };
    let engines: Vec<Engine> = engines.into_iter().map(own_file).collect();
    let contender = |label: String, engine: Engine| Contender {
        cache: request.cache(),
        shards: request.shards.first().map_or(devices, |&count| count) as usize,
        ..Contender::new(label, engine, request, available_threads)
    };
    let arms = &request.study.arms;
    if !arms.is_empty() {
        let side = |(arm, engine): (&Arm, Engine)| {
            let plain = contender(arm.label.clone(), engine);
            Contender {
                precision: arm.precision.unwrap_or(plain.precision),
                jit: arm.jit.unwrap_or(plain.jit),
                cache: CacheAsked { policy: arm.kv_cache.unwrap_or(plain.cache.policy), ..plain.cache },
                threads: arm.threads.map_or(plain.threads, |asked| asked.of_budget(plain.threads)),
                anew: arm.anew,
                engine: arm.built(plain.engine),
                ..plain
            }
        };
        return arms.iter().zip(engines).map(side).collect();
    }
    let whole = [devices];
    let shards: &[u32] = if request.shards.is_empty() { &whole } else { &request.shards };
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let modes: &[Serve] =
        if request.serving.serve.is_empty() { &[Serve::Shared] } else { &request.serving.serve };
    let kinds = modes.iter().flat_map(|&serve| shards.iter().map(move |&count| (serve, count)));
    let kinds: Vec<(Serve, u32)> = kinds.collect();
    // A server serves its callers in its own way, and has a connection for each.
    let kinds_of = |engine: &Engine| if engine.is_server() { &kinds[..1] } else { &kinds[..] };
    let columns = engines.into_iter().flat_map(|engine| {
        kinds_of(&engine).iter().map(move |&kind| (engine.clone(), kind)).collect::<Vec<_>>()
    });
    let callers = request.serving.most_callers();
    let column = |(engine, (serve, shards)): (Engine, (Serve, u32))| {
        let is_server = engine.is_server();
        let name = match shards {
            count if count == devices => engine.name.clone(),
            count => format!("{} on {count} devices", engine.name),
        };
        let name = if serve.is_shared() || is_server { name } else { format!("{name} {serve}") };
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        let label = if *count == 1 { name } else { format!("{name} ({count})") };
        let contender = contender(label, engine);
        let (serve, threads) = match is_server {
            false => (serve, contender.threads),
            // Its client's threads only wait.
            true => (if callers > 1 { Serve::Pool(callers) } else { Serve::Shared }, 0),
        };
        Contender { shards: shards as usize, serve, threads, ..contender }
    };
    columns.map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_every_combination_the_last_axis_changing_fastest() {
        let cells = cells(&Request { batch: vec![1, 2], prompt_tokens: vec![8, 16], ..Request::default() });
        let places: Vec<_> =
            cells.iter().map(|(s, _)| format!("{} {}", s[&Axis::Batch], s[&Axis::PromptTokens])).collect();
        assert_eq!(places, ["1 8", "1 16", "2 8", "2 16"]);
        assert_eq!(
            (cells[2].1.batch[..].to_vec(), cells[2].1.prompt_tokens[..].to_vec()),
            (vec![2], vec![8])
        );
    }

    #[test]
    fn a_comparison_of_several_values_is_told_what_it_is() {
        assert!(check_single(&Request { batch: vec![2], ..Request::default() }).is_ok());
        let error =
            check_single(&Request { threads: vec![1, 2], ..Request::default() }).unwrap_err().to_string();
        assert!(error.starts_with("--threads takes one value here; several are a sweep"), "{error}");
        let batches = Request { batch: vec![1, 2], ..Request::default() };
        assert!(check_batches(&batches, true).is_ok());
        let error = check_batches(&batches, false).unwrap_err().to_string();
        assert!(error.starts_with("--batch takes one value here"), "{error}");
    }
}
