//! The named sweeps, and the axes that each varies by default.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::plan::draft::Engines;
use crate::plan::prompts::STUDY_PROMPT;
use crate::plan::work::{denoise, encode, generate};
use crate::plan::{Arm, Axis, Failure, PromptSource, Request, Result, RoundsAsked};

const QUICK_ROUNDS: u32 = 1;

/// A named sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, ValueEnum)]
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
    #[value(help = encode::SWEEP)]
    Embed,
    /// Several callers at once, over --callers or --rate
    Callers,
}

impl SweepKind {
    /// Names with their help.
    pub fn named() -> impl Iterator<Item = (String, String)> {
        let values = SweepKind::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let shown = values.filter(|value| !value.is_hide_set());
        shown.map(|value| {
            (value.get_name().to_owned(), value.get_help().map(ToString::to_string).unwrap_or_default())
        })
    }

    /// The word after `sweep`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Fills in the axes that were not given.
    fn complete(self, request: &mut Request, encodes: bool) -> Result<()> {
        if !request.quantize.is_empty() {
            return Err(Failure::usage("--quantize is for `compare`; a sweep takes --precision"));
        }
        if !request.study.switches.is_empty() {
            return Err(Failure::usage("--switches is for `sweep optimised`: leave it out"));
        }
        let takes_texts = matches!(self, SweepKind::Embed | SweepKind::Callers);
        if encodes && !takes_texts {
            return encode::complete(self, request);
        }
        // A single prompt, so that its length can be the axis.
        if !request.names_prompts() && !takes_texts {
            request.prompts = PromptSource::Texts(vec![STUDY_PROMPT.to_owned()]);
        }
        match self {
            SweepKind::Denoise => denoise::complete(request),
            SweepKind::Embed => encode::complete_embedding(request),
            SweepKind::Callers if request.serving.rate.is_empty() => {
                usual(&mut request.serving.callers, &[1, 2, 4, 8]);
            }
            SweepKind::Callers => {}
            _ => return generate::complete(self, request),
        }
        Ok(())
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
pub(crate) fn usual<T: Clone>(values: &mut Vec<T>, usual: &[T]) {
    if values.is_empty() {
        *values = usual.to_vec();
    }
}

/// The request of a sweep of this kind: `asked`, with every open setting filled in.
pub(crate) fn completed(kind: SweepKind, asked: &Request, engines: &dyn Engines) -> Result<Request> {
    let mut request = asked.clone();
    // Each point needs a verdict of its own.
    let rounds = if request.quick { QUICK_ROUNDS } else { statistics::MIN_ROUNDS as u32 };
    request.rounds.get_or_insert(RoundsAsked::Fixed(rounds));
    request.iterations.get_or_insert(1);
    request.cold_load.get_or_insert(false);
    // These studies have their own kind of model and choose it themselves.
    let has_model = matches!(kind, SweepKind::Embed | SweepKind::Callers | SweepKind::Denoise);
    let encodes = !has_model && request.encodes(engines)?;
    kind.complete(&mut request, encodes)?;
    Ok(request)
}
