//! Memory of this process, by phase.
//!
//! `VmHWM` is the peak resident set; writing 5 to `/proc/self/clear_refs` resets it (proc_pid_clear_refs(5)).
//! Never `ru_maxrss`: Linux starts a child's at its parent's peak.

use std::path::Path;

use protocol::{GpuAllocator, Memory, PageCache};

use crate::energy::Gpu;
use crate::engine::InferenceEngine;

/// A phase; memory is read at its end.
pub(crate) struct Phase<'a> {
    peak_was_reset: bool,
    gpu: Option<&'a Gpu>,
}

impl<'a> Phase<'a> {
    /// The peak counts from here, or from the start of the process where it cannot be reset.
    pub(crate) fn begin(gpu: Option<&'a Gpu>) -> Phase<'a> {
        Phase { peak_was_reset: std::fs::write("/proc/self/clear_refs", "5").is_ok(), gpu }
    }

    /// The phase's peak, and the memory resident now. Takes milliseconds in a large process, because the
    /// kernel walks its pages for the proportional set size: never call it within a timed interval.
    pub(crate) fn end(self) -> Memory {
        let mut memory = match std::fs::read_to_string("/proc/self/status") {
            Ok(status) => parse_status(&status),
            Err(_) => portable(),
        };
        memory.method = memory.peak_bytes.map(|_| self.method().into());
        let rollup = std::fs::read_to_string("/proc/self/smaps_rollup");
        if let Ok(rollup) = rollup {
            memory.pss_bytes = kibibytes(&rollup, "Pss");
            memory.huge_bytes = kibibytes(&rollup, "AnonHugePages");
        }
        memory.gpu = self.gpu.and_then(Gpu::memory);
        memory
    }

    /// As [`Self::end`], with the figures of the loaded model's framework.
    pub(crate) fn end_with<E: InferenceEngine>(self, engine: &E) -> Memory {
        let told = engine.gpu_allocated();
        let gpu_allocator = told
            .map(|told| GpuAllocator { in_use_bytes: told.in_use, peak_bytes: told.peak.max(told.in_use) });
        Memory { gpu_allocator, ..self.end() }
    }

    fn method(&self) -> &'static str {
        if self.peak_was_reset {
            "VmHWM, reset at the start of the phase"
        } else {
            "VmHWM of the process so far"
        }
    }
}

fn parse_status(status: &str) -> Memory {
    Memory {
        peak_bytes: kibibytes(status, "VmHWM"),
        resident_bytes: kibibytes(status, "VmRSS"),
        anonymous_bytes: kibibytes(status, "RssAnon"),
        file_bytes: kibibytes(status, "RssFile"),
        ..Memory::default()
    }
}

/// The bytes of a line such as `VmRSS:  10 kB`.
fn kibibytes(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let number: u64 = value.split_whitespace().next()?.parse().ok()?;
    Some(number * 1024)
}

fn portable() -> Memory {
    use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};
    let resident = get_current_pid().ok().and_then(|pid| {
        let mut system = System::new();
        let what = ProcessRefreshKind::nothing().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, what);
        system.process(pid).map(|process| process.memory())
    });
    Memory { resident_bytes: resident, ..Memory::default() }
}

// Makes glibc ask for huge pages if the run wants them.
//
// With `glibc.malloc.hugetlb=1` glibc reads the system's mode (`always`, `madvise`, `never`) when a process starts, and
// asks only under `madvise`. glibc 2.36 compares the text it read without terminating it, so that the next
// byte on the stack decides: about half of candle's and ort's processes got no huge page at all. Such a
// process starts itself again, with another stack.

/// Times that a process starts itself again, at most. Each has about an even chance.
#[cfg(target_os = "linux")]
const MOST: usize = 16;

/// The variable that counts them. Its length moves the stack.
#[cfg(target_os = "linux")]
const AGAIN: &str = "PHOTOFINISH_AGAIN";

/// Starts this program again if glibc is configured to ask for huge pages and does not. Nothing must have
/// been read yet.
#[cfg(target_os = "linux")]
pub(crate) fn insist() {
    let is_told = std::env::var("GLIBC_TUNABLES").is_ok_and(|told| told.contains("glibc.malloc.hugetlb=1"));
    let mode = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !is_told || !mode.contains("[madvise]") || are_asked_for() {
        return;
    }
    let again = std::env::var(AGAIN).map_or(0, |again| again.len());
    if let Ok(program) = std::env::current_exe()
        && again < MOST
    {
        use std::os::unix::process::CommandExt;
        #[expect(clippy::disallowed_methods, reason = "this very process, once more")]
        let mut command = std::process::Command::new(program);
        let error = command.args(std::env::args_os().skip(1)).env(AGAIN, "x".repeat(again + 1)).exec();
        // As it is, it can still do its job.
        eprintln!("it cannot start itself again for huge pages: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn insist() {}

/// Whether a large allocation is marked for huge pages.
#[cfg(target_os = "linux")]
fn are_asked_for() -> bool {
    // Above every threshold of glibc's, so that it has its own mapping. It is never touched.
    let probe: Vec<u8> = std::hint::black_box(Vec::with_capacity(64 << 20));
    let address = probe.as_ptr() as usize;
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut is_it = false;
    for line in maps.lines() {
        if let Some((from, rest)) = line.split_once('-')
            && let (Ok(from), Some(Ok(to))) = (
                usize::from_str_radix(from, 16),
                rest.split(' ').next().map(|to| usize::from_str_radix(to, 16)),
            )
        {
            is_it = (from..to).contains(&address);
        } else if is_it && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.split_whitespace().any(|flag| flag == "hg");
        }
    }
    // Without such a list no difference could be seen.
    true
}

// The system's page cache: whether a load starts from the disk or from memory.
//
// Only Linux reports resident pages (`mincore(2)`) and takes advice (`posix_fadvise(2)`); elsewhere nothing
// is known.

/// Drops `file` from the page cache if `evict` is set, and then reads how much of it is resident. `None`
/// where the system does not report.
pub(crate) fn prepare(file: &Path, evict: bool) -> Option<PageCache> {
    #[cfg(target_os = "linux")]
    {
        let observed = linux::prepare(file, evict);
        observed.inspect_err(|e| eprintln!("page cache of {}: {e}", file.display())).ok()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, evict);
        None
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use memmap2::{Mmap, MmapOptions};
    use protocol::PageCache;
    use rustix::fs::{Access, Advice};

    pub(super) fn prepare(path: &Path, evict: bool) -> io::Result<PageCache> {
        let file = File::open(path)?;
        if evict {
            drop_pages(&file)?;
        }
        // The kernel reports every page as resident to a process that neither owns the file nor may write it
        // (`can_do_mincore`, since Linux 5.2).
        let owned = file.metadata()?.uid() == rustix::process::geteuid().as_raw();
        if !owned && rustix::fs::access(path, Access::WRITE_OK).is_err() {
            let reason = "mincore tells the truth only to its owner and to those who may write it";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        Ok(PageCache { evicted: evict, resident_before: resident_share(&file)? })
    }

    /// Asks the kernel to drop the file's pages. It drops clean pages that no process has mapped.
    fn drop_pages(file: &File) -> io::Result<()> {
        rustix::fs::fdatasync(file)?;
        Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
    }

    /// Share of the file's pages that are in memory. Makes none resident.
    fn resident_share(file: &File) -> io::Result<f64> {
        let mapping = map(file)?;
        let mut pages = vec![0; mapping.len().div_ceil(rustix::param::page_size())];
        mincore(&mapping, &mut pages)?;
        // The lowest bit is the page's; the others are reserved.
        let resident = pages.iter().filter(|&&page| page & 1 == 1).count();
        Ok(resident as f64 / pages.len().max(1) as f64)
    }

    #[allow(unsafe_code)]
    fn map(file: &File) -> io::Result<Mmap> {
        // SAFETY: no byte of the mapping is read, so it does not matter whether another process writes
        // or truncates the file meanwhile.
        unsafe { MmapOptions::new().map(file) }
    }

    /// `pages` must have an element for each page of `mapping`.
    #[allow(unsafe_code)]
    fn mincore(mapping: &Mmap, pages: &mut [u8]) -> io::Result<()> {
        assert!(pages.len() >= mapping.len().div_ceil(rustix::param::page_size()));
        // SAFETY: the address is that of a mapping, hence of a page, and of its length; the kernel writes
        // one byte a page, for which the assertion above has made sure that there is room.
        let status =
            unsafe { libc::mincore(mapping.as_ptr().cast_mut().cast(), mapping.len(), pages.as_mut_ptr()) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_fields_are_told_apart_and_counted_in_bytes() {
        let memory = parse_status(
            "VmPeak:\t  90 kB\nVmHWM:\t  12 kB\nVmRSS:\t  10 kB\nRssAnon:\t 4 kB\nRssFile:\t 6 kB\n",
        );
        assert_eq!(memory.peak_bytes, Some(12 * 1024));
        assert_eq!(memory.resident_bytes, Some(10 * 1024));
        assert_eq!(memory.anonymous_bytes, Some(4 * 1024));
        assert_eq!(memory.file_bytes, Some(6 * 1024));
        assert_eq!(parse_status("").peak_bytes, None);
    }

    #[test]
    fn a_peak_that_was_not_reset_is_called_so() {
        let phase = Phase { peak_was_reset: false, gpu: None };
        assert_eq!(phase.method(), "VmHWM of the process so far");
    }

    #[test]
    fn the_proportional_set_is_that_of_the_rollup() {
        let rollup =
            "55e0-7fff ---p 00000000 00:00 0    [rollup]\nRss:    9 kB\nPss:    7 kB\nPss_Dirty: 3 kB\n";
        assert_eq!(kibibytes(rollup, "Pss"), Some(7 * 1024));
        assert_eq!(kibibytes("Pss_Dirty: 3 kB\n", "Pss"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_phase_gives_what_is_resident_and_its_proportional_part() {
        let memory = Phase::begin(None).end();
        assert!(memory.resident_bytes.unwrap() > 0);
        assert!(memory.pss_bytes.unwrap() > 0);
        assert!(memory.huge_bytes.is_some());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_of_a_phase_is_its_own() {
        let block = |mebibytes: usize| std::hint::black_box(vec![1u8; mebibytes << 20]);
        drop(block(64));
        let before = Phase::begin(None).end();
        assert_eq!(before.method.as_deref(), Some("VmHWM, reset at the start of the phase"));
        let phase = Phase::begin(None);
        drop(block(32));
        let grown = phase.end().peak_bytes.unwrap() - before.peak_bytes.unwrap();
        assert!((24 << 20..60 << 20).contains(&grown), "the phase's peak grew by {grown} bytes");
    }
}
