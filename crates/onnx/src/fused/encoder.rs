//! An encoder as an ONNX graph.
//!
//! The tokens of all texts are the rows of one matrix, so that linear layers and norms compute nothing for
//! padding. Only attention has texts padded to the longest: two Gathers arrange its rows and collect them
//! again. If texts are already padded, every cell is a row, and two Reshapes suffice.

use bundle::{
    Activation, BundleError, HeadActivation, LayerNames, ModelConfig, NormNames, NormPlacement, Pooling,
    Scored, Weights,
};

use super::{Unbiased, Writer};
use crate::graph::{
    Attention, Attribute, Dim, GraphBuilder, LAST_POSITIONS, MICROSOFT, ONNX, POSITIONS, Rotation, SCORES,
    Storage, TOKENS, TOTAL, Written, cache_names, hidden_state, rotary_names,
};
use crate::products::Products;
use crate::proto::DataType;

/// The type of each token, `[tokens]`, if the model has a table of types.
pub const TYPES: &str = "types";

/// For each cell of the padded layout the row of its token, or any row: `[texts, longest]`, unless texts are
/// already padded.
pub const PADDED: &str = "padded";

/// For each row its cell in the padded layout, `[tokens]`, unless texts are already padded.
pub const UNPADDED: &str = "unpadded";

/// The shape in which rows are cells if texts are already padded, `[3]`: texts, longest and -1.
pub const CELLS: &str = "cells";

/// Number of tokens of each text, `[texts]`, int32, if the model attends both ways.
pub const LENGTHS: &str = "lengths";

/// Bias added to the score of each query and key by their distance, `[1, heads, longest, longest]`, if the
/// model has a table of relative positions. A Gather of single numbers from that table would take longer than
/// a layer's attention.
pub const RELATIVE: &str = "relative";

/// Inputs of layers with a window, in a model that has such layers and attends both ways. Every text is
/// divided into blocks of equally many queries, each with the keys that any of them may see: the cost of a
/// token does not grow with its text.
pub mod blocks {
    /// For each cell of the blocks' queries the row of its token, or any row: `[blocks, queries]`.
    pub const QUERIES: &str = "blocks.queries";
    /// The same for their keys and values, `[blocks, keys]`.
    pub const KEYS: &str = "blocks.keys";
    /// 1 for each key that is a token of the text, 0 for others: `[blocks, keys]`, int32.
    pub const TOKENS: &str = "blocks.tokens";
    /// Index of the first query's own key among its block's keys, `[1]`.
    pub const FIRST: &str = "blocks.first";
    /// Bias added to the score of each query and key, `[1, 1, queries, keys]`: [`UNSEEN`](super::UNSEEN) if
    /// the key is outside the query's window, 0 otherwise.
    pub const WINDOW: &str = "blocks.window";
    /// For each row its cell among the queries, `[tokens]`.
    pub const ROWS: &str = "blocks.rows";
}

/// Gives a key no weight, and is finite: a row of nothing else still has a softmax.
pub const UNSEEN: f32 = f32::MIN;

/// The row of the vector that a head scores, `[texts]`, if it is a token's.
pub const SCORED: &str = "scored";

/// The share of each cell of the padded layout in the vector that a head scores, `[texts, 1, longest]`, if
/// that is the mean.
pub const SHARES: &str = "shares";

/// Layout of a layer's queries, keys and values: inputs by their names.
pub(super) struct Layout {
    pub(super) queries: &'static str,
    pub(super) keys: &'static str,
    /// The way back. `None` if every cell is a row.
    pub(super) rows: Option<&'static str>,
}

/// The window of layers that use [`blocks`]; the operator itself handles causal windows.
pub fn window_in_blocks(config: &ModelConfig) -> Option<usize> {
    config.window().filter(|_| !config.causal)
}

/// Name of the output: the vectors of all tokens, `[tokens, hidden]`, after the last layer and its norm.
pub fn output(config: &ModelConfig) -> String {
    state(config, config.layers.len())
}

/// Name of the vectors of all tokens after so many layers; those after the last are normed.
pub fn state(config: &ModelConfig, layers: usize) -> String {
    match config.form.norms {
        NormPlacement::OfSum => behind_layers(layers),
        _ => hidden_state(layers),
    }
}

/// The activation operator, for people.
pub fn activation_operator(config: &ModelConfig) -> &'static str {
    match config.mlp(0).activation {
        Activation::Relu => "Relu",
        Activation::Silu => "QuickGelu",
        Activation::GeluErf | Activation::GeluTanh if config.mlp(0).gated => "Gelu",
        Activation::GeluErf => "BiasGelu",
        Activation::GeluTanh => "FastGelu",
    }
}

/// The graph of `config` over the weights in `weights`, ready for a session. [`TOKENS`] and [`POSITIONS`] are
/// of one dimension here; positions are rows of the table, if there is one. With `padded` the rows are all
/// cells of the padded layout, text by text. With `hidden_states` the output of every layer is an output,
/// too: see [`state`].
pub fn build(
    config: &ModelConfig,
    (attention, products): (Attention, Products),
    weights: &Weights,
    storage: Storage,
    (padded, hidden_states): (bool, bool),
) -> Result<Written, BundleError> {
    let graph = GraphBuilder::new("encoder", storage);
    let mut writer = Writer { config, attention, products, weights, graph, padded };
    writer.declare_texts();
    if hidden_states {
        let dims = || [Dim::Named("tokens"), Dim::Fixed(config.hidden_size)];
        let names = (0..config.layers.len()).map(|layers| state(config, layers));
        names.for_each(|name| writer.graph.output(&name, products.float(), &dims()));
    }
    writer.embed_texts()?;
    for layer in 0..config.layers.len() {
        match config.form.norms {
            NormPlacement::OfSum => writer.layer_of_sums(layer)?,
            _ => writer.layer(layer)?,
        }
    }
    writer.scores()?;
    Ok(writer.graph.finish())
}

/// The rows after so many layers that norm sums.
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

/// A norm that every layer that norms sums must have.
fn required(norm: Option<&NormNames>) -> Result<&NormNames, BundleError> {
    norm.ok_or_else(|| BundleError::Config("a layer norms the sums behind attention and MLP".into()))
}

impl Writer<'_> {
    fn declare_texts(&mut self) {
        let (config, float) = (self.config, self.products.float());
        let (tokens, texts, longest) =
            (|| Dim::Named("tokens"), || Dim::Named("texts"), || Dim::Named("longest"));
        let positions = config.position_embedding().map(|_| POSITIONS);
        let types = config.token_type_embedding().map(|_| TYPES);
        let unpadded = Some(UNPADDED).filter(|_| !self.padded);
        for name in [Some(TOKENS), positions, types, unpadded].into_iter().flatten() {
            self.graph.input(name, DataType::Int64, &[tokens()]);
        }
        match self.padded {
            true => self.graph.input(CELLS, DataType::Int64, &[Dim::Fixed(3)]),
            false => self.graph.input(PADDED, DataType::Int64, &[texts(), longest()]),
        }
        if !config.causal {
            self.graph.input(LENGTHS, DataType::Int32, &[texts()]);
        }
        self.declare_attention();
        if config.relative_bias().is_some() {
            let dims = [Dim::Fixed(1), Dim::Fixed(config.heads), longest(), longest()];
            self.graph.input(RELATIVE, float, &dims);
        }
        if window_in_blocks(config).is_some() {
            let (blocks, queries, keys) =
                (|| Dim::Named("blocks"), || Dim::Named("queries"), || Dim::Named("keys"));
            self.graph.input(blocks::QUERIES, DataType::Int64, &[blocks(), queries()]);
            self.graph.input(blocks::KEYS, DataType::Int64, &[blocks(), keys()]);
            self.graph.input(blocks::TOKENS, DataType::Int32, &[blocks(), keys()]);
            self.graph.input(blocks::FIRST, DataType::Int64, &[Dim::Fixed(1)]);
            self.graph.input(blocks::WINDOW, float, &[Dim::Fixed(1), Dim::Fixed(1), queries(), keys()]);
            self.graph.input(blocks::ROWS, DataType::Int64, &[tokens()]);
        }
        let out = [tokens(), Dim::Fixed(config.hidden_size)];
        self.graph.output(&output(config), float, &out);
        let Some(head) = config.scoring() else { return };
        let scored = match head.of {
            Scored::Tokens => tokens(),
            Scored::Texts(_) => texts(),
        };
        match head.of {
            Scored::Tokens => {}
            Scored::Texts(Pooling::Mean) => {
                self.graph.input(SHARES, float, &[texts(), Dim::Fixed(1), longest()]);
            }
            Scored::Texts(_) => self.graph.input(SCORED, DataType::Int64, &[texts()]),
        }
        self.graph.output(SCORES, float, &[scored, Dim::Fixed(head.labels)]);
    }

    /// The sums of the embeddings of tokens, types and positions, normed if the model norms them.
    fn embed_texts(&mut self) -> Result<(), BundleError> {
        let (config, out) = (self.config, hidden_state(0));
        let norm = config.embedding_norm();
        let types = config.token_type_embedding().map(|table| (table, TYPES, "embed.type"));
        let positions = config.position_embedding().map(|table| (table, POSITIONS, "embed.position"));
        let is_sum = types.is_some() || positions.is_some();
        let mut sum = if is_sum || norm.is_some() { "embed.token" } else { &out };
        self.look_up(&config.embedding(), sum)?;
        // The norm includes the last addition.
        let mut last = None;
        for (table, rows, embedded) in [types, positions].into_iter().flatten() {
            if let Some(added) = last.replace(embedded) {
                self.graph.node((ONNX, "Add"), &[sum, added], &["embed.typed"], &[]);
                sum = "embed.typed";
            }
            self.rows_of((&table, &table), rows, embedded)?;
        }
        match (&norm, last) {
            (Some(norm), Some(last)) => {
                self.add_and_norm(&Unbiased { value: sum.to_owned(), bias: None }, last, norm, &out, "")
            }
            (Some(norm), None) => self.norm(sum, norm, &out),
            (None, Some(last)) => {
                self.graph.node((ONNX, "Add"), &[sum, last], &[&out], &[]);
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    /// The inputs with the keys that hold tokens and with the bias added to scores, for layer `index` of an
    /// encoder that attends both ways.
    pub(super) fn mask_and_bias(&self, index: usize) -> (&'static str, Option<&'static str>) {
        match self.is_in_blocks(index) {
            true => (blocks::TOKENS, Some(blocks::WINDOW)),
            false => (LENGTHS, self.config.relative_bias().map(|_| RELATIVE)),
        }
    }

    pub(super) fn is_in_blocks(&self, index: usize) -> bool {
        window_in_blocks(self.config).is_some() && self.config.layer_attention(index).window.is_some()
    }

    pub(super) fn layout(&self, index: usize) -> Layout {
        match self.is_in_blocks(index) {
            true => Layout { queries: blocks::QUERIES, keys: blocks::KEYS, rows: Some(blocks::ROWS) },
            false if self.padded => Layout { queries: CELLS, keys: CELLS, rows: None },
            false => Layout { queries: PADDED, keys: PADDED, rows: Some(UNPADDED) },
        }
    }

    /// norm(x + block(x)), twice. Biases of blocks are added with the sum.
    fn layer_of_sums(&mut self, index: usize) -> Result<(), BundleError> {
        let names = self.config.layer(index);
        let at = |part: &str| format!("layer.{index}.{part}");
        let (input, middle) = (behind_layers(index), at("attention_norm"));
        let attended = self.attend(index, &names, &input)?;
        let output = self.linear(&attended, &names.output, &at("output"))?;
        self.add_and_norm(&output, &input, required(names.post_attention_norm.as_ref())?, &middle, "")?;
        let activated = if self.config.mlp(0).gated {
            self.mlp(index, &middle, &names.gate_up)?
        } else {
            let up = self.linear(&middle, &names.gate_up, &at("mlp.up"))?;
            self.biased_activation(up, &at("mlp.activated"))
        };
        let down = self.linear(&activated, &names.down, &at("down"))?;
        let norm = required(names.post_mlp_norm.as_ref())?;
        self.add_and_norm(&down, &middle, norm, &behind_layers(index + 1), "")
    }

    /// `[tokens, columns]` as `[texts, longest, columns]`, or as the blocks of a layer; a decoder has this
    /// layout already.
    pub(super) fn in_texts(&mut self, rows: String, layout: &str) -> String {
        if !self.config.encodes() {
            return rows;
        }
        let out = format!("{rows}.padded");
        self.lay_out(&rows, layout, &out);
        out
    }

    fn lay_out(&mut self, rows: &str, layout: &str, out: &str) {
        let op = if layout == CELLS { "Reshape" } else { "Gather" };
        self.graph.node((ONNX, op), &[rows, layout], &[out], &[]);
    }

    /// The way back, for the heads' output of layer `index`: `[tokens, heads · head_dim]`.
    pub(super) fn in_rows(&mut self, cells: String, index: usize) -> String {
        if !self.config.encodes() {
            return cells;
        }
        let (rows, out) = (format!("layer.{index}.attended.rows"), format!("layer.{index}.attended"));
        self.graph.integers("rows.shape", &[-1, self.config.qkv_rows().0 as i64]);
        self.graph.node((ONNX, "Reshape"), &[&cells, "rows.shape"], &[&rows], &[]);
        let Some(back) = self.layout(index).rows else { return rows };
        self.graph.node((ONNX, "Gather"), &[&rows, back], &[&out], &[]);
        out
    }

    /// The activation of an MLP's first layer, with its bias if an operator adds both at once.
    fn biased_activation(&mut self, up: Unbiased, out: &str) -> String {
        let activation = self.config.mlp(0).activation;
        match (biased_operator(activation), &up.bias) {
            (Some(op), Some(bias)) => {
                self.graph.node((MICROSOFT, op), &[&up.value, bias], &[out], &[]);
            }
            _ => {
                let biased = self.with_bias(up);
                self.activation(activation, &biased, out);
            }
        }
        out.to_owned()
    }

    /// The head's output for the last vectors, if there is a head.
    fn scores(&mut self) -> Result<(), BundleError> {
        let head = self.config.scoring();
        let (Some(head), Some(names)) = (head, self.config.head()) else { return Ok(()) };
        let mut rows = output(self.config);
        if let Scored::Texts(pooling) = head.of {
            self.pool(&rows, pooling, "head.pooled");
            rows = "head.pooled".into();
        }
        if let (Some(dense), Some(layer)) = (&names.dense, head.dense) {
            let biased = self.biased(&rows, dense, "head.dense")?;
            rows = "head.activated".into();
            match layer.activation {
                HeadActivation::Tanh => self.graph.node((ONNX, "Tanh"), &[&biased], &[&rows], &[]),
                HeadActivation::Of(activation) => self.activation(activation, &biased, &rows),
            }
        }
        if let Some(norm) = &names.norm {
            self.norm(&rows, norm, "head.normed")?;
            rows = "head.normed".into();
        }
        if names.scores.biases.is_empty() {
            return self.product(&rows, (&names.scores.weights, ""), SCORES);
        }
        self.product(&rows, (&names.scores.weights, ""), "head.scores")?;
        let bias = self.stacked(&names.scores.biases)?;
        self.graph.node((ONNX, "Add"), &["head.scores", &bias], &[SCORES], &[]);
        Ok(())
    }

    /// The vector of each text that its head scores, `[texts, hidden]`.
    fn pool(&mut self, rows: &str, pooling: Pooling, out: &str) {
        if pooling != Pooling::Mean {
            self.graph.node((ONNX, "Gather"), &[rows, SCORED], &[out], &[]);
            return;
        }
        let (cells, mean) = ("head.padded", "head.mean");
        self.lay_out(rows, if self.padded { CELLS } else { PADDED }, cells);
        self.graph.node((ONNX, "MatMul"), &[SHARES, cells], &[mean], &[]);
        self.graph.integers("texts.shape", &[-1, self.config.hidden_size as i64]);
        self.graph.node((ONNX, "Reshape"), &[mean, "texts.shape"], &[out], &[]);
    }
}

// Attention with its KV cache, or without one. Causal: one GroupQueryAttention node a layer, which rotates,
// writes keys and values into the cache in place, and attends. Both ways: a MultiHeadAttention. The plan
// ([`Attention`](crate::attention::Attention)) adds the nodes that heads need around either.

/// The projected queries, keys and values of a layer, `[batch, positions, heads · head_dim]` each.
pub(super) struct Projected {
    pub(super) query: String,
    pub(super) key: String,
    pub(super) value: String,
}

impl Writer<'_> {
    pub(super) fn declare_attention(&mut self) {
        let (config, float) = (self.config, self.products.float());
        if self.attention.causal {
            self.graph.input(LAST_POSITIONS, DataType::Int32, &[Dim::Named("batch")]);
            self.graph.input(TOTAL, DataType::Int32, &[]);
        }
        for table in (0..config.rotations.len()).flat_map(rotary_names) {
            let dims = [Dim::Named("capacity"), Dim::Fixed(config.rotary_dim() / 2)];
            self.graph.input(&table, float, &dims);
        }
        let cached = if self.attention.cached { config.layers.len() } else { 0 };
        for names in (0..cached).flat_map(cache_names) {
            let dims = [
                Dim::Named("batch"),
                Dim::Fixed(config.kv_heads),
                Dim::Named("capacity"),
                Dim::Fixed(self.attention.cached_head_dim),
            ];
            self.graph.input(&names.past, float, &dims);
            self.graph.output(&names.present, float, &dims);
        }
    }

    /// From the input of layer `index` to the input of its output projection.
    pub(super) fn attend(
        &mut self,
        index: usize,
        names: &LayerNames,
        input: &str,
    ) -> Result<String, BundleError> {
        let config = self.config;
        let plan = self.attention;
        let at = |part: &str| format!("layer.{index}.{part}");
        let packed = self.biased(input, &names.qkv, &at("qkv"))?;
        let padded = plan.cached_head_dim != config.head_dim;
        // The rotation has its own nodes.
        let tables = match (plan.rotation, config.layer_attention(index).rotation) {
            (Rotation::Separate, Some(rotation)) => Some(rotary_names(rotation)),
            _ => None,
        };
        let as_projected = plan.causal && !padded && !config.qk_norm && tables.is_none();
        let layout = self.layout(index);
        // The operator accepts queries, keys and values in one tensor if nothing is done to them.
        if as_projected {
            let packed = self.in_texts(packed, layout.queries);
            let attended = self.group_query_attention(index, [&packed, "", ""])?;
            return Ok(self.in_rows(attended, index));
        }
        let Projected { query, key, value } = self.split(&packed, &at("qkv"));
        let mut parts = Projected {
            query: self.in_texts(query, layout.queries),
            key: self.in_texts(key, layout.keys),
            value: self.in_texts(value, layout.keys),
        };
        if let (Some(query), Some(key)) = (&names.q_norm, &names.k_norm) {
            parts.query = self.head_norm(&parts.query, query, config.heads)?;
            parts.key = self.head_norm(&parts.key, key, config.kv_heads)?;
        }
        if let Some(tables) = &tables {
            let [of_queries, of_keys] = self.rotary_positions(index);
            parts.query = self.rotate(&parts.query, config.heads, (of_queries, tables));
            parts.key = self.rotate(&parts.key, config.kv_heads, (of_keys, tables));
        }
        if padded {
            parts.query = self.pad_heads(&parts.query, config.heads);
            parts.key = self.pad_heads(&parts.key, config.kv_heads);
            parts.value = self.pad_heads(&parts.value, config.kv_heads);
        }
        if !plan.causal {
            let attended = self.attention_both_ways(index, &parts);
            return Ok(self.in_rows(attended, index));
        }
        let attended = self.group_query_attention(index, [&parts.query, &parts.key, &parts.value])?;
        let attended = if padded { self.cut_heads(&attended) } else { attended };
        Ok(self.in_rows(attended, index))
    }

    /// The output of the operator of layer `index`.
    fn attended(&self, index: usize) -> String {
        let layout = if self.config.encodes() { ".padded" } else { "" };
        format!("layer.{index}.attended{layout}")
    }

    fn group_query_attention(
        &mut self,
        index: usize,
        query_key_value: [&str; 3],
    ) -> Result<String, BundleError> {
        let config = self.config;
        let out = self.attended(index);
        let (layer, form) = (config.layer_attention(index), &config.form);
        let [key, value] = cache_names(index);
        let mut inputs = query_key_value.to_vec();
        let past = if self.attention.cached { [key.past.as_str(), &value.past] } else { ["", ""] };
        inputs.extend(past.into_iter().chain([LAST_POSITIONS, TOTAL]));
        let mut attributes = vec![
            Attribute::Int("num_heads", config.heads as i64),
            Attribute::Int("kv_num_heads", config.kv_heads as i64),
            self.scale(),
        ];
        let tables = layer.rotation.map(rotary_names);
        if let (Rotation::Fused, Some([cos, sin])) = (self.attention.rotation, &tables) {
            inputs.extend([cos.as_str(), sin]);
            attributes.extend([Attribute::Int("do_rotary", 1), Attribute::Int("rotary_interleaved", 0)]);
        }
        let sinks = config.layer(index).sinks;
        let sinks = sinks.map(|name| self.weight(&name)).transpose()?;
        if let Some(sinks) = &sinks {
            // Before them are tables of a rotation, positions and a bias of the scores.
            inputs.resize(11, "");
            inputs.push(sinks);
        }
        attributes.extend(layer.window.map(|window| Attribute::Int("local_window_size", window as i64)));
        attributes.extend(form.attention_cap.map(|cap| Attribute::Float("softcap", cap as f32)));
        let op = (MICROSOFT, "GroupQueryAttention");
        self.graph.node(op, &inputs, &[&out, &key.present, &value.present], &attributes);
        Ok(out)
    }

    fn scale(&self) -> Attribute {
        let usual = 1.0 / (self.config.head_dim as f64).sqrt();
        Attribute::Float("scale", self.config.form.attention_scale.unwrap_or(usual) as f32)
    }

    /// Every position attends to all, or to those of its text within the layer's window. The operator has as
    /// many heads of keys and values as of queries: those that several share are repeated.
    fn attention_both_ways(&mut self, index: usize, parts: &Projected) -> String {
        let (config, out) = (self.config, self.attended(index));
        let (key, value) = (self.repeat_heads(&parts.key), self.repeat_heads(&parts.value));
        let attributes = [
            Attribute::Int("num_heads", config.heads as i64),
            Attribute::Int("unidirectional", 0),
            self.scale(),
        ];
        let op = (MICROSOFT, "MultiHeadAttention");
        let mut inputs = vec![parts.query.as_str(), &key, &value];
        if config.encodes() {
            let (mask, bias) = self.mask_and_bias(index);
            inputs.extend(["", mask]);
            inputs.extend(bias);
        }
        self.graph.node(op, &inputs, &[&out], &attributes);
        out
    }

    /// `[batch, positions, kv_heads · head_dim]` as `[batch, positions, heads · head_dim]`.
    fn repeat_heads(&mut self, input: &str) -> String {
        let (heads, shared) = (self.config.kv_heads, self.config.heads / self.config.kv_heads);
        if shared == 1 {
            return input.to_owned();
        }
        let split = self.split_heads(input, heads, self.config.head_dim);
        self.graph.integers("shared.axis", &[3]);
        self.graph.integers("shared.count", &[1, 1, 1, shared as i64, 1]);
        let (single, repeated) = (format!("{input}.single"), format!("{input}.repeated"));
        self.graph.node((ONNX, "Unsqueeze"), &[&split, "shared.axis"], &[&single], &[]);
        self.graph.node((ONNX, "Expand"), &[&single, "shared.count"], &[&repeated], &[]);
        self.join_heads(&repeated)
    }

    fn split(&mut self, packed: &str, out: &str) -> Projected {
        let (q_rows, kv_rows) = self.config.qkv_rows();
        self.graph.integers("qkv.sizes", &[q_rows, kv_rows, kv_rows].map(|rows| rows as i64));
        let parts = ["query", "key", "value"].map(|part| format!("{out}.{part}"));
        let outputs = parts.each_ref().map(String::as_str);
        self.graph.node((ONNX, "Split"), &[packed, "qkv.sizes"], &outputs, &[Attribute::Int("axis", -1)]);
        let [query, key, value] = parts;
        Projected { query, key, value }
    }

    /// RMSNorm over each head, or over all of them.
    fn head_norm(&mut self, input: &str, weight: &str, heads: usize) -> Result<String, BundleError> {
        let weight = self.norm_weight(weight)?;
        let normed = format!("{input}.normed");
        let epsilon = Attribute::Float("epsilon", self.config.norm_epsilon as f32);
        let (op, attributes) =
            ((ONNX, "SimplifiedLayerNormalization"), [Attribute::Int("axis", -1), epsilon]);
        if self.config.form.whole_qk_norm {
            self.graph.node(op, &[input, &weight], &[&normed], &attributes);
            return Ok(normed);
        }
        let split = self.split_heads(input, heads, self.config.head_dim);
        self.graph.node(op, &[&split, &weight], &[&normed], &attributes);
        Ok(self.join_heads(&normed))
    }

    /// Positions by which queries and keys are rotated. An encoder passes only the first: scores depend on
    /// the distance of two tokens.
    fn rotary_positions(&mut self, index: usize) -> [&'static str; 2] {
        if !self.config.encodes() {
            return [POSITIONS; 2];
        }
        let start = "first.position";
        self.graph.integers(start, &[0]);
        [if self.is_in_blocks(index) { blocks::FIRST } else { start }, start]
    }

    fn rotate(&mut self, input: &str, heads: usize, (positions, [cos, sin]): (&str, &[String; 2])) -> String {
        let out = format!("{input}.rotated");
        let mut attributes =
            vec![Attribute::Int("num_heads", heads as i64), Attribute::Int("interleaved", 0)];
        if let Some(rotated) = self.config.form.rotated {
            attributes.push(Attribute::Int("rotary_embedding_dim", rotated as i64));
        }
        let op = (MICROSOFT, "RotaryEmbedding");
        self.graph.node(op, &[input, positions, cos, sin], &[&out], &attributes);
        out
    }

    fn pad_heads(&mut self, input: &str, heads: usize) -> String {
        let config = self.config;
        let missing = self.attention.cached_head_dim - config.head_dim;
        let split = self.split_heads(input, heads, config.head_dim);
        self.graph.integers("head.padding", &[0, 0, 0, 0, 0, 0, 0, missing as i64]);
        let padded = format!("{input}.padded");
        self.graph.node((ONNX, "Pad"), &[&split, "head.padding"], &[&padded], &[]);
        self.join_heads(&padded)
    }

    fn cut_heads(&mut self, input: &str) -> String {
        let config = self.config;
        let split = self.split_heads(input, config.heads, self.attention.cached_head_dim);
        self.graph.integers("head.start", &[0]);
        self.graph.integers("head.end", &[config.head_dim as i64]);
        self.graph.integers("head.axis", &[3]);
        let cut = format!("{input}.cut");
        self.graph.node((ONNX, "Slice"), &[&split, "head.start", "head.end", "head.axis"], &[&cut], &[]);
        self.join_heads(&cut)
    }

    /// `[batch, positions, heads · size]` as `[batch, positions, heads, size]`.
    pub(super) fn split_heads(&mut self, input: &str, heads: usize, size: usize) -> String {
        let shape = format!("heads.{heads}.{size}");
        self.graph.integers(&shape, &[0, 0, heads as i64, size as i64]);
        let out = format!("{input}.heads");
        self.graph.node((ONNX, "Reshape"), &[input, &shape], &[&out], &[]);
        out
    }

    /// `[batch, positions, heads, size]` as `[batch, positions, heads · size]`.
    fn join_heads(&mut self, input: &str) -> String {
        self.graph.integers("heads.joined", &[0, 0, -1]);
        let out = format!("{input}.joined");
        self.graph.node((ONNX, "Reshape"), &[input, "heads.joined"], &[&out], &[]);
        out
    }
}
