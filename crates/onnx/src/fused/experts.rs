//! Mixtures of experts, by ONNX Runtime's operators for them: `MoE` in f32, `QMoE` by codes.
//!
//! Both take the weights of all experts in one tensor, of which they read those of the chosen ones. The rows of gate and
//! up alternate: `swiglu_fusion` 1 is the only gated form that the kernels of 1.31 for CPUs have. `MoE` computes shares
//! of all experts and may normalise them. `QMoE` has shares of the chosen ones, or takes them as an input.

use bundle::quantised::INT4_GROUP;
use bundle::{
    BundleError, Experts, LayerNames, LinearNames, Precision, SWIGLU_ALPHA, SWIGLU_LIMIT, TensorView,
};

use super::{Unbiased, Writer};
use crate::graph::{Attribute, MICROSOFT, ONNX, float_type};
use crate::products::{SIGN_BIT, WITH_INT8, int8_block};
use crate::proto::DataType;

/// Whether there is an operator for experts of these weights.
pub fn has_operator(precision: Precision) -> bool {
    !matches!(precision, Precision::Nf4 | Precision::File)
}

impl Writer<'_> {
    /// The output of a layer's feed-forward block.
    pub(super) fn feed(
        &mut self,
        index: usize,
        names: &LayerNames,
        input: &str,
    ) -> Result<Unbiased, BundleError> {
        let at = |part: &str| format!("layer.{index}.{part}");
        let mut shared = None;
        if !names.gate_up.weights.is_empty() {
            let mlp = self.mlp(index, input, &names.gate_up)?;
            shared = Some(self.linear(&mlp, &names.down, &at("down"))?);
        }
        let Some(experts) = self.config.experts(index) else {
            return Ok(shared.unwrap_or_else(|| unreachable!("a layer without experts has an MLP")));
        };
        let value = self.experts(index, names, (&experts, input))?;
        let gate = names.experts.as_ref().and_then(|experts| experts.shared_gate.as_ref());
        let (Some(shared), Some(gate)) = (shared, gate) else { return Ok(Unbiased { value, bias: None }) };
        let shared = self.with_bias(shared);
        let [logit, share, part, sum] =
            ["logit", "share", "part", "sum"].map(|part| at(&format!("mlp.shared.{part}")));
        let of_gate = self.biased(input, gate, &logit)?;
        self.graph.node((ONNX, "Sigmoid"), &[&of_gate], &[&share], &[]);
        self.graph.node((ONNX, "Mul"), &[&shared, &share], &[&part], &[]);
        self.graph.node((ONNX, "Add"), &[&value, &part], &[&sum], &[]);
        Ok(Unbiased { value: sum, bias: None })
    }

    fn experts(
        &mut self,
        index: usize,
        names: &LayerNames,
        (experts, input): (&Experts, &str),
    ) -> Result<String, BundleError> {
        let at = |part: &str| format!("layer.{index}.mlp.{part}");
        let Some(named) = &names.experts else { unreachable!("a layer with experts has their names") };
        let (count, width, hidden) = (experts.count, experts.each.width, self.config.hidden_size);
        // As a matrix: of three dimensions, `MoE` (1.31.1) writes over an input that is still to be read.
        let [rows, shape] = ["experts.rows", "experts.shape"].map(at);
        self.graph.node((ONNX, "Shape"), &[input], &[&shape], &[]);
        self.graph.integers("rows.shape", &[-1, hidden as i64]);
        self.graph.node((ONNX, "Reshape"), &[input, "rows.shape"], &[&rows], &[]);
        let logits = self.biased(&rows, &named.router, &at("router"))?;
        let all = |part: usize| {
            let each = || named.each.iter().map(move |linears| &linears[part]);
            LinearNames {
                weights: each().flat_map(|linear| linear.weights.clone()).collect(),
                biases: each().flat_map(|linear| linear.biases.clone()).collect(),
            }
        };
        let (gate_up, down) = (all(0), all(1));
        let block = match self.products.precision {
            Precision::Int4 => INT4_GROUP,
            _ => int8_block(hidden).min(int8_block(width)),
        };
        let by_codes = self.weights.is_quantised(&gate_up.weights[0]) && self.products.by_codes();
        // Weights, scales and bias of each of the two products.
        let mut inputs = vec![rows, logits.clone()];
        for (name, linear, shape) in
            [("gate_up", &gate_up, [count, 2 * width, hidden]), ("down", &down, [count, hidden, width])]
        {
            let name = at(&format!("experts.{name}"));
            if by_codes {
                inputs.extend(self.codes(&name, linear, shape, block)?);
            } else {
                inputs.push(self.expert_weights(&name, linear, shape)?);
            }
            inputs.push(match linear.biases.is_empty() {
                true => String::new(),
                false => {
                    let (tensor, shape) = (self.weights.stacked(&linear.biases)?, [count, shape[1], 1]);
                    let bias = self.floats_of_experts(&format!("{name}.bias"), &shape, tensor);
                    self.reshaped(&bias, &shape[..2])
                }
            });
        }
        let mut attributes = vec![
            Attribute::Int("k", experts.top as i64),
            Attribute::Text("activation_type", "swiglu"),
            Attribute::Int("swiglu_fusion", 1),
            Attribute::Int("normalize_routing_weights", i64::from(experts.normalised)),
        ];
        if experts.clamped {
            attributes.extend([
                Attribute::Float("activation_alpha", SWIGLU_ALPHA as f32),
                Attribute::Float("activation_beta", 1.0),
                Attribute::Float("swiglu_limit", SWIGLU_LIMIT as f32),
            ]);
        }
        let [of_rows, out] = ["experts.output", "experts"].map(at);
        let op = if by_codes { "QMoE" } else { "MoE" };
        let bits = if self.products.precision == Precision::Int4 { 4 } else { 8 };
        if by_codes {
            attributes.extend([
                Attribute::Int("expert_weight_bits", bits),
                Attribute::Int("block_size", block as i64),
                Attribute::Int("accuracy_level", WITH_INT8),
            ]);
        }
        if by_codes && !experts.normalised {
            let shares = at("router.shares");
            self.graph.node((ONNX, "Softmax"), &[&logits], &[&shares], &[Attribute::Int("axis", -1)]);
            // Between them are a third product, which these experts have not, and zero points.
            inputs.extend(std::iter::repeat_n(String::new(), 6).chain([shares]));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.graph.node((MICROSOFT, op), &inputs, &[&of_rows], &attributes);
        self.graph.node((ONNX, "Reshape"), &[&of_rows, &shape], &[&out], &[]);
        Ok(out)
    }

    /// The weights of all experts in floats, `[experts, out, in]`.
    fn expert_weights(
        &mut self,
        name: &str,
        linear: &LinearNames,
        shape: [usize; 3],
    ) -> Result<String, BundleError> {
        if self.weights.is_quantised(&linear.weights[0]) {
            let weight = self.weights.quantised(&linear.weights)?;
            let bytes: Vec<u8> = weight.dequantised().into_iter().flat_map(f32::to_le_bytes).collect();
            let bytes = if name.ends_with("gate_up") { alternated(&bytes, &shape) } else { bytes };
            self.graph.computed(name, DataType::Float, &shape, || bytes);
            return Ok(name.to_owned());
        }
        let tensor = self.weights.stacked(&linear.weights)?;
        Ok(self.floats_of_experts(name, &shape, tensor))
    }

    fn floats_of_experts(&mut self, name: &str, shape: &[usize; 3], tensor: TensorView<'_>) -> String {
        let kind = float_type(tensor.element);
        let weight = self.alternating(name, kind, shape, tensor);
        if !self.products.converted {
            return weight;
        }
        let wide = format!("{weight}.wide");
        self.graph.cast(&weight, DataType::Float, &wide);
        wide
    }

    /// The codes of all experts, `[experts, out, bytes of a row]`, and their scales, `[experts, out, blocks]`.
    fn codes(
        &mut self,
        name: &str,
        linear: &LinearNames,
        [count, rows, columns]: [usize; 3],
        block: usize,
    ) -> Result<[String; 2], BundleError> {
        let weight = self.weights.quantised(&linear.weights)?;
        let is_int8 = self.products.precision == Precision::Int8;
        let (width, blocks) = (if is_int8 { columns } else { columns / 2 }, columns / block);
        // A row of int8 has one scale.
        let repeats = if is_int8 { blocks } else { 1 };
        let scales = weight.scale_values().into_iter().flat_map(|scale| std::iter::repeat_n(scale, repeats));
        let scales: Vec<u8> = scales.flat_map(f32::to_le_bytes).collect();
        let shape = [count, rows, blocks];
        let scales = if name.ends_with("gate_up") { alternated(&scales, &shape) } else { scales };
        let scale_name = format!("{name}.scale");
        self.graph.bytes(&scale_name, DataType::Float, &shape, scales);
        let mut codes = self.alternating(name, DataType::Uint8, &[count, rows, width], weight.codes);
        if is_int8 {
            let out = format!("{codes}.unsigned");
            self.graph.bytes("sign.bit", DataType::Uint8, &[1], vec![SIGN_BIT]);
            self.graph.node((ONNX, "BitwiseXor"), &[&codes, "sign.bit"], &[&out], &[]);
            codes = out;
        }
        Ok([codes, scale_name])
    }

    /// A tensor of all experts' gates and ups, `[experts, gate before up, columns]`, with their rows in turns. Constant
    /// folding moves them while loading, so that no copy passes through the graph's own bytes.
    fn alternating(
        &mut self,
        name: &str,
        kind: DataType,
        shape: &[usize; 3],
        tensor: TensorView<'_>,
    ) -> String {
        if !name.contains("gate_up") {
            self.graph.weight(name, kind, shape, &tensor);
            return name.to_owned();
        }
        if !self.products.folds_constants {
            self.graph.computed(name, kind, shape, || alternated(tensor.bytes, shape));
            return name.to_owned();
        }
        let [count, rows, columns] = *shape;
        self.graph.weight(name, kind, &[count, 2, rows / 2, columns], &tensor);
        let turned = format!("{name}.turned");
        let order = [Attribute::Ints("perm", vec![0, 2, 1, 3])];
        self.graph.node((ONNX, "Transpose"), &[name], &[&turned], &order);
        self.reshaped(&turned, shape)
    }

    fn reshaped(&mut self, input: &str, shape: &[usize]) -> String {
        let (dims, out) = (format!("{input}.dims"), format!("{input}.reshaped"));
        self.graph.integers(&dims, &shape.iter().map(|&size| size as i64).collect::<Vec<_>>());
        self.graph.node((ONNX, "Reshape"), &[input, &dims], &[&out], &[]);
        out
    }
}

/// The bytes of `[experts, gate before up, columns]` with the rows of gate and up in turns.
fn alternated(bytes: &[u8], [count, rows, _]: &[usize; 3]) -> Vec<u8> {
    let row = bytes.len() / (count * rows);
    let mut out = Vec::with_capacity(bytes.len());
    for expert in bytes.chunks_exact(rows * row) {
        let (gate, up) = expert.split_at(expert.len() / 2);
        for (gate, up) in gate.chunks_exact(row).zip(up.chunks_exact(row)) {
            out.extend_from_slice(gate);
            out.extend_from_slice(up);
        }
    }
    out
}
