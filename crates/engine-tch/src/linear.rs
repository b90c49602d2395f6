//! Linear layers, and the layouts of their weights.

use bundle::{Activation, LinearNames};
use engine::EngineError;
use tch::{Kind, TchError, Tensor};

use crate::error::framework;
use crate::layout::Layout;
use crate::quantised::{Int4, Int8};
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
    pub(crate) fn fused(reader: &Reader, names: &LinearNames, layout: Layout) -> Result<Linear, EngineError> {
        Linear::read(reader, names, layout, None)
    }

    /// The same with oneDNN, which also applies the activation.
    pub(crate) fn activated(
        reader: &Reader,
        names: &LinearNames,
        activation: Activation,
    ) -> Result<Linear, EngineError> {
        Linear::read(reader, names, Layout::Onednn, Some(activation))
    }

    fn read(
        reader: &Reader,
        names: &LinearNames,
        layout: Layout,
        activation: Option<Activation>,
    ) -> Result<Linear, EngineError> {
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
    pub(crate) fn separate(
        reader: &Reader,
        names: &LinearNames,
        rows: &[usize],
    ) -> Result<Vec<Linear>, EngineError> {
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
    pub(crate) fn head(reader: &Reader, name: &str, layout: Layout) -> Result<Linear, EngineError> {
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
    pub(crate) fn into_native(self) -> Result<NativeLinear, EngineError> {
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
