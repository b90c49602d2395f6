//! Linear layers, and the layouts of their weights.

use bundle::quantised::{INT4_GROUP, INT4_OFFSET};
use bundle::{Activation, LinearNames};
use tch::{Device, Kind, TchError, Tensor};
use worker::engine::{EngineError, Result};

use crate::framework;
use crate::layout::{Layout, multiplies_bf16};
use crate::reader::Reader;
use crate::shim::{self, NativeLinear};

/// From this many rows, widening a weight to f32 is faster than multiplying in f16.
const WIDENED_ROWS: i64 = 24;

/// From this many rows, oneDNN multiplies by its packed copy faster than libtorch's own bf16 kernel.
pub(crate) const ONEDNN_ROWS: i64 = 3;

/// x · Wᵀ + b
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
}

enum Weight {
    Plain(Tensor),
    /// The second from [`ONEDNN_ROWS`] on.
    ByRow(Tensor, NativeLinear),
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
                let both = |weight: &Tensor| {
                    let mut copy = weight.f_empty_like()?;
                    copy.f_copy_(weight)?;
                    Ok(Weight::ByRow(copy, NativeLinear::onednn(weight, None, None)?))
                };
                reader.converted(weights, both)?
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

    /// A layer that is in no precision quantised: a router of experts.
    pub(crate) fn unquantised(reader: &Reader, names: &LinearNames, layout: Layout) -> Result<Linear> {
        let layout = match layout {
            Layout::Widened | Layout::Converted => layout,
            _ => Layout::Plain,
        };
        Linear::fused(reader, names, layout)
    }

    /// The output head. `name` is the embedding's if the two are tied.
    pub(crate) fn head(reader: &Reader, name: &str, bias: Option<String>, layout: Layout) -> Result<Linear> {
        let names = LinearNames { weights: vec![name.to_owned()], biases: bias.into_iter().collect() };
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
            Weight::ByRow(weight, _) if x.size2()?.0 < ONEDNN_ROWS => {
                biased(shim::multiply_without_onednn(weight, x)?, bias)
            }
            Weight::ByRow(_, packed) => biased(packed.forward(x)?, bias),
            Weight::Plain(weight) => x.f_linear(weight, bias),
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
// inputs and outputs are rounded to it. The kernels widen the codes and multiply in f32. oneDNN's products in bf16, of codes
// that are widened before, are faster for many rows.

/// From this many rows on, widening the codes to bf16 for `linear` is faster than the kernels that read codes, if the CPU
/// multiplies in bf16; without that, int8 is widened from [`WIDENED_ROWS_WITHOUT_BF16`] on, and int4 not at all.
const INT8_WIDENED_ROWS: i64 = 16;
const INT4_WIDENED_ROWS: i64 = 48;
const WIDENED_ROWS_WITHOUT_BF16: i64 = 48;

/// The least rows whose product is of widened codes.
pub(crate) fn widened_rows(layout: Layout) -> i64 {
    match (layout, multiplies_bf16()) {
        (Layout::Int8, true) => INT8_WIDENED_ROWS,
        (Layout::Int8, false) => WIDENED_ROWS_WITHOUT_BF16,
        (_, true) => INT4_WIDENED_ROWS,
        (_, false) => i64::MAX,
    }
}

/// Weights that are widened at once: in bf16 they stay in a core's cache until they are multiplied.
const WIDENED: i64 = 1 << 20;

/// `x · Wᵀ` in bf16. `widened` gives some of the weight's rows, `[count, in]`, from `first` on.
fn by_parts(
    x: &Tensor,
    outputs: i64,
    widened: impl Fn(i64, i64) -> Result<Tensor, TchError>,
) -> Result<Tensor, TchError> {
    let step = (WIDENED / x.size2()?.1).max(1);
    let product = |first: i64| x.f_linear(&widened(first, step.min(outputs - first))?, None::<&Tensor>);
    let parts = (0..outputs).step_by(step as usize).map(product).collect::<Result<Vec<_>, _>>()?;
    Tensor::f_cat(&parts, 1)
}

/// Bytes to which codes are aligned for a kernel that loads 16 at once. In a file they may follow an odd number of scales.
const INT8_ALIGNMENT: usize = 16;

/// Weights with one scale per output.
pub(crate) struct Int8 {
    /// `[out, in]`, as in the file, or a copy of codes that lie there where the kernel cannot load them.
    codes: Tensor,
    /// `[out]`, bf16, in which they are exact.
    scales: Tensor,
    widened_rows: i64,
}

impl Int8 {
    pub(crate) fn read(reader: &Reader, names: &[String]) -> Result<Int8> {
        let scales = reader.scales(names)?.f_to_kind(Kind::BFloat16).map_err(framework)?;
        let mut codes = reader.stacked(names)?;
        if !(codes.data_ptr() as usize).is_multiple_of(INT8_ALIGNMENT) {
            codes = reader
                .converted(names, |codes| codes.f_to_device_(Device::Cpu, codes.kind(), false, true))?;
        }
        Ok(Int8 { codes, scales, widened_rows: widened_rows(Layout::Int8) })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let input = x.f_to_kind(Kind::BFloat16)?;
        if x.size2()?.0 < self.widened_rows {
            return input.f_internal_weight_int8pack_mm(&self.codes, &self.scales)?.f_to_kind(x.kind());
        }
        // 8-bit integers are exact in bf16.
        let widened = |first, count| self.codes.f_narrow(0, first, count)?.f_to_kind(Kind::BFloat16);
        let product = by_parts(&input, self.codes.size2()?.0, widened)?;
        product.f_to_kind(x.kind())?.f_multiply_(&self.scales)
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
    /// For products of many rows, where the CPU has instructions for them.
    plain: Option<PlainInt4>,
}

/// The same as in the file.
struct PlainInt4 {
    /// `[out, in / 2]`
    pairs: Tensor,
    /// `[out, in / group, 1]`, bf16.
    scales: Tensor,
    /// From this many rows of activations on.
    rows: i64,
}

impl PlainInt4 {
    /// Rows in bf16, to which products of a code and a scale are rounded.
    fn widened(&self, first: i64, count: i64) -> Result<Tensor, TchError> {
        // In bf16 a code in the lowest bits of 128 is 128 more than itself, and 32 bits hold two of them.
        const BOTH: i64 = 0x000f_000f;
        const OF_128: i64 = 0x4300_4300;
        const ABOVE: f64 = 128.0 + INT4_OFFSET as f64;
        let pairs = self.pairs.f_narrow(0, first, count)?.f_to_kind(Kind::Int)?;
        let mut codes = pairs.f_bitwise_left_shift_tensor_scalar(12)?;
        let codes = codes.f_bitwise_or_tensor_(&pairs)?.f_bitwise_and_(BOTH)?.f_bitwise_or_(OF_128)?;
        let codes = codes.f_view_dtype(Kind::BFloat16)?;
        let mut grouped = codes.f_view([count, -1, INT4_GROUP as i64])?;
        let scales = self.scales.f_narrow(0, first, count)?;
        grouped.f_subtract_scalar_(ABOVE)?.f_multiply_(&scales)?.f_view([count, -1])
    }
}

/// The kernel multiplies this many outputs at a time; its layout is a sequence of such blocks.
const INT4_BLOCK: i64 = 64;

/// Rows packed at a time. Packing widens codes to i32, and all at once would take eight times the weight's
/// memory.
const INT4_PACKED_ROWS: i64 = 4 * INT4_BLOCK;

impl Int4 {
    pub(crate) fn read(reader: &Reader, names: &[String]) -> Result<Int4> {
        let (group, scales) = (INT4_GROUP as i64, reader.scales(names)?);
        let widened_rows = widened_rows(Layout::Int4);
        let plain = (widened_rows < i64::MAX).then(|| {
            let pairs = reader.stacked(names)?;
            let scales = scales.f_to_kind(Kind::BFloat16);
            let scales = scales.and_then(|flat| flat.f_view([pairs.size()[0], -1, 1])).map_err(framework)?;
            Ok::<_, EngineError>(PlainInt4 { pairs, scales, rows: widened_rows })
        });
        let plain = plain.transpose()?;
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
            Ok(Int4 { codes, scales_and_zeros, outputs, plain })
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let input = x.f_to_kind(Kind::BFloat16)?;
        if let Some(plain) = self.plain.as_ref().filter(|plain| x.size()[0] >= plain.rows) {
            let product = by_parts(&input, self.outputs, |first, count| plain.widened(first, count))?;
            return product.f_to_kind(x.kind());
        }
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
            let layers = (0..config.layers.len()).map(|index| config.layer(index));
            let weights = layers.flat_map(|layer| {
                [layer.qkv, layer.output, layer.gate_up, layer.down].map(|linear| linear.weights)
            });
            for names in weights.chain([vec![config.lm_head()]]) {
                for precision in [Precision::Int8, Precision::Int4] {
                    let weights = bundle.weights(precision).expect("maps");
                    let expected = weights.quantised(&names).expect("is there");
                    let reader = Reader::new(bundle.weights(precision).expect("maps"), Device::Cpu, false);
                    let multiply: Box<dyn Fn(&Tensor) -> Tensor> = if precision == Precision::Int8 {
                        let Int8 { codes, scales, .. } = Int8::read(&reader, &names).expect("reads");
                        let scales = scales.to_kind(Kind::Float);
                        Box::new(move |unit| unit.internal_weight_int8pack_mm(&codes, &scales))
                    } else {
                        let Int4 { codes, scales_and_zeros, outputs, .. } =
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

    #[test]
    fn codes_behind_an_odd_number_of_scales_are_where_the_kernel_can_load_them() {
        for model in conformance::each(conformance::hearing_models()) {
            let reader =
                Reader::new(model.bundle.weights(Precision::Int8).expect("maps"), Device::Cpu, false);
            let names = model.bundle.config().layer(0).qkv.weights;
            let address = |codes: &Tensor| codes.data_ptr() as usize % INT8_ALIGNMENT;
            assert_ne!(address(&reader.stacked(&names).expect("reads")), 0, "the vocabulary is odd");
            let codes = Int8::read(&reader, &names).expect("reads").codes;
            assert_eq!((address(&codes), codes.equal(&reader.stacked(&names).expect("reads"))), (0, true));
        }
    }

    #[test]
    fn widened_codes_are_the_weights_rounded_to_bf16() {
        let model = conformance::tiny().into_iter().next().expect("a model");
        let names = model.bundle.config().layer(0).qkv.weights;
        let weights = model.bundle.weights(Precision::Int4).expect("maps");
        let expected = weights.quantised(&names).expect("is there");
        let reader = Reader::new(model.bundle.weights(Precision::Int4).expect("maps"), Device::Cpu, false);
        let flat = reader.scales(&names).expect("reads").to_kind(Kind::BFloat16);
        let pairs = reader.stacked(&names).expect("reads");
        let plain = PlainInt4 { scales: flat.view([pairs.size()[0], -1, 1]), pairs, rows: 1 };
        let rows = expected.rows as i64;
        let parts = [plain.widened(0, 3).expect("widens"), plain.widened(3, rows - 3).expect("widens")];
        let widened = Tensor::cat(&parts, 0).to_kind(Kind::Float).view(-1);
        let rounded =
            Tensor::from_slice(&expected.dequantised()).to_kind(Kind::BFloat16).to_kind(Kind::Float);
        assert_eq!(Vec::<f32>::try_from(widened).expect("f32"), Vec::<f32>::try_from(rounded).expect("f32"));
    }
}
