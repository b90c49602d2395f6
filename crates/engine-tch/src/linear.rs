//! Linear layers, and the layouts of their weights.

use bundle::quantised::INT4_GROUP;
use bundle::{Activation, LinearNames};
use tch::{Kind, TchError, Tensor};
use worker::engine::{EngineError, Result};

use crate::framework;
use crate::layout::Layout;
use crate::reader::Reader;
use crate::shim::{self, NativeLinear};

/// From this many rows, widening a weight to f32 is faster than multiplying in f16.
const WIDENED_ROWS: i64 = 24;

/// From this many rows, oneDNN multiplies by a weight in place faster than libtorch's own bf16 kernel.
const ONEDNN_ROWS: i64 = 3;

/// x · Wᵀ + b
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
}

enum Weight {
    Plain(Tensor),
    /// Without oneDNN below this many rows.
    ByRow(Tensor, i64),
    /// In f32 from this many rows.
    Widened(Tensor, i64),
    /// Includes the bias.
    Packed(NativeLinear),
    Int8(Int8),
    Int4(Int4),
}

impl Linear {
    /// One layer, with the weights of all `names` stacked.
    pub(crate) fn fused(reader: &Reader, names: &LinearNames, layout: Layout) -> Result<Linear> {
        Linear::read(reader, names, layout, None)
    }

    /// The same, with an activation that oneDNN's product also applies.
    pub(crate) fn read(
        reader: &Reader,
        names: &LinearNames,
        layout: Layout,
        activation: Option<Activation>,
    ) -> Result<Linear> {
        let mut bias = (!names.biases.is_empty()).then(|| reader.vectors(&names.biases)).transpose()?;
        let weights = &names.weights;
        let weight = match layout {
            Layout::Plain => Weight::Plain(reader.stacked(weights)?),
            Layout::ByRow => {
                let copy = |weight: &Tensor| {
                    let mut copy = weight.f_empty_like()?;
                    copy.f_copy_(weight)?;
                    Ok(copy)
                };
                Weight::ByRow(reader.converted(weights, copy)?, ONEDNN_ROWS)
            }
            Layout::Widened => Weight::Widened(reader.stacked(weights)?, WIDENED_ROWS),
            Layout::Converted => Weight::Widened(reader.stacked(weights)?, 0),
            Layout::Onednn => {
                let bias = bias.take();
                let pack = |weight: &Tensor| NativeLinear::onednn(weight, bias.as_ref(), activation);
                Weight::Packed(reader.converted(weights, pack)?)
            }
            Layout::Xnnpack => {
                let bias = bias.take();
                let pack = |weight: &Tensor| NativeLinear::xnnpack(weight, bias.as_ref());
                Weight::Packed(reader.converted(weights, pack)?)
            }
            Layout::Int8 => Weight::Int8(Int8::read(reader, weights)?),
            Layout::Int4 => Weight::Int4(Int4::read(reader, weights)?),
        };
        Ok(Linear { weight, bias })
    }

    /// A layer for each of `rows`, in place, of tensors that are adjacent in the file or already one.
    pub(crate) fn separate(reader: &Reader, names: &LinearNames, rows: &[usize]) -> Result<Vec<Linear>> {
        let whole = reader.stacked(&names.weights)?;
        let bias = (!names.biases.is_empty()).then(|| reader.vectors(&names.biases)).transpose()?;
        let mut start = 0;
        let part = |&rows: &usize| {
            let narrow = |tensor: &Tensor| tensor.f_narrow(0, start, rows as i64);
            let weight = Weight::Plain(narrow(&whole)?);
            let bias = bias.as_ref().map(narrow).transpose()?;
            start += rows as i64;
            Ok(Linear { weight, bias })
        };
        rows.iter().map(part).collect::<Result<_, _>>().map_err(framework)
    }

    /// The output head. `name` is the embedding's if the two are tied.
    pub(crate) fn head(reader: &Reader, name: &str, layout: Layout) -> Result<Linear> {
        let names = LinearNames { weights: vec![name.to_owned()], biases: Vec::new() };
        Linear::fused(reader, &names, layout)
    }

    /// The weight, `[out, in]`, unless it is packed or quantised.
    pub(crate) fn unpacked(&self) -> Option<&Tensor> {
        match &self.weight {
            Weight::Plain(weight) | Weight::ByRow(weight, _) | Weight::Widened(weight, _) => Some(weight),
            _ => None,
        }
    }

    /// The same as an object for TorchScript.
    pub(crate) fn into_native(self) -> Result<NativeLinear> {
        match self.weight {
            Weight::Plain(weight) => {
                NativeLinear::plain(&weight, self.bias.as_ref()).map_err(framework)
            }
            Weight::Packed(linear) => Ok(linear),
            Weight::ByRow(..) | Weight::Widened(..) | Weight::Int8(_) | Weight::Int4(_) => Err(EngineError::Unsupported(
                "execution=torchscript drives linear layers that are one operator each: not int8, int4, or f16 on \
                 a CPU without arithmetic in f16, nor weights that are converted"
                    .into(),
            )),
        }
    }

    /// `x` is `[rows, in]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let bias = self.bias.as_ref();
        match &self.weight {
            Weight::ByRow(weight, rows) if x.size2()?.0 < *rows => {
                biased(shim::multiply_without_onednn(weight, x)?, bias)
            }
            Weight::Plain(weight) | Weight::ByRow(weight, _) => x.f_linear(weight, bias),
            Weight::Widened(weight, rows) if x.size2()?.0 >= *rows => {
                let wide = |tensor: &Tensor| tensor.f_to_kind(Kind::Float);
                let bias = bias.map(wide).transpose()?;
                wide(x)?.f_linear(&wide(weight)?, bias)?.f_to_kind(x.kind())
            }
            Weight::Widened(weight, _) => x.f_linear(weight, bias),
            Weight::Packed(linear) => linear.forward(x),
            Weight::Int8(weight) => biased(weight.forward(x)?, bias),
            Weight::Int4(weight) => biased(weight.forward(x)?, bias),
        }
    }
}

fn biased(mut product: Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
    match bias {
        Some(bias) => product.f_add_(bias),
        None => Ok(product),
    }
}

// Weights of 8 and 4 bits, for libtorch's own kernels.
//
// Both kernels are fast only for activations in bf16 (f32 and f16 take 7 and 16 to 30 times as long), so
// inputs and outputs are rounded to it. The kernels widen the codes and multiply in f32.

/// From this many rows, a product in bf16 is faster than `_weight_int8pack_mm`, including the widening of the
/// codes.
const QUANTISED_WIDENED_ROWS: i64 = 48;

/// Weights with one scale per output.
pub(crate) struct Int8 {
    /// `[out, in]`, as in the file.
    codes: Tensor,
    /// `[out]`, bf16, in which they are exact.
    scales: Tensor,
}

impl Int8 {
    pub(crate) fn read(reader: &Reader, names: &[String]) -> Result<Int8> {
        let scales = reader.scales(names)?.f_to_kind(Kind::BFloat16).map_err(framework)?;
        Ok(Int8 { codes: reader.stacked(names)?, scales })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let input = x.f_to_kind(Kind::BFloat16)?;
        if x.size2()?.0 < QUANTISED_WIDENED_ROWS {
            return input.f_internal_weight_int8pack_mm(&self.codes, &self.scales)?.f_to_kind(x.kind());
        }
        // 8-bit integers are exact in bf16.
        let codes = self.codes.f_to_kind(Kind::BFloat16)?;
        input.f_linear(&codes, None::<&Tensor>)?.f_to_kind(x.kind())?.f_multiply_(&self.scales)
    }
}

/// Weights with one scale per group of inputs.
pub(crate) struct Int4 {
    /// In the kernel's layout.
    codes: Tensor,
    /// `[in / group, out, 2]`, bf16, in which the scales are exact. All zero points are 0.
    scales_and_zeros: Tensor,
    /// Without the padding of the last block.
    outputs: i64,
}

/// The kernel multiplies this many outputs at a time; its layout is a sequence of such blocks.
const INT4_BLOCK: i64 = 64;

/// Rows packed at a time. Packing widens codes to i32, and all at once would take eight times the weight's
/// memory.
const INT4_PACKED_ROWS: i64 = 4 * INT4_BLOCK;

impl Int4 {
    pub(crate) fn read(reader: &Reader, names: &[String]) -> Result<Int4> {
        let (group, scales) = (INT4_GROUP as i64, reader.scales(names)?);
        reader.converted(names, |pairs| {
            let (outputs, half) = pairs.size2()?;
            let filled = whole_blocks(outputs);
            let options = (Kind::BFloat16, pairs.device());
            let scales_and_zeros = Tensor::f_zeros([2 * half / group, filled, 2], options)?;
            scales_and_zeros
                .f_narrow(1, 0, outputs)?
                .f_select(2, 0)?
                .f_copy_(&scales.f_view([outputs, -1])?.f_transpose(0, 1)?)?;
            let codes = Tensor::f_zeros([filled, half], (Kind::Uint8, pairs.device()))?;
            for start in (0..outputs).step_by(INT4_PACKED_ROWS as usize) {
                let rows = INT4_PACKED_ROWS.min(outputs - start);
                let packed = pack_int4(&pairs.f_narrow(0, start, rows)?)?;
                codes.f_narrow(0, start, packed.size2()?.0)?.f_copy_(&packed)?;
            }
            Ok(Int4 { codes, scales_and_zeros, outputs })
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let input = x.f_to_kind(Kind::BFloat16)?;
        let group = INT4_GROUP as i64;
        let product =
            input.f_internal_weight_int4pack_mm_for_cpu(&self.codes, group, &self.scales_and_zeros)?;
        product.f_narrow(1, 0, self.outputs)?.f_to_kind(x.kind())
    }
}

/// Packs pairs of codes, `[rows, in / 2]`, with the even column in the low half. Rows are padded to whole
/// blocks.
fn pack_int4(pairs: &Tensor) -> Result<Tensor, TchError> {
    let (rows, half) = pairs.size2()?;
    let codes = Tensor::f_zeros([whole_blocks(rows), half, 2], (Kind::Int, pairs.device()))?;
    let slot = |column| codes.f_narrow(0, 0, rows)?.f_select(2, column);
    slot(0)?.f_copy_(&pairs.f_bitwise_and(15)?)?;
    slot(1)?.f_copy_(&pairs.f_bitwise_right_shift_tensor_scalar(4)?)?;
    codes.f_view([-1, 2 * half])?.f_internal_convert_weight_to_int4pack_for_cpu(1)
}

fn whole_blocks(rows: i64) -> i64 {
    (rows + INT4_BLOCK - 1) / INT4_BLOCK * INT4_BLOCK
}

#[cfg(test)]
mod tests {
    use bundle::Precision;
    use tch::Device;

    use super::*;

    /// The product with the unit matrix in f32: the kernels then multiply in f32, and each output is one
    /// weight.
    fn held(multiply: impl Fn(&Tensor) -> Tensor, inputs: usize) -> Vec<f32> {
        let unit = Tensor::eye(inputs as i64, (Kind::Float, Device::Cpu));
        let weight = multiply(&unit).transpose(0, 1).contiguous().view(-1);
        Vec::try_from(weight).expect("f32")
    }

    #[test]
    fn the_weights_held_are_bit_for_bit_those_of_the_bundle() {
        for model in conformance::tiny() {
            let (bundle, config) = (&model.bundle, model.bundle.config());
            let layers = (0..config.layers).map(|index| config.layer(index));
            let weights = layers.flat_map(|layer| {
                [layer.qkv, layer.output, layer.gate_up, layer.down].map(|linear| linear.weights)
            });
            for names in weights.chain([vec![config.lm_head()]]) {
                for precision in [Precision::Int8, Precision::Int4] {
                    let weights = bundle.weights(precision).expect("maps");
                    let expected = weights.quantised(&names).expect("is there");
                    let reader = Reader::new(bundle.weights(precision).expect("maps"), Device::Cpu, false);
                    let multiply: Box<dyn Fn(&Tensor) -> Tensor> = if precision == Precision::Int8 {
                        let Int8 { codes, scales } = Int8::read(&reader, &names).expect("reads");
                        let scales = scales.to_kind(Kind::Float);
                        Box::new(move |unit| unit.internal_weight_int8pack_mm(&codes, &scales))
                    } else {
                        let Int4 { codes, scales_and_zeros, outputs } =
                            Int4::read(&reader, &names).expect("reads");
                        let scales = scales_and_zeros.to_kind(Kind::Float);
                        let group = INT4_GROUP as i64;
                        Box::new(move |unit| {
                            let product = unit.internal_weight_int4pack_mm_for_cpu(&codes, group, &scales);
                            product.narrow(1, 0, outputs)
                        })
                    };
                    let held = held(multiply, expected.columns);
                    assert!(held == expected.dequantised(), "{precision} {names:?}");
                }
            }
        }
    }
}
