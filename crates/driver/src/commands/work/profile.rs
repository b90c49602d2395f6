//! `photofinish profile`: where a worker's time goes, part by part.

use std::path::Path;

use measure::results::write_whole;
use plan::{Failure, Result};

use crate::cli::work::profile::ProfileArgs;
use crate::commands::single::{Single, asked, of_texts};
use crate::output::print;
use crate::perf::{self, Subject};

const FILE: &str = "profile.md";

pub(super) fn profile(args: &ProfileArgs) -> Result<u8> {
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
    if config.encoder.is_some() || config.mask_token.is_some() {
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
    std::fs::create_dir_all(&directory).map_err(|error| cannot(&directory, &error))?;
    let subject = Subject {
        label: &single.contender.label,
        worker: &single.worker()?,
        job: &single.job(false, args.work.task(config.vocab_size)),
        requests: args.work.phase.requests(),
    };
    let table = perf::profile(&subject, &rules)?;
    let page = untrusted::lines(&format!("```\n{}\n```\n\n{table}", command(args, request.model(), &single)))
        .into_owned();
    write_whole(&directory, FILE, page.as_bytes()).map_err(|error| cannot(&directory, &error))?;
    print(&page)?;
    Ok(0)
}

fn cannot(directory: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot write {}: {error}", directory.join(FILE).display()))
}

/// The line that repeats the profile, with what was left to the defaults.
fn command(args: &ProfileArgs, model: &str, single: &Single) -> String {
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
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}
