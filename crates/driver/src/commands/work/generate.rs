//! `photofinish generate`: one framework continues a prompt.

use measure::resolve::drawn_seed;
use plan::{Failure, Result};
use protocol::{Answer, Case, Decode, Event, GenerateWork, KvCache, Task, Work};
use serde_json::Value;

use super::prompt::{self, Prompt};
use crate::cli::work::generate::GenerateArgs;
use crate::commands::single::Single;

/// Refuses flags that do not go together.
pub(super) fn check(args: &GenerateArgs) -> Result<()> {
    prompt::check("generate", args.format, args.chat, args.prompt.as_deref())
}

pub(super) fn generate(args: &GenerateArgs) -> Result<u8> {
    check(args)?;
    let new_tokens = args.new_tokens as usize;
    let capacity = args.tokens.len() + new_tokens;
    let single = Single::of_decoder(&args.on, (1, capacity))?;
    if single.bundle.config().mask_token.is_some() {
        return Err(Failure::usage(format!(
            "{} generates by masked diffusion, not token by token: use `photofinish denoise`",
            single.bundle.manifest().name
        )));
    }
    let given = (args.prompt.as_deref(), args.tokens.as_slice());
    let prompt = Prompt::resolve(&single, given, args.chat, new_tokens, "there is nothing to continue")?;
    // A random seed is printed, so that the same draw can be repeated.
    let sampling = args.sampling.asked().sampling(|| {
        args.seed.unwrap_or_else(|| {
            let seed = drawn_seed();
            untrusted::say!("--seed {seed}");
            seed
        })
    });
    let work = Work::Generate(GenerateWork {
        cases: vec![Case { prompts: vec![prompt.tokens.clone()], ..Case::default() }],
        new_tokens,
        decode: sampling.map_or(Decode::Greedy, Decode::Sampled),
        kv_cache: KvCache::On,
        prefill_chunk: None,
    });
    let task = Task::Answer(Answer { work, parity: None });
    let outcome = single.run(false, task)?;
    let tokens = outcome.events.iter().find_map(|event| match event {
        Event::Answered(answered) => answered.outputs.first()?.tokens().first().cloned(),
        _ => None,
    });
    let label = &single.contender.label;
    let tokens = tokens
        .filter(|tokens| tokens.len() == new_tokens)
        .ok_or_else(|| Failure::failed(format!("{label} did not generate {new_tokens} tokens")))?;
    prompt.print(&single, &tokens, args.format, Value::Null)?;
    Ok(0)
}
