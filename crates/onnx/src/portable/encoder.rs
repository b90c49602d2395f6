//! An encoder in the form of its usual exports: texts are padded to the longest, and a mask marks the tokens.
//!
//! Attention is written as products and a softmax. Masks and biases that depend on distance (windows,
//! causality, tables of relative positions) are looked up once for all layers.

use bundle::{
    Bundle, BundleError, Feature, HeadActivation, LayerAttention, LayerNames, ModelConfig, Pooling,
    Precision, Scored, rotary,
};

use super::attention::Projected;
use super::parts::Linear;
use super::{Form, Writer};
use crate::graph::{Attribute, Dim, GraphBuilder, ONNX, Storage, Written};
use crate::names::{hidden_state, rotary_names};
use crate::proto::DataType;

/// Token ids `[batch, sequence]`.
pub const INPUT_IDS: &str = "input_ids";
/// 1 for each token, 0 for padding: `[batch, sequence]`.
pub const ATTENTION_MASK: &str = "attention_mask";
/// `[batch, sequence]`, if the model has a table of types.
pub const TOKEN_TYPE_IDS: &str = "token_type_ids";
/// The vectors of tokens after the last layer and its norm, `[batch, sequence, hidden]`.
pub const LAST_HIDDEN_STATE: &str = "last_hidden_state";
/// Output of the model's head, if it has one: `[batch, labels]`, or `[batch, sequence, labels]` if it scores
/// tokens.
pub use crate::names::LOGITS as SCORES;

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
    for layer in 0..config.layers {
        writer.layer(layer)?;
    }
    let vectors = writer.shaped(&hidden_state(config.layers), &[config.hidden_size], "texts");
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
    pub(super) fn masked_attention(
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
            Scored::Tokens => hidden_state(config.layers),
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
            Pooling::Max => {
                let reason = "the portable graph has no head that scores the largest of each component";
                return Err(BundleError::Config(reason.into()));
            }
        }
        self.graph.node((ONNX, "Reshape"), &["head.vectors", "rows.shape"], &[out], &[]);
        Ok(out.into())
    }
}
