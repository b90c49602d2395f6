//! Situations of a GPU's machine, each with its sentence, by simulated GPUs; and NVIDIA's own library where there is one.
#![cfg(unix)]

use std::fmt::Debug;
use std::path::Path;

use gpu::simulated::{Device, Script, play};
use gpu::{Gpu, Gpus, HeldBack, Process, Reading};
use insta::assert_snapshot;

fn opened(script: &Script) -> Reading<Gpus> {
    let directory = tempfile::tempdir().unwrap();
    Gpus::simulated(&script.install(directory.path()).unwrap())
}

/// The reading of the first GPU on this machine.
fn on_machine<T: Debug>(script: &Script, reading: impl Fn(&Gpu) -> Reading<T>) -> String {
    match opened(script).and_then(|gpus| reading(&gpus.device(0)?)) {
        Ok(value) => format!("{value:?}"),
        Err(reason) => reason.to_string(),
    }
}

fn said<T: Debug>(device: Device, reading: impl Fn(&Gpu) -> Reading<T>) -> String {
    on_machine(&Script::one(device), reading)
}

fn refused_by(library: &str) -> String {
    Gpus::open_at(Path::new(library)).err().map(|reason| reason.to_string()).unwrap_or_default()
}

fn failing(reading: &str, error: &str) -> Device {
    Device::default().failing(reading, error)
}

const MINE: u32 = 4242;

fn with_processes(processes: &[(u32, Option<u64>)]) -> Device {
    let processes = processes.iter().map(|&(pid, bytes)| Process { pid, bytes }).collect();
    Device { processes, ..Device::default() }
}

#[test]
fn without_a_library_there_is_no_driver() {
    assert_snapshot!(refused_by("/nonexistent/libnvidia-ml.so.1"), @"NVML is not available: this machine has no NVIDIA driver, or hides it from this program");
}

#[cfg(target_os = "linux")]
#[test]
fn a_library_that_is_not_nvml_is_called_so() {
    assert_snapshot!(refused_by("libc.so.6"), @"NVML is not available: the library has no nvmlInit_v2: it is too old, or another library than NVML");
}

#[test]
fn a_driver_that_does_not_start_has_its_reason() {
    let broken = |error: &str| {
        let script = Script { init: Some(error.to_owned()), ..Script::default() };
        on_machine(&script, |gpu| gpu.name())
    };
    assert_snapshot!(broken("driver_not_loaded"), @"NVML is not available: NVIDIA's driver is installed and not loaded (`nvidia-smi` says more)");
    assert_snapshot!(broken("lib_rm_version_mismatch"), @"NVML is not available: NVIDIA's library and the loaded driver are of different versions: restart the machine, or install them together");
    assert_snapshot!(broken("no_permission"), @"NVML is not available: this user may not ask NVIDIA's driver");
    assert_snapshot!(broken("timeout"), @"NVML is not available: NVIDIA's driver says: the provided timeout was reached");
}

#[test]
fn a_driver_without_a_gpu_has_none() {
    let gpus = opened(&Script { devices: Vec::new(), ..Script::default() }).unwrap();
    assert_eq!(gpus.count(), Ok(0));
    assert_snapshot!(gpus.cuda_device(0).err().unwrap(), @"the GPU is not available: NVIDIA's driver sees no GPU");
}

#[test]
fn an_idle_gpu_tells_everything() {
    let gpus = opened(&Script::default()).unwrap();
    assert_eq!((gpus.driver(), gpus.cuda()), (Ok("580.82.07".into()), Ok("13.0".into())));
    let idle = Device::default;
    assert_snapshot!(said(idle(), |gpu| gpu.name()), @r#""NVIDIA Simulated 80GB""#);
    assert_snapshot!(said(idle(), |gpu| gpu.memory()), @"Memory { total: 80000000000, used: 500000000 }");
    assert_snapshot!(said(idle(), |gpu| gpu.clocks()), @"Clocks { now: 1980, most: 1980 }");
    assert_snapshot!(said(idle(), |gpu| gpu.held_back()), @"[]");
    assert_snapshot!(said(idle(), |gpu| Ok((gpu.temperature()?, gpu.utilisation()?))), @"(35, 0)");
    assert_snapshot!(said(idle(), |gpu| gpu.processes()), @"[]");
}

#[test]
fn a_gpu_that_another_process_uses_lists_it() {
    let used = || Device { utilisation: 97, ..with_processes(&[(7, Some(30_000_000_000))]) };
    assert_snapshot!(said(used(), |gpu| gpu.processes()), @"[Process { pid: 7, bytes: Some(30000000000) }]");
    assert_snapshot!(said(used(), |gpu| gpu.utilisation()), @"97");
    assert_snapshot!(said(used(), |gpu| gpu.memory()), @"Memory { total: 80000000000, used: 30500000000 }");
}

#[test]
fn memory_is_told_by_process_or_with_the_reason_why_it_is_not() {
    let mine = |processes: &[_]| said(with_processes(processes), |gpu| gpu.memory_of(MINE));
    assert_snapshot!(mine(&[(7, Some(1)), (MINE, Some(10_000_000_000))]), @"10000000000");
    assert_snapshot!(mine(&[(MINE, None)]), @"the GPU's memory by process is not available: NVIDIA's driver lists the process without its memory, as it does on Windows and on a GPU that is divided (MIG)");
    assert_snapshot!(mine(&[]), @"the GPU's memory by process is not available: NVIDIA's driver does not list this process: it has not used the GPU yet, or a container hides its number (`--pid=host` shows it)");
}

#[test]
fn a_divided_gpu_says_so_and_one_that_cannot_be_does_not() {
    let divided = |mig| said(Device { mig, ..Device::default() }, |gpu| gpu.is_divided());
    assert_eq!([Some(true), Some(false), None].map(divided), ["true", "false", "false"]);
}

#[test]
fn what_slows_a_gpu_down_is_named() {
    for (bits, words) in [
        (0x4, &["its power limit"][..]),
        (0x40 | 0x8, &["heat"]),
        (0x20 | 0x4, &["its power limit", "heat"]),
        (0x8, &["its own protection"]),
        (
            0x80 | 0x2 | 0x10,
            &["the power supply", "clocks that were set by hand", "another GPU of its group"],
        ),
        // A GPU that idles is not held back.
        (0x1, &[]),
    ] {
        let gpus = opened(&Script::one(Device { throttle: bits, ..Device::default() })).unwrap();
        let found = gpus.device(0).unwrap().held_back().unwrap().into_iter();
        assert_eq!(found.map(HeldBack::words).collect::<Vec<_>>(), words, "{bits:#x}");
    }
}

#[test]
fn clocks_that_have_not_settled_rise_from_reading_to_reading() {
    let device = Device { clock_mhz: vec![345, 1200, 1980], ..Device::default() };
    let read = |gpu: &Gpu| (0..4).map(|_| Ok(gpu.clocks()?.now)).collect::<Reading<Vec<_>>>();
    assert_snapshot!(said(device, read), @"[345, 1200, 1980, 1980]");
}

#[test]
fn a_gpu_that_is_lost_meanwhile_says_so_from_then_on() {
    let device = Device { lost_after: Some(2), ..Device::default() };
    let read = |gpu: &Gpu| gpu.temperature().and_then(|_| gpu.temperature());
    assert_snapshot!(said(device, read), @"the GPU's temperature is not available: the GPU has fallen off the bus: restart the machine");
}

#[test]
fn errors_of_its_memory_are_counted_and_may_ask_for_a_reset() {
    let device = Device { ecc_errors: 3, ..Device::default() };
    assert_eq!(said(device, |gpu| gpu.memory_errors()), "3");
    assert_snapshot!(said(failing("memory_errors", "reset_required"), |gpu| gpu.memory_errors()), @"the number of the GPU's memory errors is not available: the GPU must be reset before it works again");
}

#[test]
fn what_this_user_may_not_read_is_not_available() {
    assert_snapshot!(said(failing("processes", "no_permission"), |gpu| gpu.memory_of(MINE)), @"the list of the GPU's processes is not available: this user may not ask NVIDIA's driver");
    assert_snapshot!(said(failing("handle", "operating_system"), |gpu| gpu.name()), @"GPU 0 is not available: this user may not ask NVIDIA's driver");
}

#[test]
fn what_a_gpu_does_not_tell_is_not_available() {
    assert_snapshot!(said(failing("energy_mj", "not_supported"), |gpu| gpu.energy_mj()), @"the GPU's energy is not available: this GPU does not report it");
    assert_snapshot!(said(failing("throttle_reasons", "not_supported"), |gpu| gpu.held_back()), @"the reason for the GPU's clock is not available: this GPU does not report it");
}

#[test]
fn energy_grows_while_it_is_read() {
    let device = Device { energy_step_mj: 250, ..Device::default() };
    let grown = |gpu: &Gpu| gpu.energy_mj().and_then(|before| Ok(gpu.energy_mj()? - before));
    assert_snapshot!(said(device, grown), @"250");
}

#[test]
fn two_gpus_are_told_apart() {
    let named =
        |name: &str| Device { name: name.to_owned(), uuid: format!("GPU-{name}"), ..Device::default() };
    let gpus = opened(&Script { devices: vec![named("a"), named("b")], ..Script::default() }).unwrap();
    let names: Vec<_> = gpus.all().map(|gpu| gpu.name().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(gpus.cuda_device(1).unwrap().name(), Ok("b".into()));
    assert_snapshot!(gpus.cuda_device(2).err().unwrap(), @"the GPU is not available: NVIDIA's driver sees 2 GPUs, counted from 0, and no cuda:2");
}

#[test]
fn a_gpu_whose_memory_is_full_has_none_left() {
    let left = |gpu: &Gpu| gpu.memory().map(|memory| memory.total - memory.used);
    assert_snapshot!(said(with_processes(&[(7, Some(90_000_000_000))]), left), @"0");
}

#[test]
fn a_process_that_plays_its_user_is_listed_while_it_does() {
    let directory = tempfile::tempdir().unwrap();
    let file = Script::default().install(directory.path()).unwrap();
    let gpus = Gpus::simulated(&file).unwrap();
    let own = || gpus.device(0).unwrap().memory_of(std::process::id()).ok();
    assert_eq!(own(), None);
    let played = play(&file, 10_000_000_000).unwrap();
    assert_eq!(own(), Some(10_000_000_000));
    drop(played);
    assert_eq!(own(), None);
}

/// Through NVIDIA's library, where a machine has one.
#[test]
fn a_real_gpu_tells_what_every_gpu_tells() {
    let Ok(gpus) = Gpus::open() else { return };
    assert!(gpus.driver().is_ok() && gpus.cuda().is_ok());
    for gpu in gpus.all() {
        let memory = gpu.memory().unwrap();
        assert!(memory.used <= memory.total && !gpu.name().unwrap().is_empty());
        assert!(gpu.clocks().is_ok() && gpu.temperature().is_ok() && gpu.processes().is_ok());
    }
}
