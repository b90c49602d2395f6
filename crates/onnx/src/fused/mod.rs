//! The transformer as an ONNX graph.
//!
//! Written with the operators that have hand-fused kernels in ONNX Runtime, so that the graph is already
//! close to the optimiser's result for a naive export.

pub mod audio;
pub mod encoder;
pub mod experts;

use bundle::{Activation, BundleError, LinearNames, ModelConfig, NormNames, TensorView, Weights};

use crate::graph::{
    Attention, Attribute, Dim, GraphBuilder, HEAD_ROWS, LOGITS, MICROSOFT, ONNX, POSITIONS, ROWS, Storage,
    TOKENS, Written, hidden_output, hidden_state,
};
use crate::products::{Products, WITH_INT8, quantised_product, quantised_rows};
use crate::proto::DataType;

/// The graph of `config` over the weights in `weights`, ready for a session.
pub fn build(
    config: &ModelConfig,
    (attention, products): (Attention, Products),
    weights: &Weights,
    storage: Storage,
    hidden_states: bool,
) -> Result<Written, BundleError> {
    let graph = GraphBuilder::new("decoder", storage);
    let mut writer = Writer { config, attention, products, weights, graph, padded: false };
    writer.declare_inputs_and_outputs(hidden_states);
    // Weights are packed in the order of their nodes, and each is briefly both mapped and packed. So the
    // largest goes first, when little else is resident. ONNX Runtime need not run nodes in this order.
    writer.head()?;
    writer.embed()?;
    for layer in 0..config.layers.len() {
        writer.layer(layer)?;
    }
    Ok(writer.graph.finish())
}

impl Writer<'_> {
    fn declare_inputs_and_outputs(&mut self, hidden_states: bool) {
        let config = self.config;
        let (batch, positions) = (|| Dim::Named("batch"), || Dim::Named("positions"));
        self.graph.input(TOKENS, DataType::Int64, &[batch(), positions()]);
        self.graph.input(ROWS, DataType::Int64, &[Dim::Named("rows")]);
        if self.attention.takes_positions() {
            self.graph.input(POSITIONS, DataType::Int64, &[batch(), positions()]);
        }
        let vocabulary = Dim::Fixed(config.vocab_size);
        self.graph.output(LOGITS, DataType::Float, &[Dim::Named("rows"), vocabulary]);
        self.declare_attention();
        self.declare_heard(config, GraphBuilder::input);
        if hidden_states {
            for layer in 0..=config.layers.len() {
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
        if let Some(multiplier) = self.config.form.embedding_multiplier {
            self.look_up(&table, "embed.token")?;
            self.multiply("embed.token", "embed.multiplier", multiplier, &out);
            return Ok(());
        }
        let Some(positions) = self.config.position_embedding() else {
            return self.look_up(&table, &out);
        };
        // First, as in the graphs that were measured.
        self.graph.float_weight(&positions, &self.weights.tensor(&positions)?);
        self.look_up(&table, "embed.token")?;
        self.rows_of((&positions, &positions), POSITIONS, "embed.position")?;
        self.graph.node((ONNX, "Add"), &["embed.token", "embed.position"], &[&out], &[]);
        Ok(())
    }

    fn layer(&mut self, index: usize) -> Result<(), BundleError> {
        let names = self.config.layer(index);
        let at = |part: &str| format!("layer.{index}.{part}");
        let (mut residual, middle, sum) =
            (hidden_state(index), at("attention_residual"), hidden_state(index + 1));
        // The norm before a layer's attention is fused with the residual addition that ends the previous
        // layer; the first layer has none before it.
        if let (0, Some(norm)) = (index, &names.attention_norm) {
            self.norm(&residual, norm, &at("attention_norm"))?;
        }
        let input = if names.attention_norm.is_some() { at("attention_norm") } else { residual.clone() };
        let attended = self.attend(index, &names, &input)?;
        let projected = self.linear(&attended, &names.output, &at("output"))?;
        let mut projected = self.behind(projected, names.post_attention_norm.as_ref())?;
        if let Some(cross) = &names.cross {
            (projected, residual) = self.attend_to_audio(index, cross, (&projected, &residual))?;
        }
        let input = match (&names.mlp_norm, self.config.form.parallel) {
            (norm, true) => {
                self.add(&at("output.sum"), projected, &residual, &middle);
                match norm {
                    Some(norm) => {
                        self.norm(&residual, norm, &at("mlp_norm"))?;
                        at("mlp_norm")
                    }
                    None => input,
                }
            }
            (Some(norm), false) => {
                self.add_and_norm(&projected, &residual, norm, &at("mlp_norm"), &middle)?;
                at("mlp_norm")
            }
            (None, false) => {
                self.add(&at("output.sum"), projected, &residual, &middle);
                middle.clone()
            }
        };
        let down = self.feed(index, &names, &input)?;
        let down = self.behind(down, names.post_mlp_norm.as_ref())?;
        if index + 1 == self.config.layers.len() {
            return self.add_and_norm(&down, &middle, &self.config.final_norm(), &sum, "");
        }
        match self.config.layer(index + 1).attention_norm {
            Some(norm) => {
                let out = format!("layer.{}.attention_norm", index + 1);
                self.add_and_norm(&down, &middle, &norm, &out, &sum)
            }
            None => {
                self.add(&at("down.sum"), down, &middle, &sum);
                Ok(())
            }
        }
    }

    /// The output of a block in the form in which it is added to the residual stream.
    fn behind(&mut self, block: Unbiased, norm: Option<&NormNames>) -> Result<Unbiased, BundleError> {
        let multiplier = self.config.form.residual_multiplier;
        if norm.is_none() && multiplier.is_none() {
            return Ok(block);
        }
        let mut value = self.with_bias(block);
        if let Some(names) = norm {
            let out = format!("{value}.normed");
            self.norm(&value, names, &out)?;
            value = out;
        }
        if let Some(multiplier) = multiplier {
            let out = format!("{value}.scaled");
            self.multiply(&value, "residual.multiplier", multiplier, &out);
            value = out;
        }
        Ok(Unbiased { value, bias: None })
    }

    /// `sum` = block + its bias + residual, by a node called `name`.
    fn add(&mut self, name: &str, block: Unbiased, residual: &str, sum: &str) {
        let value = self.with_bias(block);
        self.graph.named_node(name, (ONNX, "Add"), &[&value, residual], &[sum], &[]);
    }

    fn head(&mut self) -> Result<(), BundleError> {
        let last = hidden_state(self.config.layers.len());
        // The rows of all sequences as one matrix: each sequence may end at another row.
        self.graph.integers("head.shape", &[-1, self.config.hidden_size as i64]);
        self.graph.node((ONNX, "Reshape"), &[&last, "head.shape"], &["head.all"], &[]);
        self.graph.node((ONNX, "Gather"), &["head.all", ROWS], &[HEAD_ROWS], &[Attribute::Int("axis", 0)]);
        let weight = [self.config.lm_head()];
        let form = &self.config.form;
        let (multiplier, cap) = (form.logits_multiplier, form.logits_cap);
        let finished = multiplier.is_none() && cap.is_none();
        let bias = self.config.lm_head_bias();
        let out = if self.products.float() == DataType::Float && finished { LOGITS } else { "head.logits" };
        self.product(HEAD_ROWS, (&weight, ""), if bias.is_some() { "head.product" } else { out })?;
        if let Some(name) = bias {
            let bias = self.weight(&name)?;
            self.graph.node((ONNX, "Add"), &["head.product", &bias], &[out], &[]);
        }
        if out == LOGITS {
            return Ok(());
        }
        if finished {
            self.graph.cast("head.logits", DataType::Float, LOGITS);
            return Ok(());
        }
        let mut logits = "head.logits".to_owned();
        if self.products.float() != DataType::Float {
            self.graph.cast(&logits, DataType::Float, "head.wide");
            logits = "head.wide".into();
        }
        // The remaining operations with a number; the last of them gives the logits.
        let divided = cap.map(|cap| ("Div", "head.cap", cap));
        let steps = [multiplier.map(|multiplier| ("Mul", "head.multiplier", multiplier)), divided];
        let steps: Vec<_> = steps.into_iter().flatten().collect();
        for (place, (op, name, number)) in steps.iter().enumerate() {
            let last = place + 1 == steps.len() && cap.is_none();
            let out = if last { LOGITS.to_owned() } else { format!("{name}.applied") };
            self.graph.number(name, DataType::Float, *number);
            self.graph.node((ONNX, op), &[&logits, name], &[&out], &[]);
            logits = out;
        }
        if cap.is_some() {
            self.graph.node((ONNX, "Tanh"), &[&logits], &["head.bent"], &[]);
            self.graph.node((ONNX, "Mul"), &["head.bent", "head.cap"], &[LOGITS], &[]);
        }
        Ok(())
    }

    fn mlp(&mut self, index: usize, input: &str, names: &LinearNames) -> Result<String, BundleError> {
        let (mlp, out) = (self.config.mlp(index), format!("layer.{index}.mlp"));
        let activated = format!("{out}.activated");
        if !mlp.gated {
            let up = self.biased(input, names, &format!("{out}.up"))?;
            self.activation(mlp.activation, &up, &activated);
            return Ok(activated);
        }
        let (gate, up) = (format!("{out}.gate"), format!("{out}.up"));
        let both = self.biased(input, names, &format!("{out}.gate_up"))?;
        let attributes = [Attribute::Int("axis", -1), Attribute::Int("num_outputs", 2)];
        self.graph.node((ONNX, "Split"), &[&both], &[&gate, &up], &attributes);
        self.activation(mlp.activation, &gate, &activated);
        self.graph.node((ONNX, "Mul"), &[&activated, &up], &[&out], &[]);
        Ok(out)
    }

    fn activation(&mut self, activation: Activation, input: &str, out: &str) {
        let (op, attributes): (_, &[Attribute]) = match activation {
            // x · σ(α x) with α = 1
            Activation::Silu => ((MICROSOFT, "QuickGelu"), &[Attribute::Float("alpha", 1.0)]),
            Activation::GeluTanh => ((ONNX, "Gelu"), &[Attribute::Text("approximate", "tanh")]),
            Activation::GeluErf => ((ONNX, "Gelu"), &[]),
            Activation::Relu => ((ONNX, "Relu"), &[]),
        };
        self.graph.node(op, &[input], &[out], attributes);
    }

    fn norm(&mut self, input: &str, names: &NormNames, out: &str) -> Result<(), BundleError> {
        let weight = self.norm_weight(&names.weight)?;
        let attributes =
            [Attribute::Int("axis", -1), Attribute::Float("epsilon", self.config.norm_epsilon as f32)];
        let op = if self.config.rms_norm { "SimplifiedLayerNormalization" } else { "LayerNormalization" };
        let bias = names.bias.as_ref().map(|bias| self.weight(bias)).transpose()?;
        let inputs: Vec<&str> = [input, &weight].into_iter().chain(bias.as_deref()).collect();
        self.graph.node((ONNX, op), &inputs, &[out], &attributes);
        Ok(())
    }

    /// `sum` = input + its bias + residual; `out` = norm(sum). `sum` may be empty: not wanted.
    ///
    /// In f32 a layer norm is a separate operator. ONNX Runtime's SkipLayerNormalization divides once for
    /// each number in its sums (1.31, on a CPU): in `photofinish profile --trace --framework ort --model minilm --batch
    /// 32 --prompt-tokens 128` it took 4.0 ms for 4,096 rows of 384; the operators in its place take 1.0 to
    /// 1.5.
    fn add_and_norm(
        &mut self,
        input: &Unbiased,
        residual: &str,
        names: &NormNames,
        out: &str,
        sum: &str,
    ) -> Result<(), BundleError> {
        let rms_norm = self.config.rms_norm;
        if !rms_norm && self.products.float() == DataType::Float {
            let sum = if sum.is_empty() { format!("{out}.sum") } else { sum.to_owned() };
            let biased = self.with_bias(input.clone());
            self.graph.node((ONNX, "Add"), &[&biased, residual], &[&sum], &[]);
            return self.norm(&sum, names, out);
        }
        let weight = self.norm_weight(&names.weight)?;
        let norm_bias = names.bias.as_ref().map(|bias| self.weight(bias)).transpose()?;
        let op = if rms_norm { "SkipSimplifiedLayerNormalization" } else { "SkipLayerNormalization" };
        let mut inputs = vec![input.value.as_str(), residual, &weight];
        match (&norm_bias, &input.bias) {
            (Some(bias), _) => inputs.push(bias),
            // Placeholder for the norm's bias.
            (None, Some(_)) if !rms_norm => inputs.push(""),
            (None, _) => {}
        }
        inputs.extend(input.bias.as_deref());
        let outputs: &[&str] = if sum.is_empty() { &[out] } else { &[out, "", "", sum] };
        let epsilon = [Attribute::Float("epsilon", self.config.norm_epsilon as f32)];
        self.graph.node((MICROSOFT, op), &inputs, outputs, &epsilon);
        Ok(())
    }
}

// Helpers for writing the parts of the graph.

/// The graph written so far, and its sources.
struct Writer<'a> {
    config: &'a ModelConfig,
    attention: Attention,
    products: Products,
    weights: &'a Weights,
    graph: GraphBuilder,
    /// Whether padding is computed like tokens.
    padded: bool,
}

impl Writer<'_> {
    /// Makes a tensor of the bundle an initialiser and returns its name.
    fn weight(&mut self, name: &str) -> Result<String, BundleError> {
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
    fn rows_of(&mut self, (table, name): (&str, &str), rows: &str, out: &str) -> Result<(), BundleError> {
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
    fn norm_weight(&mut self, name: &str) -> Result<String, BundleError> {
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
    fn multiply(&mut self, input: &str, name: &str, number: f64, out: &str) {
        self.graph.number(name, self.products.float(), number);
        self.graph.node((ONNX, "Mul"), &[input, name], &[out], &[]);
    }

    /// Several adjacent tensors as one initialiser.
    fn stacked(&mut self, names: &[String]) -> Result<String, BundleError> {
        Ok(self.float(&names.join("+"), &self.weights.stacked(names)?))
    }
}

// Linear layers and the embedding table, at each precision.

/// A linear layer's output, and the bias that is still to be added to it.
#[derive(Clone)]
struct Unbiased {
    value: String,
    bias: Option<String>,
}

impl Writer<'_> {
    /// A linear layer. Its bias, if any, goes into the operator that follows.
    fn linear(&mut self, input: &str, names: &LinearNames, out: &str) -> Result<Unbiased, BundleError> {
        self.product(input, (&names.weights, ""), out)?;
        let bias = if names.biases.is_empty() { None } else { Some(self.stacked(&names.biases)?) };
        Ok(Unbiased { value: out.to_owned(), bias })
    }

    /// A linear layer with its bias added.
    fn biased(&mut self, input: &str, names: &LinearNames, out: &str) -> Result<String, BundleError> {
        let adds_bias = self.products.adds_bias() && self.weights.is_quantised(&names.weights[0]);
        if adds_bias && !names.biases.is_empty() {
            let bias = self.stacked(&names.biases)?;
            self.product(input, (&names.weights, &bias), out)?;
            return Ok(out.to_owned());
        }
        let unbiased = self.linear(input, names, out)?;
        Ok(self.with_bias(unbiased))
    }

    /// The output with its bias added, if it has one.
    fn with_bias(&mut self, Unbiased { value, bias }: Unbiased) -> String {
        let Some(bias) = bias else { return value };
        let sum = format!("{value}.biased");
        self.graph.node((ONNX, "Add"), &[&value, &bias], &[&sum], &[]);
        sum
    }

    /// `out` = `input` · Wᵀ, with W the tensors `weights` one above the other. A `bias` that is not empty is added, by
    /// operators that do.
    fn product(
        &mut self,
        input: &str,
        (weights, bias): (&[String], &str),
        out: &str,
    ) -> Result<(), BundleError> {
        let mut name = weights.join("+");
        // At a quantised precision, heads that give scores are still in f32.
        let is_quantised = self.weights.is_quantised(&weights[0]);
        if is_quantised && self.products.by_codes() {
            let weight = (name.as_str(), &self.weights.quantised(weights)?, bias);
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
    fn look_up(&mut self, name: &str, out: &str) -> Result<(), BundleError> {
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
