//! The transformer as an ONNX graph.
//!
//! Written with the operators whose kernels ONNX Runtime has fused by hand, so that the graph as
//! written is already near what its optimiser would make of a naive export.

mod attention;
mod builder;
mod linear;

use bundle::{Activation, BundleError, LinearNames, ModelConfig, NormNames, Weights};

use crate::attention::Attention;
use crate::graph::{Attribute, Dim, GraphBuilder, MICROSOFT, ONNX, Storage, Written};
use crate::names::{LOGITS, POSITIONS, ROWS, TOKENS, hidden_output, hidden_state};
use crate::products::Products;
use crate::proto::DataType;
use builder::Decoder;
use linear::Unbiased;

/// The graph of `config` over the weights in `weights`, ready for a session.
pub fn build(
    config: &ModelConfig,
    (attention, products): (Attention, Products),
    weights: &Weights,
    storage: Storage,
    hidden_states: bool,
) -> Result<Written, BundleError> {
    let graph = GraphBuilder::new("decoder", storage);
    let mut decoder = Decoder { config, attention, products, weights, graph };
    decoder.declare_inputs_and_outputs(hidden_states);
    // Weights are packed in the order of their nodes, and each is mapped and packed for a moment. So the largest
    // goes first, when little else is resident. The order of nodes does not bind ONNX Runtime.
    decoder.head()?;
    decoder.embed()?;
    for layer in 0..config.layers {
        decoder.layer(layer)?;
    }
    Ok(decoder.graph.finish())
}

impl Decoder<'_> {
    fn declare_inputs_and_outputs(&mut self, hidden_states: bool) {
        let config = self.config;
        let (batch, positions) = (|| Dim::Named("batch"), || Dim::Named("positions"));
        self.graph.input(TOKENS, DataType::Int64, &[batch(), positions()]);
        self.graph.input(ROWS, DataType::Int64, &[Dim::Named("rows")]);
        if self.attention.takes_positions() {
            self.graph.input(POSITIONS, DataType::Int64, &[batch(), positions()]);
        }
        let vocabulary = Dim::Fixed(config.vocab_size);
        self.graph.output(LOGITS, DataType::Float, &[batch(), Dim::Named("rows"), vocabulary]);
        self.declare_attention();
        if hidden_states {
            for layer in 0..=config.layers {
                let dims = [batch(), positions(), Dim::Fixed(config.hidden_size)];
                let out = hidden_output(layer, self.products.float());
                self.graph.output(&out, DataType::Float, &dims);
                if out != hidden_state(layer) {
                    self.graph.cast(&hidden_state(layer), DataType::Float, &out);
                }
            }
        }
    }

    fn embed(&mut self) -> Result<(), BundleError> {
        let (table, out) = (self.config.embedding(), hidden_state(0));
        let Some(positions) = self.config.position_embedding() else {
            return self.look_up(&table, &out);
        };
        let positions = self.weight(&positions)?;
        self.look_up(&table, "embed.token")?;
        self.graph.node((ONNX, "Gather"), &[&positions, POSITIONS], &["embed.position"], &[]);
        self.graph.node((ONNX, "Add"), &["embed.token", "embed.position"], &[&out], &[]);
        Ok(())
    }

    fn layer(&mut self, index: usize) -> Result<(), BundleError> {
        let names = self.config.layer(index);
        let at = |part: &str| format!("layer.{index}.{part}");
        // The norm before a layer's attention is fused with the residual addition that ends the
        // layer before; the first has none before it.
        if index == 0 {
            self.norm(&hidden_state(0), &names.attention_norm, &at("attention_norm"))?;
        }
        let attended = self.attend(index, &names)?;
        let projected = self.linear(&attended, &names.output, &at("output"))?;
        self.add_and_norm(
            &projected,
            &hidden_state(index),
            &names.mlp_norm,
            &at("mlp_norm"),
            &at("attention_residual"),
        )?;
        let mlp = self.mlp(&at("mlp_norm"), &names.gate_up, &at("mlp"))?;
        let down = self.linear(&mlp, &names.down, &at("down"))?;
        let residual = at("attention_residual");
        if index + 1 < self.config.layers {
            let norm = self.config.layer(index + 1).attention_norm;
            let out = format!("layer.{}.attention_norm", index + 1);
            self.add_and_norm(&down, &residual, &norm, &out, &hidden_state(index + 1))
        } else {
            let norm = self.config.final_norm();
            self.add_and_norm(&down, &residual, &norm, &hidden_state(index + 1), "")
        }
    }

    fn head(&mut self) -> Result<(), BundleError> {
        let last = hidden_state(self.config.layers);
        self.graph.node((ONNX, "Gather"), &[&last, ROWS], &["head.rows"], &[Attribute::Int("axis", 1)]);
        let weight = [self.config.lm_head()];
        if self.products.float() == DataType::Float {
            return self.product("head.rows", &weight, LOGITS);
        }
        self.product("head.rows", &weight, "head.logits")?;
        self.graph.cast("head.logits", DataType::Float, LOGITS);
        Ok(())
    }

    fn mlp(&mut self, input: &str, names: &LinearNames, out: &str) -> Result<String, BundleError> {
        let activated = format!("{out}.activated");
        if !self.config.gated_mlp {
            let up = self.biased(input, names, &format!("{out}.up"))?;
            self.activation(&up, &activated);
            return Ok(activated);
        }
        let (gate, up) = (format!("{out}.gate"), format!("{out}.up"));
        let both = self.biased(input, names, &format!("{out}.gate_up"))?;
        let attributes = [Attribute::Int("axis", -1), Attribute::Int("num_outputs", 2)];
        self.graph.node((ONNX, "Split"), &[&both], &[&gate, &up], &attributes);
        self.activation(&gate, &activated);
        self.graph.node((ONNX, "Mul"), &[&activated, &up], &[out], &[]);
        Ok(out.to_owned())
    }

    fn activation(&mut self, input: &str, out: &str) {
        let (op, attributes): (_, &[Attribute]) = match self.config.activation {
            // x · σ(α x) with α = 1
            Activation::Silu => ((MICROSOFT, "QuickGelu"), &[Attribute::Float("alpha", 1.0)]),
            Activation::GeluTanh => ((ONNX, "Gelu"), &[Attribute::Text("approximate", "tanh")]),
            Activation::GeluErf => ((ONNX, "Gelu"), &[]),
            Activation::Relu => ((ONNX, "Relu"), &[]),
        };
        self.graph.node(op, &[input], &[out], attributes);
    }

    fn norm(&mut self, input: &str, names: &NormNames, out: &str) -> Result<(), BundleError> {
        let weight = self.weight(&names.weight)?;
        let attributes =
            [Attribute::Int("axis", -1), Attribute::Float("epsilon", self.config.norm_epsilon as f32)];
        match &names.bias {
            None => {
                let op = (ONNX, "SimplifiedLayerNormalization");
                self.graph.node(op, &[input, &weight], &[out], &attributes);
            }
            Some(bias) => {
                let bias = self.weight(bias)?;
                let op = (ONNX, "LayerNormalization");
                self.graph.node(op, &[input, &weight, &bias], &[out], &attributes);
            }
        }
        Ok(())
    }

    /// `sum` = input + its bias + residual; `out` = norm(sum). `sum` may be empty: not wanted.
    fn add_and_norm(
        &mut self,
        input: &Unbiased,
        residual: &str,
        names: &NormNames,
        out: &str,
        sum: &str,
    ) -> Result<(), BundleError> {
        let weight = self.weight(&names.weight)?;
        let norm_bias = names.bias.as_ref().map(|bias| self.weight(bias)).transpose()?;
        let op =
            if norm_bias.is_some() { "SkipLayerNormalization" } else { "SkipSimplifiedLayerNormalization" };
        let mut inputs = vec![input.value.as_str(), residual, &weight];
        inputs.extend(norm_bias.as_deref());
        inputs.extend(input.bias.as_deref());
        let outputs: &[&str] = if sum.is_empty() { &[out] } else { &[out, "", "", sum] };
        let epsilon = [Attribute::Float("epsilon", self.config.norm_epsilon as f32)];
        self.graph.node((MICROSOFT, op), &inputs, outputs, &epsilon);
        Ok(())
    }
}
