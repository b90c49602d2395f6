//! Workers: started with a scrubbed environment, checked with `--hello`, and given jobs.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use comparison::facts::run::Outcome;
use comparison::plan::{self, Contender, HugePages, KernelCache};
use protocol::untrusted::secrets;
use protocol::{Hello, Job, Task, Turn};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use setup::Target;
use setup::tooling::Scratch;

use crate::measure::machine::{Confinement, ReadyMemory, Watched};
use crate::measure::places::Places;
use crate::measure::process::{Process, Reaped, check_version, describe, last_line, nonsense, now};
use crate::measure::provision;
use crate::measure::running_worker::RunningWorker;

/// Longest wait for the answer to `--hello`.
const HELLO: Duration = Duration::from_secs(60);

/// A variable without a meaning. The environment is at the start of a process's stack, so its size decides where the
/// stack is, which alone changes speeds by some percent (Mytkowicz, Diwan, Hauswirth & Sweeney 2009). With a constant
/// environment every process of a contender would have the same advantage or disadvantage.
const FILLER: &str = "PHOTOFINISH_FILLER";

/// Most bytes of its value: a page.
const MOST_FILLER: usize = 4096;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A worker that can be started repeatedly.
#[derive(Debug, Clone)]
pub struct Worker {
    pub binary: PathBuf,
    /// The same in several layouts, for processes that are timed; none if it has one.
    pub layouts: Vec<PathBuf>,
    /// Why there is no such worker, if that is known.
    pub absent: Option<String>,
    /// The whole environment of the process.
    pub environment: BTreeMap<String, String>,
    /// Variables that name a cache on disk of each process's own, overriding the environment.
    pub own_caches: Vec<String>,
    /// Draws the size of a variable that only fills each process's environment; none if there is no seed.
    pub filler_seed: Option<u64>,
    /// Limit of its private memory as a share of the available memory: 1, unless a run is only tried.
    pub memory_share: f64,
    /// Bytes of memory that the system is made to have ready for its load.
    pub ready_bytes: u64,
    /// The CPUs it may use; all of them if there is no list.
    pub cpus: Option<Vec<usize>>,
    /// The longest time of a process for its job, without waiting for its turns.
    pub timeout: Duration,
    /// When its processes are ended, whatever they do.
    pub until: Option<Instant>,
}

impl Worker {
    /// A worker on all CPUs, with caches that it shares and as much memory as there is.
    pub fn new(binary: PathBuf, environment: BTreeMap<String, String>, timeout: Duration) -> Worker {
        Worker {
            binary,
            layouts: Vec::new(),
            absent: None,
            environment,
            own_caches: Vec::new(),
            filler_seed: None,
            memory_share: 1.0,
            ready_bytes: 0,
            cpus: None,
            timeout,
            until: None,
        }
    }

    /// The worker in the layout of a round.
    pub(crate) fn of_round(&self, round: usize) -> Worker {
        let binary = plan::layout(self.layouts.len(), round).map(|layout| self.layouts[layout].clone());
        Worker { binary: binary.unwrap_or_else(|| self.binary.clone()), ..self.clone() }
    }

    /// Sends the worker `--hello`. `Err` has its last words, or the reason of the failure.
    pub fn hello(&self) -> Result<Hello, String> {
        if let Some(reason) = &self.absent {
            return Err(reason.clone());
        }
        if !self.binary.is_file() {
            return Err(format!("there is no worker at {}", self.binary.display()));
        }
        let mut process = self.spawn(&["--hello"])?;
        process.close_input();
        let limit = self.timeout.min(HELLO);
        let until = self.until.into_iter().fold(now() + limit, Instant::min);
        let mut line = None;
        let stopped = loop {
            match process.recv(until, limit) {
                Ok(Some(text)) => line = Some(text),
                Ok(None) => break None,
                Err(reason) => break Some(reason),
            }
        };
        let Reaped { status, stderr, .. } = process.reap();
        let last_words = last_line(&stderr);
        let cause = |reason: String| last_words.clone().map_or(reason, String::from);
        match (stopped, line) {
            (Some(reason), _) => Err(reason),
            (None, _) if !status.success() => Err(cause(describe(status))),
            (None, None) => Err(cause("it printed nothing for --hello".into())),
            (None, Some(line)) => {
                let hello: Hello = serde_json::from_str(&line).map_err(|_| nonsense(&line))?;
                check_version(hello.protocol)?;
                Ok(hello)
            }
        }
    }

    /// Runs a job without turns to its end.
    pub fn run(&self, job: &Job) -> Outcome {
        let mut running = self.start(job, None);
        running.finish();
        running.end()
    }

    /// Starts a job. `held`: memory for its load, if some is held already.
    pub(crate) fn start(&self, job: &Job, held: Option<ReadyMemory>) -> RunningWorker {
        // Opened before the worker starts: NVML takes tens of milliseconds, which would fall into its load.
        let gpus = Watched::new(&job.settings.device);
        // The available memory is read before some of it is taken.
        let confinement = Confinement::new(&job.settings.device, self.memory_share);
        // Other loads are in no figure.
        let is_timed = matches!(job.task, Task::Measure(_) | Task::Load);
        let mut memory = held.or_else(|| is_timed.then(|| ReadyMemory::take(self.ready_bytes)).flatten());
        memory.iter_mut().for_each(ReadyMemory::release);
        RunningWorker::start(self.spawn(&[]), self, job, gpus, confinement, memory)
    }

    fn spawn(&self, arguments: &[&str]) -> Result<Process, String> {
        let cannot = |error: &dyn Display| format!("cannot start {}: {error}", self.binary.display());
        let mut environment = self.environment.clone();
        let caches = (!self.own_caches.is_empty()).then(Scratch::new).transpose();
        let caches = caches.map_err(|error| cannot(&format_args!("{error:#}")))?;
        if let Some(scratch) = &caches {
            // Some frameworks expect a directory, others a file: the path does not exist yet, and each
            // creates its own.
            let place = |name: &String| (name.clone(), scratch.path().join(name).display().to_string());
            environment.extend(self.own_caches.iter().map(place));
        }
        if let Some(seed) = self.filler_seed {
            environment.insert(FILLER.to_owned(), filler(seed, COUNT.fetch_add(1, Ordering::Relaxed)));
        }
        let process = Process::spawn(&self.binary, arguments, &environment, self.cpus.as_deref());
        Ok(process.map_err(|error| cannot(&error))?.with_caches(caches))
    }

    /// The shell line that repeats a job stored in `file`.
    pub(crate) fn shell_line(&self, file: &Path) -> String {
        // It is stored with the results; people who repeat it know their own secrets.
        let others = self.environment.iter().filter(|(name, _)| !self.own_caches.contains(name));
        let variables =
            others.map(|(name, value)| format!("{name}={}", quoted(&secrets::setting(name, value))));
        let caches = self.own_caches.iter().map(|name| format!("{name}=\"$(mktemp -d)/cache\""));
        let variables = variables.chain(caches).collect::<Vec<_>>().join(" ");
        let (binary, file) = (self.binary.display().to_string(), file.display().to_string());
        format!("env -i {variables} {} < {}", quoted(&binary), quoted(&file))
    }
}

/// Up to a page of random letters, by the seed and the number of the process.
fn filler(seed: u64, process: u64) -> String {
    let mut random = ChaCha8Rng::seed_from_u64(seed.wrapping_add(process));
    let size = random.random_range(0..=MOST_FILLER);
    (0..size).map(|_| char::from(random.random_range(b'a'..=b'z'))).collect()
}

/// The lines that repeat a job and the turns that were taken. The repetition always finishes.
pub(crate) fn lines(job: &Job, turns: &[Turn]) -> String {
    let mut job = job.clone();
    job.settings.options = secrets::stored(&job.settings.options);
    let mut text = to_line(&job);
    for turn in turns {
        text += &to_line(turn);
    }
    if !matches!(turns.last(), Some(Turn::Finish(_))) {
        text += &to_line(&Turn::Finish(protocol::Finish::default()));
    }
    text
}

fn to_line(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("protocol types have string keys and no failing serialiser") + "\n"
}

fn quoted(text: &str) -> String {
    shlex::try_quote(text).map_or_else(|_| text.to_owned(), std::borrow::Cow::into_owned)
}

// Prepares the start of a contender's worker: its request, its environment and its CPUs.

pub fn settings(contender: &Contender, device: &str, hidden_states: bool) -> protocol::Settings {
    protocol::Settings {
        precision: contender.precision,
        kv_precision: Some(contender.cache.element(contender.precision)),
        autoregressive: false,
        device: device.into(),
        threads: contender.threads,
        shards: contender.shards,
        jit: contender.jit,
        hidden_states,
        dequantised: false,
        options: contender.engine.options.clone(),
        serve: contender.serve,
        slowdown: contender.engine.settings.slowdown,
        anew: contender.anew,
    }
}

/// Variables that set a number of threads, one for each runtime that reads one.
const THREAD_VARIABLES: [&str; 5] =
    ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];

/// The environment of every worker: the variables that the system needs, the thread budget and the memory
/// policy.
pub fn environment(threads: usize, huge_pages: HugePages) -> BTreeMap<String, String> {
    let mut environment = BTreeMap::new();
    for name in ["PATH", "TMPDIR", "SYSTEMROOT", gpu::VISIBLE, gpu::LIBRARY_VARIABLE] {
        if let Ok(value) = std::env::var(name) {
            environment.insert(name.to_owned(), value);
        }
    }
    // The driver and the workers number GPUs alike.
    environment.insert(gpu::ORDER.0.to_owned(), gpu::ORDER.1.to_owned());
    // 0 leaves the number to the framework.
    for name in THREAD_VARIABLES.into_iter().filter(|_| threads > 0) {
        environment.insert(name.to_owned(), threads.to_string());
    }
    environment.insert(configs::TUNABLES.to_owned(), huge_pages.tunables().to_owned());
    environment
}

/// The worker of an engine with its CPUs and its whole environment: that of every worker, and the variables
/// of the engine's configuration.
pub fn worker(
    contender: &Contender,
    cpus: Option<&[usize]>,
    places: &Places,
    (timeout_s, huge_pages): (u64, HugePages),
) -> Worker {
    let engine = &contender.engine;
    let mut environment = environment(contender.threads, huge_pages);
    for (name, value) in &engine.env {
        let value = std::env::var(name)
            .ok()
            .filter(|value| !value.is_empty())
            .unwrap_or_else(|| value.replace("{cache}", &places.cache.display().to_string()));
        environment.insert(name.clone(), value);
    }
    environment.extend(provision::variables(places, engine));
    Worker {
        absent: provision::absent(engine),
        cpus: cpus.filter(|_| contender.threads > 0).map(<[usize]>::to_vec),
        layouts: if contender.layouts > 0 { provision::layouts(places, engine) } else { Vec::new() },
        ..Worker::new(provision::binary(places, engine), environment, Duration::from_secs(timeout_s))
    }
}

/// The variables that name a process's own cache of compiled kernels; `asked` is the run's setting.
pub fn own_caches(contender: &Contender, asked: KernelCache, target: Target) -> Vec<String> {
    let own = contender.engine.kernel_cache.iter().cloned();
    match (contender.engine.settings.kernel_cache.unwrap_or(asked), target) {
        (KernelCache::Keep, _) => Vec::new(),
        (KernelCache::Fresh, Target::Cpu) => own.collect(),
        (KernelCache::Fresh, Target::Cuda) => own.chain([provision::CUDA_KERNELS.to_owned()]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use comparison::plan::Request;
    use configs::{Engine, EngineSettings};

    use super::*;

    /// Fills its cache, which must be empty, and answers with its path; or dies with that as its last word.
    const SCRIPT: &str = r#"#!/bin/sh
[ -e "$CACHE" ] && exit 1
mkdir "$CACHE" && touch "$CACHE/kernel"
if [ "$DIES" ]; then echo "$CACHE" >&2; kill -9 $$; fi
cat <<END
{"protocol": VERSION, "framework": "f", "binding": "b", "library": "l", "library_path": "$CACHE", "build": {"profile": "release"}}
END
"#;

    #[test]
    fn environments_are_filled_up_to_a_page_by_the_seed() {
        let sizes: Vec<usize> = (0..1000).map(|process| filler(7, process).len()).collect();
        assert!(sizes.iter().all(|&size| size <= MOST_FILLER));
        assert!(
            (1800..2300).contains(&(sizes.iter().sum::<usize>() / sizes.len())),
            "all sizes are as likely"
        );
        assert_eq!((filler(7, 3), filler(7, 3) == filler(8, 3)), (filler(7, 3), false));
    }

    #[test]
    fn every_process_has_caches_of_its_own_which_go_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let binary = directory.path().join("worker");
        std::fs::write(&binary, SCRIPT.replace("VERSION", &protocol::VERSION.to_string())).unwrap();
        std::fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
        let shared = directory.path().join("kept").display().to_string();
        let environment = |dies: &str| {
            let path = std::env::var("PATH").unwrap();
            let pairs = [("PATH", path), ("CACHE", shared.clone()), ("DIES", dies.to_owned())];
            pairs.map(|(name, value)| (name.to_owned(), value)).into()
        };
        let own_caches = vec!["CACHE".to_owned()];
        let timeout = Duration::from_secs(60);
        let worker = Worker { own_caches, ..Worker::new(binary, environment(""), timeout) };
        let place = |worker: &Worker| worker.hello().unwrap().library_path.unwrap().to_string();
        let dying = Worker { environment: environment("yes"), ..worker.clone() };
        let own = [place(&worker), place(&worker), dying.hello().unwrap_err()];
        assert!(own.iter().all(|place| place.ends_with("/CACHE") && !Path::new(place).exists()), "{own:?}");
        assert_ne!(own[0], own[1]);
        assert!(worker.shell_line("job".as_ref()).contains(r#" CACHE="$(mktemp -d)/cache" "#));
        let keeping = Worker { own_caches: Vec::new(), ..worker };
        assert_eq!(place(&keeping), shared);
        assert!(Path::new(&shared).join("kernel").exists());
    }

    #[test]
    fn a_column_s_own_setting_of_its_kernel_cache_comes_first() {
        let contender = |kernel_cache| {
            let settings = EngineSettings { kernel_cache, ..EngineSettings::default() };
            let engine = Engine { settings, kernel_cache: vec!["CACHE".into()], ..Engine::default() };
            Contender::new("a".into(), engine, &Request::default(), 1)
        };
        let own = |setting, asked| own_caches(&contender(setting), asked, Target::Cpu).len();
        assert_eq!((own(None, KernelCache::Keep), own(None, KernelCache::Fresh)), (0, 1));
        assert_eq!(own(Some(KernelCache::Fresh), KernelCache::Keep), 1);
        assert_eq!(own(Some(KernelCache::Keep), KernelCache::Fresh), 0);
        let on_a_gpu = own_caches(&contender(None), KernelCache::Fresh, Target::Cuda);
        assert_eq!(on_a_gpu, ["CACHE", provision::CUDA_KERNELS]);
    }
}
