//! The transformer in operators that several runtimes have, in f32: a decoder, or an [`encoder`].
//!
//! The residual stream is `[tokens, hidden]`, with the tokens of all sequences one below the other: a linear
//! layer is then one `Gemm` with the bundle's `[out, in]` rows as its weight (`transB`), and no runtime needs
//! a transposed copy of it. Weights are the bundle's tensors one by one; a fused q·k·v is three initialisers
//! over its rows.
//!
//! Inputs and outputs are named in [`onnx::graph`]. A runtime passes the filled rows of its cache and gets
//! them back with the new ones after them.

pub mod encoder;

use std::collections::HashSet;
use std::ops::Range;

use bundle::{
    Activation, Bundle, BundleError, Feature, LayerNames, LinearNames, ModelConfig, NormNames, NormPlacement,
    Precision, TensorView, Weights,
};

use onnx::DataType;
use onnx::graph::{
    Attribute, Dim, GraphBuilder, LOGITS, ONNX, POSITIONS, ROWS, Storage, TOKENS, Written, hidden_state,
};

/// Features of these graphs beyond a plain layer. Not every runtime has the attributes and masks for the
/// rest. Callers must stay within a model's window (`engine::check_window`).
pub const FEATURES: [Feature; 12] = [
    Feature::Window,
    Feature::NormsBehind,
    Feature::NormOffset,
    Feature::WholeNorms,
    Feature::AttentionScale,
    Feature::UnrotatedLayers,
    Feature::LongRope,
    Feature::Yarn,
    Feature::EmbeddingMultiplier,
    Feature::ResidualMultiplier,
    Feature::LogitsMultiplier,
    Feature::FusedGateUp,
];

/// Which operators normalise and attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// ONNX Runtime's own, adopted by some others: GroupQueryAttention, which also rotates, and
    /// SimplifiedLayerNormalization.
    Contributed,
    /// The standard's since opset 23: Attention and RMSNormalization. The rotation is written out.
    Standard,
}

impl Form {
    /// Whether the graph of `config` has the input [`POSITIONS`]. GroupQueryAttention counts positions itself.
    pub fn takes_positions(self, config: &ModelConfig) -> bool {
        self == Form::Standard || config.position_embedding().is_some()
    }
}

/// The graph of `bundle`, with features among [`FEATURES`], in f32. With `hidden_states` they are outputs,
/// `[tokens, hidden]` each.
pub fn build(
    bundle: &Bundle,
    form: Form,
    storage: Storage,
    hidden_states: bool,
) -> Result<Written, BundleError> {
    let (config, weights) = (bundle.config(), bundle.weights(Precision::F32)?);
    let mut writer = Writer::new(config, form, &weights, GraphBuilder::new("decoder", storage));
    writer.declare(hidden_states);
    writer.embed()?;
    for layer in 0..config.layers.len() {
        writer.layer(layer)?;
    }
    writer.head()?;
    Ok(writer.graph.finish())
}

/// The graph written so far, and its sources.
struct Writer<'a> {
    config: &'a ModelConfig,
    form: Form,
    weights: &'a Weights,
    graph: GraphBuilder,
    /// Shapes, and masks of an encoder, already written.
    shapes: HashSet<String>,
}

impl<'a> Writer<'a> {
    fn new(config: &'a ModelConfig, form: Form, weights: &'a Weights, graph: GraphBuilder) -> Writer<'a> {
        let graph = if form == Form::Standard { graph.with_opset(23) } else { graph };
        Writer { config, form, weights, graph, shapes: HashSet::new() }
    }
}

impl Writer<'_> {
    fn declare(&mut self, hidden_states: bool) {
        let config = self.config;
        self.graph.input(TOKENS, DataType::Int64, &[Dim::Named("batch"), Dim::Named("positions")]);
        self.graph.input(ROWS, DataType::Int64, &[Dim::Named("rows")]);
        if self.form.takes_positions(config) {
            self.graph.input(POSITIONS, DataType::Int64, &[Dim::Named("batch"), Dim::Named("positions")]);
        }
        self.graph.output(LOGITS, DataType::Float, &[Dim::Named("rows"), Dim::Fixed(config.vocab_size)]);
        self.declare_attention();
        if hidden_states {
            for layer in 0..=config.layers.len() {
                let dims = [Dim::Named("tokens"), Dim::Fixed(config.hidden_size)];
                self.graph.output(&hidden_state(layer), DataType::Float, &dims);
            }
        }
        // The output of a linear layer is `[tokens, …]`; attention needs `[batch, positions, …]`.
        self.graph.node((ONNX, "Shape"), &[TOKENS], &["tokens.shape"], &[]);
        self.graph.integers("flat", &[-1]);
    }

    fn embed(&mut self) -> Result<(), BundleError> {
        self.graph.node((ONNX, "Reshape"), &[TOKENS, "flat"], &["tokens.flat"], &[]);
        let out = hidden_state(0);
        if let Some(multiplier) = self.config.form.embedding_multiplier {
            self.look_up("embed.token")?;
            self.multiply("embed.token", "embed.multiplier", multiplier, &out);
            return Ok(());
        }
        let Some(positions) = self.config.position_embedding() else { return self.look_up(&out) };
        let positions = self.weight(&positions)?;
        self.graph.node((ONNX, "Reshape"), &[POSITIONS, "flat"], &["positions.flat"], &[]);
        self.look_up("embed.token")?;
        self.graph.node((ONNX, "Gather"), &[&positions, "positions.flat"], &["embed.position"], &[]);
        self.graph.node((ONNX, "Add"), &["embed.token", "embed.position"], &[&out], &[]);
        Ok(())
    }

    /// The embeddings of the tokens, `[tokens, hidden]`.
    fn look_up(&mut self, out: &str) -> Result<(), BundleError> {
        let (name, hidden) = (self.config.embedding(), self.config.hidden_size);
        if !self.config.tied_embeddings {
            let table = self.weight(&name)?;
            self.graph.node((ONNX, "Gather"), &[&table, "tokens.flat"], &[out], &[]);
            return Ok(());
        }
        // An initialiser in a shape of its own, though the head has the same bytes. tract merges equal
        // tensors, and packs a large one with two readers again in every run.
        let (table, tensor) = (format!("{name}.rows"), self.weights.tensor(&name)?);
        self.graph.weight(&table, DataType::Float, &[self.config.vocab_size, 1, hidden], &tensor);
        self.graph.node((ONNX, "Gather"), &[&table, "tokens.flat"], &["embed.rows"], &[]);
        self.graph.integers("embed.shape", &[-1, hidden as i64]);
        self.graph.node((ONNX, "Reshape"), &["embed.rows", "embed.shape"], &[out], &[]);
        Ok(())
    }

    fn layer(&mut self, index: usize) -> Result<(), BundleError> {
        let names = self.config.layer(index);
        let at = |part: &str| format!("layer.{index}.{part}");
        let (residual, middle) = (hidden_state(index), at("attention_residual"));
        let input = self.before(&residual, names.attention_norm.as_ref(), at("attention_norm"))?;
        let attended = self.attend(index, &names, &input)?;
        self.linear(&attended, Linear::whole(&names.output), &at("output"))?;
        self.add(at("output"), &residual, names.post_attention_norm.as_ref(), &middle)?;
        let input = self.before(&middle, names.mlp_norm.as_ref(), at("mlp_norm"))?;
        let activated = self.mlp(index, &names, &input)?;
        self.linear(&activated, Linear::whole(&names.down), &at("down"))?;
        let has_final_norm = self.config.encoder.as_ref().is_none_or(|encoder| encoder.final_norm);
        let is_normed = has_final_norm && index + 1 == self.config.layers.len();
        // The last hidden state is taken after the final norm.
        let sum = if is_normed { at("residual") } else { hidden_state(index + 1) };
        self.add(at("down"), &middle, names.post_mlp_norm.as_ref(), &sum)?;
        if is_normed {
            self.norm(&sum, &self.config.final_norm(), &hidden_state(index + 1))?;
        }
        Ok(())
    }

    /// The input of a block from the residual stream: `out`, if the model has a norm there.
    fn before(
        &mut self,
        residual: &str,
        norm: Option<&NormNames>,
        out: String,
    ) -> Result<String, BundleError> {
        let Some(norm) = norm else { return Ok(residual.to_owned()) };
        self.norm(residual, norm, &out)?;
        Ok(out)
    }

    /// `out` = a block's output + `residual`, with a norm of the one or of the sum if the model has one
    /// there.
    fn add(
        &mut self,
        value: String,
        residual: &str,
        norm: Option<&NormNames>,
        out: &str,
    ) -> Result<(), BundleError> {
        if let (Some(norm), NormPlacement::OfSum) = (norm, self.config.form.norms) {
            let sum = format!("{value}.sum");
            self.graph.node((ONNX, "Add"), &[&value, residual], &[&sum], &[]);
            return self.norm(&sum, norm, out);
        }
        let added = self.behind(value, norm)?;
        self.graph.node((ONNX, "Add"), &[&added, residual], &[out], &[]);
        Ok(())
    }

    /// The output of a block in the form in which it is added to the residual stream.
    fn behind(&mut self, mut value: String, norm: Option<&NormNames>) -> Result<String, BundleError> {
        if let Some(norm) = norm {
            let out = format!("{value}.normed");
            self.norm(&value, norm, &out)?;
            value = out;
        }
        if let Some(multiplier) = self.config.form.residual_multiplier {
            let out = format!("{value}.scaled");
            self.multiply(&value, "residual.multiplier", multiplier, &out);
            value = out;
        }
        Ok(value)
    }

    /// `out` = `input` · `number`, an initialiser of that name.
    fn multiply(&mut self, input: &str, name: &str, number: f64, out: &str) {
        self.graph.number(name, DataType::Float, number);
        self.graph.node((ONNX, "Mul"), &[input, name], &[out], &[]);
    }

    fn head(&mut self) -> Result<(), BundleError> {
        let (last, weight) = (hidden_state(self.config.layers.len()), self.weight(&self.config.lm_head())?);
        self.graph.node((ONNX, "Gather"), &[&last, ROWS], &["head.rows"], &[Attribute::Int("axis", 0)]);
        let multiplier = self.config.form.logits_multiplier;
        let out = if multiplier.is_some() { "head.logits" } else { LOGITS };
        self.graph.node((ONNX, "Gemm"), &["head.rows", &weight], &[out], &[Attribute::Int("transB", 1)]);
        if let Some(multiplier) = multiplier {
            self.multiply(out, "head.multiplier", multiplier, LOGITS);
        }
        Ok(())
    }

    fn mlp(&mut self, index: usize, names: &LayerNames, input: &str) -> Result<String, BundleError> {
        let out = format!("layer.{index}.mlp");
        let parts = ["gate", "up", "activated"].map(|part| format!("{out}.{part}"));
        let [gate, up, activated] = &parts;
        let mlp = self.config.mlp(index);
        let width = mlp.width;
        let fused = mlp.gated && names.gate_up.weights.len() == 1;
        let linears = match fused {
            true => {
                vec![Linear::part(&names.gate_up, 0..width), Linear::part(&names.gate_up, width..2 * width)]
            }
            false => Linear::each(&names.gate_up),
        };
        for (linear, out) in linears.into_iter().zip([gate, up]) {
            self.linear(input, linear, out)?;
        }
        // Without a gate there is one linear layer, and the function is applied to it.
        self.activation(mlp.activation, gate, activated);
        if !mlp.gated {
            return Ok(activated.clone());
        }
        self.graph.node((ONNX, "Mul"), &[activated, up], &[&out], &[]);
        Ok(out)
    }

    fn activation(&mut self, activation: Activation, input: &str, out: &str) {
        match activation {
            Activation::Silu => {
                let gate = format!("{out}.sigmoid");
                self.graph.node((ONNX, "Sigmoid"), &[input], &[&gate], &[]);
                self.graph.node((ONNX, "Mul"), &[input, &gate], &[out], &[]);
            }
            Activation::GeluTanh => {
                self.graph.node((ONNX, "Gelu"), &[input], &[out], &[Attribute::Text("approximate", "tanh")]);
            }
            Activation::GeluErf => self.graph.node((ONNX, "Gelu"), &[input], &[out], &[]),
            Activation::Relu => self.graph.node((ONNX, "Relu"), &[input], &[out], &[]),
        }
    }

    /// RMSNorm or LayerNorm, over the last axis.
    fn norm(&mut self, input: &str, names: &NormNames, out: &str) -> Result<(), BundleError> {
        let mut weight = self.weight(&names.weight)?;
        let offset = if names.bias.is_none() { self.config.form.norm_offset } else { 0.0 };
        if offset != 0.0 {
            let whole = format!("{weight}.offset");
            self.graph.number("norm.offset", DataType::Float, f64::from(offset));
            self.graph.node((ONNX, "Add"), &[&weight, "norm.offset"], &[&whole], &[]);
            weight = whole;
        }
        let bias = names.bias.as_ref().map(|bias| self.weight(bias)).transpose()?;
        let epsilon = Attribute::Float("epsilon", self.config.norm_epsilon as f32);
        let is_layer_norm = bias.is_some() || !self.config.rms_norm;
        let op = match self.form {
            _ if is_layer_norm => "LayerNormalization",
            Form::Contributed => "SimplifiedLayerNormalization",
            Form::Standard => "RMSNormalization",
        };
        let inputs: Vec<&str> = [input, &weight].into_iter().chain(bias.as_deref()).collect();
        self.graph.node((ONNX, op), &inputs, &[out], &[Attribute::Int("axis", -1), epsilon]);
        Ok(())
    }

    /// `out` = `input` · Wᵀ + bias: `[tokens, in]` to `[tokens, out]`.
    fn linear(&mut self, input: &str, linear: Linear, out: &str) -> Result<(), BundleError> {
        let weight = self.rows_of(&linear.weight, linear.rows.clone())?;
        let bias = linear.bias.map(|bias| self.rows_of(&bias, linear.rows)).transpose()?;
        let inputs: Vec<&str> = [input, &weight].into_iter().chain(bias.as_deref()).collect();
        self.graph.node((ONNX, "Gemm"), &inputs, &[out], &[Attribute::Int("transB", 1)]);
        Ok(())
    }

    fn weight(&mut self, name: &str) -> Result<String, BundleError> {
        self.rows_of(name, None)
    }

    /// An initialiser over `rows` of tensor `name`, or all of them.
    fn rows_of(&mut self, name: &str, rows: Option<Range<usize>>) -> Result<String, BundleError> {
        let tensor = self.weights.tensor(name)?;
        let Some(rows) = rows else {
            self.graph.float_weight(name, &tensor);
            return Ok(name.to_owned());
        };
        let part = format!("{name}.{}", rows.start);
        self.graph.float_weight(&part, &weight_rows(&tensor, rows));
        Ok(part)
    }
}

// Linear layers one by one, from tensors that may hold several.

/// One linear layer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Linear {
    /// `[out, in]`
    weight: String,
    /// `[out]`
    bias: Option<String>,
    /// Its rows of the weight and of the bias, if they hold more than this layer.
    rows: Option<Range<usize>>,
}

impl Linear {
    /// The layers of `names`, one for each of its weights.
    fn each(names: &LinearNames) -> Vec<Linear> {
        let bias = |index: usize| names.biases.get(index).cloned();
        let weights = names.weights.iter().cloned().enumerate();
        weights.map(|(index, weight)| Linear { weight, bias: bias(index), rows: None }).collect()
    }

    /// The only layer of `names`.
    fn whole(names: &LinearNames) -> Linear {
        Linear { weight: names.weights[0].clone(), bias: names.biases.first().cloned(), rows: None }
    }

    /// `rows` of the only layer of `names`.
    fn part(names: &LinearNames, rows: Range<usize>) -> Linear {
        Linear { rows: Some(rows), ..Linear::whole(names) }
    }
}

/// `rows` of a tensor, which are adjacent in its file.
fn weight_rows<'a>(tensor: &TensorView<'a>, rows: Range<usize>) -> TensorView<'a> {
    let stride = tensor.bytes.len() / tensor.shape[0];
    let bytes = &tensor.bytes[rows.start * stride..rows.end * stride];
    let mut shape = tensor.shape.clone();
    shape[0] = rows.len();
    TensorView {
        shape,
        element: tensor.element,
        bytes,
        file_offset: tensor.file_offset + (rows.start * stride) as u64,
    }
}

#[cfg(test)]
mod tests {
    use bundle::Element;

    use super::*;

    #[test]
    fn rows_of_a_tensor_are_a_view_of_its_file() {
        let bytes: Vec<u8> = (0..24).collect();
        let tensor = TensorView { shape: vec![3, 2], element: Element::F32, bytes: &bytes, file_offset: 100 };
        let part = weight_rows(&tensor, 1..3);
        assert_eq!((part.shape, part.bytes, part.file_offset), (vec![2, 2], &bytes[8..], 108));
    }
}
