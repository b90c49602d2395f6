//! What the processes of `driver parity` found.

use protocol::InEffect;

use crate::judge::continuation::Continuation;
use crate::judge::layers::LayerDifference;
use crate::judge::parity::Reference;
use crate::judge::text::TextScore;
use crate::record::RunFailure;

/// Everything that was found, by contender.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) reference: Option<Reference>,
    /// Why the reference gives no hidden states.
    pub(crate) reference_without_layers: Option<String>,
    /// Why the text could not be scored in f32, or at all.
    pub(crate) no_text: Option<String>,
    pub(crate) text_reference: Option<String>,
    pub(crate) contenders: Vec<Found>,
}

/// Of one contender. What is absent was not reached.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) failure: Option<RunFailure>,
    pub(crate) in_effect: Option<InEffect>,
    pub(crate) layers: Vec<LayerDifference>,
    /// Why there are no layers between prompt and logits.
    pub(crate) no_layers: Option<String>,
    pub(crate) continuation: Option<Continuation>,
    /// Whether two processes generated the same, and where they first differ if not.
    pub(crate) repeated: Option<Repeated>,
    pub(crate) text: Option<std::result::Result<TextScore, String>>,
}

pub(crate) enum Repeated {
    Same,
    Differs { prompt: String, token: usize },
}
