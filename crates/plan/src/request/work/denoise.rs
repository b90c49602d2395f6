//! Settings of masked diffusion.

use protocol::{Algorithm, finite};
use serde::{Deserialize, Serialize};

use crate::Request;

/// Settings of denoising; `None` means the default. Temperature, top-p and top-k are those of sampling.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DenoiseAsked {
    /// Numbers of steps; by default as many as there are new tokens.
    pub steps: Vec<u32>,
    pub algorithm: Option<Algorithm>,
    #[serde(deserialize_with = "finite::optional")]
    pub alg_temp: Option<f32>,
    #[serde(deserialize_with = "finite::optional")]
    pub eps: Option<f32>,
}

impl DenoiseAsked {
    /// Whether nothing is asked for.
    pub fn is_default(&self) -> bool {
        *self == DenoiseAsked::default()
    }
}

impl Request {
    /// Fills in numbers of steps, unless some were asked for.
    pub(crate) fn usual_steps(&mut self, steps: &[u32]) {
        if self.denoise.steps.is_empty() {
            self.denoise.steps = steps.to_vec();
        }
    }

    /// The same request for the model's body, token by token.
    pub(crate) fn token_by_token(self) -> Request {
        Request { denoise: DenoiseAsked::default(), autoregressive: true, ..self }
    }
}
