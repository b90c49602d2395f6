//! An encoder as an ONNX graph.
//!
//! The tokens of all texts are the rows of one matrix, so that linear layers and norms compute nothing for padding.
//! Attention alone has texts padded to the longest: two Gathers lay its rows out and collect them again.

use bundle::{Activation, BundleError, LayerNames, ModelConfig, NormNames, Weights};

use super::attention::Projected;
use super::builder::Writer;
use super::linear::Unbiased;
use crate::attention::Attention;
use crate::graph::{Dim, GraphBuilder, MICROSOFT, ONNX, Storage, Written};
use crate::names::{POSITIONS, TOKENS, hidden_state};
use crate::products::Products;
use crate::proto::DataType;

/// The type of each token, `[tokens]`, where the model has a table of types.
pub const TYPES: &str = "types";
/// For each cell of the padded layout the row of its token, or any row: `[texts, longest]`.
pub const PADDED: &str = "padded";
/// For each row its cell in the padded layout, `[tokens]`.
pub const UNPADDED: &str = "unpadded";
/// Number of tokens of each text, `[texts]`, int32.
pub const LENGTHS: &str = "lengths";

/// Name of the output: the vectors of all tokens, `[tokens, hidden]`, behind the last layer.
pub fn output(config: &ModelConfig) -> String {
    behind_layers(config.layers)
}

/// The operator that activates, for people.
pub fn activation_operator(activation: Activation) -> &'static str {
    biased_operator(activation).unwrap_or(match activation {
        Activation::Relu => "Relu",
        _ => "QuickGelu",
    })
}

/// The graph of `config` over the weights in `weights`, ready for a session. [`TOKENS`] and [`POSITIONS`] are of one
/// dimension here; positions are rows of the table.
pub fn build(
    config: &ModelConfig,
    (attention, products): (Attention, Products),
    weights: &Weights,
    storage: Storage,
) -> Result<Written, BundleError> {
    let graph = GraphBuilder::new("encoder", storage);
    let mut writer = Writer { config, attention, products, weights, graph };
    writer.declare_texts();
    writer.embed_texts()?;
    for layer in 0..config.layers {
        writer.encoder_layer(layer)?;
    }
    Ok(writer.graph.finish())
}

/// The rows behind so many layers.
fn behind_layers(count: usize) -> String {
    count.checked_sub(1).map_or(hidden_state(0), |last| format!("layer.{last}.mlp_norm"))
}

/// The operator that adds a bias and activates, if there is one.
fn biased_operator(activation: Activation) -> Option<&'static str> {
    match activation {
        Activation::GeluErf => Some("BiasGelu"),
        Activation::GeluTanh => Some("FastGelu"),
        Activation::Silu | Activation::Relu => None,
    }
}

/// What every layer of an encoder has.
fn required(norm: Option<&NormNames>) -> Result<&NormNames, BundleError> {
    norm.ok_or_else(|| BundleError::Config("an encoder norms the sums behind attention and MLP".into()))
}

impl Writer<'_> {
    fn declare_texts(&mut self) {
        let (tokens, texts) = (|| Dim::Named("tokens"), || Dim::Named("texts"));
        let types = self.config.token_type_embedding().map(|_| TYPES);
        for name in [Some(TOKENS), Some(POSITIONS), types, Some(UNPADDED)].into_iter().flatten() {
            self.graph.input(name, DataType::Int64, &[tokens()]);
        }
        self.graph.input(PADDED, DataType::Int64, &[texts(), Dim::Named("longest")]);
        self.graph.input(LENGTHS, DataType::Int32, &[texts()]);
        let out = [tokens(), Dim::Fixed(self.config.hidden_size)];
        self.graph.output(&output(self.config), self.products.float(), &out);
    }

    /// The normed sums of the embeddings of tokens, positions and types.
    fn embed_texts(&mut self) -> Result<(), BundleError> {
        let config = self.config;
        let norm = config.embedding_norm();
        let positions = config.position_embedding().ok_or_else(|| {
            BundleError::Config("an encoder has a table of positions, and this model has none".into())
        })?;
        self.look_up(&config.embedding(), "embed.token")?;
        let mut sum = "embed.token";
        if let Some(types) = config.token_type_embedding() {
            let types = self.weight(&types)?;
            self.graph.node((ONNX, "Gather"), &[&types, TYPES], &["embed.type"], &[]);
            self.graph.node((ONNX, "Add"), &[sum, "embed.type"], &["embed.typed"], &[]);
            sum = "embed.typed";
        }
        let positions = self.weight(&positions)?;
        self.graph.node((ONNX, "Gather"), &[&positions, POSITIONS], &["embed.position"], &[]);
        let sum = Unbiased { value: sum.to_owned(), bias: None };
        self.add_and_norm(&sum, "embed.position", required(norm.as_ref())?, &hidden_state(0), "")
    }

    /// norm(x + block(x)), twice. Biases of blocks are added with the sum.
    fn encoder_layer(&mut self, index: usize) -> Result<(), BundleError> {
        let names = self.config.layer(index);
        let at = |part: &str| format!("layer.{index}.{part}");
        let (input, middle) = (behind_layers(index), at("attention_norm"));
        let attended = self.attend_padded(index, &names, &input)?;
        let output = self.linear(&attended, &names.output, &at("output"))?;
        self.add_and_norm(&output, &input, required(names.attention_norm_behind.as_ref())?, &middle, "")?;
        let up = self.linear(&middle, &names.gate_up, &at("mlp.up"))?;
        let activated = self.biased_activation(up, &at("mlp.activated"));
        let down = self.linear(&activated, &names.down, &at("down"))?;
        let norm = required(names.mlp_norm_behind.as_ref())?;
        self.add_and_norm(&down, &middle, norm, &behind_layers(index + 1), "")
    }

    /// From the input of layer `index` to what its output projection takes, `[tokens, hidden]` both.
    fn attend_padded(
        &mut self,
        index: usize,
        names: &LayerNames,
        input: &str,
    ) -> Result<String, BundleError> {
        let at = |part: &str| format!("layer.{index}.{part}");
        let packed = self.biased(input, &names.qkv, &at("qkv"))?;
        let parts = self.split(&packed, &at("qkv"));
        let mut padded = |rows: &str| {
            let out = format!("{rows}.padded");
            self.graph.node((ONNX, "Gather"), &[rows, PADDED], &[&out], &[]);
            out
        };
        let parts =
            Projected { query: padded(&parts.query), key: padded(&parts.key), value: padded(&parts.value) };
        let (cells, rows, out) = (at("attended.padded"), at("attended.rows"), at("attended"));
        self.attention_both_ways(&parts, Some(LENGTHS), &cells);
        self.graph.integers("rows.shape", &[-1, self.config.hidden_size as i64]);
        self.graph.node((ONNX, "Reshape"), &[&cells, "rows.shape"], &[&rows], &[]);
        self.graph.node((ONNX, "Gather"), &[&rows, UNPADDED], &[&out], &[]);
        Ok(out)
    }

    /// The activation of an MLP's first layer, with its bias where an operator adds both at once.
    fn biased_activation(&mut self, up: Unbiased, out: &str) -> String {
        match (biased_operator(self.config.activation), &up.bias) {
            (Some(op), Some(bias)) => {
                self.graph.node((MICROSOFT, op), &[&up.value, bias], &[out], &[]);
            }
            _ => {
                let biased = self.with_bias(up);
                self.activation(&biased, out);
            }
        }
        out.to_owned()
    }
}
