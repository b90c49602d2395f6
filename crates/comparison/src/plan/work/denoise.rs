//! Generation by masked diffusion: its settings, the resolved work, and invalid requests.

use bundle::ModelConfig;
use clap::Args;
use protocol::{Algorithm, DenoiseWork, KvCache, MaskedCase, Output, Sample, Steps, finite};
use serde::{Deserialize, Serialize};

use super::{Describe, Prompted, Proof, WorkKind};
use crate::plan::sweep::usual;
use crate::plan::{Axis, DecodeAsked, Failure, Request, Result, SamplingAsked, Setting, Settings, flags};

/// The topic of its flags in the help, and their heading.
pub const TOPIC: (&str, &str) = ("diffusion", "Masked diffusion");

/// The settings of Dream's demonstration.
const ALGORITHM: Algorithm = Algorithm::Entropy;
const EPS: f32 = 1e-3;

/// Masks after prompts, which are filled in step by step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Denoise {
    #[serde(flatten)]
    pub prompted: Prompted,
    /// Whether each step is fed the reference's state, not the process's own.
    pub forced: bool,
    pub how: protocol::Denoise,
}

impl Denoise {
    fn work(&self, cases: Vec<MaskedCase>, forced: bool) -> protocol::Work {
        let (new_tokens, how) = (self.prompted.new_tokens, self.how);
        protocol::Work::Denoise(DenoiseWork { cases, new_tokens, forced, how })
    }
}

impl Describe for Denoise {
    fn kind(&self) -> WorkKind {
        WorkKind::Denoising
    }

    fn cache_positions(&self, case: usize) -> usize {
        self.prompted.length(case) + self.prompted.new_tokens
    }

    fn marks(&self) -> usize {
        self.how.steps
    }

    fn words(&self) -> String {
        let steps = format!(" in {} steps ({})", self.how.steps, self.how.algorithm.name());
        self.prompted.words(&steps)
    }

    fn mark_noun(&self) -> &'static str {
        "step"
    }

    fn steps_noun(&self) -> &'static str {
        "step times"
    }

    fn asked(&self, _: KvCache, outputs: &[Output]) -> protocol::Work {
        let cases = self.prompted.case_prompts().into_iter().zip(outputs).map(|(prompts, output)| {
            MaskedCase { prompts, trace: output.tokens().to_vec(), unmasked: output.unmasked().to_vec() }
        });
        self.work(cases.collect(), self.forced)
    }

    fn of_reference(&self) -> protocol::Work {
        let cases = self.prompted.case_prompts().into_iter();
        self.work(cases.map(|prompts| MaskedCase { prompts, ..MaskedCase::default() }).collect(), false)
    }

    fn is_whole(&self, _: usize, output: &Output) -> bool {
        let Output::Steps(Steps { tokens, unmasked, .. }) = output else { return false };
        let is_step = |&step: &u32| (step as usize) < self.how.steps;
        self.prompted.has_all(tokens)
            && self.prompted.has_all(unmasked)
            && unmasked.iter().flatten().all(is_step)
    }

    fn is_done(&self, sample: &Sample) -> bool {
        let is_whole = |tokens: &Vec<u32>| tokens.len() == self.prompted.new_tokens;
        let Output::Steps(steps) = &sample.output else { return false };
        let parts = [sample.marks_ns.len(), steps.passes_ns.len()];
        parts == [self.how.steps; 2] && steps.tokens.iter().all(is_whole)
    }

    fn fallback_outputs(&self) -> Vec<Output> {
        let new_tokens = self.prompted.new_tokens;
        let output = |tokens: Vec<Vec<u32>>| {
            // From left to right, equally many in each step.
            let step = |place: usize| (place * self.how.steps / new_tokens) as u32;
            let unmasked = vec![(0..new_tokens).map(step).collect(); tokens.len()];
            Output::Steps(Steps { tokens, unmasked, passes_ns: Vec::new() })
        };
        self.prompted.repeated().into_iter().map(output).collect()
    }

    fn judged_positions(&self, _: usize) -> Option<usize> {
        Some(1 + self.prompted.new_tokens)
    }

    fn is_forced(&self) -> bool {
        self.forced
    }

    fn proof(&self) -> Proof {
        // A changed trace would have no order of unmasking.
        Proof::Nothing("masked diffusion is fed the reference's own states")
    }

    fn prompted(&self) -> Option<&Prompted> {
        Some(&self.prompted)
    }
}

/// Settings of denoising; `None` means the default. Temperature, top-p and top-k are those of sampling.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct DenoiseAsked {
    /// Steps of denoising, each a pass over all positions [default: as many as new tokens]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = flags::number(), help_heading = TOPIC.1,
          hide_short_help = true)]
    pub steps: Vec<u32>,
    /// Which positions a step unmasks [default: entropy]
    #[arg(long, value_parser = flags::algorithm(), help_heading = TOPIC.1, hide_short_help = true)]
    pub algorithm: Option<Algorithm>,
    /// Draw the positions by softmax(confidence / T); 0 takes the surest [default: 0]
    #[arg(long, value_name = "T", value_parser = flags::temperature, help_heading = TOPIC.1,
          hide_short_help = true)]
    #[serde(deserialize_with = "finite::optional")]
    pub alg_temp: Option<f32>,
    /// Time at which the last step ends, from 0 up to less than 1; steps begin at 1 [default: 0.001]
    #[arg(long, value_name = "T", value_parser = flags::eps, help_heading = TOPIC.1, hide_short_help = true)]
    #[serde(deserialize_with = "finite::optional")]
    pub eps: Option<f32>,
}

impl DenoiseAsked {
    /// Whether nothing is asked for.
    pub fn is_default(&self) -> bool {
        *self == DenoiseAsked::default()
    }

    /// The task for `new_tokens`.
    pub fn denoise(
        &self,
        sampling: SamplingAsked,
        new_tokens: usize,
        seed: u64,
    ) -> Result<protocol::Denoise> {
        let steps = self.steps.first().map_or(new_tokens, |&steps| steps as usize);
        if steps > new_tokens {
            return Err(Failure::usage(format!(
                "{steps} steps for {new_tokens} new tokens: a step that unmasks nothing is a pass for nothing, so give \
                 --steps {new_tokens} or fewer"
            )));
        }
        Ok(protocol::Denoise {
            steps,
            algorithm: self.algorithm.unwrap_or(ALGORITHM),
            temperature: sampling.temperature.unwrap_or(0.0),
            top_p: sampling.top_p,
            top_k: sampling.top_k.map(|count| count as usize),
            alg_temp: self.alg_temp.unwrap_or(0.0),
            eps: self.eps.unwrap_or(EPS),
            seed,
        })
    }
}

/// The mask of a model that generates by masked diffusion, or why this one does not.
pub fn mask_of(config: &ModelConfig, model: &str) -> Result<u32> {
    config.mask_token.ok_or_else(|| {
        Failure::usage(format!(
            "{model} generates token by token: denoising is for models of masked diffusion, such as Dream and \
             DiffuCoder (synthetic:diffucoder-160m)"
        ))
    })
}

/// Rejects a prompt that contains the mask.
pub fn check_prompt(tokens: &[u32], mask: u32) -> Result<()> {
    if !tokens.contains(&mask) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the prompt holds the mask, token {mask}: it would be filled in like the rest"
    )))
}

/// Masked diffusion, for a model that generates this way; `None` if the model goes token by token.
pub(super) fn resolve(
    request: &Request,
    config: &ModelConfig,
    prompted: &Prompted,
    seed: u64,
) -> Result<Option<Denoise>> {
    let model = request.model();
    let Some(mask) = config.mask_token else {
        return match request.denoise.is_default() {
            true => Ok(None),
            false => Err(mask_of(config, model).err().unwrap_or_else(|| Failure::usage("no mask"))),
        };
    };
    let refuse = |what: &str| Err(Failure::usage(format!("{model} generates by masked diffusion: {what}")));
    if request.has_cache_switch() {
        return refuse("every pass computes all positions, so there is no KV cache to switch off");
    }
    if request.has_context() {
        return refuse("nothing is kept from one pass to the next, so leave --context out");
    }
    if request.study.text {
        return refuse(
            "perplexity is that of a model that goes token by token; --autoregressive takes its body as one",
        );
    }
    if !request.prefill_chunk.is_empty() || request.shared_prefix > 0 {
        return refuse(
            "--prefill-chunk and --shared-prefix are for prompts that are read before anything is added to them",
        );
    }
    for prompt in &prompted.prompts {
        check_prompt(&prompt.tokens, mask)?;
    }
    let how = request.denoise.denoise(request.sampling, prompted.new_tokens, seed)?;
    // Tokens are drawn within a step, whatever the next one is fed.
    let forced = request.decode() == DecodeAsked::Forced;
    Ok(Some(Denoise { prompted: prompted.clone(), forced, how }))
}

// Its study, over steps and new tokens.

/// The default model for denoising.
const DIFFUSION_MODEL: &str = "synthetic:diffucoder-160m";

/// Fills in the axes of a study of masked diffusion.
pub(crate) fn complete(request: &mut Request) {
    if request.models == [configs::DEFAULT_MODEL] {
        request.models = vec![DIFFUSION_MODEL.to_owned()];
    }
    usual(&mut request.denoise.steps, &[8, 16, 32, 64]);
    usual(&mut request.new_tokens, &[64]);
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
        body.1 = Request { denoise: DenoiseAsked::default(), autoregressive: true, ..body.1 };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_as_many_as_tokens_unless_fewer_are_asked_for() {
        let asked = |steps: &[u32]| DenoiseAsked { steps: steps.to_vec(), ..DenoiseAsked::default() };
        let resolved = |steps: &[u32]| asked(steps).denoise(SamplingAsked::default(), 8, 1);
        assert_eq!(resolved(&[]).unwrap().steps, 8);
        assert_eq!(resolved(&[3]).unwrap().steps, 3);
        let error = resolved(&[9]).unwrap_err().to_string();
        assert_eq!(
            error,
            "9 steps for 8 new tokens: a step that unmasks nothing is a pass for nothing, so give --steps 8 or fewer"
        );
    }
}
