//! Threads that burn a core while the mock computes: an engine that uses more than its budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

#[derive(Default)]
pub(crate) struct BusyThreads {
    flags: Arc<Flags>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Flags {
    busy: AtomicBool,
    done: AtomicBool,
}

impl BusyThreads {
    pub(crate) fn start(count: usize) -> std::io::Result<Self> {
        let mut busy = Self::default();
        for _ in 0..count {
            let flags = Arc::clone(&busy.flags);
            let work = move || {
                while !flags.done.load(Ordering::Relaxed) {
                    if flags.busy.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    } else {
                        std::thread::park();
                    }
                }
            };
            busy.threads.push(std::thread::Builder::new().name("busy".into()).spawn(work)?);
        }
        Ok(busy)
    }

    /// Whether they are to burn.
    pub(crate) fn set(&self, busy: bool) {
        self.flags.busy.store(busy, Ordering::Relaxed);
        if busy {
            self.threads.iter().for_each(|thread| thread.thread().unpark());
        }
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.flags.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}
