//! Removes kernels for other GPUs from a library. ONNX Runtime's CUDA provider has machine code for six
//! generations of GPUs. For one alone the rest becomes zeros, which compress to nothing; the code that runs
//! is untouched.
//!
//! The layout of a container, as `cuobjdump` reads it: a header (u32 magic, u16 version, u16 own size, u64 size of what
//! follows), then entries, each with a header (u16 kind, u16 version, u32 own size, u64 size of its contents, …, u32
//! generation at byte 28).

use std::ops::Range;

const MAGIC: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();
/// Kind of an entry that is machine code.
const CODE: u16 = 2;

/// Overwrites the entries of other generations than `capability` (90 for 9.0) if a container has code for it;
/// returns the number of bytes that became zero.
pub(super) fn keep(file: &mut [u8], capability: u32) -> u64 {
    let mut cleared = 0;
    let mut at = 0;
    while let Some(found) = file.get(at..).and_then(|rest| rest.windows(4).position(|four| four == MAGIC)) {
        let start = at + found;
        let Some((entries, end)) = container(file, start) else {
            at = start + MAGIC.len();
            continue;
        };
        let is_kept = |entry: &Entry| entry.kind == CODE && entry.generation == capability;
        if entries.iter().any(is_kept) {
            for entry in entries.iter().filter(|entry| !is_kept(entry)) {
                file[entry.contents.clone()].fill(0);
                cleared += entry.contents.len() as u64;
            }
        }
        at = end;
    }
    cleared
}

struct Entry {
    kind: u16,
    generation: u32,
    contents: Range<usize>,
}

/// The entries of the container that begins at `start`, and its end; `None` if it is none.
fn container(file: &[u8], start: usize) -> Option<(Vec<Entry>, usize)> {
    let header = start.checked_add(usize::from(u16_at(file, start + 6)?))?;
    let end = header.checked_add(size_at(file, start + 8)?)?;
    if u16_at(file, start + 4)? != 1 || end > file.len() {
        return None;
    }
    let (mut entries, mut at) = (Vec::new(), header);
    while at < end {
        let contents = at.checked_add(u32_at(file, at + 4)? as usize)?;
        let next = contents.checked_add(size_at(file, at + 8)?)?;
        if next <= at || next > end {
            return None;
        }
        let (kind, generation) = (u16_at(file, at)?, u32_at(file, at + 28)?);
        entries.push(Entry { kind, generation, contents: contents..next });
        at = next;
    }
    Some((entries, end))
}

fn u16_at(file: &[u8], at: usize) -> Option<u16> {
    file.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    file.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn size_at(file: &[u8], at: usize) -> Option<usize> {
    let bytes = file.get(at..at + 8)?.try_into().ok()?;
    usize::try_from(u64::from_le_bytes(bytes)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(entries: &[(u16, u32, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for &(kind, generation, contents) in entries {
            body.extend(kind.to_le_bytes());
            body.extend([1, 1]);
            body.extend(32_u32.to_le_bytes());
            body.extend((contents.len() as u64).to_le_bytes());
            body.extend([7; 12]);
            body.extend(generation.to_le_bytes());
            body.extend(contents);
        }
        let mut file = b"before".to_vec();
        file.extend(MAGIC);
        file.extend([1, 0, 16, 0]);
        file.extend((body.len() as u64).to_le_bytes());
        file.extend(body);
        file.extend(b"after");
        file
    }

    #[test]
    fn code_of_other_generations_becomes_zeros() {
        let (old, own, text) = ([1; 8], [2; 8], [3; 8]);
        let mut bytes = file(&[(CODE, 80, &old), (CODE, 90, &own), (1, 90, &text)]);
        assert_eq!(keep(&mut bytes, 90), 16);
        assert_eq!(bytes, file(&[(CODE, 80, &[0; 8]), (CODE, 90, &own), (1, 90, &[0; 8])]));
    }

    #[test]
    fn a_container_without_that_generation_and_a_broken_one_stay() {
        let whole = file(&[(CODE, 80, &[1; 8]), (1, 80, &[3; 8])]);
        let mut bytes = whole.clone();
        assert_eq!((keep(&mut bytes, 90), &bytes), (0, &whole));
        for length in 0..whole.len() {
            let mut bytes = whole[..length].to_vec();
            assert!(keep(&mut bytes, 80) <= 16, "{length}");
        }
    }
}
