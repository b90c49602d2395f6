//! Memory that the system has ready, for the process that loads next.
//!
//! A virtual machine gives freed memory back to its host (free page reporting, Virtual I/O Device 1.2, 5.5.6.7). Taking it
//! again waits for the host: on one such machine 0.6 GB took 0.06 s within a second of being freed, and 0.9 to 1.5 s
//! later. A load into such memory measures the host. So this program takes as much memory just before it starts a
//! process, and frees it again: what the process takes then comes from there.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::memory;

/// Largest share of the free memory to take. The rest is for the process that starts meanwhile, and keeps the
/// kernel from dropping pages of files, the weights among them.
const MOST: f64 = 0.5;
/// Freed memory is taken again after this time, and held, for a process that has not begun to load. On one machine it was
/// still ready after 1 s, and no longer after 1.5 s.
const KEPT: Duration = Duration::from_millis(700);

/// Memory that stays ready until this is dropped.
#[derive(Debug)]
pub(crate) struct ReadyMemory {
    /// Nanoseconds that the system took to give it.
    pub(crate) taken_ns: u64,
    _loads: Sender<()>,
}

impl ReadyMemory {
    /// Takes so many bytes. `None` if they are too many of the free ones, and where the system cannot do it.
    pub(crate) fn take(bytes: u64) -> Option<ReadyMemory> {
        let begun = crate::clock::now();
        let bytes = within(bytes, memory::free())?;
        drop(Taken::new(bytes)?);
        let taken_ns = begun.elapsed().as_nanos().try_into().unwrap_or(u64::MAX);
        let (sender, loads) = channel::<()>();
        let hold = move || {
            if let Err(RecvTimeoutError::Timeout) = loads.recv_timeout(KEPT) {
                let taken = within(bytes as u64, memory::free()).and_then(Taken::new);
                let _ = loads.recv();
                drop(taken);
            }
        };
        // Without the thread the memory is ready for a second.
        let _ = std::thread::Builder::new().name("ready memory".into()).spawn(hold);
        Some(ReadyMemory { taken_ns, _loads: sender })
    }
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
