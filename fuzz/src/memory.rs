//! How much memory a piece of work holds at once, by a counting allocator. A program that is to be held to bounds makes
//! it its `#[global_allocator]`; elsewhere every count is 0.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// More than this in one thread is refused, as by a system without memory: the program then aborts, and the
/// fuzzer keeps the input.
const MOST: isize = 2 << 30;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, with a count of each thread's memory.
pub struct Counting;

fn grown(by: isize) -> bool {
    let count = |held: &Cell<isize>| {
        let now = held.get() + by;
        held.set(now);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now)));
        now <= MOST
    };
    // A thread that is ending is no longer counted.
    HELD.try_with(count).unwrap_or(true)
}

// SAFETY: every call is passed on to the system's allocator as it came, or refused with a null pointer, which the
// contract allows. Counting allocates nothing: the cells are constants of the thread, without destructors.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !grown(layout.size() as isize) {
            grown(-(layout.size() as isize));
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        grown(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The peak of the memory of `work`, in bytes beyond the thread's memory before it.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let outcome = work();
    (outcome, usize::try_from(PEAK.get() - before).unwrap_or(0))
}
