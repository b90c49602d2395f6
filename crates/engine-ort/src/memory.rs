//! Tensors on the device that the model is on, in the element type of its activations.

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

/// What the session's arena on a GPU has handed out, by its statistics `InUse` and `MaxInUse`; `None` on a CPU, and
/// where the library does not tell.
pub(crate) fn allocated(session: &Session, device: Device) -> Option<Allocated> {
    if device == Device::Cpu {
        return None;
    }
    let allocator = allocator(session, device).ok()?;
    let mut pairs: *mut sys::OrtKeyValuePairs = std::ptr::null_mut();
    // SAFETY: calls of the library's C interface by its rules: the allocator lives throughout, the pairs are freed once,
    // and their texts are read before that.
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

/// Row `index` of the first dimension of a cache, as a tensor of its own over the same memory.
///
/// # Safety
/// `cache` must outlive the tensor and whatever it is bound to.
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
    // SAFETY: the row is within the cache, and the caller keeps that.
    unsafe { tensor_over(address, shape, (cache.memory_info(), element)) }
}

fn bytes(element: TensorElementType, shape: [usize; 4]) -> ort::Result<usize> {
    let bytes = element.byte_size(shape.iter().product());
    bytes.ok_or_else(|| ort::Error::new(format!("elements of type {element} have no fixed size")))
}

/// A tensor over memory that it does not own. `TensorRefMut` would do for an output; as an input, crate `ort` binds a
/// copy of whatever it knows to be borrowed.
///
/// # Safety
/// As much of that type as the shape says must be there, and outlive the tensor and whatever it is bound to.
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
    // SAFETY: a call of the library's C interface by its rules: shape and info are read during the call alone.
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
    // SAFETY: a tensor that was just made, and that nobody else releases. Releasing it frees no memory of the owner's.
    Ok(unsafe { Value::<DynTensorValueType>::from_ptr(value, Some(&allocator)) })
}
