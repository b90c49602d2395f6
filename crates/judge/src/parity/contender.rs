//! The findings of the processes of `photofinish parity`.

use protocol::InEffect;

use crate::parity::Reference;
use crate::parity::continuation::Continuation;
use crate::parity::layers::LayerDifference;
use facts::agreement::VectorAgreement;
use facts::run::RunFailure;
use facts::text::TextScore;

/// All findings, by contender.
#[derive(Default)]
pub struct Findings {
    pub reference: Option<Reference>,
    /// The reason why the reference has no hidden states.
    pub reference_without_layers: Option<String>,
    /// The reason why the text could not be scored in f32, or at all.
    pub no_text: Option<String>,
    pub text_reference: Option<String>,
    pub contenders: Vec<ContenderParity>,
}

/// The findings about one contender. A missing value was not reached.
#[derive(Default)]
pub struct ContenderParity {
    pub failure: Option<RunFailure>,
    pub in_effect: Option<InEffect>,
    pub layers: Vec<LayerDifference>,
    /// The reason why there are no layers between prompt and logits.
    pub no_layers: Option<String>,
    pub continuation: Option<Continuation>,
    /// How far an encoder's vectors are from the reference's.
    pub vectors: Option<VectorAgreement>,
    /// Whether two processes generated the same tokens, and otherwise where they first differ. For an
    /// encoder: whether their vectors were equal to the last bit.
    pub repeated: Option<Repeated>,
    pub text: Option<std::result::Result<TextScore, String>>,
}

/// Whether two processes generated the same tokens.
pub enum Repeated {
    Same,
    Differs {
        prompt: String,
        token: usize,
    },
    /// An encoder's vectors differ in their bits.
    OtherBits,
}
