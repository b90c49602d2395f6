//! Hands keys and values, within one process, from the engine that read a prompt to the one that continues
//! it.
//!
//! Two engines that compute on the same memory hand over nothing but a number of positions. Others copy once,
//! and return the bytes copied.

use std::ops::Range;

use crate::engine::{Decode, EngineError, Result};

/// An engine that can continue another's sequences and hand over its own. Only in f32 and in main memory: the
/// caller that loads it ensures that.
pub trait HandsOver: Decode {
    /// The memory of keys and values of the present sequences, of their whole capacity. It stays valid until
    /// the engine begins sequences of another size, is lent other memory, or is dropped.
    ///
    /// Errors with [`EngineError::Input`] before [`begin`](Decode::begin).
    fn export(&mut self) -> Result<CacheMemory>;

    /// As [`begin`](Decode::begin), but keys and values are kept in `memory`, which another engine owns. A
    /// later `begin` of an equal size keeps using it.
    ///
    /// [`EngineError::Unsupported`] if this engine cannot compute on memory of that owner or of that layout;
    /// the text continues a sentence that starts with "it".
    ///
    /// # Safety
    /// `memory` must stay valid until this engine begins sequences of another size or is dropped. While a
    /// call of this engine runs, nothing else may read or write it.
    #[allow(unsafe_code)]
    unsafe fn begin_in(&mut self, batch: usize, capacity: usize, memory: &CacheMemory) -> Result<()>;

    /// Declares the first `positions` of every present sequence filled, by whichever engine.
    fn set_filled(&mut self, positions: usize) -> Result<()>;

    /// Takes over `positions` of the present sequences from `from`, after those that this engine already has.
    /// Returns the bytes copied: 0 if `from` is this engine's own memory.
    ///
    /// # Safety
    /// `from` must be readable, and nothing may write it during the call.
    #[allow(unsafe_code)]
    unsafe fn import(&mut self, from: &CacheMemory, positions: Range<usize>) -> Result<u64> {
        let own = self.export()?;
        let end = positions.end;
        // SAFETY: the caller's contract; an engine's own exported memory is valid, and not in use between its
        // calls.
        let bytes = unsafe { own.copy_from(from, positions) }?;
        self.set_filled(end)?;
        Ok(bytes)
    }
}

/// Keys or values of one layer: f32, `[batch, kv_heads, capacity, head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plane {
    /// Address of its first element.
    pub address: usize,
    pub shape: [usize; 4],
    /// Elements from one index of a dimension to the next.
    pub strides: [usize; 4],
}

impl Plane {
    /// A plane without gaps between elements.
    pub fn contiguous(address: usize, shape: [usize; 4]) -> Plane {
        let [_, heads, capacity, dim] = shape;
        Plane { address, shape, strides: [heads * capacity * dim, capacity * dim, dim, 1] }
    }

    pub fn is_contiguous(&self) -> bool {
        // With one sequence, the stride to the next does not matter.
        let tight = Plane::contiguous(self.address, self.shape).strides;
        self.strides[1..] == tight[1..] && (self.shape[0] == 1 || self.strides[0] == tight[0])
    }

    /// The address of the first of `positions` of a head, and the elements from one to the next.
    fn rows(&self, sequence: usize, head: usize, positions: &Range<usize>) -> (usize, usize) {
        let [by_sequence, by_head, by_position, _] = self.strides;
        let first = sequence * by_sequence + head * by_head + positions.start * by_position;
        (self.address + first * size_of::<f32>(), by_position)
    }
}

/// Keys and values of all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheMemory {
    /// Keys and values, layer by layer.
    pub layers: Vec<[Plane; 2]>,
}

impl CacheMemory {
    /// Whether both are the same memory, element by element.
    pub fn is(&self, other: &CacheMemory) -> bool {
        let is = |(a, b): (&Plane, &Plane)| {
            let alike = a.shape == b.shape && a.strides[1..] == b.strides[1..];
            a.address == b.address && alike && (a.shape[0] == 1 || a.strides[0] == b.strides[0])
        };
        self.layers.len() == other.layers.len()
            && self.layers.iter().flatten().zip(other.layers.iter().flatten()).all(is)
    }

    /// Address of the first layer's keys.
    pub fn address(&self) -> usize {
        self.layers.first().map_or(0, |[keys, _]| keys.address)
    }

    /// Copies `positions` of every sequence, layer and head out of `from`, if that is other memory. A head
    /// may be padded on one side: only the numbers that both have are copied. Returns the bytes.
    ///
    /// # Safety
    /// Both must be memory of this process with the shapes and strides that they state, and not in use by
    /// anything else.
    #[allow(unsafe_code)]
    unsafe fn copy_from(&self, from: &CacheMemory, positions: Range<usize>) -> Result<u64> {
        if self.is(from) {
            return Ok(0);
        }
        let mut bytes = 0;
        if self.layers.len() != from.layers.len() {
            let (ours, theirs) = (self.layers.len(), from.layers.len());
            return Err(EngineError::Input(format!("keys and values of {theirs} layers, and {ours} here")));
        }
        for (to, from) in self.layers.iter().flatten().zip(from.layers.iter().flatten()) {
            let [batch, heads, capacity, dim] = to.shape;
            let theirs = from.shape;
            if [batch, heads] != theirs[..2] || positions.end > capacity.min(theirs[2]) {
                let text = format!("keys and values of shape {theirs:?} do not fit {:?}", to.shape);
                return Err(EngineError::Input(text));
            }
            let count = dim.min(theirs[3]);
            for (sequence, head) in (0..batch).flat_map(|s| (0..heads).map(move |head| (s, head))) {
                let (target, step) = to.rows(sequence, head, &positions);
                let (source, stride) = from.rows(sequence, head, &positions);
                // Adjacent rows on both sides are one piece.
                let (pieces, length) = match (step == count, stride == count) {
                    (true, true) => (1, count * positions.len()),
                    _ => (positions.len(), count),
                };
                for piece in 0..pieces {
                    let element = size_of::<f32>();
                    // SAFETY: within both planes by their shapes, as checked above; they are different
                    // memory, so the pieces do not overlap.
                    unsafe {
                        let source = (source + piece * stride * element) as *const f32;
                        let target = (target + piece * step * element) as *mut f32;
                        std::ptr::copy_nonoverlapping(source, target, length);
                    }
                }
                bytes += (pieces * length * size_of::<f32>()) as u64;
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Room for two layers of two sequences, two heads, four positions, with heads of `dim` numbers; each
    /// number is its own index plus `first`.
    fn memory(storage: &mut [f32], dim: usize, first: f32) -> CacheMemory {
        storage.iter_mut().enumerate().for_each(|(at, number)| *number = first + at as f32);
        let shape = [2, 2, 4, dim];
        let plane = |index: usize| {
            let start = index * shape.iter().product::<usize>();
            Plane::contiguous(storage[start..].as_ptr() as usize, shape)
        };
        CacheMemory { layers: (0..2).map(|layer| [plane(2 * layer), plane(2 * layer + 1)]).collect() }
    }

    #[test]
    #[allow(unsafe_code)]
    fn the_positions_asked_for_are_copied_and_no_others() {
        let (mut ours, mut theirs) = ([0.0; 64 * 3], [0.0; 64 * 3]);
        let to = memory(&mut ours, 3, -1000.0);
        let from = memory(&mut theirs, 3, 0.0);
        // SAFETY: both arrays live, and are that large.
        let bytes = unsafe { to.copy_from(&from, 1..3) }.unwrap();
        // Two layers, keys and values, two sequences, two heads, two positions of three numbers.
        assert_eq!(bytes, 2 * 2 * 2 * 2 * 2 * 3 * 4);
        for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let position = at / 3 % 4;
            let expected = if (1..3).contains(&position) { *theirs } else { at as f32 - 1000.0 };
            assert_eq!(*ours, expected, "element {at}");
        }
    }

    #[test]
    #[allow(unsafe_code)]
    fn heads_that_are_padded_on_one_side_keep_their_padding() {
        let (mut ours, mut theirs) = ([0.0; 64 * 4], [0.0; 64 * 3]);
        let to = memory(&mut ours, 4, -1000.0);
        let from = memory(&mut theirs, 3, 0.0);
        // SAFETY: as above.
        let bytes = unsafe { to.copy_from(&from, 0..4) }.unwrap();
        assert_eq!(bytes, 64 * 3 * 4);
        for (row, (ours, theirs)) in ours.chunks(4).zip(theirs.chunks(3)).enumerate() {
            assert_eq!(&ours[..3], theirs);
            assert_eq!(ours[3], (4 * row + 3) as f32 - 1000.0);
        }
    }

    #[test]
    #[allow(unsafe_code)]
    fn the_same_memory_is_not_copied_and_other_shapes_are_refused() {
        let (mut ours, mut theirs) = ([0.0; 64 * 3], [0.0; 64 * 3]);
        let to = memory(&mut ours, 3, 0.0);
        let mut from = memory(&mut theirs, 3, 0.0);
        // SAFETY: as above; mismatches are rejected before anything is read.
        unsafe {
            assert_eq!(to.copy_from(&to.clone(), 0..4).unwrap(), 0);
            assert!(to.copy_from(&from, 0..5).is_err(), "a position beyond the capacity");
            from.layers.pop();
            assert!(to.copy_from(&from, 0..4).is_err(), "a layer too few");
        }
    }

    #[test]
    fn the_way_to_the_next_sequence_does_not_matter_where_there_is_one() {
        let plane = Plane { address: 8, shape: [1, 2, 4, 3], strides: [99, 12, 3, 1] };
        assert!(plane.is_contiguous());
        assert!(!Plane { shape: [2, 2, 4, 3], ..plane }.is_contiguous());
        assert!(!Plane { strides: [24, 13, 3, 1], ..plane }.is_contiguous());
        let one = |plane| CacheMemory { layers: vec![[plane; 2]] };
        assert!(one(plane).is(&one(Plane::contiguous(8, [1, 2, 4, 3]))));
        assert!(!one(plane).is(&one(Plane::contiguous(4, [1, 2, 4, 3]))));
    }
}
