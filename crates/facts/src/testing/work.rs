//! Work made up for tests.

use plan::work::{Denoise, Generate};
use plan::{Plan, Prompt, Prompted, Work};
use protocol::Decode;

/// One prompt of so many tokens, and 32 new ones.
pub fn generate(prompt_tokens: usize) -> Work {
    let prompt = Prompt {
        name: "p".into(),
        text: None,
        pair: None,
        chat: None,
        tokens: vec![1; prompt_tokens],
        types: Vec::new(),
    };
    let prompted = Prompted {
        batch: 1,
        prompt_last_only: false,
        new_tokens: 32,
        prompts: vec![prompt],
        judged: None,
        mixed: None,
    };
    Work::Generate(Generate {
        prompted,
        context: 0,
        decode: Decode::Forced,
        autoregressive: false,
        prefill_chunk: None,
        load: None,
    })
}

/// The prompts of a plan, to change them.
pub fn prompted(plan: &mut Plan) -> &mut Prompted {
    plan.work.prompted_mut().expect("its work has prompts")
}

/// The same plan with masked diffusion in so many steps, each fed the reference's state.
pub fn denoising(mut plan: Plan, steps: usize) -> Plan {
    let how = serde_json::from_value(serde_json::json!({ "steps": steps, "algorithm": "entropy" }));
    let (prompted, how) = (prompted(&mut plan).clone(), how.expect("these are settings of denoising"));
    Plan { work: Work::Denoise(Denoise { prompted, forced: true, how }), ..plan }
}
