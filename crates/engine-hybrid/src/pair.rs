//! Two engines with the same sequences: which of them computes an append, and how the other gets the
//! positions.

use engine::{CacheMemory, EngineError, HandedOver, HiddenStates, Want};

use crate::part::Part;

/// Places of the two in a [`Pair`].
pub(crate) const PREFILL: usize = 0;
pub(crate) const DECODE: usize = 1;

pub(crate) struct Pair {
    /// The one that reads prompts, and the one that computes steps of one token.
    parts: [Box<dyn Part>; 2],
    present: Option<Present>,
    /// The one that computed last.
    latest: usize,
}

/// The sequences that there are.
struct Present {
    batch: usize,
    capacity: usize,
    /// Positions of every sequence, computed by either engine.
    filled: usize,
    /// How many of them each engine has.
    has: [usize; 2],
    /// The address of each engine's keys and values.
    memories: [CacheMemory; 2],
    /// Whether that is one and the same place.
    is_shared: bool,
    /// Why it is not.
    obstacle: Option<String>,
}

impl Pair {
    pub(crate) fn new(prefill: Box<dyn Part>, decode: Box<dyn Part>) -> Pair {
        Pair { parts: [prefill, decode], present: None, latest: PREFILL }
    }

    pub(crate) fn parts(&self) -> &[Box<dyn Part>; 2] {
        &self.parts
    }

    /// As [`engine::Decode::begin`].
    pub(crate) fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        if let Some(present) = &mut self.present
            && (present.batch, present.capacity) == (batch, capacity)
        {
            (present.filled, present.has) = (0, [0; 2]);
            return self.parts.iter_mut().try_for_each(|part| part.begin(batch, capacity));
        }
        // Should it fail, there are no sequences.
        self.present = None;
        let obstacle = self.share(batch, capacity)?;
        let [prefill, decode] = &mut self.parts;
        let memories = [prefill.export()?, decode.export()?];
        let is_shared = memories[PREFILL].is(&memories[DECODE]);
        if is_shared != obstacle.is_none() {
            let names = self.parts.each_ref().map(|part| part.name()).join(" and ");
            return Err(EngineError::Framework(format!(
                "{names} do not keep keys and values where they said"
            )));
        }
        self.present =
            Some(Present { batch, capacity, filled: 0, has: [0; 2], memories, is_shared, obstacle });
        Ok(())
    }

    /// Begins in both, in one memory if either can use the other's. Returns why they do not share it.
    fn share(&mut self, batch: usize, capacity: usize) -> Result<Option<String>, EngineError> {
        let mut obstacles = Vec::new();
        for (owner, other) in [(DECODE, PREFILL), (PREFILL, DECODE)] {
            self.parts[owner].begin(batch, capacity)?;
            let memory = self.parts[owner].export()?;
            // SAFETY: the owner keeps it until it begins sequences of another size, which happens in `begin`
            // alone, where this engine begins again as well before it computes; and the two compute one after
            // the other.
            #[allow(unsafe_code)]
            let begun = unsafe { self.parts[other].begin_in(batch, capacity, &memory) };
            match begun {
                Ok(()) => return Ok(None),
                Err(EngineError::Unsupported(reason)) => {
                    obstacles.push(format!("{} {reason}", self.parts[other].name()));
                }
                Err(error) => return Err(error),
            }
        }
        // PREFILL has begun in the last iteration; DECODE has not since its `begin_in` failed.
        self.parts[DECODE].begin(batch, capacity)?;
        Ok(Some(obstacles.join("; ")))
    }

    /// As [`engine::Decode::append`], of `count` positions that have been checked.
    pub(crate) fn append(&mut self, tokens: &[u32], count: usize, want: Want) -> Result<&[f32], EngineError> {
        let is_step = count == 1 && self.sizes().2 > 0;
        let by = if is_step { DECODE } else { PREFILL };
        self.bring(by)?;
        self.latest = by;
        let logits = self.parts[by].append(tokens, want)?;
        if let Some(present) = &mut self.present {
            present.filled += count;
            present.has[by] = present.filled;
        }
        Ok(logits)
    }

    /// Batch, capacity and positions filled; zeros where there are no sequences.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        self.present.as_ref().map_or((0, 0, 0), |present| (present.batch, present.capacity, present.filled))
    }

    /// Gives all positions to the engine that decodes.
    pub(crate) fn hand_over(&mut self) -> Result<HandedOver, EngineError> {
        let bytes = self.bring(DECODE)?;
        let address = |at: usize| self.present.as_ref().map_or(0, |present| present.memories[at].address());
        Ok(HandedOver { bytes, addresses: [address(PREFILL), address(DECODE)] })
    }

    /// Why keys and values of the present sequences are copied, if they are.
    pub(crate) fn obstacle(&self) -> Option<String> {
        self.present.as_ref()?.obstacle.clone()
    }

    /// Gives the engine `to` the positions that it lacks. Returns the bytes copied.
    fn bring(&mut self, to: usize) -> Result<u64, EngineError> {
        let Some(present) = &mut self.present else { return Ok(0) };
        let (has, filled) = (present.has[to], present.filled);
        if has == filled {
            return Ok(0);
        }
        let bytes = if present.is_shared {
            self.parts[to].set_filled(filled)?;
            0
        } else {
            let from = &present.memories[1 - to];
            // SAFETY: its owner has not begun again since `export` gave the address, and does not compute
            // now.
            #[allow(unsafe_code)]
            let imported = unsafe { self.parts[to].import(from, has..filled) };
            imported?
        };
        present.has[to] = filled;
        Ok(bytes)
    }

    /// Keys and values as they are allocated: once where both use the same.
    pub(crate) fn kv_cache_bytes(&self) -> Option<u64> {
        let present = self.present.as_ref()?;
        let decode = self.parts[DECODE].kv_cache_bytes()?;
        Some(if present.is_shared { decode } else { decode + self.parts[PREFILL].kv_cache_bytes()? })
    }

    pub(crate) fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        self.parts[self.latest].hidden_states()
    }
}
