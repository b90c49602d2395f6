//! libtorch's own profiler: see `profile.cpp`.

use std::cmp::Reverse;
use std::ffi::{CStr, CString, c_char, c_void};

use tch::{Kind, TchError, Tensor};
use worker::engine::{Bench, Device, Precision, Profile, ProfileClock, ProfileEvent, Result};

use crate::shim::last_error;
use crate::{framework, known};

#[allow(unsafe_code)]
unsafe extern "C" {
    safe fn engine_tch_profile_begin() -> bool;
    safe fn engine_tch_profile_end() -> *mut c_void;
    fn engine_tch_profile_count(events: *const c_void) -> usize;
    fn engine_tch_profile_event(events: *const c_void, index: usize, figures: *mut u64) -> *const c_char;
    fn engine_tch_profile_free(events: *mut c_void);
    fn engine_tch_mark_begin(name: *const c_char) -> *mut c_void;
    fn engine_tch_mark_end(mark: *mut c_void);
}

/// Starts the profiler of this thread.
pub(crate) fn begin() -> Result<()> {
    if engine_tch_profile_begin() { Ok(()) } else { Err(framework(last_error())) }
}

/// Ends the profile. Each event belongs to the part of the mark around it.
pub(crate) fn end() -> Result<Profile> {
    let told = engine_tch_profile_end();
    if told.is_null() {
        return Err(framework(last_error()));
    }
    // SAFETY: the shim has just made it; the names are copied before it is freed, once.
    #[allow(unsafe_code)]
    let mut noted = unsafe {
        let noted: Vec<_> = (0..engine_tch_profile_count(told)).map(|index| noted(told, index)).collect();
        engine_tch_profile_free(told);
        noted
    };
    noted.sort_by_key(|noted| (noted.thread, noted.start_ns, Reverse(noted.duration_ns)));
    Ok(Profile {
        profiler: "libtorch's profiler".into(),
        clock: ProfileClock::Realtime,
        events: events(&noted),
        notes: vec!["Of the parts of a layer it is not known which an operation is of.".into()],
    })
}

struct Noted {
    name: String,
    is_mark: bool,
    start_ns: u64,
    duration_ns: u64,
    thread: u64,
}

/// # Safety
/// `events` come from the shim, and `index` is below their number.
#[allow(unsafe_code)]
unsafe fn noted(events: *const c_void, index: usize) -> Noted {
    let mut figures = [0; 4];
    // SAFETY: four figures are written; the name is text that ends in 0.
    let name = unsafe { CStr::from_ptr(engine_tch_profile_event(events, index, figures.as_mut_ptr())) };
    let [start_ns, duration_ns, thread, is_mark] = figures;
    Noted { name: name.to_string_lossy().into_owned(), is_mark: is_mark != 0, start_ns, duration_ns, thread }
}

/// `noted` is ordered by thread, then start, then longer events first.
fn events(noted: &[Noted]) -> Vec<ProfileEvent> {
    let mut mark: Option<&Noted> = None;
    let mut events = Vec::with_capacity(noted.len());
    for noted in noted {
        if noted.is_mark {
            mark = Some(noted);
        }
        let is_around = |mark: &&Noted| {
            mark.thread == noted.thread && noted.start_ns < mark.start_ns + mark.duration_ns.max(1)
        };
        events.push(ProfileEvent {
            name: noted.name.as_str().into(),
            part: mark.filter(is_around).map(|mark| mark.name.as_str().into()),
            thread: format!("thread {}", noted.thread).into(),
            start_ns: noted.start_ns,
            duration_ns: noted.duration_ns,
            details: Default::default(),
        });
    }
    events
}

/// Marks everything that runs while it lives.
pub(crate) struct Mark(*mut c_void);

impl Mark {
    pub(crate) fn begin(name: &str) -> Mark {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the name is copied.
        #[allow(unsafe_code)]
        let mark = unsafe { engine_tch_mark_begin(name.as_ptr()) };
        Mark(mark)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: `begin` made it, and it is ended once.
        #[allow(unsafe_code)]
        unsafe {
            engine_tch_mark_end(self.0);
        }
    }
}

// Copies and matrix products by libtorch, for the probe of a GPU.

/// Rows and columns of the matrices: large enough for a GPU's products to be bound by arithmetic.
const SIDE: i64 = 4096;

pub(crate) struct TchBench {
    from: Tensor,
    to: Tensor,
    a: Tensor,
    b: Tensor,
}

impl TchBench {
    pub(crate) fn new(device: tch::Device, precision: Precision, bytes: usize) -> Result<TchBench, TchError> {
        TchBench::with_side(device, precision, bytes, SIDE)
    }

    fn with_side(
        device: tch::Device,
        precision: Precision,
        bytes: usize,
        side: i64,
    ) -> Result<TchBench, TchError> {
        let kind = match precision {
            Precision::F32 => Kind::Float,
            Precision::Bf16 => Kind::BFloat16,
            // Products with quantised codes are computed in f16.
            _ => Kind::Half,
        };
        let elements = i64::try_from(bytes.div_ceil(4).max(1)).unwrap_or(i64::MAX);
        let buffer = || Tensor::f_zeros([elements], (Kind::Float, device));
        // Random numbers: on ones or zeros a GPU draws less power and clocks higher.
        let matrix = || Tensor::f_randn([side, side], (kind, device));
        Ok(TchBench { from: buffer()?, to: buffer()?, a: matrix()?, b: matrix()? })
    }

    fn synchronise(&self) {
        if let tch::Device::Cuda(index) = self.to.device() {
            tch::Cuda::synchronize(index as i64);
        }
    }

    fn copy(&mut self, times: usize) -> Result<u64, TchError> {
        for _ in 0..times {
            self.to.f_copy_(&self.from)?;
        }
        self.synchronise();
        Ok(2 * 4 * self.from.numel() as u64 * times as u64)
    }

    fn multiply(&self, times: usize) -> Result<u64, TchError> {
        for _ in 0..times {
            drop(self.a.f_matmul(&self.b)?);
        }
        self.synchronise();
        Ok(2 * (self.a.size()[0] as u64).pow(3) * times as u64)
    }
}

impl Bench for TchBench {
    fn device(&self) -> Device {
        known(self.to.device())
    }

    fn precision(&self) -> Precision {
        match self.a.kind() {
            Kind::Float => Precision::F32,
            Kind::BFloat16 => Precision::Bf16,
            _ => Precision::F16,
        }
    }

    fn copies(&mut self, times: usize) -> Result<u64> {
        self.copy(times).map_err(framework)
    }

    fn products(&mut self, times: usize) -> Result<u64> {
        self.multiply(times).map_err(framework)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(name: &str, is_mark: bool, (start_ns, end_ns): (u64, u64)) -> Noted {
        Noted { name: name.into(), is_mark, start_ns, duration_ns: end_ns - start_ns, thread: 1 }
    }

    #[test]
    fn an_operation_is_of_the_part_whose_mark_is_around_it() {
        let noted = [
            noted("aten::arange", false, (0, 5)),
            noted("layer 3", true, (10, 50)),
            noted("aten::linear", false, (20, 30)),
            noted("aten::copy_", false, (60, 70)),
            noted("head", true, (80, 90)),
            noted("aten::linear", false, (81, 85)),
        ];
        let parts: Vec<_> = events(&noted).into_iter().map(|event| event.part).collect();
        let expected = [None, Some("layer 3"), Some("layer 3"), None, Some("head"), Some("head")];
        assert_eq!(parts, expected.map(|part| part.map(Into::into)));
    }

    #[test]
    fn a_row_copies_and_multiplies_what_it_says() {
        let mut bench = TchBench::with_side(tch::Device::Cpu, Precision::F32, 4096, 8).unwrap();
        bench.from = Tensor::f_ones([1024], (Kind::Float, tch::Device::Cpu)).unwrap();
        assert_eq!(bench.copies(3).unwrap(), 3 * 2 * 4096);
        assert_eq!(bench.to.sum(Kind::Float).double_value(&[]), 1024.0);
        assert_eq!(bench.products(2).unwrap(), 2 * 2 * 8 * 8 * 8);
        assert_eq!((bench.device(), bench.precision()), (Device::Cpu, Precision::F32));
    }
}
