//! Attention with its KV cache, in either form.

use std::ops::Range;

use bundle::{BundleError, LayerNames, NormNames, Position};

use super::parts::Linear;
use super::{Form, Writer};
use crate::graph::{Attribute, Dim, MICROSOFT, ONNX};
use crate::names::{COS, LAST_POSITIONS, POSITIONS, SIN, TOTAL, cache_names, rotary_names};
use crate::proto::DataType;

/// Queries, keys and values of a layer, by the names of their values.
pub(super) type Projected = [String; 3];

impl Writer<'_> {
    pub(super) fn declare_attention(&mut self) {
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
        for names in (0..config.layers).flat_map(cache_names) {
            self.graph.input(&names.past, DataType::Float, &dims("past"));
            self.graph.output(&names.present, DataType::Float, &dims("total"));
        }
        if self.form == Form::Standard && self.rotary() {
            self.gather_rotation();
        }
    }

    /// From the input of layer `index` to the input of its output projection, `[tokens, heads · head_dim]`.
    pub(super) fn attend(
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
    pub(super) fn heads_of(
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

    pub(super) fn scale_of_scores(&self) -> f64 {
        let usual = 1.0 / (self.config.head_dim as f64).sqrt();
        self.config.form.attention_scale.unwrap_or(usual)
    }

    fn rotary(&self) -> bool {
        matches!(self.config.position, Position::Rotary(_))
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
    pub(super) fn swapped(&mut self, input: &str) -> String {
        let out = format!("{input}.swapped");
        self.graph.node((ONNX, "Transpose"), &[input], &[&out], &[Attribute::Ints("perm", vec![0, 2, 1, 3])]);
        out
    }

    /// `input` in the shape `[batch, positions]` followed by `tail`.
    pub(super) fn shaped(&mut self, input: &str, tail: &[usize], suffix: &str) -> String {
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
    pub(super) fn rotate(&mut self, input: String, rotation: Option<usize>) -> String {
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
