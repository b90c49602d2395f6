//! How much of a process's memory is in huge pages.

use protocol::Memory;

/// Share of a process's memory in huge pages that counts as complete: stacks and small allocations have none.
pub const COMPLETE: f64 = 0.95;
/// Anonymous memory, in bytes, below which the kind of pages makes no difference.
const LITTLE: u64 = 64 << 20;

/// The share of a process's own memory that is in huge pages; `None` if it has little memory, or if the
/// system does not report it.
pub fn huge_share(memory: &Memory) -> Option<f64> {
    let anonymous = memory.anonymous_bytes.filter(|&bytes| bytes >= LITTLE)?;
    Some(memory.huge_bytes? as f64 / anonymous as f64)
}
