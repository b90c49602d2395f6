//! A target under libFuzzer, which keeps the inputs that reach new code. The variable `PHOTOFINISH_FUZZ_TARGET` names
//! it; the arguments are libFuzzer's. `fuzz/run.sh` builds this with the instrumentation that libFuzzer needs.

#![no_main]
#![allow(unsafe_code, reason = "libFuzzer calls functions by name, and fuzz_target! exports them")]

use std::sync::LazyLock;

use fuzz::memory::Counting;
use fuzz::{Target, mutate};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("PHOTOFINISH_FUZZ_TARGET").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| panic!("PHOTOFINISH_FUZZ_TARGET names no target: {name:?}"))
});

fuzz_target!(|data: &[u8]| {
    // A refusal is as good as an acceptance: it was checked.
    let _ = TARGET.run(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    // One change in four is libFuzzer's own, which knows nothing of forms and much of comparisons in the code.
    if !seed.is_multiple_of(4)
        && let Some(changed) = mutate::mutated(&data[..size], TARGET.form, seed)
        && changed.len() <= max_size
    {
        data[..changed.len()].copy_from_slice(&changed);
        return changed.len();
    }
    fuzzer_mutate(data, size, max_size)
});
