//! The named sweeps, and the axes that each varies by default.

use encode_complete as complete_encoding;
use serde::{Deserialize, Serialize};

use crate::plan::draft::Engines;
use crate::plan::{Arm, Axis, Failure, PromptSource, Request, Result, RoundsAsked, Setting, Settings};

/// Default rounds of a cell: there are many cells, and the first question is the shape of the curve. Six rounds are the
/// fewest for a verdict.
const ROUNDS: u32 = 3;

const QUICK_ROUNDS: u32 = 1;

/// A named sweep.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "kebab-case")]
pub enum SweepKind {
    /// One pass over --batch sequences of --prompt-tokens each
    #[value(alias = "prefill")]
    Forward,
    /// Prefill and decoding over --prompt-tokens, --new-tokens, --context, --threads, --batch
    #[value(alias = "decode")]
    Generate,
    /// Iteration 1, 2, 3 …: what the first runs cost, when times settle, from how many tokens on compiling pays, and the
    /// error of a benchmark whose warm-up is shorter than its test
    Warmup,
    /// Its last part alone, as published claims name it
    #[value(hide = true)]
    ShortWarmup,
    /// Memory by part, over --batch
    Memory,
    /// Costs and savings of each --precision: speed, memory, perplexity, agreement with f32
    Precision,
    /// Cost against the size of the --model
    Size,
    /// Masked diffusion over --steps and --new-tokens, and the same body token by token
    Denoise,
    /// Texts to vectors or scores, with an encoder, over --batch and --prompt-tokens
    Embed,
    /// Several callers at once, over --callers or --rate
    Callers,
}

impl SweepKind {
    /// The word after `sweep`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Fills in the axes that were not given.
    fn complete(self, request: &mut Request, encodes: bool) -> Result<()> {
        if !request.quantize.is_empty() {
            return Err(Failure::usage("--quantize is for `compare`; a sweep takes --precision"));
        }
        if encodes && !matches!(self, SweepKind::Embed | SweepKind::Callers) {
            return complete_encoding(self, request);
        }
        // A single prompt, so that its length can be the axis.
        if !request.names_prompts() && !matches!(self, SweepKind::Embed | SweepKind::Callers) {
            request.prompts = PromptSource::Texts(vec![crate::plan::prompts::STUDY_PROMPT.to_owned()]);
        }
        complete(self, request)
    }

    /// The axes that have a column even if they have one value.
    pub fn own_axes(self) -> &'static [Axis] {
        match self {
            SweepKind::Forward => &[Axis::Batch, Axis::PromptTokens],
            SweepKind::Generate => &[Axis::PromptTokens, Axis::NewTokens],
            SweepKind::Warmup | SweepKind::ShortWarmup => &[],
            SweepKind::Memory => &[Axis::Batch],
            SweepKind::Precision => &[Axis::Precision],
            SweepKind::Size => &[Axis::Model],
            SweepKind::Denoise => &[Axis::Steps, Axis::NewTokens],
            SweepKind::Embed => &[Axis::Batch, Axis::PromptTokens],
            SweepKind::Callers => &[],
        }
    }
}

/// The name of a contender without its JIT, which is compared with itself in a study of warm-up.
pub fn without_jit(name: &str) -> String {
    format!("{name} (no JIT)")
}

/// The contenders of a study of warm-up: pairs each compiling engine with itself, JIT off, so that cost and
/// gain of compiling are measured in the same rounds.
pub(crate) fn beside_no_jit(engines: &[configs::Engine]) -> Vec<Arm> {
    let arms = engines.iter().flat_map(|engine| {
        let arm = Arm { label: engine.name.clone(), engine: engine.name.clone(), ..Arm::default() };
        let can_switch = engine.compiles.is_some() && engine.settings.jit != Some(false);
        let without = Arm { label: without_jit(&engine.name), jit: Some(false), ..arm.clone() };
        [Some(arm), can_switch.then_some(without)]
    });
    let mut arms: Vec<Arm> = arms.flatten().collect();
    for place in 0..arms.len() {
        let earlier = arms[..place].iter().filter(|arm| arm.label == arms[place].label).count();
        if earlier > 0 {
            arms[place].label += &format!(" ({})", earlier + 1);
        }
    }
    arms
}

/// Fills in an axis that was not given.
fn usual<T: Clone>(values: &mut Vec<T>, usual: &[T]) {
    if values.is_empty() {
        *values = usual.to_vec();
    }
}

/// The request of a sweep of this kind: `asked`, with every open setting filled in.
pub(crate) fn completed(kind: SweepKind, asked: &Request, engines: &dyn Engines) -> Result<Request> {
    let mut request = asked.clone();
    let rounds = match kind {
        _ if request.quick => QUICK_ROUNDS,
        // Each point needs a verdict of its own.
        SweepKind::Callers => statistics::MIN_ROUNDS as u32,
        _ => ROUNDS,
    };
    request.rounds.get_or_insert(RoundsAsked::Fixed(rounds));
    request.iterations.get_or_insert(1);
    request.cold_load.get_or_insert(false);
    // These studies have their own kind of model and choose it themselves.
    let has_model = matches!(kind, SweepKind::Embed | SweepKind::Callers | SweepKind::Denoise);
    let encodes = !has_model && request.encodes(engines)?;
    kind.complete(&mut request, encodes)?;
    Ok(request)
}

// The axes that a sweep varies by default, for each kind of work.

/// Fills in the axes that were not given.
fn complete(kind: SweepKind, request: &mut Request) -> Result<()> {
    match kind {
        SweepKind::Denoise => denoise_complete(request),
        SweepKind::Embed => complete_embedding(request),
        SweepKind::Callers if request.serving.rate.is_empty() => {
            usual(&mut request.serving.callers, &[1, 2, 4, 8]);
        }
        SweepKind::Callers => {}
        _ => return generate_complete(kind, request),
    }
    Ok(())
}

// Masked diffusion.

/// The default model for denoising.
const DIFFUSION_MODEL: &str = "synthetic:diffucoder-160m";

/// Fills in the axes of a study of masked diffusion.
pub(in super::sweep) fn denoise_complete(request: &mut Request) {
    if request.models == [configs::DEFAULT_MODEL] {
        request.models = vec![DIFFUSION_MODEL.to_owned()];
    }
    request.usual_steps(&[8, 16, 32, 64]);
    request.usual_tokens(64);
    usual(&mut request.prompt_tokens, &[16]);
}

/// The value on the axis of steps for a masked-diffusion model's body as a token-by-token decoder.
pub const TOKEN_BY_TOKEN: &str = "token by token";

/// The cells of a study of denoising: for each length also the same body token by token, at equal tokens.
pub(crate) fn beside_token_by_token(cells: Vec<(Settings, Request)>) -> Vec<(Settings, Request)> {
    let mut all: Vec<(Settings, Request)> = Vec::new();
    for (settings, mut request) in cells {
        let mut body = (settings.clone(), request.clone());
        body.0.insert(Axis::Steps, Setting::Name(TOKEN_BY_TOKEN.to_owned()));
        body.1 = body.1.token_by_token();
        if !all.iter().any(|(place, _)| *place == body.0) {
            all.push(body);
        }
        let asked = (request.denoise.steps.first(), request.new_tokens.first());
        if let (Some(steps), Some(tokens)) = asked
            && steps > tokens
        {
            let reason = format!(
                "{steps} steps for {tokens} new tokens: a step that unmasks nothing is a pass for nothing"
            );
            request.study.refused = Some(reason);
        }
        all.push((settings, request));
    }
    all
}

// Encoders.

/// The default encoder.
const ENCODER: &str = "minilm";

/// Fills in the axes of a study of texts.
pub(in super::sweep) fn complete_embedding(request: &mut Request) {
    if request.models == [configs::DEFAULT_MODEL] {
        request.models = vec![ENCODER.to_owned()];
    }
    usual(&mut request.batch, &[1, 8, 32]);
    if request.encode.has_real_lengths() {
        usual(&mut request.prompt_tokens, &[32, 128]);
    }
}

/// Fills in the axes of a study that other models have, too.
pub(in super::sweep) fn encode_complete(kind: SweepKind, request: &mut Request) -> Result<()> {
    match kind {
        SweepKind::Precision => {
            usual(&mut request.precisions, &bundle::Precision::ALL);
            request.study.text = true;
        }
        SweepKind::Memory => {
            usual(&mut request.batch, &[1, 8, 32]);
            if request.encode.has_real_lengths() {
                usual(&mut request.prompt_tokens, &[128]);
            }
            // Memory is the same on a noisy machine.
            request.accept_noise = true;
        }
        SweepKind::Size if request.models.len() < 2 => {
            return Err(Failure::usage(format!(
                "{} encodes texts: a sweep over sizes of encoders takes --model several times",
                request.model()
            )));
        }
        SweepKind::Size => {}
        _ => {
            return Err(Failure::usage(format!(
                "{} encodes texts, and `sweep {}` is for models that continue them: there are `sweep embed`, \
                 `sweep precision`, `sweep memory` and `sweep size`",
                request.model(),
                kind.name()
            )));
        }
    }
    Ok(())
}

// Continuation, token by token.

/// Fewest new tokens for the test after a short warm-up.
const TESTED_TOKENS: u32 = 21;

/// Published model shapes with seeded weights: see docs/how-to/your-model.md.
const SIZES: [&str; 3] = ["synthetic:gpt2-124m", "synthetic:llama-160m", "synthetic:llama-360m"];

/// Fills in the axes of a study of texts that are continued.
pub(in super::sweep) fn generate_complete(kind: SweepKind, request: &mut Request) -> Result<()> {
    match kind {
        SweepKind::Forward => {
            if request.new_tokens.iter().any(|&tokens| tokens != 1) {
                return Err(Failure::usage(
                    "a forward pass yields one token: leave --new-tokens out, or `photofinish sweep generate`",
                ));
            }
            request.new_tokens = vec![1];
            usual(&mut request.batch, &[1, 2, 4, 8]);
            usual(&mut request.prompt_tokens, &[128, 256, 512]);
        }
        SweepKind::Generate => {
            usual(&mut request.prompt_tokens, &[16, 64, 256]);
            request.usual_tokens(32);
        }
        SweepKind::Warmup | SweepKind::ShortWarmup => {
            // Without its JIT, a framework may need a second for a token.
            let (iterations, new_tokens) = if kind == SweepKind::Warmup { (6, 16) } else { (10, 32) };
            request.iterations = request.iterations.filter(|&count| count > 1).or(Some(iterations));
            if request.prompt_lengths.is_empty() {
                usual(&mut request.prompt_tokens, &[16]);
            }
            request.usual_tokens(new_tokens);
            if kind == SweepKind::ShortWarmup {
                check_tested(&request.new_tokens)?;
            }
        }
        SweepKind::Memory => {
            usual(&mut request.batch, &[1, 2, 4, 8]);
            usual(&mut request.prompt_tokens, &[128]);
            request.usual_tokens(16);
            // Memory is the same on a noisy machine.
            request.accept_noise = true;
        }
        SweepKind::Precision => {
            usual(&mut request.precisions, &bundle::Precision::ALL);
            usual(&mut request.prompt_tokens, &[16]);
            request.usual_tokens(64);
            request.study.text = true;
        }
        SweepKind::Size => {
            if request.models.len() < 2 {
                request.models = SIZES.map(str::to_owned).to_vec();
            }
            usual(&mut request.prompt_tokens, &[16]);
            request.usual_tokens(32);
        }
        SweepKind::Denoise | SweepKind::Embed | SweepKind::Callers => {}
    }
    Ok(())
}

/// Rejects requests that end before the test after a short warm-up does.
fn check_tested(new_tokens: &[u32]) -> Result<()> {
    let Some(few) = new_tokens.iter().find(|&&tokens| tokens < TESTED_TOKENS) else { return Ok(()) };
    Err(Failure::usage(format!(
        "the short warm-up is 5 tokens and its test 15, behind the first of prefill: --new-tokens {few} is too few, \
         give {TESTED_TOKENS} or more"
    )))
}
