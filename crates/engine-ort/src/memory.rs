//! Tensors on the model's device, in the element type of its activations.

use std::ffi::CStr;

use engine::{Allocated, Device};
use half::f16;
use onnx::DataType;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::value::{DynTensor, DynTensorValueType, Tensor, TensorElementType, Value};
use ort::{AsPointer, sys};

/// An allocator of memory on `device`.
pub(crate) fn allocator(session: &Session, device: Device) -> ort::Result<Allocator> {
    let Device::Cuda(index) = device else { return Ok(Allocator::default()) };
    let index = i32::try_from(index).map_err(|error| ort::Error::new(error.to_string()))?;
    let device = AllocationDevice::CUDA;
    let memory = MemoryInfo::new(device, index, AllocatorType::Device, MemoryType::Default)?;
    Allocator::new(session, memory)
}

/// GPU memory allocated from the session's arena, from its statistics `InUse` and `MaxInUse`; `None` on a CPU
/// and if the library does not report them.
pub(crate) fn allocated(session: &Session, device: Device) -> Option<Allocated> {
    if device == Device::Cpu {
        return None;
    }
    let allocator = allocator(session, device).ok()?;
    let mut pairs: *mut sys::OrtKeyValuePairs = std::ptr::null_mut();
    // SAFETY: the calls follow the rules of the library's C interface: the allocator lives throughout, and
    // the pairs are freed once, after their texts have been read.
    #[allow(unsafe_code)]
    unsafe {
        let status = (ort::api().AllocatorGetStats)(allocator.ptr(), &raw mut pairs);
        ort::Error::result_from_status(status).ok()?;
        let read = |key: &CStr| {
            let text = (ort::api().GetKeyValue)(pairs, key.as_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text).to_str().ok()?.parse().ok()).flatten()
        };
        let both = (read(c"InUse"), read(c"MaxInUse"));
        (ort::api().ReleaseKeyValuePairs)(pairs);
        Some(Allocated { in_use: both.0?, peak: both.1? })
    }
}

/// `float` as the library's element type.
pub(crate) fn element(float: DataType) -> TensorElementType {
    match float {
        DataType::Float16 => TensorElementType::Float16,
        _ => TensorElementType::Float32,
    }
}

/// A tensor in host memory, in the element type `float`.
pub(crate) fn table(shape: [usize; 2], numbers: Vec<f32>, float: DataType) -> ort::Result<DynTensor> {
    Ok(match float {
        DataType::Float16 => {
            let narrow: Vec<f16> = numbers.into_iter().map(f16::from_f32).collect();
            Tensor::from_array((shape, narrow))?.upcast()
        }
        _ => Tensor::from_array((shape, numbers))?.upcast(),
    })
}

/// Row `index` of the first dimension of a cache, as a separate tensor over the same memory.
///
/// # Safety
/// `cache` must outlive the tensor and every binding of it.
#[allow(unsafe_code)]
pub(crate) unsafe fn row(cache: &mut DynTensor, index: usize) -> ort::Result<DynTensor> {
    let sizes: Vec<usize> = cache.shape().iter().map(|&size| size as usize).collect();
    let [rows, heads, capacity, dim] = sizes[..] else {
        return Err(ort::Error::new("a cache has four dimensions"));
    };
    assert!(index < rows);
    let element = *cache.data_type();
    let shape = [1, heads, capacity, dim];
    let address = cache.data_ptr_mut() as usize + index * bytes(element, shape)?;
    // SAFETY: the row is within the cache, which the caller keeps alive.
    unsafe { tensor_over(address, shape, (cache.memory_info(), element)) }
}

fn bytes(element: TensorElementType, shape: [usize; 4]) -> ort::Result<usize> {
    let bytes = element.byte_size(shape.iter().product());
    bytes.ok_or_else(|| ort::Error::new(format!("elements of type {element} have no fixed size")))
}

/// A tensor over memory that it does not own. `TensorRefMut` would work for outputs; as inputs, crate `ort`
/// binds copies of tensors that it knows to be borrowed.
///
/// # Safety
/// The memory must have room for the shape in that type, and must outlive the tensor and every binding of it.
#[allow(unsafe_code)]
pub(crate) unsafe fn tensor_over(
    address: usize,
    shape: [usize; 4],
    (info, element): (&MemoryInfo<'_>, TensorElementType),
) -> ort::Result<DynTensor> {
    let allocator = Allocator::default();
    let bytes = bytes(element, shape)?;
    let shape = shape.map(|size| size as i64);
    let mut value: *mut sys::OrtValue = std::ptr::null_mut();
    // SAFETY: the call follows the rules of the library's C interface; it reads shape and info only while it
    // runs.
    let status = unsafe {
        (ort::api().CreateTensorWithDataAsOrtValue)(
            info.ptr(),
            address as *mut std::ffi::c_void,
            bytes,
            shape.as_ptr(),
            shape.len(),
            element.into(),
            &mut value,
        )
    };
    // SAFETY: the status comes from that call, and is not used again.
    unsafe { ort::Error::result_from_status(status) }?;
    let value = std::ptr::NonNull::new(value).ok_or_else(|| ort::Error::new("no tensor was made"))?;
    // SAFETY: the tensor was just made, and only this value releases it. That does not free the owner's
    // memory.
    Ok(unsafe { Value::<DynTensorValueType>::from_ptr(value, Some(&allocator)) })
}
