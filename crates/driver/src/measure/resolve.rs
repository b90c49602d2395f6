//! Turns a request into a plan, and reads and provisions everything it needs. All checks that need no
//! building or preparing come first.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::sync::{Mutex, Once, OnceLock};

use bundle::{Bundle, Precision};
use comparison::facts::run::RunFailure;
use comparison::plan::ab::engines_of;
use comparison::plan::chat::{self, Chat};
use comparison::plan::flags::AUTO;
use comparison::plan::prompts::{self, Text};
use comparison::plan::{
    self, Contender, Draft, Engines, Failure, Given, Plan, Prompt, PromptSource, Request, Result, axes,
};
use configs::{Engine, Suite, SuitePrompt};
use protocol::{Event, Job, Task};

use crate::measure::machine::{self, readings};
use crate::measure::places::Places;
use crate::measure::provision::{self, Wanted};
use crate::measure::texts::{self, read_file};
use crate::measure::{arrays, largest_batch, presets, progress, speech, tokenizer, worker};

/// Resolves `request`, and provisions missing parts.
pub fn resolve(request: &Request, places: &Places, quiet: bool) -> Result<(Plan, Bundle)> {
    progress::with_nothing_to_save(|| resolved(request, places, quiet))
}

fn resolved(request: &Request, places: &Places, quiet: bool) -> Result<(Plan, Bundle)> {
    let request = &presets::applied(request, places)?;
    plan::check(request)?;
    let engines = engines_of(request, &places.on(&request.device))?;
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
    made_from(&bundle, &draft.precisions()).filter(|_| !quiet).into_iter().for_each(say_once);
    if request.encode.include_tokenizer && bundle.tokenizer().is_none() {
        let why = prompts::absent(&bundle);
        return Err(Failure::usage(format!("{why}: --include-tokenizer times one")));
    }
    let tokenizer = tokenizer::text(&bundle)?;
    let chat = request.chat.then(|| tokenizer::chat(&bundle)).transpose()?;
    let asked = (request.encode.task, &request.encode.vectors);
    let encoded = bundle.config().encodes().then(|| texts::encoded(&bundle, Some(&tokenizer), asked));
    let (made, pooled) = encoded.transpose()?.unzip();
    let notes = made.iter().flat_map(|made| &made.notes).filter(|_| !quiet);
    notes.for_each(|note| say_once(format!("{} {note}", bundle.manifest().name)));
    let prompt = made.and_then(|made| made.prompt);
    let given = Given {
        name: &bundle.manifest().name,
        config: bundle.config(),
        prompts: match bundle.config().graph {
            Some(_) => Vec::new(),
            None if bundle.config().audio.is_some() => {
                speech::prompts(&draft.request, &bundle, places, &tokenizer)?
            }
            None => prompts_of(&draft, &bundle, places, (&tokenizer, chat.as_ref(), prompt.as_deref()))?,
        },
        no_tokenizer: bundle
            .no_tokenizer()
            .map(|why| format!("{} has no tokenizer: {why}", bundle.manifest().name)),
        pooled: pooled.flatten(),
        arrays: arrays::given(&request.graph, bundle.config().graph.as_ref(), places)?,
        cpus: machine::choose(draft.threads),
        available_memory: readings::available(&request.device),
        drawn_seed: drawn_seed(),
        quality: texts::bundled(request, places, &bundle, &tokenizer)?,
    };
    let draft = match bundle.config().audio.is_some() && request.new_tokens.is_empty() {
        true => speech::transcribed(&draft, &given, (&bundle, places, quiet), &tokenizer)?,
        false => draft,
    };
    let mut plan = match request.batch_max && request.batch.is_empty() {
        true => with_largest_batch(&draft, &given, (&bundle, places, quiet))?,
        false => draft.plan(given)?,
    };
    set_layouts(&mut plan.contenders, places);
    if !quiet {
        plan.drawn.iter().for_each(|why| {
            say_once(format!("{why}; ids are drawn from the vocabulary in place of texts"));
        });
        for prompt in plan.work.prompted().into_iter().flat_map(|work| &work.prompts) {
            if let Some(chat) = &prompt.chat {
                say_once(chat::line(&prompt.name, chat, &prompt.tokens));
            }
        }
    }
    Ok((plan, bundle))
}

/// Builds of one framework are compared in all of their layouts.
fn set_layouts(contenders: &mut [Contender], places: &Places) {
    let of = |contender: &Contender| {
        (contender.engine.framework.clone(), provision::binary(places, &contender.engine))
    };
    let programs: Vec<_> = contenders.iter().map(of).collect();
    for (contender, (framework, program)) in contenders.iter_mut().zip(&programs) {
        if programs.iter().any(|(of, other)| of == framework && other != program) {
            contender.layouts = setup::layouts::files(program).len();
        }
    }
}

/// The plan of the largest batch that fits into memory.
fn with_largest_batch(
    draft: &Draft,
    given: &Given<'_>,
    (bundle, places, quiet): (&Bundle, &Places, bool),
) -> Result<Plan> {
    let plan_of = |batch: usize| draft.with_batch(batch).plan(given.clone());
    if draft.request.mixed {
        return Err(Failure::usage(
            "--batch max makes a batch of one prompt, and --mixed one of several: name a size, or leave --mixed out",
        ));
    }
    largest_batch::check(&plan_of(1)?)?;
    let found = largest_batch::find((bundle, places, quiet), draft.request.memory_gb, plan_of)?;
    if !quiet {
        say_once(found.words.clone());
    }
    let plan = plan_of(found.batch)?;
    Ok(Plan { expected_memory: found.expected, largest_batch: Some(found.words), ..plan })
}

/// The part of a comparison that is known without building, fetching or preparing anything. `auto` stays the
/// device.
pub fn draft(request: &Request, places: &Places) -> Result<Draft> {
    let request = &presets::applied(request, places)?;
    plan::check(request)?;
    let draft = drafted(request, engines_of(request, &places.on(&request.device))?, places)?;
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
    static SAID: Once = Once::new();
    let available = available_threads();
    if let Some(threads) = request.threads.iter().find(|threads| **threads as usize > available) {
        SAID.call_once(|| {
            protocol::say!("warning: --threads {threads} is more than the {available} CPUs of this process");
        });
    }
    Draft::new(request, engines, suite(&request.prompts, places)?, available)
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

/// Every prompt unchanged, or the first at each of the requested lengths. A model that encodes texts has other
/// default ones, and may have a prompt in front of each.
fn prompts_of(
    draft: &Draft,
    bundle: &Bundle,
    places: &Places,
    (tokenizer, chat, before): (&Text, Option<&Chat>, Option<&str>),
) -> Result<Vec<Prompt>> {
    let usual = match draft.request.prompts {
        PromptSource::Usual if bundle.config().encodes() => {
            Some(texts::usual(&draft.request, bundle, places)?)
        }
        _ => None,
    };
    let prompts = &usual.as_ref().unwrap_or(&draft.suite).prompts;
    let behind = |prompt: &SuitePrompt| {
        let text = prompt.text.as_ref().map(|text| format!("{}{text}", before.unwrap_or_default()));
        SuitePrompt { text, ..prompt.clone() }
    };
    let resolved = |prompts: &[SuitePrompt], length: Option<usize>| {
        let prompts: Vec<SuitePrompt> = prompts.iter().map(behind).collect();
        prompts::resolve(&prompts, length, bundle.config(), tokenizer, chat)
    };
    if draft.request.prompt_lengths.is_empty() {
        return resolved(prompts, draft.lengths.prompt);
    }
    let mut all = Vec::new();
    for &length in &draft.request.prompt_lengths {
        let of_length = resolved(&prompts[..1], Some(length as usize))?.into_iter();
        all.extend(of_length.map(|prompt| Prompt { name: format!("{length} tokens"), ..prompt }));
    }
    Ok(all)
}

/// That the weights of a quantised file are measured in another form than the file's, which all contenders share.
fn made_from(bundle: &Bundle, precisions: &[Precision]) -> Option<String> {
    let (config, manifest) = (bundle.config(), bundle.manifest());
    if config.blocks.is_empty() || precisions.contains(&Precision::File) {
        return None;
    }
    let mut names: Vec<_> = precisions.iter().map(|precision| precision.name()).collect();
    names.dedup();
    let (names, blocks) = (names.join(", "), config.block_words());
    Some(format!(
        "{} in {names}, made from the file's {blocks}; its own blocks: --precision file",
        manifest.name
    ))
}

/// Prints a line on stderr, unless an earlier cell of a study has printed it.
pub(crate) fn say_once(line: String) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !said.contains(&line) {
        protocol::say!("{line}");
        said.insert(line);
    }
}

fn wanted(draft: &Draft) -> Wanted<'_> {
    Wanted {
        model: draft.request.model(),
        precisions: draft.precisions(),
        // The reference is computed in f32 at every measured precision.
        reference: true,
        device: &draft.request.device,
        cache: draft.request.cache(),
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
        let engines = configs::selected(&self.configs, names)?;
        let are_default = names.is_empty() || names == configs::OF_ONNX;
        if are_default { provision::within_reach(self, engines) } else { Ok(engines) }
    }

    fn encodes(&self, model: &str) -> Result<bool> {
        provision::encodes(self, model)
    }

    fn is_onnx(&self, model: &str) -> bool {
        configs::runs_onnx(&self.configs, model)
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
