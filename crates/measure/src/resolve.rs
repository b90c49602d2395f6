//! Turns a request into a plan, and reads and provisions everything it needs. All checks that need no
//! building or preparing come first.

use std::collections::BTreeSet;
use std::sync::Mutex;

use bundle::{Bundle, Scored};
use configs::{Engine, Suite, SuitePrompt};
use plan::ab::engines_of;
use plan::chat::{self, Chat};
use plan::prompts::{self, Text};
use plan::{Draft, Engines, Failure, Given, Plan, Prompt, PromptSource, Request, Result, TaskAsked, axes};

use crate::apart;
use crate::arrays;
use crate::device;
use crate::interrupt;
use crate::largest_batch;
use crate::machine::{self, memory};
use crate::places::Places;
use crate::prompt_files::read_file;
use crate::provision::{self, Wanted};
use crate::quality;

/// Resolves `request`, and provisions missing parts.
pub fn resolve(request: &Request, places: &Places, quiet: bool) -> Result<(Plan, Bundle)> {
    interrupt::with_nothing_to_save(|| resolved(request, places, quiet))
}

fn resolved(request: &Request, places: &Places, quiet: bool) -> Result<(Plan, Bundle)> {
    plan::check(request)?;
    let engines = engines_of(request, places)?;
    if request.device == device::AUTO {
        // They are asked whether they can use a GPU.
        provision::workers(places, &engines, quiet)?;
    }
    let (request, why) = device::settled(request, &engines, places, available_threads());
    why.filter(|_| !quiet).into_iter().for_each(say_once);
    let (request, places) = (&request, &places.on(&request.device));
    let names: Vec<&str> = engines.iter().map(|engine| engine.name.as_str()).collect();
    device::check(&request.device, &names)?;
    device::keep_to_oneself(request, places)?;
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
    let tokenizer = apart::text(&bundle)?;
    let chat = request.chat.then(|| apart::chat(&bundle)).transpose()?;
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
        available_memory: memory::available(&request.device),
        drawn_seed: drawn_seed(),
        quality: quality::bundled(request, places, &bundle, &tokenizer)?,
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

/// Every prompt unchanged, or the first at each of the requested lengths. An encoder has other default texts.
fn prompts_of(
    draft: &Draft,
    bundle: &Bundle,
    places: &Places,
    (tokenizer, chat): (&Text, Option<&Chat>),
) -> Result<Vec<Prompt>> {
    let usual = match draft.request().prompts {
        PromptSource::Usual if bundle.config().encoder.is_some() => Some(texts(draft, bundle, places)?),
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
        untrusted::say!("{line}");
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

/// The bundled default texts for encoders: pairs, for a model that gives each one score.
fn texts(draft: &Draft, bundle: &Bundle, places: &Places) -> Result<Suite> {
    let head = bundle.config().scoring();
    let is_reranker = head.is_some_and(|head| matches!(head.of, Scored::Texts(_)) && head.labels == 1);
    let scores = match draft.request().encode.task {
        None => is_reranker,
        Some(task) => task == TaskAsked::Rerank,
    };
    let file = if scores { "texts/pairs.jsonl" } else { "texts/encoders.txt" };
    read_file(&places.configs.base().join(file))
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
