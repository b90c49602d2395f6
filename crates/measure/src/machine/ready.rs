//! Memory that the system has ready, for the process that loads next.
//!
//! A virtual machine gives freed memory back to its host (free page reporting, Virtual I/O Device 1.2, 5.5.6.7). Taking it
//! again waits for the host: on one such machine 0.6 GB took 0.06 s within a second of being freed, and 0.9 to 1.5 s
//! later. A load into such memory measures the host. So before a process is started, another takes as much memory in huge
//! pages, and holds it until the first begins to load. Between rounds, what a process freed is taken at once, before the
//! host has it. Pages of files do not do: with 0.6 GB of them written and freed before each start, most loads waited for 1
//! to 2.5 s.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use super::memory;
use crate::clock::now;

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
        within(of_round, memory::free())?;
        ReadyMemory::take(bytes)
    }

    /// Takes so many bytes. `None` if they are too many of the free ones, and where the system cannot do it.
    pub(crate) fn take(bytes: u64) -> Option<ReadyMemory> {
        let bytes = within(bytes, memory::free())?;
        #[expect(clippy::disallowed_methods, reason = "this program itself, which measures nothing then")]
        let mut command = Command::new(std::env::current_exe().ok()?);
        command.args([COMMAND, &bytes.to_string()]);
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::machine::peak_bytes;

    #[test]
    fn as_much_memory_becomes_resident_as_is_taken() {
        let bytes = 64 << 20;
        let taken = Taken::new(bytes);
        assert!(taken.is_none() || peak_bytes(std::process::id()).unwrap() >= bytes as u64);
    }

    #[test]
    fn half_of_the_free_memory_is_taken_at_most() {
        assert_eq!(
            [within(50, Some(100)), within(51, Some(100)), within(0, Some(100)), within(50, None)],
            [Some(50), None, None, None]
        );
    }
}
