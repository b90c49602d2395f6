//! Turns a request into a plan, and reads and provisions everything it needs. All checks that need no
//! building or preparing come first.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use bundle::{self, Bundle, MANIFEST, Manifest, Precision};
use comparison::facts::run::RunFailure;
use comparison::plan::ab::engines_of;
use comparison::plan::chat::{self, Chat};
use comparison::plan::flags::AUTO;
use comparison::plan::prompts::{self, Text};
use comparison::plan::{
    self, Contender, Draft, Engines, Failure, Given, Plan, Prompt, PromptSource, Request, Result, axes,
};
use configs::{Engine, Suite, SuitePrompt};
use protocol::{Event, Job, Task, untrusted};

use crate::measure::machine::{self, readings};
use crate::measure::places::Places;
use crate::measure::provision::{self, Wanted};
use crate::measure::texts::{self, read_file};
use crate::measure::{arrays, largest_batch, progress, tokenizer, worker};

/// Resolves `request`, and provisions missing parts.
pub fn resolve(request: &Request, places: &Places, quiet: bool) -> Result<(Plan, Bundle)> {
    progress::with_nothing_to_save(|| resolved(request, places, quiet))
}

fn resolved(request: &Request, places: &Places, quiet: bool) -> Result<(Plan, Bundle)> {
    plan::check(request)?;
    let engines = engines_of(request, places)?;
    if request.device == AUTO {
        // They are asked whether they can use a GPU.
        provision::workers(places, &engines, quiet)?;
    }
    let (request, why) = settled(request, &engines, places, available_threads());
    why.filter(|_| !quiet).into_iter().for_each(say_once);
    let (request, places) = (&request, &places.on(&request.device));
    let names: Vec<&str> = engines.iter().map(|engine| engine.name.as_str()).collect();
    check(&request.device, &names)?;
    keep_to_oneself(request, places)?;
    let draft = drafted(request, engines, places)?;
    check_batches(request, places)?;
    provision::workers(places, &draft.engines(), quiet)?;
    let bundle = provision::model(places, &wanted(&draft), quiet)?;
    let bundle = body(bundle, request)?;
    if request.encode.include_tokenizer && bundle.tokenizer().is_none() {
        let model = request.model();
        return Err(Failure::usage(format!(
            "{model} has no tokenizer, which --include-tokenizer is to time"
        )));
    }
    let tokenizer = tokenizer::text(&bundle)?;
    let chat = request.chat.then(|| tokenizer::chat(&bundle)).transpose()?;
    let given = Given {
        name: &bundle.manifest().name,
        config: bundle.config(),
        prompts: match bundle.config().graph {
            Some(_) => Vec::new(),
            None => prompts_of(&draft, &bundle, places, (&tokenizer, chat.as_ref()))?,
        },
        pooled: bundle.pooled().map_err(|error| Failure::failed(error.to_string()))?,
        arrays: arrays::given(&request.graph, places)?,
        cpus: machine::choose(draft.threads()),
        available_memory: readings::available(&request.device),
        drawn_seed: drawn_seed(),
        quality: texts::bundled(request, places, &bundle, &tokenizer)?,
    };
    let plan = match request.batch_max && request.batch.is_empty() {
        true => with_largest_batch(&draft, &given, (&bundle, places, quiet))?,
        false => draft.plan(given)?,
    };
    if !quiet {
        plan.work
            .prompted()
            .into_iter()
            .flat_map(|work| &work.prompts)
            .filter_map(chat_line)
            .for_each(say_once);
    }
    Ok((plan, bundle))
}

/// The plan of the largest batch that fits into memory.
fn with_largest_batch(
    draft: &Draft,
    given: &Given<'_>,
    (bundle, places, quiet): (&Bundle, &Places, bool),
) -> Result<Plan> {
    let plan_of = |batch: usize| draft.with_batch(batch).plan(given.clone());
    if draft.request().mixed {
        return Err(Failure::usage(
            "--batch max makes a batch of one prompt, and --mixed one of several: name a size, or leave --mixed out",
        ));
    }
    largest_batch::check(&plan_of(1)?)?;
    let found = largest_batch::find((bundle, places, quiet), draft.request().memory_gb, plan_of)?;
    if !quiet {
        say_once(found.words.clone());
    }
    let plan = plan_of(found.batch)?;
    Ok(Plan { expected_memory: found.expected, largest_batch: Some(found.words), ..plan })
}

/// The part of a comparison that is known without building, fetching or preparing anything. `auto` stays the
/// device.
pub fn draft(request: &Request, places: &Places) -> Result<Draft> {
    plan::check(request)?;
    let draft = drafted(request, engines_of(request, places)?, places)?;
    provision::find_model(places, request.model())?;
    check_batches(request, places)?;
    Ok(draft)
}

/// Rejects several batch sizes if they cannot be one comparison. The model is read only for that.
fn check_batches(request: &Request, places: &Places) -> Result<()> {
    let encodes = request.batch.len() > 1 && places.encodes(request.model())?;
    axes::check_batches(request, encodes)
}

fn drafted(request: &Request, engines: Vec<Engine>, places: &Places) -> Result<Draft> {
    Draft::new(request, engines, suite(&request.prompts, places)?, available_threads())
}

/// The model in its role: a masked-diffusion model as a token-by-token decoder, if that is asked for.
fn body(bundle: Bundle, request: &Request) -> Result<Bundle> {
    if !request.autoregressive {
        return Ok(bundle);
    }
    if bundle.config().mask_token.is_none() {
        return Err(Failure::usage(format!(
            "{} goes token by token anyway: --autoregressive is for models of masked diffusion",
            request.model()
        )));
    }
    Ok(bundle.autoregressive())
}

/// Every prompt unchanged, or the first at each of the requested lengths. A model that encodes texts has other default ones.
fn prompts_of(
    draft: &Draft,
    bundle: &Bundle,
    places: &Places,
    (tokenizer, chat): (&Text, Option<&Chat>),
) -> Result<Vec<Prompt>> {
    let usual = match draft.request().prompts {
        PromptSource::Usual if bundle.config().encodes() => {
            Some(texts::usual(draft.request(), bundle, places)?)
        }
        _ => None,
    };
    let prompts = &usual.as_ref().unwrap_or(draft.suite()).prompts;
    let resolved = |prompts: &[SuitePrompt], length: Option<usize>| {
        prompts::resolve(prompts, length, bundle.config(), tokenizer, chat)
    };
    if draft.prompt_lengths().is_empty() {
        return resolved(prompts, draft.lengths().prompt);
    }
    let mut all = Vec::new();
    for &length in draft.prompt_lengths() {
        let of_length = resolved(&prompts[..1], Some(length as usize))?.into_iter();
        all.extend(of_length.map(|prompt| Prompt { name: format!("{length} tokens"), ..prompt }));
    }
    Ok(all)
}

/// A prompt after its chat template, in words.
fn chat_line(prompt: &Prompt) -> Option<String> {
    Some(chat::line(&prompt.name, prompt.chat.as_ref()?, &prompt.tokens))
}

/// Prints a line on stderr, unless an earlier cell of a study has printed it.
fn say_once(line: String) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !said.contains(&line) {
        protocol::say!("{line}");
        said.insert(line);
    }
}

fn wanted(draft: &Draft) -> Wanted<'_> {
    Wanted {
        model: draft.request().model(),
        precisions: draft.precisions(),
        // The reference is computed in f32 at every measured precision.
        reference: true,
        device: &draft.request().device,
        cache: draft.request().cache(),
        sequences: (draft.batch(), draft.least_capacity()),
    }
}

fn suite(source: &PromptSource, places: &Places) -> Result<Suite> {
    Ok(match source {
        PromptSource::Usual => configs::suite(&places.configs, configs::DEFAULT_SUITE)?,
        PromptSource::Suite(name) => configs::suite(&places.configs, name)?,
        PromptSource::Texts(texts) => prompts::from_texts(texts),
        PromptSource::File(file) => read_file(file)?,
        PromptSource::Tokens(tokens) => {
            let prompt = SuitePrompt {
                name: Some("tokens".into()),
                tokens: Some(tokens.clone()),
                ..SuitePrompt::default()
            };
            Suite { prompts: vec![prompt], ..Suite::default() }
        }
    })
}

/// Number of threads that this process may use.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A random seed, short enough to be typed again.
pub fn drawn_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64 ^ u64::from(std::process::id())) % 1_000_000
}

// The engines and models for studies.

impl Engines for Places {
    fn engine(&self, name: &str) -> Result<Engine> {
        Ok(configs::engine(&self.configs, name)?)
    }

    fn selected(&self, names: &[String]) -> Result<Vec<Engine>> {
        Ok(configs::selected(&self.configs, names)?)
    }

    fn encodes(&self, model: &str) -> Result<bool> {
        provision::encodes(self, model)
    }
}

// The device for the work: the requested one, if it exists, or for `auto` the first GPU, if every contender
// can use it.

/// The GPU that `auto` chooses.
const FIRST: &str = "cuda:0";

/// In the cache directory; locked while a comparison computes on a GPU.
const LOCK: &str = "gpu.lock";

/// Time limit, in seconds, for a worker's answer whether it can use a GPU: it loads kernels for that.
const ANSWER_S: u64 = 60;

/// Rejects a missing device before anything is built or prepared for it, in one sentence for each contender.
pub fn check(device: &str, contenders: &[&str]) -> Result<()> {
    let Some(why) = gpu::objection(&protocol::gpus(device)) else { return Ok(()) };
    let sentence = |contender: &&str| format!("{contender}: no device {device} was found: {why}");
    Err(Failure::failed(contenders.iter().map(sentence).collect::<Vec<_>>().join("; ")))
}

/// Locks the GPUs of this machine for this process: two comparisons at once, on whichever GPUs, share the bus
/// and the power, so that each disturbs the other. If locking is impossible, it is skipped.
pub fn keep_to_oneself(request: &Request, places: &Places) -> Result<()> {
    static KEPT: OnceLock<File> = OnceLock::new();
    if !request.is_on_gpu() || !request.fair_comparison || KEPT.get().is_some() {
        return Ok(());
    }
    let Ok(file) = File::create(places.cache.join(LOCK)) else { return Ok(()) };
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return Err(Failure::usage(
            "another comparison computes on a GPU of this machine just now, and two would share the bus and the power: \
             wait until it has ended, or measure both with --allow-unfair",
        ));
    }
    KEPT.get_or_init(|| file);
    Ok(())
}

/// The request with a device in place of `auto`, and if that is the CPU, a sentence with the reason.
pub fn settled(
    request: &Request,
    engines: &[Engine],
    places: &Places,
    threads: usize,
) -> (Request, Option<String>) {
    if request.device != AUTO {
        return (request.clone(), None);
    }
    let on = |device: &str| Request { device: device.to_owned(), ..request.clone() };
    let on_gpu = on(FIRST);
    let refusal = || engines.iter().find_map(|engine| refusal(&on_gpu, engine, places, threads));
    match gpu::objection(&protocol::gpus(FIRST)).or_else(refusal) {
        None => (on_gpu, None),
        Some(why) => (on("cpu"), Some(format!("--device auto: the CPU, since {why}"))),
    }
}

/// Why this engine's worker cannot use the GPU, as far as that is known without a model.
fn refusal(request: &Request, engine: &Engine, places: &Places, threads: usize) -> Option<String> {
    let contender = Contender::new(engine.name.clone(), engine.clone(), request, threads);
    let worker =
        worker::worker(&contender, None, &places.on(&request.device), (ANSWER_S, request.huge_pages));
    let job = Job {
        protocol: protocol::VERSION,
        bundle: String::new(),
        model: serde_json::Value::Null,
        settings: worker::settings(&contender, &request.device, false),
        spawned_at_ns: None,
        evict: false,
        task: Task::Probe(protocol::Probe { bytes: 1 << 20, sweep_ns: 1, repeats: 1 }),
    };
    let outcome = worker.run(&job);
    if outcome.events.iter().any(|event| matches!(event, Event::Probed(_))) {
        return None;
    }
    let failure = RunFailure::from_ending(outcome.ending)?;
    Some(format!("{}'s worker cannot use the GPU: {}", engine.name, failure.sentence()))
}

// The prepared models in the cache: which exist, which are in use, and which may be removed.
//
// A process that uses a bundle holds a shared lock on the file `.NAME.used` next to it; that file's time of
// change is the last use. A bundle is removed under that lock and `prepare`'s, both exclusive, so neither a
// reader nor a writer loses it.

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A directory of the cache that `prepare` made.
#[derive(Debug, Clone)]
pub struct CachedBundle {
    pub directory: PathBuf,
    pub contents: Contents,
    pub bytes: u64,
    /// The end of its preparation, if it has not been used since.
    pub last_used: SystemTime,
    pub in_use: bool,
}

#[derive(Debug, Clone)]
pub enum Contents {
    Bundle(Manifest),
    /// Damaged, or of another version; the reason. `prepare` makes it again.
    Unreadable(String),
    /// Leftovers of an interrupted preparation.
    Unfinished,
}

/// Which bundles to remove.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Days without use after which a bundle is removed.
    pub unused_for: u32,
    /// Names of models or directories that are always kept.
    pub keep: Vec<String>,
}

/// Whether a directory is removed, and why it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Goes,
    InUse,
    Named,
    UsedLately,
}

/// Every bundle in the directory `bundles`, and leftovers of interrupted preparations.
pub fn list(bundles: &Path) -> Result<Vec<CachedBundle>> {
    let entries = match fs::read_dir(bundles) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| cannot("read", bundles, &error))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| cannot("read", bundles, &error))?.path();
        found.extend(CachedBundle::read(&path));
    }
    found.sort_by(|a, b| a.directory.cmp(&b.directory));
    Ok(found)
}

impl CachedBundle {
    /// `None` for directories that `prepare` did not make.
    fn read(directory: &Path) -> Option<CachedBundle> {
        let contents = if bundle::staged(directory).is_some() {
            Contents::Unfinished
        } else if directory.join(MANIFEST).is_file() {
            Manifest::read(directory).map_or_else(|e| Contents::Unreadable(e.to_string()), Contents::Bundle)
        } else {
            return None;
        };
        let mut bytes = 0;
        for file in fs::read_dir(directory).ok()? {
            bytes += file.ok()?.metadata().map_or(0, |metadata| metadata.len());
        }
        let bundle = bundle::staged(directory).unwrap_or_else(|| directory.to_path_buf());
        let times = [directory.join(MANIFEST), bundle::used(&bundle)];
        let last_used = times.iter().filter_map(|path| time(path)).max().or_else(|| time(directory))?;
        let in_use = [bundle::lock(&bundle), bundle::used(&bundle)].iter().any(|path| is_locked(path));
        Some(CachedBundle { directory: directory.to_path_buf(), contents, bytes, last_used, in_use })
    }

    /// Name of the directory.
    pub fn address(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The precisions of its weights.
    pub fn precisions(&self) -> Vec<Precision> {
        let Contents::Bundle(manifest) = &self.contents else { return Vec::new() };
        Precision::ALL.into_iter().filter(|p| manifest.files.contains_key(&p.file_name())).collect()
    }

    /// Whole days since its last use.
    pub fn idle_days(&self, now: SystemTime) -> u64 {
        now.duration_since(self.last_used).unwrap_or_default().as_secs() / DAY.as_secs()
    }

    /// Whether `name` is its name: of the model or of the directory.
    fn is_called(&self, name: &str) -> bool {
        let model = matches!(&self.contents, Contents::Bundle(manifest) if manifest.name == name);
        model || self.address() == name
    }

    /// Its fate by `rule`.
    pub fn fate(&self, rule: &Rule, now: SystemTime) -> Fate {
        if self.in_use {
            return Fate::InUse;
        }
        if rule.keep.iter().any(|name| self.is_called(name)) {
            return Fate::Named;
        }
        let is_litter = matches!(self.contents, Contents::Unfinished);
        if !is_litter && self.idle_days(now) < u64::from(rule.unused_for) {
            return Fate::UsedLately;
        }
        Fate::Goes
    }

    /// Removes it, unless another process has begun to use or to write it: then it is kept, and `false` is
    /// returned.
    pub fn remove(&self) -> Result<bool> {
        let removed = match bundle::staged(&self.directory) {
            Some(bundle) => remove_litter(&bundle),
            None => remove_bundle(&self.directory),
        };
        removed.map_err(|error| cannot("remove", &self.directory, &error))
    }
}

fn remove_litter(bundle: &Path) -> io::Result<bool> {
    let Some(_writing) = exclusive(&bundle::lock(bundle))? else { return Ok(false) };
    fs::remove_dir_all(bundle::staging(bundle)).map(|()| true)
}

fn remove_bundle(bundle: &Path) -> io::Result<bool> {
    // The file of this lock stays: another process may already wait for it.
    let Some(_writing) = exclusive(&bundle::lock(bundle))? else { return Ok(false) };
    let used = bundle::used(bundle);
    let Some(_using) = exclusive(&used)? else { return Ok(false) };
    let staging = bundle::staging(bundle);
    if staging.exists() {
        fs::remove_dir_all(&staging)?;
    }
    // A crash here leaves files that the next run recognises and deletes.
    fs::rename(bundle, &staging)?;
    fs::remove_dir_all(&staging)?;
    fs::remove_file(used).map(|()| true)
}

impl Rule {
    /// Rejects names that no bundle has: a typing error must not cost a bundle.
    pub fn check(&self, bundles: &[CachedBundle]) -> Result<()> {
        let unknown = |name: &&String| !bundles.iter().any(|bundle| bundle.is_called(name));
        let Some(name) = self.keep.iter().find(unknown) else { return Ok(()) };
        let names: Vec<_> = bundles.iter().map(CachedBundle::address).collect();
        let there = match names.as_slice() {
            [] => "there is no bundle at all".to_owned(),
            names => format!("there are {}", names.join(", ")),
        };
        Err(Failure::usage(format!("--keep: no bundle is called {name:?}; {there}")))
    }
}

/// Marks a bundle of the cache as used now, and as in use until this process ends.
pub(crate) fn hold(places: &Places, bundle: &Path) {
    static HELD: Mutex<BTreeMap<PathBuf, File>> = Mutex::new(BTreeMap::new());
    let is_cached = || Some(bundle.parent()?.canonicalize().ok()? == places.bundles().canonicalize().ok()?);
    if is_cached() != Some(true) {
        return;
    }
    let used = bundle::used(bundle);
    let mut held = HELD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let marked = || {
        let file = File::options().create(true).truncate(false).write(true).open(&used)?;
        file.lock_shared()?;
        file.set_modified(SystemTime::now())?;
        Ok::<_, io::Error>(file)
    };
    // A cache that is not writable cannot be pruned either.
    if let Ok(file) = marked() {
        held.insert(used, file);
    }
}

fn time(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// Whether another process, or another part of this one, holds a lock on `path`.
fn is_locked(path: &Path) -> bool {
    untrusted::file::open(path).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// The lock on `path`, exclusive; `None` if it is taken.
fn exclusive(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot {what} {}: {error}", path.display()))
}
