//! `photofinish denoise`: one framework fills in masks after a prompt, by masked diffusion.

use measure::resolve::drawn_seed;
use plan::work::denoise::{check_prompt, mask_of};
use plan::{Axis, Failure, Result};
use protocol::{Answer, Denoise, DenoiseWork, Event, MaskedCase, Task, Work};
use serde_json::json;

use super::prompt::{self, Prompt};
use crate::cli::work::denoise::DenoiseArgs;
use crate::commands::single::Single;

/// The work according to the flags; refuses flags that do not go together.
pub(super) fn task(args: &DenoiseArgs) -> Result<Denoise> {
    prompt::check("denoise", args.format, args.chat, args.prompt.as_deref())?;
    let asked = args.asked();
    if asked.steps.len() > 1 {
        return Err(Failure::usage(format!("{} takes one value here", Axis::Steps.flag())));
    }
    asked.denoise(args.sampling(), args.new_tokens as usize, args.seed.unwrap_or(0))
}

pub(super) fn denoise(args: &DenoiseArgs) -> Result<u8> {
    let mut task = task(args)?;
    let new_tokens = args.new_tokens as usize;
    let capacity = args.tokens.len() + new_tokens;
    let single = Single::of_decoder(&args.on, (1, capacity))?;
    let mask = mask_of(single.bundle.config(), &single.bundle.manifest().name)?;
    let given = (args.prompt.as_deref(), args.tokens.as_slice());
    let prompt =
        Prompt::resolve(&single, given, args.chat, new_tokens, "the first new token needs one before it")?;
    check_prompt(&prompt.tokens, mask)?;
    if task.is_random() && args.seed.is_none() {
        // It is printed, so that the same draw can be repeated.
        task.seed = drawn_seed();
        untrusted::say!("--seed {}", task.seed);
    }
    let (tokens, unmasked) = filled_in(&single, &prompt.tokens, new_tokens, task)?;
    let states = protocol::states(&prompt.tokens, &tokens, &unmasked, mask, task.steps);
    prompt.print(&single, &tokens, args.format, json!({ "states": states }))?;
    Ok(0)
}

/// The tokens that the framework fills in, and the step that unmasks each.
fn filled_in(
    single: &Single,
    prompt: &[u32],
    new_tokens: usize,
    task: Denoise,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let work = Work::Denoise(DenoiseWork {
        cases: vec![MaskedCase { prompts: vec![prompt.to_vec()], ..MaskedCase::default() }],
        new_tokens,
        forced: false,
        how: task,
    });
    let outcome = single.run(false, Task::Answer(Answer { work, parity: None }))?;
    let output = outcome.events.iter().find_map(|event| match event {
        Event::Answered(answered) => answered.outputs.first(),
        _ => None,
    });
    let row = |rows: &[Vec<u32>]| rows.first().filter(|row| row.len() == new_tokens).cloned();
    let both = output.and_then(|output| Some((row(output.tokens())?, row(output.unmasked())?)));
    let label = &single.contender.label;
    both.ok_or_else(|| Failure::failed(format!("{label} did not fill in {new_tokens} tokens")))
}
