//! Copies and matrix products by candle, for the probe of a GPU.

use candle_core::{
    CpuStorage, DType, Device as CandleDevice, DeviceLocation, InplaceOp2, Layout, Result, Tensor,
};
use worker::engine::{self, Bench, Device, Precision};

use crate::reader::framework;

/// Rows and columns of the matrices: large enough for a GPU's products to be bound by arithmetic.
const SIDE: usize = 4096;

pub(crate) struct CandleBench {
    from: Tensor,
    to: Tensor,
    a: Tensor,
    b: Tensor,
}

impl CandleBench {
    pub(crate) fn new(device: &CandleDevice, precision: Precision, bytes: usize) -> Result<CandleBench> {
        CandleBench::with_side(device, precision, bytes, SIDE)
    }

    fn with_side(
        device: &CandleDevice,
        precision: Precision,
        bytes: usize,
        side: usize,
    ) -> Result<CandleBench> {
        let kind = match precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            // Products with quantised codes are computed in f16.
            _ => DType::F16,
        };
        let buffer = || Tensor::zeros(bytes.div_ceil(4).max(1), DType::F32, device);
        // Random numbers: on ones or zeros a GPU draws less power and clocks higher.
        let matrix = || Tensor::randn(0_f32, 1_f32, (side, side), device)?.to_dtype(kind);
        Ok(CandleBench { from: buffer()?, to: buffer()?, a: matrix()?, b: matrix()? })
    }

    fn copy(&mut self, times: usize) -> Result<u64> {
        for _ in 0..times {
            self.to.inplace_op2(&self.from, &Copy)?;
        }
        self.to.device().synchronize()?;
        Ok(2 * 4 * self.from.elem_count() as u64 * times as u64)
    }

    fn multiply(&self, times: usize) -> Result<u64> {
        for _ in 0..times {
            self.a.matmul(&self.b)?;
        }
        self.a.device().synchronize()?;
        Ok(2 * (self.a.dim(0)? as u64).pow(3) * times as u64)
    }
}

/// The driver's copy from buffer to buffer. [`Tensor::copy`] takes new memory each time, whose pages are mapped again
/// after each synchronisation, and the kernel behind `slice_set` reached half of an H200's bandwidth.
struct Copy;

impl InplaceOp2 for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn cpu_fwd(&self, to: &mut CpuStorage, _: &Layout, from: &CpuStorage, _: &Layout) -> Result<()> {
        let CpuStorage::F32(to) = to else { candle_core::bail!("the buffers of a probe are f32") };
        to.copy_from_slice(from.as_slice()?);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        to: &mut candle_core::CudaStorage,
        _: &Layout,
        from: &candle_core::CudaStorage,
        _: &Layout,
    ) -> Result<()> {
        use candle_core::backend::BackendStorage;

        let device = to.device().clone();
        device.memcpy_dtod(from.as_cuda_slice::<f32>()?, to.as_cuda_slice_mut::<f32>()?)
    }
}

impl Bench for CandleBench {
    fn device(&self) -> Device {
        match self.to.device().location() {
            DeviceLocation::Cuda { gpu_id } => Device::Cuda(gpu_id),
            _ => Device::Cpu,
        }
    }

    fn precision(&self) -> Precision {
        match self.a.dtype() {
            DType::F32 => Precision::F32,
            DType::BF16 => Precision::Bf16,
            _ => Precision::F16,
        }
    }

    fn copies(&mut self, times: usize) -> engine::Result<u64> {
        self.copy(times).map_err(framework)
    }

    fn products(&mut self, times: usize) -> engine::Result<u64> {
        self.multiply(times).map_err(framework)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_copies_and_multiplies_what_it_says() {
        let mut bench = CandleBench::with_side(&CandleDevice::Cpu, Precision::F32, 4096, 8).unwrap();
        bench.from = Tensor::ones(1024, DType::F32, &CandleDevice::Cpu).unwrap();
        assert_eq!(bench.copies(3).unwrap(), 3 * 2 * 4096);
        assert_eq!(bench.to.sum_all().unwrap().to_scalar::<f32>().unwrap(), 1024.0);
        assert_eq!(bench.products(2).unwrap(), 2 * 2 * 8 * 8 * 8);
        assert_eq!((bench.device(), bench.precision()), (Device::Cpu, Precision::F32));
    }
}
