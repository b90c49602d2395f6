//! What a study has to know of engines and models.

use configs::Engine;

use crate::Result;

/// The known engines, files of `configs/engines`, and models, read by the caller.
pub trait Engines {
    /// The engine with this name; the error lists the names that exist.
    fn engine(&self, name: &str) -> Result<Engine>;

    /// The engines that these names and sets of names ask for; the usual ones without a name.
    fn selected(&self, names: &[String]) -> Result<Vec<Engine>>;

    /// Whether the model of this name encodes texts, and continues none.
    fn encodes(&self, model: &str) -> Result<bool>;
}
