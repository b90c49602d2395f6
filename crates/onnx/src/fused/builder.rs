//! What the parts of the graph are written with.

use bundle::{BundleError, ModelConfig, Weights};

use crate::attention::Attention;
use crate::graph::GraphBuilder;
use crate::products::Products;

/// The graph as far as it is written, and what it is written from.
pub(super) struct Decoder<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) attention: Attention,
    pub(super) products: Products,
    pub(super) weights: &'a Weights,
    pub(super) graph: GraphBuilder,
}

impl Decoder<'_> {
    /// Makes a tensor of the bundle an initialiser and returns its name.
    pub(super) fn weight(&mut self, name: &str) -> Result<String, BundleError> {
        self.graph.float_weight(name, &self.weights.tensor(name)?);
        Ok(name.to_owned())
    }

    /// Several tensors that lie side by side as one initialiser.
    pub(super) fn stacked(&mut self, names: &[String]) -> Result<String, BundleError> {
        let name = names.join("+");
        self.graph.float_weight(&name, &self.weights.stacked(names)?);
        Ok(name)
    }
}
