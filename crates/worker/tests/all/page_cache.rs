//! Where a load starts from, according to the system. The file is in the target directory, because files of a
//! memory file system cannot be dropped from memory.

use std::fs::File;

use protocol::{PageCache, Task};

use crate::support::fixture::{bundle, job};
use crate::support::{VOCABULARY, loaded, serve};

const WEIGHTS: usize = 8 << 20;

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    bundle(directory.path(), VOCABULARY, WEIGHTS);
    directory
}

fn load(directory: &tempfile::TempDir, evict: bool) -> PageCache {
    let mut job = job(directory.path(), Task::Load);
    job.evict = evict;
    loaded(&serve(&job)).page_cache.clone().expect("Linux tells the owner of a file")
}

fn weights(directory: &tempfile::TempDir) -> File {
    File::open(directory.path().join("f32.safetensors")).unwrap()
}

/// From `linux/magic.h`.
fn is_in_memory(file: &File) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    [TMPFS, RAMFS].contains(&(rustix::fs::fstatfs(file).unwrap().f_type as u64))
}

#[test]
fn what_was_just_written_is_resident() {
    let page_cache = load(&directory(), false);
    assert_eq!(page_cache, PageCache { evicted: false, resident_before: 1.0 });
}

#[test]
fn an_evicted_file_is_not_resident_where_it_lies_on_a_disk() {
    let directory = directory();
    let page_cache = load(&directory, true);
    assert!(page_cache.evicted);
    if is_in_memory(&weights(&directory)) {
        assert_eq!(page_cache.resident_before, 1.0, "no eviction is claimed where none is possible");
    } else {
        assert_eq!(page_cache.resident_before, 0.0);
    }
}

#[test]
fn telling_makes_nothing_resident() {
    let directory = directory();
    let first = load(&directory, true);
    let second = load(&directory, false);
    assert_eq!(first.resident_before, second.resident_before);
}

#[test]
fn what_someone_has_mapped_and_read_stays_resident() {
    let directory = directory();
    let mapping = map(&weights(&directory));
    assert_eq!(mapping.iter().step_by(4096).filter(|&&byte| byte == 7).count(), WEIGHTS / 4096);
    let page_cache = load(&directory, true);
    assert!(page_cache.evicted && page_cache.resident_before > 0.0, "{page_cache:?}");
    drop(mapping);
}

#[allow(unsafe_code)]
fn map(file: &File) -> memmap2::Mmap {
    // SAFETY: the file is this test's own, in a directory that no one else knows, and is not changed.
    unsafe { memmap2::Mmap::map(file) }.unwrap()
}
