//! Generation by masked diffusion: what is asked of it, what it comes to, and what makes no sense.

use bundle::ModelConfig;
use protocol::{Algorithm, Denoise};

use crate::{DenoiseAsked, Failure, Prompt, Request, Result, SamplingAsked};

/// The settings of Dream's demonstration.
const ALGORITHM: Algorithm = Algorithm::Entropy;
const EPS: f32 = 1e-3;

impl DenoiseAsked {
    /// The task for `new_tokens`.
    pub fn denoise(&self, sampling: SamplingAsked, new_tokens: usize, seed: u64) -> Result<Denoise> {
        let steps = self.steps.first().map_or(new_tokens, |&steps| steps as usize);
        if steps > new_tokens {
            return Err(Failure::usage(format!(
                "{steps} steps for {new_tokens} new tokens: a step that unmasks nothing is a pass for nothing, so give \
                 --steps {new_tokens} or fewer"
            )));
        }
        Ok(Denoise {
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

/// Refuses a prompt that holds the mask.
pub fn check_prompt(tokens: &[u32], mask: u32) -> Result<()> {
    if !tokens.contains(&mask) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the prompt holds the mask, token {mask}: it would be filled in like the rest"
    )))
}

/// The task that a request comes to on this model; `None` where the model goes token by token.
pub(crate) fn resolve(
    request: &Request,
    config: &ModelConfig,
    prompts: &[Prompt],
    (new_tokens, seed): (usize, u64),
) -> Result<Option<Denoise>> {
    let model = request.model();
    let Some(mask) = config.mask_token else {
        return match request.denoise.is_default() {
            true => Ok(None),
            false => Err(mask_of(config, model).err().unwrap_or_else(|| Failure::usage("no mask"))),
        };
    };
    let refuse = |what: &str| Err(Failure::usage(format!("{model} generates by masked diffusion: {what}")));
    if request.kv_cache == protocol::KvCache::Off
        || request.study.arms.iter().any(|arm| arm.kv_cache.is_some())
    {
        return refuse("every pass computes all positions, so there is no KV cache to switch off");
    }
    if request.context.iter().any(|&tokens| tokens > 0) {
        return refuse("nothing is kept from one pass to the next, so leave --context out");
    }
    if request.study.text {
        return refuse(
            "perplexity is that of a model that goes token by token; --autoregressive takes its body as one",
        );
    }
    for prompt in prompts {
        check_prompt(&prompt.tokens, mask)?;
    }
    request.denoise.denoise(request.sampling, new_tokens, seed).map(Some)
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
