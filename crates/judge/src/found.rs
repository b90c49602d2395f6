//! What the processes of `photofinish parity` found.

use protocol::InEffect;

use crate::continuation::Continuation;
use crate::layers::LayerDifference;
use crate::parity::Reference;
use crate::run::RunFailure;
use crate::text::TextScore;

/// Everything that was found, by contender.
#[derive(Default)]
pub struct Findings {
    pub reference: Option<Reference>,
    /// Why the reference gives no hidden states.
    pub reference_without_layers: Option<String>,
    /// Why the text could not be scored in f32, or at all.
    pub no_text: Option<String>,
    pub text_reference: Option<String>,
    pub contenders: Vec<Found>,
}

/// What was found of one contender. What is absent was not reached.
#[derive(Default)]
pub struct Found {
    pub failure: Option<RunFailure>,
    pub in_effect: Option<InEffect>,
    pub layers: Vec<LayerDifference>,
    /// Why there are no layers between prompt and logits.
    pub no_layers: Option<String>,
    pub continuation: Option<Continuation>,
    /// Whether two processes generated the same, and where they first differ if not.
    pub repeated: Option<Repeated>,
    pub text: Option<std::result::Result<TextScore, String>>,
}

/// Whether two processes generated the same tokens.
pub enum Repeated {
    Same,
    Differs { prompt: String, token: usize },
}
