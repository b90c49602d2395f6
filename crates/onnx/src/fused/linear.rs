//! Linear layers and the embedding table, at each precision.

use bundle::{BundleError, LinearNames};

use super::builder::Writer;
use crate::graph::{Attribute, MICROSOFT, ONNX};
use crate::names::TOKENS;
use crate::products::{WITH_INT8, quantised_product, quantised_rows};
use crate::proto::DataType;

/// A linear layer's output, and the bias that is still to be added to it.
#[derive(Clone)]
pub(super) struct Unbiased {
    pub(super) value: String,
    pub(super) bias: Option<String>,
}

impl Writer<'_> {
    /// A linear layer. Its bias, if any, goes into the operator that follows.
    pub(super) fn linear(
        &mut self,
        input: &str,
        names: &LinearNames,
        out: &str,
    ) -> Result<Unbiased, BundleError> {
        self.product(input, &names.weights, out)?;
        let bias = if names.biases.is_empty() { None } else { Some(self.stacked(&names.biases)?) };
        Ok(Unbiased { value: out.to_owned(), bias })
    }

    /// A linear layer with its bias added.
    pub(super) fn biased(
        &mut self,
        input: &str,
        names: &LinearNames,
        out: &str,
    ) -> Result<String, BundleError> {
        let unbiased = self.linear(input, names, out)?;
        Ok(self.with_bias(unbiased))
    }

    /// The output with its bias added, if it has one.
    pub(super) fn with_bias(&mut self, Unbiased { value, bias }: Unbiased) -> String {
        let Some(bias) = bias else { return value };
        let sum = format!("{value}.biased");
        self.graph.node((ONNX, "Add"), &[&value, &bias], &[&sum], &[]);
        sum
    }

    /// `out` = `input` · Wᵀ, with W the tensors `weights` one above the other.
    pub(super) fn product(&mut self, input: &str, weights: &[String], out: &str) -> Result<(), BundleError> {
        let mut name = weights.join("+");
        // At a quantised precision, the heads of encoders are still in f32.
        let is_quantised = self.weights.is_quantised(&weights[0]);
        if is_quantised && self.products.by_codes() {
            let weight = (name.as_str(), &self.weights.quantised(weights)?);
            quantised_product(&mut self.graph, self.products, WITH_INT8, (input, weight, out));
            return Ok(());
        }
        if is_quantised && self.products.dequantised {
            let weight = self.weights.quantised(weights)?;
            let bytes = || weight.dequantised().into_iter().flat_map(f32::to_le_bytes).collect();
            self.graph.computed(&name, DataType::Float, &[weight.rows, weight.columns], bytes);
        } else {
            name = self.stacked(weights)?;
        }
        let attributes = [Attribute::Int("transB", 1)];
        self.graph.node((MICROSOFT, "FusedMatMul"), &[input, &name], &[out], &attributes);
        Ok(())
    }

    /// The rows of table `name` for the tokens: `[batch, positions, columns]`.
    pub(super) fn look_up(&mut self, name: &str, out: &str) -> Result<(), BundleError> {
        if !self.weights.is_quantised(name) {
            // An initialiser of its own, though a tied head has the same bytes: the head's is packed and then
            // unmapped, and of this one only the rows that are looked up become resident.
            return self.rows_of((&format!("{name}.rows"), name), TOKENS, out);
        }
        let quantised = self.weights.quantised(std::slice::from_ref(&name.to_owned()))?;
        quantised_rows(&mut self.graph, name, &quantised, out);
        Ok(())
    }
}
