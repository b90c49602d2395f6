//! The elements of tensors in main memory, read and changed in place.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Storage, Tensor, WithDType, bail};

/// Calls `f` with the elements of a contiguous f32 tensor.
pub(crate) fn with_f32<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    with_elements::<f32, R>(tensor, f)
}

/// Calls `f` with the elements of a contiguous tensor of this type.
pub(crate) fn with_elements<T: WithDType, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> R) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) => Ok(f(&storage.as_slice::<T>()?[start..end])),
        _ => bail!("expected a contiguous tensor in main memory, not {layout:?}"),
    }
}

/// Calls `f` with the elements of a contiguous f32 tensor, to change them in place.
pub(crate) fn change_f32(tensor: &Tensor, f: impl Fn(&mut [f32])) -> Result<()> {
    tensor.inplace_op1(&Change(f))
}

struct Change<F>(F);

impl<F: Fn(&mut [f32])> InplaceOp1 for Change<F> {
    fn name(&self) -> &'static str {
        "change"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        match (storage, layout.contiguous_offsets()) {
            (CpuStorage::F32(elements), Some((start, end))) => {
                (self.0)(&mut elements[start..end]);
                Ok(())
            }
            _ => bail!("expected a contiguous tensor of f32, not {layout:?}"),
        }
    }
}
