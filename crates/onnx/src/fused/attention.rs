//! Attention with its KV cache, or without one. Causal: one GroupQueryAttention node a layer, which rotates,
//! writes keys and values into the cache in place, and attends. Both ways: a MultiHeadAttention. The plan
//! ([`Attention`](crate::attention::Attention)) adds the nodes that heads need around either.

use bundle::{BundleError, LayerNames};

use super::builder::Writer;
use super::encoder::blocks;
use crate::attention::Rotation;
use crate::graph::{Attribute, Dim, MICROSOFT, ONNX};
use crate::names::{LAST_POSITIONS, POSITIONS, TOTAL, cache_names, rotary_names};
use crate::proto::DataType;

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
        for table in (0..config.rotations().len()).flat_map(rotary_names) {
            let dims = [Dim::Named("capacity"), Dim::Fixed(config.rotary_dim() / 2)];
            self.graph.input(&table, float, &dims);
        }
        let cached = if self.attention.cached { config.layers } else { 0 };
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
            let attended = self.group_query_attention(index, [&packed, "", ""]);
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
        let attended = self.group_query_attention(index, [&parts.query, &parts.key, &parts.value]);
        let attended = if padded { self.cut_heads(&attended) } else { attended };
        Ok(self.in_rows(attended, index))
    }

    /// The output of the operator of layer `index`.
    fn attended(&self, index: usize) -> String {
        let layout = if self.config.encoder.is_some() { ".padded" } else { "" };
        format!("layer.{index}.attended{layout}")
    }

    fn group_query_attention(&mut self, index: usize, query_key_value: [&str; 3]) -> String {
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
        attributes.extend(layer.window.map(|window| Attribute::Int("local_window_size", window as i64)));
        attributes.extend(form.attention_cap.map(|cap| Attribute::Float("softcap", cap as f32)));
        let op = (MICROSOFT, "GroupQueryAttention");
        self.graph.node(op, &inputs, &[&out, &key.present, &value.present], &attributes);
        out
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
        if config.encoder.is_some() {
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
        if self.config.encoder.is_none() {
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
    fn split_heads(&mut self, input: &str, heads: usize, size: usize) -> String {
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
