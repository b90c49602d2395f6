//! `photofinish trace`: one run of a framework, to look at.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use configs::SuitePrompt;
use facts::Outcome;
use plan::prompts;
use plan::{Failure, Result};
use protocol::{Event, Hello, Loaded, ProfileEvent, Task, Trace, Traced};
use render::trace::{Checked, TraceFile, check};

use super::single::Single;
use crate::cli::TraceArgs;
use crate::output::print;

pub(crate) fn trace(args: &TraceArgs) -> Result<u8> {
    let output = args.output.clone().unwrap_or_else(|| format!("trace-{}.json", args.framework).into());
    // Before anything is run, so that nothing is run in vain.
    let scratch = Scratch::beside(&output)?;
    let (prompt, new_tokens) = (args.prompt_tokens as usize, args.new_tokens as usize);
    let single = Single::of_decoder(&args.framework, &args.model, &args.here, (1, prompt + new_tokens))?;
    if single.bundle.config().mask_token.is_some() {
        return Err(Failure::usage(format!(
            "{} generates by masked diffusion: a trace is of a request that goes token by token",
            single.bundle.manifest().name
        )));
    }
    let (config, text) = (single.bundle.config(), measure::apart::text(&single.bundle)?);
    prompts::check_context(prompt, new_tokens, config)?;
    // Which tokens are computed makes no difference to the work.
    let filled = SuitePrompt { tokens: Some(Vec::new()), ..SuitePrompt::default() };
    let prompts = prompts::resolve(&[filled], Some(prompt), config, &text, None)?;
    let prompts = prompts.into_iter().map(|prompt| prompt.tokens).collect();
    let file = scratch.file("profile.json").display().to_string();
    let outcome = single.run(false, Task::Trace(Trace { prompts, new_tokens, file: file.clone() }))?;
    let told = Told::read(&args.framework, &outcome)?;
    let trace = TraceFile {
        framework: &args.framework,
        traced: told.traced,
        profile: told.profile(Path::new(&file))?,
        about: told.about(args, &single),
    };
    let json = trace.json(|token| text.decode(&[token]).ok().flatten());
    let wrong =
        |what: String| Failure::failed(format!("the trace of {} is not valid: {what}", args.framework));
    let checked = check(&json).map_err(|broken| wrong(broken.0))?;
    let expected = 2 * new_tokens + 1;
    if checked.tokens != expected {
        return Err(wrong(format!("it has {} tokens where {expected} were computed", checked.tokens)));
    }
    scratch.write(&json, &output)?;
    print(&told.summary(&output, &checked))?;
    Ok(0)
}

/// A directory beside the file that is to be written. The worker's files go there, and the trace until it is complete.
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

/// What the worker said.
struct Told<'a> {
    hello: &'a Hello,
    loaded: &'a Loaded,
    traced: &'a Traced,
}

impl<'a> Told<'a> {
    fn read(framework: &str, outcome: &'a Outcome) -> Result<Told<'a>> {
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
            _ => Err(Failure::failed(format!("{framework} did not say what it did"))),
        }
    }

    /// The events of the framework's own profiler, from the file that the worker was told to write. The path that it
    /// names itself is not opened.
    fn profile(&self, file: &Path) -> Result<Vec<ProfileEvent>> {
        let Some(profiler) = &self.traced.profiler else { return Ok(Vec::new()) };
        let cannot =
            |why: String| Failure::failed(format!("cannot read the events of {}: {why}", profiler.name));
        let text =
            foreign::file::read_text(file, foreign::file::RESULTS).map_err(|e| cannot(e.to_string()))?;
        serde_json::from_str(&text).map_err(|e| cannot(e.to_string()))
    }

    /// What the file says of itself.
    fn about(&self, args: &TraceArgs, single: &Single) -> BTreeMap<String, String> {
        let mut about: BTreeMap<&str, String> = BTreeMap::new();
        about.insert("made by", concat!("photofinish ", env!("CARGO_PKG_VERSION")).into());
        about.insert("commit", env!("BUILD_COMMIT").into());
        about.insert("command", command());
        about.insert("framework", args.framework.clone());
        about.insert("library", self.hello.library.to_string());
        about.insert("binding", self.hello.binding.to_string());
        about.insert("model", single.bundle.manifest().name.clone());
        about.insert("precision", self.loaded.in_effect.precision.to_string());
        about.insert("device", self.loaded.in_effect.device.to_string());
        about.insert("threads", self.loaded.in_effect.threads.to_string());
        about.insert("jit", self.loaded.in_effect.jit.to_string());
        about.insert("prompt tokens", args.prompt_tokens.to_string());
        about.insert("new tokens", args.new_tokens.to_string());
        about.insert("not a measurement", NO_MEASUREMENT.into());
        about.insert(
            "times",
            "microseconds from the start of the worker's process, by CLOCK_MONOTONIC".into(),
        );
        about.insert("profiler", self.profiler());
        if let Some(profiler) = &self.traced.profiler {
            about.insert("profiler's clock", aligned(&profiler.alignment));
        }
        if !self.traced.notes.is_empty() {
            about.insert("notes", self.traced.notes.join(" "));
        }
        about.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
    }

    fn profiler(&self) -> String {
        match &self.traced.profiler {
            Some(profiler) => format!("{}, {} events", profiler.name, profiler.events),
            None => "none".into(),
        }
    }

    fn summary(&self, output: &Path, checked: &Checked) -> String {
        let beside = match &self.traced.profiler {
            Some(profiler) => format!("{} events of {} beside them", profiler.events, profiler.name),
            None => "without a profiler's events".into(),
        };
        let mut text = format!(
            "{}: {} tokens of {}, {beside}.\nOpen it in https://ui.perfetto.dev or chrome://tracing. {NO_MEASUREMENT}\n",
            output.display(),
            checked.tokens,
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

const NO_MEASUREMENT: &str = "A profiler slows what it watches, so no time in it is a measurement.";

/// How well the profiler's times stand beside the worker's.
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

/// The line that was typed.
fn command() -> String {
    let words: Vec<String> = measure::command::typed().split_off(1);
    let words = shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "));
    format!("photofinish {words}")
}
