//! Recurrent layers, and codes of 8 bits.

use tch::{Device, Kind, Tensor};

use super::operators::{Call, Outcome};
use super::trace::untraced;

/// ONNX's order of an LSTM's gates is input, output, forget, cell; libtorch's is input, forget, cell, output.
const LSTM: [i64; 4] = [0, 2, 3, 1];
/// ONNX's order of a GRU's gates is update, reset, hidden; libtorch's is reset, update, hidden.
const GRU: [i64; 3] = [1, 0, 2];

/// A recurrent layer with libtorch's weights.
struct Recurrent {
    data: Tensor,
    weights: Vec<Tensor>,
    hidden: i64,
    directions: i64,
    is_reverse: bool,
}

impl Call<'_> {
    /// The rows of a weight `[directions, gates × hidden, …]` in libtorch's order of the gates, for each direction.
    fn rows(weight: &Tensor, order: &[i64], part: i64) -> Outcome<Vec<Tensor>> {
        let gates = order.len() as i64;
        let mut rows = Vec::new();
        for direction in 0..weight.size()[0] {
            let own = weight.f_select(0, direction)?;
            let hidden = own.size()[0] / gates / if own.dim() == 1 { 2 } else { 1 };
            let place = |gate: &i64| own.f_narrow(0, (part * gates + gate) * hidden, hidden);
            rows.push(Tensor::f_cat(&order.iter().map(place).collect::<Result<Vec<_>, _>>()?, 0)?);
        }
        Ok(rows)
    }

    fn recurrent(&self, order: &[i64]) -> Outcome<Recurrent> {
        let (data, weight, recurrence) = (self.tensor(0)?, self.tensor(1)?, self.tensor(2)?);
        let direction = self.node.string("direction").unwrap_or("forward");
        let directions = if direction == "bidirectional" { 2 } else { 1 };
        let gates = order.len() as i64;
        let hidden =
            self.node.int("hidden_size").unwrap_or_else(|| recurrence.size().last().copied().unwrap_or(0));
        if recurrence.size() != [directions, gates * hidden, hidden] || weight.dim() != 3 || data.dim() != 3 {
            return self.failed("its weights do not go with its hidden_size");
        }
        if self.node.float("clip").is_some() || self.node.int("input_forget").unwrap_or(0) != 0 {
            return self.unsupported("clip and input_forget");
        }
        if !self.has_usual_activations() {
            return self.unsupported("activations that are not the usual ones");
        }
        if self.node.int("layout").unwrap_or(0) != 0 {
            return self.unsupported("layout 1");
        }
        if self.inputs.has(4) {
            let steps = data.size()[0];
            let lengths = self.inputs.ints(4)?.unwrap_or_default();
            if lengths.iter().any(|&length| length != steps) {
                return self.unsupported("sequences of different lengths");
            }
        }
        let bias = self.optional(3)?;
        let pack = || {
            let mut all = vec![Self::rows(weight, order, 0)?, Self::rows(recurrence, order, 0)?];
            if let Some(bias) = bias {
                all.extend([Self::rows(bias, order, 0)?, Self::rows(bias, order, 1)?]);
            }
            let mut packed = Vec::new();
            for direction in 0..directions as usize {
                packed.extend(all.iter().filter_map(|rows| rows.get(direction)).map(Tensor::shallow_clone));
            }
            Ok(packed)
        };
        let is_constant = (1..4).all(|place| !self.inputs.has(place) || self.inputs.is_constant(place));
        let weights = if is_constant { untraced(|| self.libtorch.packed(weight, pack))? } else { pack()? };
        let is_reverse = direction == "reverse";
        let data = if is_reverse { data.f_flip([0])? } else { data.shallow_clone() };
        Ok(Recurrent { data, weights, hidden, directions, is_reverse })
    }

    fn has_usual_activations(&self) -> bool {
        let usual: &[&str] =
            if self.node.operator == "LSTM" { &["sigmoid", "tanh", "tanh"] } else { &["sigmoid", "tanh"] };
        let given = self.node.strings("activations").unwrap_or(&[]);
        given.iter().zip(usual.iter().cycle()).all(|(given, usual)| given.eq_ignore_ascii_case(usual))
    }

    fn state(&self, place: usize, layer: &Recurrent) -> Outcome<Tensor> {
        match self.optional(place)? {
            Some(state) => Ok(state.f_contiguous()?),
            None => {
                let size = [layer.directions, layer.data.size()[1], layer.hidden];
                Ok(Tensor::f_zeros(size, (layer.data.kind(), Device::Cpu))?)
            }
        }
    }

    /// All outputs, from libtorch's `[steps, batch, directions × hidden]`.
    fn all(&self, output: &Tensor, layer: &Recurrent) -> Outcome<Tensor> {
        let output = if layer.is_reverse { output.f_flip([0])? } else { output.shallow_clone() };
        let [steps, batch] = [output.size()[0], output.size()[1]];
        Ok(output.f_reshape([steps, batch, layer.directions, layer.hidden])?.f_permute([0, 2, 1, 3])?)
    }

    pub(super) fn lstm(&self) -> Outcome<Vec<Tensor>> {
        if self.inputs.has(7) {
            return self.unsupported("peepholes");
        }
        let layer = self.recurrent(&LSTM)?;
        let states = [self.state(5, &layer)?, self.state(6, &layer)?];
        let (has_bias, is_both) = (self.inputs.has(3), layer.directions == 2);
        let (output, hidden, cell) =
            layer.data.f_lstm(&states, &layer.weights, has_bias, 1, 0.0, false, is_both, false)?;
        Ok(vec![self.all(&output, &layer)?, hidden, cell])
    }

    pub(super) fn gru(&self) -> Outcome<Vec<Tensor>> {
        if self.node.int("linear_before_reset").unwrap_or(0) == 0 {
            return self.unsupported("linear_before_reset 0, which libtorch's GRU has not");
        }
        let layer = self.recurrent(&GRU)?;
        let state = self.state(5, &layer)?;
        let (has_bias, is_both) = (self.inputs.has(3), layer.directions == 2);
        let (output, hidden) =
            layer.data.f_gru(&state, &layer.weights, has_bias, 1, 0.0, false, is_both, false)?;
        Ok(vec![self.all(&output, &layer)?, hidden])
    }

    // Codes: numbers whose sums and products f64 has exactly.

    /// A scale or zero point in the shape in which it goes with the data.
    fn fitted(&self, row: &Tensor, data: &Tensor) -> Outcome<Tensor> {
        if row.numel() == 1 || row.dim() != 1 {
            return Ok(row.f_to_dtype(Kind::Float, false, false)?);
        }
        let axis = self.node.axis("axis", 1, data.dim())?;
        let mut size = vec![1; data.dim()];
        size[axis] = -1;
        Ok(row.f_to_dtype(Kind::Float, false, false)?.f_reshape(size)?)
    }

    pub(super) fn dequantise(&self) -> Outcome<Tensor> {
        if self.node.int("block_size").unwrap_or(0) != 0 {
            return self.unsupported("blocks");
        }
        let (codes, scale) = (self.tensor(0)?, self.tensor(1)?);
        let mut numbers = codes.f_to_dtype(Kind::Float, false, false)?;
        if let Some(zero) = self.optional(2)? {
            numbers = numbers.f_sub(&self.fitted(zero, codes)?)?;
        }
        Ok(numbers.f_mul(&self.fitted(scale, codes)?)?.f_to_dtype(scale.kind(), false, false)?)
    }

    /// The nearest codes of that type, of two the even one.
    fn rounded(&self, scaled: &Tensor, zero: Option<&Tensor>, kind: Kind) -> Outcome<Tensor> {
        let (least, most) = match kind {
            Kind::Uint8 => (0.0, 255.0),
            Kind::Int8 => (-128.0, 127.0),
            Kind::Int16 => (-32768.0, 32767.0),
            other => return self.unsupported(&format!("codes of {other:?}")),
        };
        let mut codes = scaled.f_round()?;
        if let Some(zero) = zero {
            codes = codes.f_add(&zero.f_to_dtype(codes.kind(), false, false)?)?;
        }
        Ok(codes.f_clamp(least, most)?.f_to_dtype(kind, false, false)?)
    }

    pub(super) fn quantise(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let scaled = data.f_div(&self.fitted(self.tensor(1)?, data)?)?;
        let zero = self.optional(2)?.map(|zero| self.fitted(zero, data)).transpose()?;
        self.rounded(&scaled, zero.as_ref(), self.kind_of_codes(2)?)
    }

    pub(super) fn quantise_by_range(&self) -> Outcome<Vec<Tensor>> {
        let data = self.tensor(0)?;
        let (least, most) = (data.f_min()?.f_clamp_max(0.0)?, data.f_max()?.f_clamp_min(0.0)?);
        let scale = most.f_sub(&least)?.f_div_scalar(255.0)?;
        let zero =
            least.f_neg()?.f_div(&scale)?.f_nan_to_num(0.0, None, None)?.f_round()?.f_clamp(0.0, 255.0)?;
        let scaled = data.f_div(&scale)?.f_nan_to_num(0.0, None, None)?;
        let codes = self.rounded(&scaled, Some(&zero), Kind::Uint8)?;
        Ok(vec![codes, scale, zero.f_to_dtype(Kind::Uint8, false, false)?])
    }

    pub(super) fn product_of_codes(&self) -> Outcome<Tensor> {
        let product = self.exact(0, 2)?.f_matmul(&self.exact(1, 3)?)?;
        Ok(product.f_to_dtype(Kind::Int, false, false)?)
    }

    pub(super) fn convolution_of_codes(&self) -> Outcome<Tensor> {
        let codes = self.convolve(&self.exact(0, 2)?, &self.exact_kernels(1, 3)?, None)?;
        Ok(codes.f_to_dtype(Kind::Int, false, false)?)
    }

    /// The kernels of a convolution, whose zero point and scale may be for each.
    fn exact_kernels(&self, codes: usize, zero: usize) -> Outcome<Tensor> {
        let kernels = self.tensor(codes)?.f_to_dtype(Kind::Double, false, false)?;
        let Some(zero) = self.optional(zero)? else { return Ok(kernels) };
        let mut size = vec![1; kernels.dim()];
        size[0] = -1;
        Ok(kernels.f_sub(&zero.f_to_dtype(Kind::Double, false, false)?.f_reshape(size)?)?)
    }

    pub(super) fn quantised_product(&self) -> Outcome<Tensor> {
        let product = self.exact(0, 2)?.f_matmul(&self.exact(3, 5)?)?;
        let scale = self.tensor(1)?.f_mul(self.tensor(4)?)?.f_div(self.tensor(6)?)?;
        self.rounded(&product.f_mul(&scale)?, self.optional(7)?, self.kind_of_codes(7)?)
    }

    pub(super) fn quantised_convolution(&self) -> Outcome<Tensor> {
        let bias = self.optional(8)?.map(|bias| bias.f_to_dtype(Kind::Double, false, false)).transpose()?;
        let sums = self.convolve(&self.exact(0, 2)?, &self.exact_kernels(3, 5)?, bias.as_ref())?;
        let mut size = vec![1; sums.dim()];
        size[1] = -1;
        let scale = self.tensor(1)?.f_mul(self.tensor(4)?)?.f_div(self.tensor(6)?)?.f_reshape(size)?;
        self.rounded(&sums.f_mul(&scale)?, self.optional(7)?, self.kind_of_codes(7)?)
    }
}
