//! `photofinish generate`: one framework continues a prompt.

use measure::resolve::drawn_seed;
use plan::prompts;
use plan::{Failure, Result};
use protocol::{Answer, Case, Decode, Event, GenerateWork, KvCache, Task, Work};
use serde_json::json;

use super::single::{Single, with_chat};
use crate::cli::{Format, GenerateArgs};
use crate::output::print;

/// Refuses flags that do not go together.
pub(super) fn check(args: &GenerateArgs) -> Result<()> {
    if matches!(args.format, Format::Markdown | Format::Csv) {
        return Err(Failure::usage("generate prints a table (the text alone) or json"));
    }
    args.chat.check(args.prompt.as_deref())
}

pub(crate) fn generate(args: &GenerateArgs) -> Result<u8> {
    check(args)?;
    let new_tokens = args.new_tokens as usize;
    let capacity = args.tokens.len() + new_tokens;
    let single = Single::of_decoder(&args.framework, &args.model, &args.here, (1, capacity))?;
    if single.bundle.config().mask_token.is_some() {
        return Err(Failure::usage(format!(
            "{} generates by masked diffusion, not token by token: use `photofinish denoise`",
            single.bundle.manifest().name
        )));
    }
    let text = measure::apart::text(&single.bundle)?;
    let (chat, prompt) = single.prompt((args.prompt.as_deref(), &args.tokens), args.chat, &text)?;
    if prompt.is_empty() {
        return Err(Failure::usage("the prompt is empty: there is nothing to continue"));
    }
    prompts::check_vocabulary(&prompt, single.bundle.config())?;
    prompts::check_context(prompt.len(), new_tokens, single.bundle.config())?;
    // A random seed is printed, so that the same draw can be repeated.
    let sampling = args.sampling.asked().sampling(|| {
        args.seed.unwrap_or_else(|| {
            let seed = drawn_seed();
            foreign::say!("--seed {seed}");
            seed
        })
    });
    let work = Work::Generate(GenerateWork {
        cases: vec![Case { prompts: vec![prompt.clone()], ..Case::default() }],
        new_tokens,
        decode: sampling.map_or(Decode::Greedy, Decode::Sampled),
        kv_cache: KvCache::On,
    });
    let task = Task::Answer(Answer { work, parity: None });
    let outcome = single.run(false, task)?;
    let tokens = outcome.events.iter().find_map(|event| match event {
        Event::Answered(answered) => answered.outputs.first()?.tokens().first().cloned(),
        _ => None,
    });
    let tokens = tokens
        .filter(|tokens| tokens.len() == new_tokens)
        .ok_or_else(|| Failure::failed(format!("{} did not generate {new_tokens} tokens", args.framework)))?;
    let continuation = text.decode(&tokens)?;
    let output = match args.format {
        Format::Json => with_chat(
            chat,
            json!({
                "framework": args.framework,
                "precision": single.contender.precision.name(),
                "prompt_tokens": prompt,
                "tokens": tokens,
                "text": continuation,
            }),
        ),
        _ => continuation.map_or_else(|| format!("{tokens:?}"), |text| foreign::lines(&text).into_owned()),
    };
    print(&(output + "\n"))?;
    Ok(0)
}
