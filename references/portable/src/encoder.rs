//! An encoder in the form of its usual exports: texts are padded to the longest, and a mask marks the tokens.
//!
//! Attention is written as products and a softmax. Masks and biases that depend on distance (windows,
//! causality, tables of relative positions) are looked up once for all layers.

use std::ops::Range;

use bundle::{
    Bundle, BundleError, Feature, HeadActivation, LayerAttention, LayerNames, ModelConfig, NormNames,
    Pooling, Precision, Scored, rotary,
};

use crate::{Form, Linear, Writer};
use onnx::DataType;
pub use onnx::graph::LOGITS as SCORES;
use onnx::graph::{
    Attribute, COS, Dim, GraphBuilder, LAST_POSITIONS, MICROSOFT, ONNX, POSITIONS, SIN, Storage, TOTAL,
    Written, cache_names, hidden_state, rotary_names,
};

/// Token ids `[batch, sequence]`.
pub const INPUT_IDS: &str = "input_ids";

/// 1 for each token, 0 for padding: `[batch, sequence]`.
pub const ATTENTION_MASK: &str = "attention_mask";

/// `[batch, sequence]`, if the model has a table of types.
pub const TOKEN_TYPE_IDS: &str = "token_type_ids";

/// The vectors of tokens after the last layer and its norm, `[batch, sequence, hidden]`.
pub const LAST_HIDDEN_STATE: &str = "last_hidden_state";

/// The differences of these layers from LLaMA's.
pub const FEATURES: [Feature; 5] = [
    Feature::Encoder,
    Feature::RelativePositions,
    Feature::Window,
    Feature::TwoRotations,
    Feature::FusedGateUp,
];

/// Added to the score of a key that a query does not see. Twice this is still finite, and so is the softmax
/// of a row of padding.
const UNSEEN: f32 = f32::MIN / 2.0;

/// The shape of a batch of texts, with the same named dimensions in all inputs and outputs.
const TEXTS: [Dim; 2] = [Dim::Named("batch"), Dim::Named("sequence")];

/// The graph of `bundle`, with features among [`FEATURES`], in f32. Rotary models have the tables of
/// [`rotary_names`] as inputs, too: `[sequence, head_dim / 2]`.
pub fn build(bundle: &Bundle, form: Form, storage: Storage) -> Result<Written, BundleError> {
    build_with(bundle, form, storage, Inputs::Tables)
}

/// As [`build`], with only the inputs of the usual exports, for programs that provide no others: rotary
/// tables are in the graph, for as many positions as the model has, and [`TOKEN_TYPE_IDS`] exists only if
/// [`takes_several_types`].
pub fn build_usual(bundle: &Bundle, form: Form, storage: Storage) -> Result<Written, BundleError> {
    build_with(bundle, form, storage, Inputs::Usual)
}

/// Whether tokens of the model have different types: a table of one row is added to all alike.
pub fn takes_several_types(config: &ModelConfig) -> bool {
    config.encoder.as_ref().is_some_and(|encoder| encoder.token_types > 1)
}

/// Inputs of a graph besides tokens and mask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inputs {
    /// Rotary tables as long as the texts, and the types of models that have a table of them.
    Tables,
    /// Types, if there are several.
    Usual,
}

fn build_with(bundle: &Bundle, form: Form, storage: Storage, inputs: Inputs) -> Result<Written, BundleError> {
    let (config, weights) = (bundle.config(), bundle.weights(Precision::F32)?);
    let mut writer = Writer::new(config, form, &weights, GraphBuilder::new("encoder", storage));
    writer.declare_texts(inputs);
    writer.embed_texts(inputs)?;
    for layer in 0..config.layers.len() {
        writer.layer(layer)?;
    }
    let vectors = writer.shaped(&hidden_state(config.layers.len()), &[config.hidden_size], "texts");
    writer.graph.node((ONNX, "Identity"), &[&vectors], &[LAST_HIDDEN_STATE], &[]);
    writer.scores()?;
    Ok(writer.graph.finish())
}

impl Writer<'_> {
    fn declare_texts(&mut self, inputs: Inputs) {
        let config = self.config;
        let has_types = config.token_type_embedding().is_some();
        let types = (has_types && (inputs == Inputs::Tables || takes_several_types(config)))
            .then_some(TOKEN_TYPE_IDS);
        for name in [INPUT_IDS, ATTENTION_MASK].into_iter().chain(types) {
            self.graph.input(name, DataType::Int64, &TEXTS);
        }
        self.graph.node((ONNX, "Shape"), &[INPUT_IDS], &["tokens.shape"], &[]);
        self.graph.integers("flat", &[-1]);
        self.graph.integers("zero", &[0]);
        self.graph.integers("one", &[1]);
        self.graph.node((ONNX, "Gather"), &["tokens.shape", "one"], &["sequence"], &[]);
        let (count, half) = (config.max_positions, config.head_dim / 2);
        let tables = rotary::tables(config, if inputs == Inputs::Usual { count } else { 0 });
        for (rotation, (cos, sin)) in tables.into_iter().enumerate() {
            for (table, values) in rotary_names(rotation).into_iter().zip([cos, sin]) {
                if inputs == Inputs::Usual {
                    let all = format!("{table}.all");
                    self.graph.floats(&all, &[count, half], values);
                    let rows = [all.as_str(), "zero", "sequence", "zero"];
                    self.graph.node((ONNX, "Slice"), &rows, &[&table], &[]);
                } else {
                    let dims = [Dim::Named("sequence"), Dim::Fixed(half)];
                    self.graph.input(&table, DataType::Float, &dims);
                }
                let halves = [table.as_str(), table.as_str()];
                let (whole, rows) = (format!("{table}.whole"), format!("{table}.rows"));
                self.graph.node((ONNX, "Concat"), &halves, &[&whole], &[Attribute::Int("axis", -1)]);
                // For all heads: `[sequence, 1, head_dim]`.
                self.graph.node((ONNX, "Unsqueeze"), &[&whole, "one"], &[&rows], &[]);
            }
        }
        let [batch, sequence] = TEXTS;
        let vectors = [batch, sequence, Dim::Fixed(config.hidden_size)];
        self.graph.output(LAST_HIDDEN_STATE, DataType::Float, &vectors);
        if let Some(head) = config.scoring() {
            let [batch, sequence] = TEXTS;
            let labels = Dim::Fixed(head.labels);
            match head.of {
                Scored::Texts(_) => self.graph.output(SCORES, DataType::Float, &[batch, labels]),
                Scored::Tokens => self.graph.output(SCORES, DataType::Float, &[batch, sequence, labels]),
            }
        }
        self.declare_mask();
    }

    /// Bias added to scores for padding, `[batch, 1, 1, sequence]`.
    fn declare_mask(&mut self) {
        self.graph.integers("mask.axes", &[1, 2]);
        self.graph.number("mask.one", DataType::Float, 1.0);
        self.graph.number("mask.unseen", DataType::Float, f64::from(UNSEEN));
        self.graph.cast(ATTENTION_MASK, DataType::Float, "mask.tokens");
        self.graph.node((ONNX, "Unsqueeze"), &["mask.tokens", "mask.axes"], &["mask.cells"], &[]);
        self.graph.node((ONNX, "Sub"), &["mask.one", "mask.cells"], &["mask.padding"], &[]);
        self.graph.node((ONNX, "Mul"), &["mask.padding", "mask.unseen"], &["mask"], &[]);
    }

    /// The sums of the embeddings of tokens, types and positions, `[tokens, hidden]`, normed if the model
    /// norms them.
    fn embed_texts(&mut self, inputs: Inputs) -> Result<(), BundleError> {
        let config = self.config;
        let table = self.weight(&config.embedding())?;
        self.graph.node((ONNX, "Gather"), &[&table, INPUT_IDS], &["embed.token"], &[]);
        let mut sum = "embed.token";
        if let Some(table) = config.token_type_embedding() {
            let table = self.weight(&table)?;
            let types =
                if inputs == Inputs::Tables || takes_several_types(config) { TOKEN_TYPE_IDS } else { "zero" };
            self.graph.node((ONNX, "Gather"), &[&table, types], &["embed.type"], &[]);
            self.graph.node((ONNX, "Add"), &[sum, "embed.type"], &["embed.typed"], &[]);
            sum = "embed.typed";
        }
        if let Some(table) = config.position_embedding() {
            let first = config.encoder.as_ref().map_or(0, |encoder| encoder.first_position) as i64;
            let table = self.weight(&table)?;
            self.graph.integers("position.first", &[first]);
            self.graph.node((ONNX, "Add"), &["sequence", "position.first"], &["position.end"], &[]);
            let rows = [table.as_str(), "position.first", "position.end", "zero"];
            self.graph.node((ONNX, "Slice"), &rows, &["embed.position"], &[]);
            self.graph.node((ONNX, "Add"), &[sum, "embed.position"], &["embed.placed"], &[]);
            sum = "embed.placed";
        }
        self.graph.integers("rows.shape", &[-1, config.hidden_size as i64]);
        let norm = config.embedding_norm();
        let out = if norm.is_some() { "embed.rows".to_owned() } else { hidden_state(0) };
        self.graph.node((ONNX, "Reshape"), &[sum, "rows.shape"], &[&out], &[]);
        norm.map_or(Ok(()), |norm| self.norm(&out, &norm, &hidden_state(0)))
    }

    /// Softmax(queries · keysᵀ · scale + mask) · values, `[batch, sequence, heads, head_dim]`.
    pub(crate) fn masked_attention(
        &mut self,
        index: usize,
        names: &LayerNames,
        parts: Projected,
    ) -> Result<String, BundleError> {
        let config = self.config;
        let at = |part: &str| format!("layer.{index}.{part}");
        let attention = config.layer_attention(index);
        let mask = self.mask(attention)?;
        let [query, key, value] = self.heads_of(names, &parts)?;
        let [query, key] = [query, key].map(|part| self.rotate(part, attention.rotation));
        let (query, value) = (self.swapped(&query), self.swapped(&value));
        let columns = [Attribute::Ints("perm", vec![0, 2, 3, 1])];
        self.graph.node((ONNX, "Transpose"), &[&key], &[&at("attended.keys")], &columns);
        let query = self.regrouped(query, config.kv_heads);
        self.graph.node((ONNX, "MatMul"), &[&query, &at("attended.keys")], &[&at("attended.products")], &[]);
        let scores = self.regrouped(at("attended.products"), config.heads);
        self.multiply(&scores, "attention.scale", self.scale_of_scores(), &at("attended.scores"));
        self.graph.node((ONNX, "Add"), &[&at("attended.scores"), &mask], &[&at("attended.masked")], &[]);
        let axis = [Attribute::Int("axis", -1)];
        self.graph.node((ONNX, "Softmax"), &[&at("attended.masked")], &[&at("attended.shares")], &axis);
        let shares = self.regrouped(at("attended.shares"), config.kv_heads);
        self.graph.node((ONNX, "MatMul"), &[&shares, &value], &[&at("attended")], &[]);
        let attended = self.regrouped(at("attended"), config.heads);
        Ok(self.swapped(&attended))
    }

    /// `[batch, …, rows, columns]` with so many heads: queries that share keys and values are the rows of one product.
    fn regrouped(&mut self, input: String, heads: usize) -> String {
        if self.config.heads == self.config.kv_heads {
            return input;
        }
        let (shape, out) = (format!("grouped.{heads}"), format!("{input}.grouped"));
        self.graph.integers(&shape, &[0, heads as i64, -1, 0]);
        self.graph.node((ONNX, "Reshape"), &[&input, &shape], &[&out], &[]);
        out
    }

    /// Bias added to the scores of a layer: for padding, and by the distance of a query and a key.
    fn mask(&mut self, attention: LayerAttention) -> Result<String, BundleError> {
        let config = self.config;
        let relative = config.encoder.as_ref().and_then(|encoder| encoder.relative);
        if attention.sees_all(config.max_positions) && relative.is_none() {
            return Ok("mask".into());
        }
        let name = if attention.window.is_some() { "mask.window" } else { "mask.distance" };
        if !self.shapes.insert(name.to_owned()) {
            return Ok(name.to_owned());
        }
        let last = config.max_positions.saturating_sub(1);
        // From the key furthest before a query to the one furthest after it.
        let pairs = (0..last).map(|query| (last - query, 0)).chain((0..=last).map(|key| (0, key)));
        let sees = |(query, key): (usize, usize)| attention.keys(query, query.max(key) + 1).contains(&key);
        let unseen = pairs.clone().map(|pair| if sees(pair) { 0.0 } else { UNSEEN });
        let (distances, scores) = (format!("{name}.table"), format!("{name}.scores"));
        let width = 2 * last + 1;
        match (relative, config.relative_bias()) {
            (Some(relative), Some(tensor)) => {
                let table = self.weights.tensor(&tensor)?.bytes.as_chunks().0;
                let heads = config.heads;
                let bucket = |(query, key)| relative.bucket(query, key) * heads;
                let rows: Vec<usize> = pairs.map(bucket).collect();
                let unseen: Vec<f32> = unseen.collect();
                let added = (0..heads).flat_map(|head| {
                    rows.iter().zip(&unseen).map(move |(row, unseen)| (row + head, *unseen))
                });
                let added = added.map(|(cell, unseen)| f32::from_le_bytes(table[cell]) + unseen);
                self.graph.floats(&distances, &[heads, width], added);
            }
            _ => self.graph.floats(&distances, &[1, width], unseen),
        }
        self.declare_distances();
        let axis = [Attribute::Int("axis", 1)];
        self.graph.node((ONNX, "Gather"), &[&distances, "distance.cells"], &[&scores], &axis);
        self.graph.node((ONNX, "Add"), &[&scores, "mask"], &[name], &[]);
        Ok(name.to_owned())
    }

    /// For each query and key the cell of a table by distance, `[sequence, sequence]`.
    fn declare_distances(&mut self) {
        if !self.shapes.insert("distance.cells".to_owned()) {
            return;
        }
        let count = self.config.max_positions as i64;
        self.graph.integers("distance.all", &(0..count).collect::<Vec<_>>());
        self.graph.integers("distance.last", &[count - 1]);
        let places = ["distance.all", "zero", "sequence", "zero"];
        self.graph.node((ONNX, "Slice"), &places, &["distance.places"], &[]);
        self.graph.node((ONNX, "Unsqueeze"), &["distance.places", "one"], &["distance.queries"], &[]);
        self.graph.node((ONNX, "Add"), &["distance.places", "distance.last"], &["distance.keys"], &[]);
        let apart = ["distance.keys", "distance.queries"];
        self.graph.node((ONNX, "Sub"), &apart, &["distance.cells"], &[]);
    }

    /// The head's output for the last vectors, if there is a head.
    fn scores(&mut self) -> Result<(), BundleError> {
        let config = self.config;
        let head = config.scoring();
        let (Some(head), Some(names)) = (head, config.head()) else { return Ok(()) };
        let mut rows = match head.of {
            Scored::Texts(pooling) => self.pool(pooling)?,
            Scored::Tokens => hidden_state(config.layers.len()),
        };
        if let (Some(dense), Some(layer)) = (&names.dense, head.dense) {
            self.linear(&rows, Linear::whole(dense), "head.dense")?;
            rows = "head.activated".into();
            match layer.activation {
                HeadActivation::Tanh => self.graph.node((ONNX, "Tanh"), &["head.dense"], &[&rows], &[]),
                HeadActivation::Of(activation) => self.activation(activation, "head.dense", &rows),
            }
        }
        if let Some(norm) = &names.norm {
            self.norm(&rows, norm, "head.normed")?;
            rows = "head.normed".into();
        }
        if let Scored::Texts(_) = head.of {
            return self.linear(&rows, Linear::whole(&names.scores), SCORES);
        }
        self.linear(&rows, Linear::whole(&names.scores), "head.scores")?;
        let scores = self.shaped("head.scores", &[head.labels], "texts");
        self.graph.node((ONNX, "Identity"), &[&scores], &[SCORES], &[]);
        Ok(())
    }

    /// The vector of each text that its head scores, `[batch, hidden]`.
    fn pool(&mut self, pooling: Pooling) -> Result<String, BundleError> {
        let out = "head.pooled";
        match pooling {
            Pooling::Cls => {
                let first = [LAST_HIDDEN_STATE, "zero"];
                self.graph.node((ONNX, "Gather"), &first, &["head.vectors"], &[Attribute::Int("axis", 1)]);
            }
            Pooling::Mean | Pooling::Last => {
                self.graph.node((ONNX, "ReduceSum"), &["mask.tokens", "one"], &["head.counts"], &[]);
                if pooling == Pooling::Mean {
                    self.graph.node((ONNX, "Div"), &["mask.tokens", "head.counts"], &["head.shares"], &[]);
                } else {
                    // Texts begin at the first cell: the last token is the one where the count reaches the
                    // total.
                    let so_far = ["mask.tokens", "head.axis"];
                    self.graph.bytes("head.axis", DataType::Int64, &[], 1i64.to_le_bytes().to_vec());
                    self.graph.node((ONNX, "CumSum"), &so_far, &["head.so_far"], &[]);
                    self.graph.node((ONNX, "Equal"), &["head.so_far", "head.counts"], &["head.full"], &[]);
                    self.graph.cast("head.full", DataType::Float, "head.behind");
                    let last = ["head.behind", "mask.tokens"];
                    self.graph.node((ONNX, "Mul"), &last, &["head.shares"], &[]);
                }
                self.graph.node((ONNX, "Unsqueeze"), &["head.shares", "one"], &["head.row"], &[]);
                let vectors = ["head.row", LAST_HIDDEN_STATE];
                self.graph.node((ONNX, "MatMul"), &vectors, &["head.vectors"], &[]);
            }
            Pooling::Max | Pooling::Each => {
                let reason =
                    "the portable graph has no head that scores the largest of each component, or tokens";
                return Err(BundleError::Config(reason.into()));
            }
        }
        self.graph.node((ONNX, "Reshape"), &["head.vectors", "rows.shape"], &[out], &[]);
        Ok(out.into())
    }
}

// Attention with its KV cache, in either form.

/// Queries, keys and values of a layer, by the names of their values.
pub(crate) type Projected = [String; 3];

impl Writer<'_> {
    pub(crate) fn declare_attention(&mut self) {
        let config = self.config;
        if self.form == Form::Contributed {
            self.graph.input(LAST_POSITIONS, DataType::Int32, &[Dim::Named("batch")]);
            self.graph.input(TOTAL, DataType::Int32, &[]);
        }
        if self.rotary() {
            for table in [COS, SIN] {
                let dims = [Dim::Named("capacity"), Dim::Fixed(config.head_dim / 2)];
                self.graph.input(table, DataType::Float, &dims);
            }
        }
        let dims = |rows: &'static str| {
            let (heads, size) = (Dim::Fixed(config.kv_heads), Dim::Fixed(config.head_dim));
            [Dim::Named("batch"), heads, Dim::Named(rows), size]
        };
        for names in (0..config.layers.len()).flat_map(cache_names) {
            self.graph.input(&names.past, DataType::Float, &dims("past"));
            self.graph.output(&names.present, DataType::Float, &dims("total"));
        }
        if self.form == Form::Standard && self.rotary() {
            self.gather_rotation();
        }
    }

    /// From the input of layer `index` to the input of its output projection, `[tokens, heads · head_dim]`.
    pub(crate) fn attend(
        &mut self,
        index: usize,
        names: &LayerNames,
        input: &str,
    ) -> Result<String, BundleError> {
        let at = |part: &str| format!("layer.{index}.{part}");
        let parts: Projected = ["query", "key", "value"].map(at);
        for (linear, out) in self.query_key_value(names).into_iter().zip(&parts) {
            self.linear(input, linear, out)?;
        }
        let attended = match self.form {
            _ if self.config.encoder.is_some() => self.masked_attention(index, names, parts)?,
            Form::Contributed => self.group_query_attention(index, names, parts)?,
            Form::Standard => self.standard_attention(index, names, parts)?,
        };
        let width = self.config.qkv_rows().0;
        let shape = format!("flat.{width}");
        self.graph.integers(&shape, &[-1, width as i64]);
        self.graph.node((ONNX, "Reshape"), &[&attended, &shape], &[&at("attended.flat")], &[]);
        Ok(at("attended.flat"))
    }

    fn query_key_value(&self, names: &LayerNames) -> Vec<Linear> {
        if names.qkv.weights.len() == 3 {
            return Linear::each(&names.qkv);
        }
        let (q, kv) = self.config.qkv_rows();
        let rows: [Range<usize>; 3] = [0..q, q..q + kv, q + kv..q + 2 * kv];
        rows.map(|rows| Linear::part(&names.qkv, rows)).into()
    }

    fn group_query_attention(
        &mut self,
        index: usize,
        names: &LayerNames,
        parts: Projected,
    ) -> Result<String, BundleError> {
        let config = self.config;
        let norms = [&names.q_norm, &names.k_norm, &None];
        let mut inputs = Vec::new();
        for ((part, norm), heads) in
            parts.iter().zip(norms).zip([config.heads, config.kv_heads, config.kv_heads])
        {
            let joined = match norm {
                Some(weight) if config.form.whole_qk_norm => self.head_norm(part, Some(weight))?,
                Some(_) => {
                    let split = self.heads(part, heads);
                    self.head_norm(&split, norm.as_deref())?
                }
                None => part.clone(),
            };
            inputs.push(self.shaped(&joined, &[heads * config.head_dim], "joined"));
        }
        let [key, value] = cache_names(index);
        inputs.extend([key.past, value.past, LAST_POSITIONS.into(), TOTAL.into()]);
        let mut attributes = vec![
            Attribute::Int("num_heads", config.heads as i64),
            Attribute::Int("kv_num_heads", config.kv_heads as i64),
            self.scale(),
        ];
        if config.layer_attention(index).rotation.is_some() {
            inputs.extend([COS.into(), SIN.into()]);
            attributes.extend([Attribute::Int("do_rotary", 1), Attribute::Int("rotary_interleaved", 0)]);
        }
        let out = format!("layer.{index}.attended");
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let outputs = [out.as_str(), &key.present, &value.present];
        self.graph.node((MICROSOFT, "GroupQueryAttention"), &inputs, &outputs, &attributes);
        Ok(out)
    }

    fn standard_attention(
        &mut self,
        index: usize,
        names: &LayerNames,
        parts: Projected,
    ) -> Result<String, BundleError> {
        let rotation = self.config.layer_attention(index).rotation;
        let [query, key, value] = self.heads_of(names, &parts)?;
        let turned = [query, key].map(|part| {
            let swapped = self.swapped(&part);
            self.rotate(swapped, rotation)
        });
        let mut inputs = turned.to_vec();
        inputs.push(self.swapped(&value));
        let [key, value] = cache_names(index);
        // No mask: the operator itself is causal.
        inputs.extend([String::new(), key.past, value.past]);
        let out = format!("layer.{index}.attended");
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let outputs = [out.as_str(), &key.present, &value.present];
        let attributes = [Attribute::Int("is_causal", 1), self.scale()];
        self.graph.node((ONNX, "Attention"), &inputs, &outputs, &attributes);
        Ok(self.swapped(&out))
    }

    /// Queries, keys and values, `[batch, positions, heads, head_dim]` each, normed if the model norms them.
    pub(crate) fn heads_of(
        &mut self,
        names: &LayerNames,
        [query, key, value]: &Projected,
    ) -> Result<Projected, BundleError> {
        let config = self.config;
        let turned = [(query, &names.q_norm, config.heads), (key, &names.k_norm, config.kv_heads)];
        let [query, key] = turned.map(|(part, norm, heads)| match config.form.whole_qk_norm {
            true => {
                let normed = self.head_norm(part, norm.as_deref())?;
                Ok(self.heads(&normed, heads))
            }
            false => {
                let split = self.heads(part, heads);
                self.head_norm(&split, norm.as_deref())
            }
        });
        Ok([query?, key?, self.heads(value, config.kv_heads)])
    }

    fn scale(&self) -> Attribute {
        Attribute::Float("scale", self.scale_of_scores() as f32)
    }

    pub(crate) fn scale_of_scores(&self) -> f64 {
        let usual = 1.0 / (self.config.head_dim as f64).sqrt();
        self.config.form.attention_scale.unwrap_or(usual)
    }

    fn rotary(&self) -> bool {
        !self.config.rotations.is_empty()
    }

    /// `[tokens, heads · head_dim]` as `[batch, positions, heads, head_dim]`.
    fn heads(&mut self, input: &str, heads: usize) -> String {
        self.shaped(input, &[heads, self.config.head_dim], "heads")
    }

    /// RMSNorm over the last dimension, if the model has one there.
    fn head_norm(&mut self, input: &str, weight: Option<&str>) -> Result<String, BundleError> {
        let Some(weight) = weight else { return Ok(input.to_owned()) };
        let out = format!("{input}.normed");
        self.norm(input, &NormNames { weight: weight.to_owned(), bias: None }, &out)?;
        Ok(out)
    }

    /// `[batch, positions, heads, head_dim]` as `[batch, heads, positions, head_dim]`, or back.
    pub(crate) fn swapped(&mut self, input: &str) -> String {
        let out = format!("{input}.swapped");
        self.graph.node((ONNX, "Transpose"), &[input], &[&out], &[Attribute::Ints("perm", vec![0, 2, 1, 3])]);
        out
    }

    /// `input` in the shape `[batch, positions]` followed by `tail`.
    pub(crate) fn shaped(&mut self, input: &str, tail: &[usize], suffix: &str) -> String {
        let label = tail.iter().map(usize::to_string).collect::<Vec<_>>().join(".");
        let (rest, shape, out) =
            (format!("tail.{label}"), format!("shape.{label}"), format!("{input}.{suffix}"));
        if self.shapes.insert(shape.clone()) {
            let tail: Vec<i64> = tail.iter().map(|&size| size as i64).collect();
            self.graph.integers(&rest, &tail);
            self.graph.node(
                (ONNX, "Concat"),
                &["tokens.shape", &rest],
                &[&shape],
                &[Attribute::Int("axis", 0)],
            );
        }
        self.graph.node((ONNX, "Reshape"), &[input, &shape], &[&out], &[]);
        out
    }

    /// The angles' cos and sin at each token's position, `[batch, 1, positions, head_dim]`, once for all layers.
    fn gather_rotation(&mut self) {
        self.graph.integers("heads.axis", &[1]);
        for table in [COS, SIN] {
            let at = |part: &str| format!("{table}.{part}");
            self.graph.node((ONNX, "Gather"), &[table, POSITIONS], &[&at("half")], &[]);
            let halves = [at("half"), at("half")];
            let halves = halves.each_ref().map(String::as_str);
            self.graph.node((ONNX, "Concat"), &halves, &[&at("whole")], &[Attribute::Int("axis", -1)]);
            self.graph.node((ONNX, "Unsqueeze"), &[&at("whole"), "heads.axis"], &[&at("rows")], &[]);
        }
    }

    /// x · cos + (−x₂, x₁) · sin, with x₁ and x₂ the halves of each head: the rotate-half convention. The
    /// angles are those of `rotation`; without one, `input` is returned.
    pub(crate) fn rotate(&mut self, input: String, rotation: Option<usize>) -> String {
        let Some(rotation) = rotation else { return input };
        let input = input.as_str();
        let at = |part: &str| format!("{input}.{part}");
        let size = self.config.head_dim as i64;
        for (name, bound) in
            [("half.start", 0), ("half.middle", size / 2), ("half.end", size), ("half.axis", 3)]
        {
            self.graph.integers(name, &[bound]);
        }
        let slice = |start, end| [input, start, end, "half.axis"];
        let (first, second) = (slice("half.start", "half.middle"), slice("half.middle", "half.end"));
        self.graph.node((ONNX, "Slice"), &second, &[&at("second")], &[]);
        self.graph.node((ONNX, "Neg"), &[&at("second")], &[&at("negated")], &[]);
        self.graph.node((ONNX, "Slice"), &first, &[&at("first")], &[]);
        let axis = [Attribute::Int("axis", -1)];
        self.graph.node((ONNX, "Concat"), &[&at("negated"), &at("first")], &[&at("rotated")], &axis);
        let tables = rotary_names(rotation).map(|table| format!("{table}.rows"));
        self.graph.node((ONNX, "Mul"), &[input, &tables[0]], &[&at("along")], &[]);
        self.graph.node((ONNX, "Mul"), &[&at("rotated"), &tables[1]], &[&at("across")], &[]);
        self.graph.node((ONNX, "Add"), &[&at("along"), &at("across")], &[&at("turned")], &[]);
        at("turned")
    }
}
