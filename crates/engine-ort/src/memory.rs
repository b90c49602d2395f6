//! Tensors on the device that the model is on, in the element type of its activations.

use engine::Device;
use half::f16;
use onnx::DataType;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::value::{DynTensor, Tensor, TensorElementType};

/// An allocator of memory on `device`.
pub(crate) fn allocator(session: &Session, device: Device) -> ort::Result<Allocator> {
    let Device::Cuda(index) = device else { return Ok(Allocator::default()) };
    let index = i32::try_from(index).map_err(|error| ort::Error::new(error.to_string()))?;
    let device = AllocationDevice::CUDA;
    let memory = MemoryInfo::new(device, index, AllocatorType::Device, MemoryType::Default)?;
    Allocator::new(session, memory)
}

/// `float` as the library's functions name it.
pub(crate) fn element(float: DataType) -> TensorElementType {
    match float {
        DataType::Float16 => TensorElementType::Float16,
        _ => TensorElementType::Float32,
    }
}

/// Numbers of the host's in the element type `float`.
pub(crate) fn table(shape: [usize; 2], numbers: Vec<f32>, float: DataType) -> ort::Result<DynTensor> {
    Ok(match float {
        DataType::Float16 => {
            let narrow: Vec<f16> = numbers.into_iter().map(f16::from_f32).collect();
            Tensor::from_array((shape, narrow))?.upcast()
        }
        _ => Tensor::from_array((shape, numbers))?.upcast(),
    })
}
