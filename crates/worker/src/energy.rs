//! Energy of the measured iterations: the CPU packages' by RAPL (Linux's powercap), the GPU's by NVML.
//!
//! RAPL's counters are those of the whole package, for all processes on it; since 2020 only root may read
//! them on most systems.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use gpu::{Clocks, Gpus, Reading};
use protocol::{Energy, GpuMemory, GpuWork};

use crate::engine::Device;

const POWERCAP: &str = "/sys/class/powercap";

/// A meter that has been read once.
pub(crate) enum Meter<'a> {
    Rapl(Vec<(Package, u64)>),
    Nvml(&'a Gpu, u64),
}

impl<'a> Meter<'a> {
    /// `None` where there is no meter, or none that may be read.
    pub(crate) fn start(gpu: Option<&'a Gpu>) -> Option<Meter<'a>> {
        match gpu {
            Some(gpu) => Some(Meter::Nvml(gpu, gpu.energy_mj()?)),
            None => Meter::rapl(Path::new(POWERCAP)),
        }
    }

    fn rapl(powercap: &Path) -> Option<Meter<'a>> {
        let packages: Option<Vec<_>> =
            packages(powercap).into_iter().map(|package| Some((package.read_uj()?, package))).collect();
        let packages: Vec<_> = packages?.into_iter().map(|(before, package)| (package, before)).collect();
        (!packages.is_empty()).then_some(Meter::Rapl(packages))
    }

    pub(crate) fn stop(self) -> Option<Energy> {
        match self {
            Meter::Rapl(packages) => {
                let spent = packages.iter().map(|(package, before)| package.spent_uj(*before));
                let microjoules = spent.sum::<Option<u64>>()?;
                Some(Energy { joules: microjoules as f64 / 1e6, method: "RAPL, package".into() })
            }
            Meter::Nvml(gpu, before) => {
                let millijoules = gpu.energy_mj()?.checked_sub(before)?;
                Some(Energy { joules: millijoules as f64 / 1e3, method: "NVML, total energy".into() })
            }
        }
    }
}

pub(crate) struct Package {
    counter: PathBuf,
    /// The counter starts again from 0 beyond this.
    range_uj: u64,
}

impl Package {
    fn read_uj(&self) -> Option<u64> {
        read_number(&self.counter)
    }

    fn spent_uj(&self, before: u64) -> Option<u64> {
        let now = self.read_uj()?;
        Some(if now >= before { now - before } else { now + self.range_uj.checked_sub(before)? })
    }
}

/// Every CPU package once. Some systems show a package's counter twice under one name, by its register
/// and by memory (`intel-rapl:0`, `intel-rapl-mmio:0`).
fn packages(powercap: &Path) -> Vec<Package> {
    let mut zones: Vec<(String, PathBuf)> = std::fs::read_dir(powercap)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let zone = entry.ok()?.path();
            let name = std::fs::read_to_string(zone.join("name")).ok()?;
            Some((name.trim().to_owned(), zone)).filter(|(name, _)| name.starts_with("package"))
        })
        .collect();
    zones.sort();
    zones.dedup_by(|a, b| a.0 == b.0);
    let package = |(_, zone): (String, PathBuf)| {
        let range_uj = read_number(&zone.join("max_energy_range_uj"))?;
        Some(Package { counter: zone.join("energy_uj"), range_uj })
    };
    zones.into_iter().filter_map(package).collect()
}

fn read_number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

// Readings from NVIDIA's management library of the GPU that this process computes on. The library is loaded
// only for a job on a CUDA device.

pub(crate) struct Gpu {
    /// The number that CUDA has for it.
    number: usize,
    nvml: Reading<Gpus>,
    seen: RefCell<Seen>,
}

/// Readings after measured requests.
#[derive(Default)]
struct Seen {
    clocks: Option<(Clocks, Clocks)>,
    celsius: Option<u32>,
    /// Memory of this process: the sum over readings, their number, and the highest.
    held: (u64, u64, u64),
    held_back: BTreeSet<&'static str>,
    remarks: BTreeSet<String>,
}

impl Gpu {
    /// Opens NVML for a job on this device. `None` for a job on the CPU.
    pub(crate) fn open(device: Device) -> Option<Gpu> {
        let Device::Cuda(number) = device else { return None };
        let nvml = Gpus::open();
        if let Err(reason) = &nvml {
            eprintln!("{reason}");
        }
        Some(Gpu { number, nvml, seen: RefCell::default() })
    }

    /// Memory that this process holds, of all GPUs.
    pub(crate) fn memory(&self) -> Option<GpuMemory> {
        let bytes = self.known(self.memory_bytes())?;
        Some(GpuMemory { bytes, method: "NVML, compute processes".into() })
    }

    fn memory_bytes(&self) -> Reading<u64> {
        let own = std::process::id();
        let gpus = self.nvml.as_ref().map_err(Clone::clone)?;
        let held = gpus.all().filter_map(|gpu| gpu.memory_of(own).ok());
        match held.reduce(|a, b| a + b) {
            Some(bytes) => Ok(bytes),
            None => gpus.cuda_device(self.number)?.memory_of(own),
        }
    }

    /// Energy that the GPU has used since its driver was loaded, in millijoules.
    pub(crate) fn energy_mj(&self) -> Option<u64> {
        let energy = self.nvml.as_ref().map_err(Clone::clone);
        self.known(energy.and_then(|gpus| gpus.cuda_device(self.number)?.energy_mj()))
    }

    /// Notes the state of the GPU, right after it has computed.
    pub(crate) fn look(&self) {
        let Ok(gpus) = &self.nvml else { return };
        let Some(gpu) = self.known(gpus.cuda_device(self.number)) else { return };
        let (clocks, celsius) = (self.known(gpu.clocks()), self.known(gpu.temperature()));
        let held_back = self.known(gpu.held_back());
        let held = self.known(self.memory_bytes());
        let mut seen = self.seen.borrow_mut();
        if let Some(bytes) = held {
            let (sum, count, most) = seen.held;
            seen.held = (sum + bytes, count + 1, most.max(bytes));
        }
        if let Some(now) = clocks {
            let (slowest, fastest) = seen.clocks.unwrap_or((now, now));
            let slowest = if now.now < slowest.now { now } else { slowest };
            let fastest = if now.now > fastest.now { now } else { fastest };
            seen.clocks = Some((slowest, fastest));
        }
        seen.celsius = seen.celsius.max(celsius);
        seen.held_back.extend(held_back.into_iter().flatten().map(|cause| cause.words()));
    }

    /// The clock just now, in megahertz.
    pub(crate) fn clock(&self) -> Option<u32> {
        let clocks = self.nvml.as_ref().ok()?.cuda_device(self.number).and_then(|gpu| gpu.clocks());
        clocks.ok().map(|clocks| clocks.now)
    }

    pub(crate) fn work(&self) -> GpuWork {
        self.remark();
        let seen = self.seen.borrow();
        let clocks = |pick: fn(&(Clocks, Clocks)) -> u32| seen.clocks.as_ref().map(pick).map(u64::from);
        GpuWork {
            slowest_mhz: clocks(|(slowest, _)| slowest.now),
            fastest_mhz: clocks(|(_, fastest)| fastest.now),
            most_mhz: clocks(|(_, fastest)| fastest.most),
            celsius: seen.celsius.map(u64::from),
            held_mean_bytes: seen.held.0.checked_div(seen.held.1),
            held_most_bytes: (seen.held.1 > 0).then_some(seen.held.2),
            held_back: seen.held_back.iter().copied().collect(),
            remarks: seen.remarks.iter().map(String::as_str).collect(),
        }
    }

    fn remark(&self) {
        let gpus = match &self.nvml {
            Ok(gpus) => gpus,
            Err(reason) => {
                self.seen.borrow_mut().remarks.insert(reason.to_string());
                return;
            }
        };
        let Some(gpu) = self.known(gpus.cuda_device(self.number)) else { return };
        if gpu.is_divided().unwrap_or(false) {
            let remark =
                "the GPU is divided (MIG): its clocks, its energy and its heat are those of all parts";
            self.seen.borrow_mut().remarks.insert(remark.to_owned());
        }
        if let Some(errors) = gpu.memory_errors().ok().filter(|&errors| errors > 0) {
            let remark = format!("the GPU's memory has had {errors} errors that could not be corrected");
            self.seen.borrow_mut().remarks.insert(remark);
        }
    }

    /// The reading; if it is not available, the reason is noted.
    fn known<T>(&self, reading: Reading<T>) -> Option<T> {
        reading.map_err(|reason| self.seen.borrow_mut().remarks.insert(reason.to_string())).ok()
    }
}

// Threads of this process: their number, their CPU time, and the CPUs they may run on.

/// Threads of this process, idle ones included, where the system reports them.
pub(crate) fn count() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

/// CPU time of every thread so far, by thread id. Linux counts it at each scheduler tick, so that a
/// thread that is running just now may be some milliseconds ahead of its figure.
pub(crate) struct CpuTimes(HashMap<u32, Times>);

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Times {
    cpu_ns: u64,
    /// Ready to run, but waiting for a CPU. Unknown without `schedstat`.
    run_queue_ns: Option<u64>,
}

impl CpuTimes {
    /// `None` where the system does not report.
    pub(crate) fn read() -> Option<CpuTimes> {
        let entries = std::fs::read_dir("/proc/self/task").ok()?;
        let times = entries.filter_map(|entry| {
            let entry = entry.ok()?;
            let thread = entry.file_name().to_str()?.parse().ok()?;
            Some((thread, times(&entry.path())?))
        });
        let times: HashMap<_, _> = times.collect();
        // A thread may end while this reads, but never all of them.
        (!times.is_empty()).then_some(CpuTimes(times))
    }
}

/// The use of threads, summed over stretches of time.
#[derive(Debug, Default)]
pub(crate) struct Used {
    cpu_ns: HashMap<u32, u64>,
    /// Time that threads waited for a CPU, all together. `None` once the system did not report it.
    pub(crate) run_queue_ns: Option<u64>,
    stretches: usize,
}

impl Used {
    /// Adds a stretch of time. Threads that started in it count from 0; those that ended in it are not
    /// counted.
    pub(crate) fn with(mut self, before: &CpuTimes, after: &CpuTimes) -> Used {
        let mut waited = Some(0);
        for (thread, now) in &after.0 {
            let earlier = before.0.get(thread).copied().unwrap_or_default();
            *self.cpu_ns.entry(*thread).or_default() += now.cpu_ns.saturating_sub(earlier.cpu_ns);
            let more = now.run_queue_ns.map(|ns| ns.saturating_sub(earlier.run_queue_ns.unwrap_or_default()));
            waited = waited.zip(more).map(|(sum, ns)| sum + ns);
        }
        let sum = if self.stretches == 0 { Some(0) } else { self.run_queue_ns };
        self.run_queue_ns = sum.zip(waited).map(|(sum, ns)| sum + ns);
        self.stretches += 1;
        self
    }

    /// CPU time of each thread that did anything, the busiest first.
    pub(crate) fn busiest_first(&self) -> Vec<u64> {
        let mut spent: Vec<u64> = self.cpu_ns.values().copied().filter(|&ns| ns > 0).collect();
        spent.sort_unstable_by(|a, b| b.cmp(a));
        spent
    }
}

fn times(thread: &std::path::Path) -> Option<Times> {
    let read = |file: &str| std::fs::read_to_string(thread.join(file)).ok();
    // schedstat needs a kernel with CONFIG_SCHED_INFO.
    read("schedstat").and_then(|text| parse_schedstat(&text)).or_else(|| {
        let nanoseconds_a_tick = 1_000_000_000 / ticks_per_second()?;
        let cpu_ns = parse_stat(&read("stat")?)? * nanoseconds_a_tick;
        Some(Times { cpu_ns, run_queue_ns: None })
    })
}

fn ticks_per_second() -> Option<u64> {
    #[cfg(target_os = "linux")]
    return Some(rustix::param::clock_ticks_per_second()).filter(|&ticks| ticks > 0);
    #[cfg(not(target_os = "linux"))]
    None
}

/// Nanoseconds on a CPU, and on a run queue: the first two of the three fields.
fn parse_schedstat(text: &str) -> Option<Times> {
    let mut fields = text.split_whitespace().map_while(|field| field.parse().ok());
    Some(Times { cpu_ns: fields.next()?, run_queue_ns: fields.next() })
}

/// Clock ticks in user and in kernel mode: fields 14 and 15 of proc_pid_stat(5), counted after the name in
/// parentheses, which may hold blanks and parentheses itself.
fn parse_stat(text: &str) -> Option<u64> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// Keeps the calling thread on one CPU, if the system permits it.
pub(crate) fn pin(cpu: usize) {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_setaffinity};
        let mut set = CpuSet::new();
        set.set(cpu);
        // A probe without it is less sharp, no more.
        let _ = sched_setaffinity(None, &set);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cpu;
}

/// CPUs that any thread of this process may run on, in order, where the system reports them. All threads are
/// asked, because a framework may pin each to one CPU.
pub(crate) fn cpus() -> Option<Vec<usize>> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, Pid, sched_getaffinity};
        let threads = std::fs::read_dir("/proc/self/task").ok()?;
        let sets: Vec<CpuSet> = threads
            .filter_map(|entry| {
                let thread = Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?)?;
                sched_getaffinity(Some(thread)).ok()
            })
            .collect();
        let allowed = |&cpu: &usize| sets.iter().any(|set| set.is_set(cpu));
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(allowed).collect();
        (!cpus.is_empty()).then_some(cpus)
    }
    #[cfg(not(target_os = "linux"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(powercap: &Path, zone: &str, name: &str, energy_uj: u64) {
        let directory = powercap.join(zone);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("name"), format!("{name}\n")).unwrap();
        std::fs::write(directory.join("energy_uj"), format!("{energy_uj}\n")).unwrap();
        std::fs::write(directory.join("max_energy_range_uj"), "1000000\n").unwrap();
    }

    #[test]
    fn packages_are_summed_once_each_and_counters_wrap() {
        let powercap = tempfile::tempdir().unwrap();
        let set = |first: u64, second: u64| {
            zone(powercap.path(), "intel-rapl:0", "package-0", first);
            zone(powercap.path(), "intel-rapl-mmio:0", "package-0", first);
            zone(powercap.path(), "intel-rapl:1", "package-1", second);
            zone(powercap.path(), "intel-rapl:0:0", "core", 7);
        };
        set(100_000, 900_000);
        let meter = Meter::rapl(powercap.path()).unwrap();
        set(600_000, 400_000);
        assert_eq!(meter.stop().unwrap().joules, 0.5 + 0.5);
    }

    #[test]
    fn a_counter_that_cannot_be_read_is_no_meter() {
        let powercap = tempfile::tempdir().unwrap();
        assert!(Meter::rapl(powercap.path()).is_none());
        zone(powercap.path(), "intel-rapl:0", "package-0", 1);
        std::fs::remove_file(powercap.path().join("intel-rapl:0/energy_uj")).unwrap();
        assert!(Meter::rapl(powercap.path()).is_none());
    }

    #[test]
    fn a_thread_counts_from_when_it_came() {
        let times = |cpu_ns, waited| Times { cpu_ns, run_queue_ns: Some(waited) };
        let before = CpuTimes(HashMap::from([(1, times(50, 5)), (2, times(70, 0)), (3, times(10, 0))]));
        let after = CpuTimes(HashMap::from([(1, times(60, 8)), (2, times(70, 0)), (4, times(30, 4))]));
        let used = Used::default().with(&before, &after);
        assert_eq!(used.busiest_first(), [30, 10], "thread 2 did nothing, thread 3 is gone, thread 4 is new");
        assert_eq!(used.run_queue_ns, Some(3 + 4));
        let twice = used.with(&before, &after);
        assert_eq!((twice.busiest_first(), twice.run_queue_ns), (vec![60, 20], Some(14)));
    }

    #[test]
    fn fields_are_counted_after_the_name() {
        let stat = "7 (a) b) R 1 1 1 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 1 0 12 1 1";
        assert_eq!(parse_stat(stat), Some(300));
        let times = Times { cpu_ns: 81234, run_queue_ns: Some(55) };
        assert_eq!(parse_schedstat("81234 55 3\n"), Some(times));
        assert_eq!(parse_stat("7 (a) R 1"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_computes_is_seen() {
        use rustix::time::{ClockId, clock_gettime};
        let before = CpuTimes::read().unwrap();
        let computing = || {
            while clock_gettime(ClockId::ThreadCPUTime).tv_nsec < 50_000_000 {}
            // Read before the thread ends, because its figure ends with it.
            CpuTimes::read().unwrap()
        };
        let after = std::thread::spawn(computing).join().unwrap();
        let used = Used::default().with(&before, &after);
        assert!(used.busiest_first().iter().any(|&ns| ns > 10_000_000));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_may_run_somewhere() {
        assert!(count().unwrap() > 0);
        assert!(!cpus().unwrap().is_empty());
    }
}
