//! Linear layers, and in which layout their weights are held.

use bundle::LinearNames;
use engine::{EngineError, Settings};
use tch::{Device, Kind, TchError, Tensor};

use crate::reader::Reader;
use crate::{framework, shim};

/// Rows from which on widening a weight costs less than multiplying it in f16.
const WIDENED_ROWS: i64 = 24;

/// How the weights of linear layers are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// As the file has them, in place; on a GPU, copied there.
    Plain,
    /// In place, f16, on a CPU without arithmetic in f16. libtorch multiplies a weight with one row well there,
    /// with several badly: from [`WIDENED_ROWS`] on they are multiplied in f32.
    Widened,
    /// A copy in the blocked layout that oneDNN's kernels read.
    Packed,
}

impl Layout {
    /// What attention computes in, and keys and values are kept in.
    pub(crate) fn attention_kind(self, kind: Kind) -> Kind {
        if self == Layout::Widened { Kind::Float } else { kind }
    }

    /// The fastest for this machine and element type, unless the settings say whether to pack. MKL's f32
    /// kernels are at the speed of memory on Intel's CPUs, and at half of it on others. The README has the
    /// measurements.
    pub(crate) fn choose(settings: &Settings, device: Device, kind: Kind) -> Result<Layout, EngineError> {
        let fused = settings.flag("fused", true)?;
        let faster =
            device == Device::Cpu && (kind != Kind::Float || tch::utils::has_mkl() && !shim::cpu_is_intel());
        let possible = possible(device, kind);
        let packed = settings.flag("packed", fused && faster && possible.is_ok())?;
        match (packed, fused) {
            (false, true) if kind == Kind::Half && device == Device::Cpu && possible.is_err() => {
                Ok(Layout::Widened)
            }
            (false, _) => Ok(Layout::Plain),
            (true, true) => possible.map(|()| Layout::Packed),
            (true, false) => Err(EngineError::Input("packed=true goes with fused=true".into())),
        }
    }
}

/// Whether oneDNN has kernels for `kind` here. It alone knows, so it is asked to pack something small.
fn possible(device: Device, kind: Kind) -> Result<(), EngineError> {
    if device != Device::Cpu {
        return Err(EngineError::Unsupported("packed weights exist on the CPU alone".into()));
    }
    let small = Tensor::f_zeros([16, 16], (kind, device)).map_err(framework)?;
    match shim::pack(&small) {
        Ok(_) => Ok(()),
        Err(error) => Err(EngineError::Unsupported(format!("packed weights: {}", framework(error)))),
    }
}

/// x · Wᵀ + b
pub(crate) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    layout: Layout,
}

impl Linear {
    /// One layer of all of `names`, stacked.
    pub(crate) fn fused(reader: &Reader, names: &LinearNames, layout: Layout) -> Result<Linear, EngineError> {
        let bias = (!names.biases.is_empty()).then(|| reader.vectors(&names.biases)).transpose()?;
        let weight = match layout {
            Layout::Plain | Layout::Widened => reader.stacked(&names.weights)?,
            Layout::Packed => {
                reader.converted(&names.weights, |weight| shim::pack(weight).map_err(framework))?
            }
        };
        Ok(Linear { weight, bias, layout })
    }

    /// A layer for each of `rows`, in place, of tensors that lie side by side or are one already.
    pub(crate) fn separate(
        reader: &Reader,
        names: &LinearNames,
        rows: &[usize],
    ) -> Result<Vec<Linear>, EngineError> {
        let whole = Linear::fused(reader, names, Layout::Plain)?;
        let mut start = 0;
        let part = |&rows: &usize| {
            let narrow = |tensor: &Tensor| tensor.f_narrow(0, start, rows as i64);
            let weight = narrow(&whole.weight)?;
            let bias = whole.bias.as_ref().map(narrow).transpose()?;
            start += rows as i64;
            Ok(Linear { weight, bias, layout: Layout::Plain })
        };
        rows.iter().map(part).collect::<Result<_, _>>().map_err(framework)
    }

    /// The output head: of the embedding's weight where the two are tied, which stays mapped.
    pub(crate) fn head(
        reader: &Reader,
        name: &str,
        embedding: Option<&Tensor>,
        layout: Layout,
    ) -> Result<Linear, EngineError> {
        let weight = match (embedding, layout) {
            (Some(embedding), Layout::Plain | Layout::Widened) => embedding.shallow_clone(),
            (Some(embedding), Layout::Packed) => shim::pack(embedding).map_err(framework)?,
            (None, _) => {
                let names = LinearNames { weights: vec![name.to_owned()], biases: Vec::new() };
                return Linear::fused(reader, &names, layout);
            }
        };
        Ok(Linear { weight, bias: None, layout })
    }

    /// `x` is `[rows, in]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        match self.layout {
            Layout::Packed => shim::packed_linear(x, &self.weight, self.bias.as_ref()),
            Layout::Widened if x.size2()?.0 >= WIDENED_ROWS => {
                let wide = |tensor: &Tensor| tensor.f_to_kind(Kind::Float);
                let bias = self.bias.as_ref().map(wide).transpose()?;
                wide(x)?.f_linear(&wide(&self.weight)?, bias)?.f_to_kind(x.kind())
            }
            Layout::Plain | Layout::Widened => x.f_linear(&self.weight, self.bias.as_ref()),
        }
    }
}
