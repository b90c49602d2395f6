//! `photofinish profile`: where a framework's time goes, or with --trace one run of it on a timeline.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use comparison::facts::Outcome;
use comparison::plan::prompts::{self, Text};
use comparison::plan::{self, Failure, Result};
use configs::SuitePrompt;
use protocol::{
    Case, Decode, Event, GenerateWork, Hello, KvCache, Loaded, ProfileEvent, Task, Trace, Traced, Work,
    untrusted,
};
use render::trace::{Steps, TraceFile, check};

use crate::cli::work::ProfileArgs;
use crate::commands::single::{Single, asked, of_texts};
use crate::commands::{encode, operators};
use crate::measure;
use crate::measure::perf;
use crate::measure::results::write_whole;
use crate::output::print;

fn trace(args: &ProfileArgs) -> Result<u8> {
    let output = args.output.clone().unwrap_or_else(|| format!("trace-{}.json", args.on.framework).into());
    // Before anything is run, so that nothing is run in vain.
    let scratch = Scratch::beside(&output)?;
    if !args.graph.is_empty() {
        return Err(Failure::usage(
            "a timeline is of a model of texts: leave out the flags of ONNX files, or --trace",
        ));
    }
    let (prompt, new_tokens) = lengths(args);
    let single = Single::resolve(&args.on, (1, prompt + new_tokens))?;
    of_texts(&single.bundle)?;
    let text = measure::tokenizer::text(&single.bundle)?;
    let encodes = single.bundle.config().encodes();
    let work = if encodes { encode::traced(args, &single)? } else { continued(args, &single, &text)? };
    let file = scratch.file("profile.json").display().to_string();
    let outcome = single.run(false, Task::Trace(Trace { work, file: file.clone() }))?;
    let told = Told::read(&args.on.framework, &outcome)?;
    let trace = TraceFile {
        framework: &args.on.framework,
        steps: if encodes { Steps::BATCH } else { Steps::TOKENS },
        traced: told.traced,
        profile: told.profile(Path::new(&file))?,
        about: told.about(args, &single),
    };
    let json = trace.json(|token| text.decode(&[token]).ok().flatten());
    let wrong =
        |what: String| Failure::failed(format!("the trace of {} is not valid: {what}", args.on.framework));
    let checked = check(&json).map_err(|broken| wrong(broken.0))?;
    let expected = if encodes { 3 } else { 2 * new_tokens + 1 };
    if checked.tokens != expected {
        return Err(wrong(format!("it has {} steps where {expected} were computed", checked.tokens)));
    }
    scratch.write(&json, &output)?;
    let what = if encodes { "batches" } else { "tokens" };
    print(&told.summary(&output, &format!("{} {what}", checked.tokens)))?;
    Ok(0)
}

/// Numbers of prompt tokens and of new tokens.
fn lengths(args: &ProfileArgs) -> (usize, usize) {
    let (prompt, new_tokens) = args.work.of_trace();
    (prompt as usize, new_tokens as usize)
}

/// A prompt that is continued.
fn continued(args: &ProfileArgs, single: &Single, text: &Text) -> Result<Work> {
    let (config, name) = (single.bundle.config(), &single.bundle.manifest().name);
    if config.mask_token.is_some() {
        return Err(Failure::usage(format!(
            "{name} generates by masked diffusion: a trace is of a request that goes token by token"
        )));
    }
    if args.batch.is_some() {
        return Err(encode::not_encoded(name, "--batch of a trace"));
    }
    let (prompt, new_tokens) = lengths(args);
    plan::work::check_context(prompt, new_tokens, config)?;
    // Which tokens are computed makes no difference to the work.
    let filled = SuitePrompt { tokens: Some(Vec::new()), ..SuitePrompt::default() };
    let prompts = prompts::resolve(&[filled], Some(prompt), config, text, None)?;
    let prompts = prompts.into_iter().map(|prompt| prompt.tokens).collect();
    let cases = vec![Case { prompts, ..Case::default() }];
    let (decode, kv_cache) = (Decode::Greedy, KvCache::On);
    Ok(Work::Generate(GenerateWork { cases, new_tokens, decode, kv_cache, prefill_chunk: None }))
}

/// A directory next to the output. The worker's files go there, and the trace until it is complete.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn beside(output: &Path) -> Result<Scratch> {
        if output.is_dir() {
            let text = format!("cannot write {}: it is a directory; name a file", output.display());
            return Err(Failure::usage(text));
        }
        let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty());
        // A worker may look for it from another directory.
        let parent = std::path::absolute(parent.unwrap_or(Path::new("."))).map_err(|e| cannot(output, &e))?;
        let directory = tempfile::Builder::new().prefix(".trace-").tempdir_in(parent);
        Ok(Scratch(directory.map_err(|e| cannot(output, &e))?))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, json: &str, output: &Path) -> Result<()> {
        let file = self.file("trace.json");
        let written = std::fs::write(&file, json).and_then(|()| std::fs::rename(&file, output));
        written.map_err(|e| cannot(output, &e))?;
        measure::results::readable_by_all(output);
        Ok(())
    }
}

fn cannot(output: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot write {}: {error}", output.display()))
}

pub(super) struct Told<'a> {
    hello: &'a Hello,
    loaded: &'a Loaded,
    traced: &'a Traced,
}

impl<'a> Told<'a> {
    pub(super) fn read(framework: &str, outcome: &'a Outcome) -> Result<Told<'a>> {
        let (mut hello, mut loaded, mut traced) = (None, None, None);
        for event in &outcome.events {
            match event {
                Event::Hello(event) => hello = Some(event),
                Event::Loaded(event) => loaded = Some(event),
                Event::Traced(event) => traced = Some(event),
                _ => {}
            }
        }
        match (hello, loaded, traced) {
            (Some(hello), Some(loaded), Some(traced)) => Ok(Told { hello, loaded, traced }),
            _ => Err(Failure::failed(format!("{framework} did not report its operations"))),
        }
    }

    /// The events of the framework's own profiler, from the path that was given to the worker. The path that
    /// the worker names itself is not opened.
    pub(super) fn profile(&self, file: &Path) -> Result<Vec<ProfileEvent>> {
        let Some(profiler) = &self.traced.profiler else { return Ok(Vec::new()) };
        let cannot =
            |why: String| Failure::failed(format!("cannot read the events of {}: {why}", profiler.name));
        let text =
            untrusted::file::read_text(file, untrusted::file::RESULTS).map_err(|e| cannot(e.to_string()))?;
        serde_json::from_str(&text).map_err(|e| cannot(e.to_string()))
    }

    /// The name of its profiler, if it has one.
    pub(super) fn profiler(&self) -> Option<String> {
        self.traced.profiler.as_ref().map(|profiler| profiler.name.to_string())
    }

    pub(super) fn notes(&self) -> String {
        self.traced.notes.join(" ")
    }

    /// Start and end of the last request, in nanoseconds.
    pub(super) fn last_request(&self) -> Option<(u64, u64)> {
        let request = self.traced.requests.last()?;
        Some((request.start_ns, *request.tokens_ns.last()?))
    }

    fn about(&self, args: &ProfileArgs, single: &Single) -> BTreeMap<String, String> {
        let mut about: BTreeMap<&str, String> = BTreeMap::new();
        about.insert("made by", concat!("photofinish ", env!("CARGO_PKG_VERSION")).into());
        about.insert("commit", env!("BUILD_COMMIT").into());
        about.insert("command", format!("photofinish {}", joined(&measure::progress::typed()[1..])));
        about.insert("framework", args.on.framework.clone());
        about.insert("library", self.hello.library.to_string());
        about.insert("binding", self.hello.binding.to_string());
        about.insert("model", single.bundle.manifest().name.clone());
        about.insert("precision", self.loaded.in_effect.precision.to_string());
        about.insert("device", self.loaded.in_effect.device.to_string());
        about.insert("threads", self.loaded.in_effect.threads.to_string());
        about.insert("jit", self.loaded.in_effect.jit.to_string());
        let (prompt, new_tokens) = lengths(args);
        about.insert("prompt tokens", prompt.to_string());
        match single.bundle.config().encodes() {
            true => about.insert("texts", args.batch.unwrap_or(1).to_string()),
            false => about.insert("new tokens", new_tokens.to_string()),
        };
        about.insert("not a measurement", NO_MEASUREMENT.into());
        about.insert(
            "times",
            "microseconds from the start of the worker's process, by CLOCK_MONOTONIC".into(),
        );
        match &self.traced.profiler {
            None => {
                about.insert("profiler", "none".into());
            }
            Some(profiler) => {
                about.insert("profiler", format!("{}, {} events", profiler.name, profiler.events));
                about.insert("profiler's clock", aligned(&profiler.alignment));
            }
        }
        if !self.traced.notes.is_empty() {
            about.insert("notes", self.traced.notes.join(" "));
        }
        about.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
    }

    /// `steps`: how many tokens it has, or batches.
    fn summary(&self, output: &Path, steps: &str) -> String {
        let beside = match &self.traced.profiler {
            Some(profiler) => format!("{} events of {} beside them", profiler.events, profiler.name),
            None => "without a profiler's events".into(),
        };
        let mut text = format!(
            "{}: {steps} of {}, {beside}.\nOpen it in https://ui.perfetto.dev or chrome://tracing. {NO_MEASUREMENT}\n",
            output.display(),
            self.hello.framework,
        );
        if let Some(profiler) = &self.traced.profiler {
            text += &format!("The profiler's clock: {}.\n", aligned(&profiler.alignment));
        }
        for note in &self.traced.notes {
            text += &format!("{note}\n");
        }
        text
    }
}

const NO_MEASUREMENT: &str = "A profiler slows the program, so no time in it is a measurement.";

/// How well the profiler's times agree with the worker's.
fn aligned(alignment: &protocol::Alignment) -> String {
    let read = match alignment.error_ns {
        None => return "none, so its events were placed within their steps".into(),
        Some(0) => format!("{}, which the worker reads too", alignment.clock),
        Some(ns) => format!("{}, known to within {} by readings of both clocks", alignment.clock, short(ns)),
    };
    match alignment.overhang_ns {
        0 => format!("{read}; no event reaches over the end of its step"),
        ns => format!("{read}; an event reaches over the end of its step by {} at most", short(ns)),
    }
}

fn short(ns: u64) -> String {
    if ns < 1000 { format!("{ns} ns") } else { format!("{:.1} µs", ns as f64 / 1e3) }
}

/// A line of these words.
fn joined(words: &[String]) -> String {
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

// Where a worker's time goes, part by part.

const FILE: &str = "profile.md";

pub(super) fn profile(args: &ProfileArgs) -> Result<u8> {
    if args.trace {
        return trace(args);
    }
    if operators::fits(args)? {
        return operators::profile(args);
    }
    let places = args.on.here.places.find()?;
    let (request, engine) = asked(&args.on, &places)?;
    if request.device != "cpu" {
        return Err(Failure::usage("a profile is of the time on a CPU: leave out --device"));
    }
    perf::require_perf()?;
    let rules = perf::rules(&places.directory_of(perf::RULES).join(perf::RULES), &engine.framework)?;
    let (prompt, new_tokens) = args.work.lengths();
    let single = Single::resolve(&args.on, (1, prompt + new_tokens))?;
    of_texts(&single.bundle)?;
    let config = single.bundle.config();
    if config.encodes() || config.mask_token.is_some() {
        let name = &single.bundle.manifest().name;
        return Err(Failure::usage(format!(
            "{name} does not continue texts token by token, and a profile is of a request that does"
        )));
    }
    plan::work::check_context(prompt, new_tokens, config)?;
    let (framework, precision, phase) =
        (args.on.framework.replace('/', "-"), single.contender.precision.name(), args.work.phase.name());
    let usual = || places.results().join(format!("profile-{framework}-{precision}-{phase}"));
    let directory = args.results.clone().unwrap_or_else(usual);
    // Before anything is run, so that nothing is run in vain.
    let cannot = |error| cannot(&directory.join(FILE), &error);
    std::fs::create_dir_all(&directory).map_err(cannot)?;
    let (label, worker) = (&single.contender.label, single.worker()?);
    let job = single.job(false, perf::task(config.vocab_size, (prompt, new_tokens)));
    let table = perf::profile(label, &worker, &job, args.work.phase.requests(), &rules)?;
    let page = untrusted::lines(&format!(
        "```\n{}\n```\n\n{table}",
        profile_command(args, request.model(), &single)
    ))
    .into_owned();
    write_whole(&directory, FILE, page.as_bytes()).map_err(cannot)?;
    print(&page)?;
    Ok(0)
}

/// The line that repeats the profile, with what was left to the defaults.
fn profile_command(args: &ProfileArgs, model: &str, single: &Single) -> String {
    let (prompt, new_tokens) = args.work.lengths();
    let mut words = vec!["photofinish".to_owned(), "profile".to_owned()];
    let mut add = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
    add("--framework", args.on.framework.clone());
    add("--model", model.to_owned());
    add("--precision", single.contender.precision.name().to_owned());
    add("--phase", args.work.phase.name().to_owned());
    add("--prompt-tokens", prompt.to_string());
    add("--new-tokens", new_tokens.to_string());
    add("--threads", single.contender.threads.to_string());
    if !single.contender.jit {
        words.push("--no-jit".to_owned());
    }
    joined(&words)
}
