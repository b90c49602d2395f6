//! GPU memory allocated from CUDA's memory pool, which candle uses through `cuMemAllocAsync`.

use candle_core::cuda_backend::cudarc::driver::{result, sys};
use worker::engine::Allocated;

/// Reads the default pool of GPU `index`; `None` if the GPU has no pools, where candle allocates without one.
pub(crate) fn allocated(index: usize) -> Option<Allocated> {
    use sys::CUmemPool_attribute_enum::{CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH};
    let device = result::device::get(i32::try_from(index).ok()?).ok()?;
    // SAFETY: the device is one that the driver has just named.
    #[allow(unsafe_code)]
    let pool = unsafe { result::device::get_default_mem_pool(device) }.ok()?;
    let read = |attribute| {
        let mut bytes = 0_u64;
        // SAFETY: the pool is the device's own, and both attributes are 64-bit numbers (cuMemPoolGetAttribute).
        #[allow(unsafe_code)]
        let told = unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()) };
        told.ok().map(|()| bytes)
    };
    let (in_use, peak) = (read(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?, read(CU_MEMPOOL_ATTR_USED_MEM_HIGH)?);
    (peak > 0).then_some(Allocated { in_use, peak })
}
