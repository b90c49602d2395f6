//! Reads how much memory there is. A model that cannot fit is rejected; each worker gets a limit, so that one
//! that needs too much becomes a failed row and does not end this program or the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use comparison::facts::Gpu;
use gpu::{Gpus, HeldBack};

use super::groups::{self, Cache};
use crate::measure::process::now;

/// Bytes of memory that a process on `device` can use. On a GPU it is the free memory. On a CPU it is the
/// memory that is free or can be freed, within the limits of this process's control groups. `None` where the
/// system does not report.
pub fn available(device: &str) -> Option<u64> {
    if device != "cpu" {
        return memory_left(device);
    }
    main_memory().map(|(bytes, _)| bytes)
}

/// Where the least memory is a control group's.
pub(crate) const BY_GROUP: &str = "what the control group leaves";

/// The same for main memory, with the cause of the limit, for people.
pub(crate) fn main_memory() -> Option<(u64, &'static str)> {
    // An estimate of the memory that can be allocated without swapping, which includes page cache that can be dropped.
    let machine = bytes(MEMINFO, "MemAvailable:").or_else(of_another_system);
    let machine = machine.map(|bytes| (bytes, "what is free on the machine"));
    let group = groups::memory_left(Cache::Dropped).map(|bytes| (bytes, BY_GROUP));
    [machine, group].into_iter().flatten().min()
}

/// Bytes of main memory that hold nothing, not even pages of files, and that this process's control groups leave. `None`
/// where the system does not report.
pub(crate) fn free() -> Option<u64> {
    let machine = bytes(MEMINFO, "MemFree:")?;
    Some(groups::memory_left(Cache::Kept).map_or(machine, |group| group.min(machine)))
}

/// What Linux says of its memory (proc_meminfo(5)).
const MEMINFO: &str = "/proc/meminfo";

/// The bytes on a line of a file of `/proc`, which is in kibibytes.
pub(super) fn bytes(file: &str, name: &str) -> Option<u64> {
    field(&std::fs::read_to_string(file).ok()?, name)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

fn of_another_system() -> Option<u64> {
    let what = sysinfo::RefreshKind::nothing().with_memory(sysinfo::MemoryRefreshKind::nothing().with_ram());
    Some(sysinfo::System::new_with_specifics(what).available_memory()).filter(|&bytes| bytes > 0)
}

// NVIDIA's GPUs as crate `gpu` reads them: which exist, which other processes compute there, and what slows
// them down.

/// The GPUs in NVML's order, which is that of the bus; empty without NVML.
pub fn gpus() -> Vec<Gpu> {
    let Ok(gpus) = Gpus::open() else { return Vec::new() };
    let (driver, cuda) = (gpus.driver().ok(), gpus.cuda().ok());
    let described = |gpu: gpu::Gpu<'_>| {
        Some(Gpu {
            name: gpu.name().ok()?,
            memory_bytes: gpu.memory().ok().map(|memory| memory.total),
            driver: driver.clone(),
            cuda: cuda.clone(),
        })
    };
    gpus.all().filter_map(described).collect()
}

/// Free memory of the GPUs of `device`, in bytes. `None` if the driver does not report it.
pub(super) fn memory_left(device: &str) -> Option<u64> {
    let (numbers, gpus) = (protocol::gpus(device), Gpus::open().ok()?);
    let left = |&number: &usize| {
        let memory = gpus.cuda_device(number).ok()?.memory().ok()?;
        Some(memory.total.saturating_sub(memory.used))
    };
    numbers.iter().map(left).sum()
}

/// The GPUs that a comparison runs on, kept open: NVML needs tens of milliseconds to start.
pub(crate) struct Watched {
    gpus: Gpus,
    numbers: Vec<usize>,
}

impl Watched {
    /// `None` for a CPU, and without NVML.
    pub(crate) fn new(device: &str) -> Option<Watched> {
        let numbers = protocol::gpus(device);
        let gpus = if numbers.is_empty() { None } else { Gpus::open().ok() };
        gpus.map(|gpus| Watched { gpus, numbers })
    }

    /// The readings of all of them; `None` if one is missing.
    fn of_all<T>(&self, read: impl Fn(gpu::Gpu<'_>) -> gpu::Reading<T>) -> Option<Vec<T>> {
        self.numbers.iter().map(|&number| self.gpus.cuda_device(number).and_then(&read).ok()).collect()
    }

    /// Memory that a process holds on them, in bytes. `None` if the driver does not report it, or lists no
    /// such process.
    pub(crate) fn memory_of(&self, pid: u32) -> Option<u64> {
        let held = self.numbers.iter().map(|&number| self.gpus.cuda_device(number)?.memory_of(pid));
        held.filter_map(Result::ok).reduce(|all, more| all + more)
    }

    /// Number of other programs' processes that compute there. `children` are the processes of this program
    /// that are alive. `None` if the driver lists none of them, because then processes cannot be
    /// distinguished.
    pub(super) fn foreign_processes(&self, children: &BTreeSet<u32>) -> Option<usize> {
        let processes = self.of_all(|gpu| gpu.processes())?.into_iter().flatten();
        let (own, foreign): (BTreeSet<u32>, BTreeSet<u32>) =
            processes.map(|process| process.pid).partition(|&pid| is_own(pid, children));
        (children.is_empty() || !own.is_empty() || foreign.is_empty()).then_some(foreign.len())
    }

    /// Unusual causes that slow it down now, in words.
    pub(super) fn held_back(&self) -> Vec<String> {
        let causes = self.of_all(|gpu| gpu.held_back());
        let is_unusual = |cause: &HeldBack| {
            matches!(cause, HeldBack::Heat | HeldBack::PowerBrake | HeldBack::Hardware | HeldBack::Group)
        };
        let causes = causes.into_iter().flatten().flatten();
        let unusual: BTreeSet<_> = causes.filter(is_unusual).map(|cause| cause.words().to_owned()).collect();
        unusual.into_iter().collect()
    }
}

/// Whether a process is a child of ours, or of a child's group: a launcher may start another.
fn is_own(pid: u32, children: &BTreeSet<u32>) -> bool {
    let group = || rustix::process::getpgid(rustix::process::Pid::from_raw(pid as i32)).ok();
    children.contains(&pid)
        || group().is_some_and(|group| children.contains(&(group.as_raw_nonzero().get() as u32)))
}

// Memory modules, as the firmware describes them (SMBIOS 3.7, structure 17, *Memory Device*). Only on Linux,
// and only where this user may read them.

/// Linux's directory of the structures.
const ENTRIES: &str = "/sys/firmware/dmi/entries";

/// "4 of DDR5 at 4800 MT/s"; different modules are separated by a comma.
pub fn memory_modules() -> Option<String> {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for entry in std::fs::read_dir(Path::new(ENTRIES)).ok()?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("17-") {
            let structure = std::fs::read(entry.path().join("raw")).ok()?;
            if let Some(kind) = module(&structure) {
                *kinds.entry(kind).or_default() += 1;
            }
        }
    }
    let told: Vec<String> = kinds.into_iter().map(|(kind, count)| format!("{count} of {kind}")).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// The type and speed of a module; `None` for an empty socket.
fn module(structure: &[u8]) -> Option<String> {
    let word = |at: usize| Some(u16::from_le_bytes([*structure.get(at)?, *structure.get(at + 1)?]));
    word(0x0c).filter(|&size| size != 0 && size != 0xffff)?;
    let kind = match structure.get(0x12)? {
        0x18 => "DDR3",
        0x1a => "DDR4",
        0x1b => "LPDDR",
        0x1e => "LPDDR4",
        0x20 => "HBM",
        0x22 => "DDR5",
        0x23 => "LPDDR5",
        _ => "memory",
    };
    // The configured speed, or the highest if that is not reported.
    let speed = [0x20, 0x15].into_iter().filter_map(word).find(|&speed| speed != 0 && speed != 0xffff);
    Some(speed.map_or_else(|| kind.to_owned(), |speed| format!("{kind} at {speed} MT/s")))
}

// Memory that the system has ready, for the process that loads next.
//
// A virtual machine gives freed memory back to its host (free page reporting, Virtual I/O Device 1.2, 5.5.6.7). Taking it
// again waits for the host: on one such machine 0.6 GB took 0.06 s within a second of being freed, and 0.9 to 1.5 s
// later. A load into such memory measures the host. So before a process is started, another takes as much memory in huge
// pages, and holds it until the first begins to load. Between rounds, what a process freed is taken at once, before the
// host has it. Pages of files do not do: with 0.6 GB of them written and freed before each start, most loads waited for 1
// to 2.5 s.

/// The hidden command that takes memory: this program again.
pub const COMMAND: &str = "memory-process";

/// Largest share of the free memory to take. The rest is for the process that starts meanwhile, and keeps the
/// kernel from dropping pages of files, the weights among them.
const MOST: f64 = 0.5;

/// One part of so many is for what comes before the load: a framework's library needs memory, too.
const STARTUP: usize = 5;

/// Memory that is held, or ready, until this is dropped.
#[derive(Debug)]
pub(crate) struct ReadyMemory {
    /// Nanoseconds that the system took to give it.
    pub(crate) taken_ns: u64,
    process: Child,
}

impl ReadyMemory {
    /// Takes so many bytes. `None` if those of all processes of a round are too many of the free ones, and where the system
    /// cannot do it.
    pub(crate) fn hold(bytes: u64, of_round: u64) -> Option<ReadyMemory> {
        within(of_round, free())?;
        ReadyMemory::take(bytes)
    }

    /// Takes so many bytes. `None` if they are too many of the free ones, and where the system cannot do it.
    pub(crate) fn take(bytes: u64) -> Option<ReadyMemory> {
        let bytes = within(bytes, free())?;
        #[expect(clippy::disallowed_methods, reason = "this program itself, which measures nothing then")]
        let mut command = Command::new(std::env::current_exe().ok()?);
        command.args([COMMAND, &bytes.to_string()]);
        setup::tooling::process::end_with_parent(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut ready = ReadyMemory { taken_ns: 0, process: command.spawn().ok()? };
        let mut line = String::new();
        BufReader::new(ready.process.stdout.take()?).read_line(&mut line).ok()?;
        ready.taken_ns = line.trim().parse().ok()?;
        Some(ready)
    }

    /// Frees what a process needs that is started now. What it loads into stays held: free memory may go back to the host at
    /// any moment.
    pub(crate) fn release(&mut self) {
        let _ = self.process.stdin.as_mut().map(|stdin| stdin.write_all(b"\n"));
    }

    /// Frees what the load takes. The process is waited for later.
    pub(crate) fn free(&mut self) {
        let _ = self.process.kill();
    }
}

impl Drop for ReadyMemory {
    fn drop(&mut self) {
        self.free();
        let _ = self.process.wait();
    }
}

/// Takes so many bytes, says how many nanoseconds that took, frees those for the start when a line comes, and holds the
/// others until stdin is closed or it is killed. For the hidden command.
pub fn serve(bytes: usize) {
    let begun = now();
    let (Some(startup), Some(load)) = (Taken::new(bytes / STARTUP), Taken::new(bytes - bytes / STARTUP))
    else {
        return;
    };
    if writeln!(std::io::stdout(), "{}", begun.elapsed().as_nanos()).is_err() {
        return;
    }
    let mut lines = std::io::stdin().lines();
    let _ = lines.next();
    drop(startup);
    let _ = lines.next();
    drop(load);
}

/// The bytes to take, if that may be done with so many free ones.
fn within(bytes: u64, free: Option<u64>) -> Option<usize> {
    let is_little = bytes > 0 && bytes as f64 <= MOST * free? as f64;
    is_little.then(|| usize::try_from(bytes).ok()).flatten()
}

/// Resident memory.
#[cfg(target_os = "linux")]
struct Taken(#[expect(dead_code, reason = "held")] memmap2::MmapMut);

#[cfg(target_os = "linux")]
impl Taken {
    fn new(bytes: usize) -> Option<Taken> {
        use memmap2::{Advice, MmapMut};
        let map = MmapMut::map_anon(bytes).ok()?;
        // In huge pages where there are some; otherwise it takes longer.
        let _ = map.advise(Advice::HugePage);
        map.advise(Advice::PopulateWrite).ok()?;
        Some(Taken(map))
    }
}

#[cfg(not(target_os = "linux"))]
struct Taken;

#[cfg(not(target_os = "linux"))]
impl Taken {
    fn new(_: usize) -> Option<Taken> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        let meminfo =
            "MemTotal:       24684084 kB\nMemFree:        22378944 kB\nMemAvailable:   23790120 kB\n";
        assert_eq!(field(meminfo, "MemAvailable:"), Some(23_790_120 * 1024));
        assert_eq!(field("MemTotal: 1 kB\n", "MemAvailable:"), None);
        assert!(available("cpu").is_some_and(|bytes| bytes > 0), "every system here tells");
    }

    #[test]
    fn a_module_has_a_type_and_the_speed_that_is_configured() {
        let mut structure = vec![0; 0x28];
        assert_eq!(module(&structure), None, "an empty socket");
        structure[0x0c..0x0e].copy_from_slice(&32_767u16.to_le_bytes());
        structure[0x12] = 0x22;
        structure[0x15..0x17].copy_from_slice(&5600u16.to_le_bytes());
        assert_eq!(module(&structure).as_deref(), Some("DDR5 at 5600 MT/s"));
        structure[0x20..0x22].copy_from_slice(&4800u16.to_le_bytes());
        assert_eq!(module(&structure).as_deref(), Some("DDR5 at 4800 MT/s"));
        assert_eq!(module(&structure[..0x12]), None, "cut off");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn as_much_memory_becomes_resident_as_is_taken() {
        let bytes = 64 << 20;
        let taken = Taken::new(bytes);
        let peak = crate::measure::machine::counters::peak_bytes(std::process::id());
        assert!(taken.is_none() || peak.unwrap() >= bytes as u64);
    }

    #[test]
    fn half_of_the_free_memory_is_taken_at_most() {
        assert_eq!(
            [within(50, Some(100)), within(51, Some(100)), within(0, Some(100)), within(50, None)],
            [Some(50), None, None, None]
        );
    }
}
