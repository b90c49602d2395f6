//! Makes glibc ask for huge pages if the run wants them.
//!
//! With `glibc.malloc.hugetlb=1` glibc reads the system's mode (`always`, `madvise`, `never`) when a process starts, and
//! asks only under `madvise`. glibc 2.36 compares the text it read without terminating it, so that the next
//! byte on the stack decides: about half of candle's and ort's processes got no huge page at all. Such a
//! process starts itself again, with another stack.

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
