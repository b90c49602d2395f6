//! Knowledge about engines and models that a study needs.

use configs::Engine;

use crate::{Failure, Request, Result};

/// The known engines, files of `configs/engines`, and models, read by the caller.
pub trait Engines {
    /// The engine with this name; the error lists the names that exist.
    fn engine(&self, name: &str) -> Result<Engine>;

    /// The engines that these names and sets of names ask for; the default ones without a name.
    fn selected(&self, names: &[String]) -> Result<Vec<Engine>>;

    /// Whether the model of this name encodes texts, rather than continuing them.
    fn encodes(&self, model: &str) -> Result<bool>;
}

impl Request {
    /// Whether its models encode texts, rather than continuing them. A study has one kind.
    pub(crate) fn encodes(&self, engines: &dyn Engines) -> Result<bool> {
        let mut first = None;
        for model in &self.models {
            let encodes = engines.encodes(model)?;
            match first {
                None => first = Some((model, encodes)),
                Some((other, kind)) if kind != encodes => {
                    let (encoder, decoder) = if kind { (other, model) } else { (model, other) };
                    return Err(Failure::usage(format!(
                        "{encoder} encodes texts and {decoder} continues them: a study takes models of one kind"
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(first.is_some_and(|(_, encodes)| encodes))
    }
}
