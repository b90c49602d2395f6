//! A bundle's tensors as libtorch's; on a CPU they are over the mapped file.

use bundle::{Element, Precision, TensorView, Weights};
use tch::{Device, Kind, TchError, Tensor};
use worker::engine::Result;

use crate::framework;

pub(crate) struct Reader {
    weights: Weights,
    device: Device,
    /// Whether quantised weights are dequantised to f32.
    dequantised: bool,
}

impl Reader {
    pub(crate) fn new(weights: Weights, device: Device, dequantised: bool) -> Reader {
        Reader { weights, device, dequantised }
    }

    pub(crate) fn kind(&self) -> Kind {
        kind(self.weights.precision())
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    pub(crate) fn is_quantised(&self, name: &str) -> bool {
        self.weights.is_quantised(name)
    }

    /// The mapping, which must outlive every tensor that came from [`Reader::matrix`] and [`Reader::stacked`].
    pub(crate) fn into_weights(self) -> Weights {
        self.weights
    }

    /// A tensor over the mapped bytes, after reading them all into memory, or a copy on the device.
    pub(crate) fn matrix(&self, name: &str) -> Result<Tensor> {
        self.resident(&self.weights.tensor(name)?)
    }

    /// Releases the file's pages of `name` to the system, which reads them again if they are needed.
    pub(crate) fn release(&self, name: &str) -> Result<()> {
        self.weights.release(&self.weights.tensor(name)?);
        Ok(())
    }

    /// As [`Reader::matrix`], for adjacent tensors; a copy if they are dequantised.
    pub(crate) fn stacked(&self, names: &[String]) -> Result<Tensor> {
        if self.dequantises(names) {
            let device = self.device;
            return self.converted(names, |whole| whole.f_to_device_(device, Kind::Float, false, true));
        }
        self.resident(&self.weights.stacked(names)?)
    }

    /// The result of `convert` on adjacent tensors. Releases the file's pages.
    pub(crate) fn converted<T>(
        &self,
        names: &[String],
        convert: impl FnOnce(&Tensor) -> Result<T, TchError>,
    ) -> Result<T> {
        if self.dequantises(names) {
            let quantised = self.weights.quantised(names)?;
            let numbers = quantised.dequantised();
            let shape = [quantised.rows as i64, quantised.columns as i64];
            self.weights.release(&quantised.codes);
            let whole =
                Tensor::f_from_slice(&numbers).and_then(|flat| flat.f_view(shape)).map_err(framework)?;
            return convert(&whole).map_err(framework);
        }
        let view = self.weights.stacked(names)?;
        let converted = convert(&self.over(&view)?);
        self.weights.release(&view);
        converted.map_err(framework)
    }

    fn dequantises(&self, names: &[String]) -> bool {
        self.dequantised && self.weights.is_quantised(&names[0])
    }

    /// Scales of adjacent quantised tensors, f32.
    pub(crate) fn scales(&self, names: &[String]) -> Result<Tensor> {
        Tensor::f_from_slice(&self.weights.quantised(names)?.scale_values()).map_err(framework)
    }

    /// A copy, for small tensors: a view would keep pages that also contain their neighbours.
    pub(crate) fn vector(&self, name: &str) -> Result<Tensor> {
        self.vectors(std::slice::from_ref(&name.to_owned()))
    }

    pub(crate) fn vectors(&self, names: &[String]) -> Result<Tensor> {
        let tensor = self.over(&self.weights.stacked(names)?)?;
        tensor.f_to_device_(self.device, self.kind(), false, true).map_err(framework)
    }

    fn resident(&self, view: &TensorView<'_>) -> Result<Tensor> {
        let tensor = self.over(view)?;
        if self.device == Device::Cpu {
            view.touch();
            return Ok(tensor);
        }
        let copy = tensor.f_to_device(self.device).map_err(framework)?;
        self.weights.release(view);
        Ok(copy)
    }

    fn over(&self, view: &TensorView<'_>) -> Result<Tensor> {
        let shape: Vec<i64> = view.shape.iter().map(|&size| size as i64).collect();
        // SAFETY: the bundle has checked that the bytes match the shape and element type, and they stay
        // mapped for as long as the engine keeps the `Weights`. No operation here writes to a weight.
        #[allow(unsafe_code)]
        let tensor = unsafe {
            Tensor::f_from_blob(view.bytes.as_ptr(), &shape, &[], element_kind(view.element), Device::Cpu)
        };
        tensor.map_err(framework)
    }
}

pub(crate) fn kind(precision: Precision) -> Kind {
    match precision {
        Precision::Bf16 => Kind::BFloat16,
        Precision::F16 => Kind::Half,
        _ => Kind::Float,
    }
}

fn element_kind(element: Element) -> Kind {
    match element {
        Element::F32 => Kind::Float,
        Element::Bf16 => Kind::BFloat16,
        Element::F16 => Kind::Half,
        Element::I8 => Kind::Int8,
        Element::U8 => Kind::Uint8,
    }
}
