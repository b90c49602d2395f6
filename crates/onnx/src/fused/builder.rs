//! Helpers for writing the parts of the graph.

use bundle::{BundleError, ModelConfig, TensorView, Weights};

use crate::attention::Attention;
use crate::graph::{GraphBuilder, ONNX};
use crate::products::Products;
use crate::proto::DataType;

/// The graph written so far, and its sources.
pub(super) struct Writer<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) attention: Attention,
    pub(super) products: Products,
    pub(super) weights: &'a Weights,
    pub(super) graph: GraphBuilder,
    /// Whether an encoder computes padding like tokens.
    pub(super) padded: bool,
}

impl Writer<'_> {
    /// Makes a tensor of the bundle an initialiser and returns its name.
    pub(super) fn weight(&mut self, name: &str) -> Result<String, BundleError> {
        Ok(self.float(name, &self.weights.tensor(name)?))
    }

    /// Makes a tensor an initialiser and returns the name under which operators use it.
    fn float(&mut self, name: &str, tensor: &TensorView<'_>) -> String {
        self.graph.float_weight(name, tensor);
        if !self.products.converted {
            return name.to_owned();
        }
        let out = format!("{name}.wide");
        self.graph.cast(name, DataType::Float, &out);
        out
    }

    /// `out` = rows of a tensor of the bundle, which is the initialiser `table`.
    pub(super) fn rows_of(
        &mut self,
        (table, name): (&str, &str),
        rows: &str,
        out: &str,
    ) -> Result<(), BundleError> {
        self.graph.float_weight(table, &self.weights.tensor(name)?);
        if !self.products.converted {
            self.graph.node((ONNX, "Gather"), &[table, rows], &[out], &[]);
            return Ok(());
        }
        let narrow = format!("{out}.narrow");
        self.graph.node((ONNX, "Gather"), &[table, rows], &[&narrow], &[]);
        self.graph.cast(&narrow, DataType::Float, out);
        Ok(())
    }

    /// The weight of an RMSNorm, with its offset added.
    pub(super) fn norm_weight(&mut self, name: &str) -> Result<String, BundleError> {
        let weight = self.weight(name)?;
        let offset = self.config.form.norm_offset;
        if offset == 0.0 {
            return Ok(weight);
        }
        let out = format!("{weight}.offset");
        self.graph.number("norm.offset", self.products.float(), f64::from(offset));
        self.graph.node((ONNX, "Add"), &[&weight, "norm.offset"], &[&out], &[]);
        Ok(out)
    }

    /// `out` = `input` · `number`, an initialiser of that name.
    pub(super) fn multiply(&mut self, input: &str, name: &str, number: f64, out: &str) {
        self.graph.number(name, self.products.float(), number);
        self.graph.node((ONNX, "Mul"), &[input, name], &[out], &[]);
    }

    /// Several adjacent tensors as one initialiser.
    pub(super) fn stacked(&mut self, names: &[String]) -> Result<String, BundleError> {
        Ok(self.float(&names.join("+"), &self.weights.stacked(names)?))
    }
}
