//! Commands that know one kind of work: those that give one framework one job, and the parity of layers.

mod denoise;
mod encode;
mod generate;
mod infer;
pub(super) mod parity;
mod profile;
mod prompt;
pub(super) mod requests;
mod score;
mod trace;

use plan::Result;

use crate::cli::Format;
use crate::cli::work::{Job, OnArgs};

/// Runs a job, and returns the exit code.
pub(super) fn run(job: &Job) -> Result<u8> {
    match job {
        Job::Generate(args) => generate::generate(args),
        Job::Denoise(args) => denoise::denoise(args),
        Job::Embed(args) => encode::Asked::embed(args).run(),
        Job::Rerank(args) => encode::Asked::rerank(args).run(),
        Job::Classify(args) => encode::Asked::classify(args).run(),
        Job::Infer(args) => infer::infer(args),
        Job::Score(args) => score::score(args),
        Job::Trace(args) => trace::trace(args),
        Job::Profile(args) => profile::profile(args),
    }
}

/// A job, as far as its arguments determine it.
pub(super) struct Described<'a> {
    pub(super) command: &'static str,
    pub(super) on: &'a OnArgs,
    /// Each prompt or text, with the number of its tokens, if that is known.
    pub(super) prompts: Vec<(String, Option<usize>)>,
    /// Number of tokens that are added to each.
    pub(super) added: usize,
    pub(super) format: Format,
}

/// Checks the arguments of a job. `None` where they say no more than that they are valid.
pub(super) fn described(job: &Job) -> Result<Option<Described<'_>>> {
    let prompt = |tokens: usize| vec![("prompt".to_owned(), Some(tokens).filter(|&count| count > 0))];
    Ok(Some(match job {
        Job::Generate(args) => {
            generate::check(args)?;
            let (prompts, added) = (prompt(args.tokens.len()), args.new_tokens as usize);
            Described { command: "generate", on: &args.on, prompts, added, format: args.format }
        }
        Job::Denoise(args) => {
            denoise::task(args)?;
            let (prompts, added) = (prompt(args.tokens.len()), args.new_tokens as usize);
            Described { command: "denoise", on: &args.on, prompts, added, format: args.format }
        }
        Job::Embed(args) => encode::Asked::embed(args).described()?,
        Job::Rerank(args) => encode::Asked::rerank(args).described()?,
        Job::Classify(args) => encode::Asked::classify(args).described()?,
        Job::Infer(_) => return Ok(None),
        Job::Score(args) => {
            let sequences = score::read_sequences(args)?.into_iter().enumerate();
            let named =
                |(index, tokens): (usize, Vec<u32>)| (format!("sequence {}", index + 1), Some(tokens.len()));
            let prompts = sequences.map(named).collect();
            Described { command: "score", on: &args.on, prompts, added: 0, format: Format::Table }
        }
        Job::Trace(args) => {
            let (prompts, added) = (prompt(args.prompt_tokens as usize), args.new_tokens() as usize);
            Described { command: "trace", on: &args.on, prompts, added, format: Format::Table }
        }
        Job::Profile(args) => {
            let (tokens, added) = args.work.lengths();
            let (on, prompts) = (&args.on, prompt(tokens));
            Described { command: "profile", on, prompts, added, format: Format::Table }
        }
    }))
}
