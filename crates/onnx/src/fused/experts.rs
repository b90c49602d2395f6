//! Mixtures of experts, by ONNX Runtime's operators for them: `MoE` in f32, `QMoE` by codes.
//!
//! Both take the weights of all experts in one tensor, of which they read those of the chosen ones. The rows of gate
//! and up alternate: `swiglu_fusion` 1 is the only gated form that the kernels of 1.31 for CPUs have. `MoE` computes shares
//! of all experts and may normalise them. `QMoE` has shares of the chosen ones, or takes them as an input.

use bundle::quantised::INT4_GROUP;
use bundle::{
    BundleError, Experts, LayerNames, LinearNames, Precision, SWIGLU_ALPHA, SWIGLU_LIMIT, TensorView,
};

use super::{Unbiased, Writer};
use crate::graph::{Attribute, MICROSOFT, ONNX, float_type};
use crate::products::{Products, SIGN_BIT, WITH_INT8, int8_block, unsigned_codes};
use crate::proto::DataType;

/// Whether there is an operator for experts of these weights.
pub fn has_operator(precision: Precision) -> bool {
    !matches!(precision, Precision::Nf4 | Precision::File)
}

/// The operator, for people.
pub fn operator(products: Products) -> &'static str {
    match products.by_codes() {
        false => "MoE",
        true if products.precision == Precision::Int4 => "QMoE (4 bits)",
        true => "QMoE (8 bits)",
    }
}

/// One of the two products of all experts.
struct Part {
    name: String,
    /// Those of all experts, one after the other.
    linear: LinearNames,
    /// `[experts, out, in]`
    shape: [usize; 3],
    /// Whether an expert's rows are those of the gate before those of the other half.
    is_gated: bool,
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
        // As a matrix: from three dimensions `MoE` (1.31.1) computed other numbers where another node read its input.
        let [rows, shape] = ["experts.rows", "experts.shape"].map(at);
        self.graph.node((ONNX, "Shape"), &[input], &[&shape], &[]);
        self.graph.integers("rows.shape", &[-1, hidden as i64]);
        self.graph.node((ONNX, "Reshape"), &[input, "rows.shape"], &[&rows], &[]);
        let logits = self.biased(&rows, &named.router, &at("router"))?;
        let part = |of: usize, name: &str, shape: [usize; 3]| {
            let each = || named.each.iter().map(move |linears| &linears[of]);
            let linear = LinearNames {
                weights: each().flat_map(|linear| linear.weights.clone()).collect(),
                biases: each().flat_map(|linear| linear.biases.clone()).collect(),
            };
            Part { name: at(&format!("experts.{name}")), linear, shape, is_gated: of == 0 }
        };
        let parts = [part(0, "gate_up", [count, 2 * width, hidden]), part(1, "down", [count, hidden, width])];
        let block = match self.products.precision {
            Precision::Int4 => INT4_GROUP,
            _ => int8_block(hidden).min(int8_block(width)),
        };
        let by_codes = self.products.by_codes();
        // Weights, scales and bias of each.
        let mut inputs = vec![rows, logits.clone()];
        for part in &parts {
            if by_codes {
                inputs.extend(self.codes(part, block)?);
            } else {
                inputs.push(self.expert_weights(part)?);
            }
            inputs.push(match part.linear.biases.is_empty() {
                true => String::new(),
                false => {
                    let (tensor, shape) =
                        (self.weights.stacked(&part.linear.biases)?, [count, part.shape[1], 1]);
                    let name = format!("{}.bias", part.name);
                    let bias = self.in_turns(part, &name, float_type(tensor.element), shape, &tensor);
                    let bias = self.widened(bias);
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

    /// The weights in floats.
    fn expert_weights(&mut self, part: &Part) -> Result<String, BundleError> {
        let names = &part.linear.weights;
        if self.weights.is_quantised(&names[0]) {
            let weight = self.weights.quantised(names)?;
            let bytes: Vec<u8> = weight.dequantised().into_iter().flat_map(f32::to_le_bytes).collect();
            self.graph.computed(&part.name, DataType::Float, &part.shape, || part.turned(bytes));
            return Ok(part.name.clone());
        }
        let tensor = self.weights.stacked(names)?;
        let weight = self.in_turns(part, &part.name, float_type(tensor.element), part.shape, &tensor);
        Ok(self.widened(weight))
    }

    /// In f32, if the weights are cast in every run.
    fn widened(&mut self, name: String) -> String {
        if !self.products.converted {
            return name;
        }
        let wide = format!("{name}.wide");
        self.graph.cast(&name, DataType::Float, &wide);
        wide
    }

    /// The codes, `[experts, out, bytes of a row]`, and their scales, `[experts, out, blocks]`.
    fn codes(&mut self, part: &Part, block: usize) -> Result<[String; 2], BundleError> {
        let weight = self.weights.quantised(&part.linear.weights)?;
        let ([count, rows, columns], name) = (part.shape, &part.name);
        let (scale_name, of_scales) = (format!("{name}.scale"), [count, rows, columns / block]);
        if self.products.precision == Precision::Int4 {
            let codes = self.in_turns(part, name, DataType::Uint8, [count, rows, columns / 2], &weight.codes);
            let scales = self.in_turns(part, &scale_name, DataType::Float, of_scales, &weight.scales);
            return Ok([codes, scales]);
        }
        // A row of int8 has one scale.
        let scales = weight.scale_values().into_iter();
        let scales =
            scales.flat_map(|scale| std::iter::repeat_n(scale.to_le_bytes(), columns / block)).flatten();
        self.graph.bytes(&scale_name, DataType::Float, &of_scales, part.turned(scales.collect()));
        if self.products.folds_constants {
            let stored = part.stored(part.shape);
            let codes = unsigned_codes(&mut self.graph, self.products, (name, &weight.codes), &stored);
            return Ok([self.turned(part, codes, part.shape), scale_name]);
        }
        let flipped = || part.turned(weight.codes.bytes.iter().map(|code| code ^ SIGN_BIT).collect());
        self.graph.computed(name, DataType::Uint8, &part.shape, flipped);
        Ok([name.clone(), scale_name])
    }

    /// A tensor of a part, of this shape, with the rows of gate and up in turns. Constant folding moves them while
    /// loading, so that no copy passes through the graph's own bytes.
    fn in_turns(
        &mut self,
        part: &Part,
        name: &str,
        kind: DataType,
        shape: [usize; 3],
        tensor: &TensorView<'_>,
    ) -> String {
        if part.is_gated && !self.products.folds_constants {
            self.graph.computed(name, kind, &shape, || part.turned(tensor.bytes.to_vec()));
            return name.to_owned();
        }
        self.graph.weight(name, kind, &part.stored(shape), tensor);
        self.turned(part, name.to_owned(), shape)
    }

    /// What is stored as [`Part::stored`], in this shape.
    fn turned(&mut self, part: &Part, stored: String, shape: [usize; 3]) -> String {
        if !part.is_gated {
            return stored;
        }
        let turned = format!("{stored}.turned");
        let order = [Attribute::Ints("perm", vec![0, 2, 1, 3])];
        self.graph.node((ONNX, "Transpose"), &[&stored], &[&turned], &order);
        self.reshaped(&turned, &shape)
    }

    fn reshaped(&mut self, input: &str, shape: &[usize]) -> String {
        let (dims, out) = (format!("{input}.dims"), format!("{input}.reshaped"));
        self.graph.integers(&dims, &shape.iter().map(|&size| size as i64).collect::<Vec<_>>());
        self.graph.node((ONNX, "Reshape"), &[input, &dims], &[&out], &[]);
        out
    }
}

impl Part {
    /// The shape of a tensor in the file, which has gate before up.
    fn stored(&self, [count, rows, columns]: [usize; 3]) -> Vec<usize> {
        if self.is_gated { vec![count, 2, rows / 2, columns] } else { vec![count, rows, columns] }
    }

    /// The bytes of such a tensor with the rows of gate and up in turns.
    fn turned(&self, bytes: Vec<u8>) -> Vec<u8> {
        if !self.is_gated {
            return bytes;
        }
        let [count, rows, _] = self.shape;
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
}
