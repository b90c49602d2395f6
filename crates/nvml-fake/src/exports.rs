//! The functions of NVML's C interface. Their arguments come from `nvml-wrapper`: pointers to places of the
//! right kind and length.
#![allow(unsafe_code, reason = "C calls these, with pointers to where answers go")]
#![allow(non_snake_case, reason = "the names are NVML's")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use nvml_wrapper_sys::bindings::*;

use crate::script::{Device, Process, Script};
use crate::{played, script_of};

type Answer<T> = Result<T, nvmlReturn_t>;

/// Number of readings of any GPU, and of those with a series of answers or a growing one.
static READINGS: AtomicUsize = AtomicUsize::new(0);
static CLOCKS: AtomicUsize = AtomicUsize::new(0);
static THROTTLES: AtomicUsize = AtomicUsize::new(0);
static ENERGIES: AtomicU64 = AtomicU64::new(0);

/// The file that this library was opened from.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: all zeros are a valid `Dl_info`: null pointers.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: the address is that of a function, and `info` a place for the answer.
        let found = unsafe { libc::dladdr(nvmlInit_v2 as *const c_void, &mut info) };
        assert!(found != 0 && !info.dli_fname.is_null(), "a library knows its own file");
        // SAFETY: the linker's own text, which ends with a zero and lives as long as the library.
        let name = unsafe { CStr::from_ptr(info.dli_fname) };
        PathBuf::from(OsStr::from_bytes(name.to_bytes()))
    })
}

fn script() -> Answer<Script> {
    let text = std::fs::read_to_string(script_of(library()));
    let script = text
        .map_err(|e| e.to_string())
        .and_then(|text| serde_json::from_str(&text).map_err(|e| e.to_string()));
    script.map_err(|error| {
        eprintln!("nvml-fake: {}: {error}", script_of(library()).display());
        nvmlReturn_enum_NVML_ERROR_UNKNOWN
    })
}

fn code(name: &str) -> nvmlReturn_t {
    match name {
        "not_supported" => nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
        "no_permission" => nvmlReturn_enum_NVML_ERROR_NO_PERMISSION,
        "driver_not_loaded" => nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED,
        "lib_rm_version_mismatch" => nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        "gpu_is_lost" => nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST,
        "reset_required" => nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED,
        "operating_system" => nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM,
        "timeout" => nvmlReturn_enum_NVML_ERROR_TIMEOUT,
        _ => nvmlReturn_enum_NVML_ERROR_UNKNOWN,
    }
}

/// The GPU of a handle, which is its number counted from 1, for this reading.
fn device(handle: nvmlDevice_t, reading: &str) -> Answer<Device> {
    let index = (handle as usize).wrapping_sub(1);
    let device = script()?.devices.into_iter().nth(index);
    let device = device.ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
    let before = READINGS.fetch_add(1, Ordering::Relaxed);
    if device.lost_after.is_some_and(|most| before >= most) {
        return Err(nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
    }
    match device.errors.get(reading) {
        Some(error) => Err(code(error)),
        None => Ok(device),
    }
}

/// The processes on a GPU; those of [`play`](crate::play) are on the first.
fn processes(handle: nvmlDevice_t, device: &Device) -> Vec<Process> {
    let mut processes = device.processes.clone();
    if handle as usize == 1 {
        processes.extend(played::processes(library()));
    }
    processes
}

/// The next answer of a row.
fn next<T: Copy>(row: &[T], calls: &AtomicUsize) -> Answer<T> {
    let index = calls.fetch_add(1, Ordering::Relaxed).min(row.len().saturating_sub(1));
    row.get(index).copied().ok_or(nvmlReturn_enum_NVML_ERROR_NO_DATA)
}

/// Writes an answer to its place, or returns the error.
unsafe fn put<T>(place: *mut T, answer: Answer<T>) -> nvmlReturn_t {
    match answer {
        Ok(value) => {
            // SAFETY: the caller's place for a value of this type.
            unsafe { place.write(value) };
            nvmlReturn_enum_NVML_SUCCESS
        }
        Err(error) => error,
    }
}

/// Writes text and a zero to a place of this length.
unsafe fn put_text(place: *mut c_char, length: c_uint, answer: Answer<String>) -> nvmlReturn_t {
    match answer {
        Ok(text) if text.len() < length as usize => {
            // SAFETY: the text and its zero fit into the caller's place.
            unsafe {
                place.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
                place.add(text.len()).write(0);
            }
            nvmlReturn_enum_NVML_SUCCESS
        }
        Ok(_) => nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    match script() {
        Ok(Script { init: Some(error), .. }) => code(&error),
        Ok(_) => nvmlReturn_enum_NVML_SUCCESS,
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    nvmlReturn_enum_NVML_SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(place: *mut c_char, length: c_uint) -> nvmlReturn_t {
    // SAFETY: see the head of this file; so with all that follow.
    unsafe { put_text(place, length, script().map(|script| script.driver)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(place: *mut c_int) -> nvmlReturn_t {
    // SAFETY: as above.
    unsafe { put(place, script().map(|script| script.cuda)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(place: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: as above.
    unsafe { put(place, script().map(|script| script.devices.len() as c_uint)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, place: *mut nvmlDevice_t) -> nvmlReturn_t {
    let handle = (index as usize + 1) as nvmlDevice_t;
    // SAFETY: as above.
    unsafe { put(place, device(handle, "handle").map(|_| handle)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(of: nvmlDevice_t, place: *mut c_char, length: c_uint) -> nvmlReturn_t {
    // SAFETY: as above.
    unsafe { put_text(place, length, device(of, "name").map(|device| device.name)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(of: nvmlDevice_t, place: *mut c_char, length: c_uint) -> nvmlReturn_t {
    // SAFETY: as above.
    unsafe { put_text(place, length, device(of, "uuid").map(|device| device.uuid)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    of: nvmlDevice_t,
    place: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    let info = device(of, "memory").map(|device| {
        let held: u64 = processes(of, &device).iter().filter_map(|process| process.bytes).sum();
        let used = device.used_bytes.saturating_add(held).min(device.memory_bytes);
        let (total, free) = (device.memory_bytes, device.memory_bytes - used);
        nvmlMemory_v2_t { version: 2, total, reserved: 0, free, used }
    });
    // SAFETY: as above.
    unsafe { put(place, info) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    of: nvmlDevice_t,
    count: *mut c_uint,
    places: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    const NOT_TOLD: c_ulonglong = c_ulonglong::MAX;
    let listed = match device(of, "processes") {
        Ok(device) => processes(of, &device),
        Err(error) => return error,
    };
    // SAFETY: the caller passes the number of places in `count`, and gets the necessary number back.
    let room = unsafe { count.replace(listed.len() as c_uint) };
    if (room as usize) < listed.len() {
        return nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (index, process) in listed.iter().enumerate() {
        let info = nvmlProcessInfo_t {
            pid: process.pid,
            usedGpuMemory: process.bytes.unwrap_or(NOT_TOLD),
            gpuInstanceId: c_uint::MAX,
            computeInstanceId: c_uint::MAX,
        };
        // SAFETY: there are as many places as processes.
        unsafe { places.add(index).write(info) };
    }
    nvmlReturn_enum_NVML_SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    of: nvmlDevice_t,
    place: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    let rates =
        device(of, "utilisation").map(|device| nvmlUtilization_t { gpu: device.utilisation, memory: 0 });
    // SAFETY: as above.
    unsafe { put(place, rates) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetClockInfo(
    of: nvmlDevice_t,
    _: nvmlClockType_t,
    place: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: as above.
    unsafe { put(place, device(of, "clock").and_then(|device| next(&device.clock_mhz, &CLOCKS))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(
    of: nvmlDevice_t,
    _: nvmlClockType_t,
    place: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: as above.
    unsafe { put(place, device(of, "most_clock").map(|device| device.most_clock_mhz)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperature(
    of: nvmlDevice_t,
    _: nvmlTemperatureSensors_t,
    place: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: as above.
    unsafe { put(place, device(of, "temperature").map(|device| device.temperature)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    of: nvmlDevice_t,
    place: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: as above.
    unsafe { put(place, device(of, "throttle").and_then(|device| next(&device.throttle, &THROTTLES))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    of: nvmlDevice_t,
    place: *mut c_ulonglong,
) -> nvmlReturn_t {
    let energy = device(of, "energy")
        .map(|device| device.energy_mj + device.energy_step_mj * ENERGIES.fetch_add(1, Ordering::Relaxed));
    // SAFETY: as above.
    unsafe { put(place, energy) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigMode(
    of: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    let mode = device(of, "mig")
        .and_then(|device| device.mig.ok_or(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED))
        .map(c_uint::from);
    // SAFETY: as above.
    unsafe { put(current, mode).max(put(pending, mode)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    of: nvmlDevice_t,
    _: nvmlMemoryErrorType_t,
    _: nvmlEccCounterType_t,
    place: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: as above.
    unsafe { put(place, device(of, "ecc").map(|device| device.ecc_errors)) }
}
