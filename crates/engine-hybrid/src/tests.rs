//! The pair's own logic, on engines that only record their calls.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use worker::engine::{CacheMemory, Foreigns, Plane, Result};

use super::*;

const CAPACITY: usize = 8;

/// An engine of one layer and one head; the key of a position is the token's id.
struct Toy {
    name: &'static str,
    /// Whether it can compute on another's memory.
    borrows: bool,
    keys: Vec<f32>,
    values: Vec<f32>,
    borrowed: Option<CacheMemory>,
    batch: usize,
    filled: usize,
    logits: Vec<f32>,
    calls: Rc<RefCell<Vec<String>>>,
}

impl Toy {
    fn part(name: &'static str, borrows: bool, calls: &Rc<RefCell<Vec<String>>>) -> Box<dyn Part> {
        let (keys, values) = (Vec::new(), Vec::new());
        let calls = Rc::clone(calls);
        let (borrowed, logits) = (None, Vec::new());
        Box::new(Toy { name, borrows, keys, values, borrowed, batch: 0, filled: 0, logits, calls })
    }

    fn note(&self, call: String) {
        self.calls.borrow_mut().push(format!("{} {call}", self.name));
    }
}

impl Part for Toy {
    fn name(&self) -> &'static str {
        self.name
    }

    fn in_effect(&self) -> InEffect {
        InEffect {
            precision: "f32".into(),
            activations: "f32".into(),
            kv_cache_precision: "f32".into(),
            kv_cache: KvCachePolicy::Preallocated,
            device: Device::Cpu.into(),
            threads: 1,
            jit: "eager".into(),
            optimised: None,
            weight_storage: "mapped".into(),
            kernels: vec!["none"].into(),
            shard_bytes: None,
            hybrid: None,
            semi_public: Foreigns::default(),
            changed_defaults: Foreigns::default(),
            artefact: None,
        }
    }
}

impl Decode for Toy {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<()> {
        if self.batch != batch {
            self.borrowed = None;
            self.keys = vec![0.0; batch * capacity];
            self.values = vec![0.0; batch * capacity];
        }
        (self.batch, self.filled) = (batch, 0);
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], _want: Want) -> Result<&[f32]> {
        self.note(format!("appends {} at {}", tokens.len(), self.filled));
        let keys = self.export()?.layers[0][0].address as *mut f32;
        for &token in tokens {
            // SAFETY: the memory is this toy's or a living one's, of that capacity.
            #[allow(unsafe_code)]
            unsafe {
                keys.add(self.filled).write(token as f32);
            }
            self.filled += 1;
        }
        // SAFETY: as above.
        #[allow(unsafe_code)]
        let seen = unsafe { std::slice::from_raw_parts(keys, self.filled) };
        self.logits = seen.to_vec();
        Ok(&self.logits)
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        Some((2 * self.batch * CAPACITY * 4) as u64)
    }

    fn hidden_states(&mut self) -> Result<HiddenStates> {
        self.note("tells hidden states".into());
        Ok(HiddenStates { layers: Vec::new() })
    }
}

impl HandsOver for Toy {
    fn export(&mut self) -> Result<CacheMemory> {
        let shape = [self.batch, 1, CAPACITY, 1];
        let plane = |numbers: &mut Vec<f32>| Plane::contiguous(numbers.as_mut_ptr() as usize, shape);
        Ok(match &self.borrowed {
            Some(memory) => memory.clone(),
            None => CacheMemory { layers: vec![[plane(&mut self.keys), plane(&mut self.values)]] },
        })
    }

    fn set_filled(&mut self, positions: usize) -> Result<()> {
        self.note(format!("is told of {positions}"));
        self.filled = positions;
        Ok(())
    }

    #[allow(unsafe_code)]
    unsafe fn begin_in(&mut self, batch: usize, _capacity: usize, memory: &CacheMemory) -> Result<()> {
        if !self.borrows || batch > 1 {
            return Err(EngineError::Unsupported("borrows nothing".into()));
        }
        self.borrowed = Some(memory.clone());
        (self.batch, self.filled) = (batch, 0);
        Ok(())
    }

    #[allow(unsafe_code)]
    unsafe fn import(&mut self, from: &CacheMemory, positions: Range<usize>) -> Result<u64> {
        self.note(format!("copies {positions:?}"));
        let keys = from.layers[0][0].address as *const f32;
        // SAFETY: the other toy still exists, and has that capacity.
        let keys = unsafe { std::slice::from_raw_parts(keys, CAPACITY) };
        self.keys[positions.clone()].copy_from_slice(&keys[positions.clone()]);
        self.filled = positions.end;
        Ok(2 * 4 * positions.len() as u64)
    }
}

/// A pair after `begin`; `borrows` says which engine can use the other's memory. Returns the engines' calls,
/// too.
fn pair(borrows: [bool; 2]) -> (Pair, Rc<RefCell<Vec<String>>>) {
    let calls = Rc::default();
    let mut pair = Pair::new(Toy::part("a", borrows[0], &calls), Toy::part("b", borrows[1], &calls));
    pair.begin(1, CAPACITY).unwrap();
    (pair, calls)
}

fn calls(calls: &Rc<RefCell<Vec<String>>>) -> Vec<String> {
    std::mem::take(&mut calls.borrow_mut())
}

#[test]
fn prompts_go_to_the_first_and_steps_to_the_second() {
    let (mut pair, noted) = pair([false, false]);
    // A single token at the beginning is a prompt, and several tokens after a context are one, too.
    for (tokens, expected) in [
        (&[5][..], vec!["a appends 1 at 0"]),
        (&[6, 7], vec!["a appends 2 at 1"]),
        (&[8], vec!["b copies 0..3", "b appends 1 at 3"]),
        (&[9], vec!["b appends 1 at 4"]),
        (&[1, 2], vec!["a copies 3..5", "a appends 2 at 5"]),
        (&[3], vec!["b copies 5..7", "b appends 1 at 7"]),
    ] {
        pair.append(tokens, tokens.len(), Want::Last).unwrap();
        assert_eq!(calls(&noted), expected, "{tokens:?}");
    }
    pair.begin(1, CAPACITY).unwrap();
    assert_eq!(pair.append(&[4], 1, Want::Last).unwrap(), [4.0]);
    assert_eq!(calls(&noted), ["a appends 1 at 0"]);
}

#[test]
fn whoever_can_use_the_others_memory_does_and_nothing_is_copied() {
    for borrows in [[true, false], [false, true], [true, true]] {
        let (mut pair, noted) = pair(borrows);
        assert_eq!(pair.obstacle(), None);
        pair.append(&[5, 6], 2, Want::Last).unwrap();
        let handed = pair.hand_over().unwrap();
        assert_eq!((handed.bytes, handed.prefill_address), (0, handed.decode_address));
        assert_eq!(pair.append(&[7], 1, Want::Last).unwrap(), [5.0, 6.0, 7.0]);
        assert_eq!(calls(&noted), ["a appends 2 at 0", "b is told of 2", "b appends 1 at 2"]);
        assert_eq!(pair.kv_cache_bytes(), Some(2 * CAPACITY as u64 * 4), "one cache");
    }
}

#[test]
fn what_is_copied_is_told_once_with_bytes_and_reason() {
    let (mut pair, noted) = pair([false, false]);
    pair.append(&[5, 6], 2, Want::Last).unwrap();
    let handed = pair.hand_over().unwrap();
    assert_eq!(handed.bytes, 2 * 4 * 2);
    assert_ne!(handed.prefill_address, handed.decode_address);
    assert_eq!(pair.hand_over().unwrap().bytes, 0, "it is there already");
    assert_eq!(pair.append(&[7], 1, Want::Last).unwrap(), [5.0, 6.0, 7.0]);
    assert_eq!(calls(&noted), ["a appends 2 at 0", "b copies 0..2", "b appends 1 at 2"]);
    assert_eq!(pair.obstacle().unwrap(), "a borrows nothing; b borrows nothing");
    assert_eq!(pair.kv_cache_bytes(), Some(4 * CAPACITY as u64 * 4), "two caches");
}

#[test]
fn a_batch_that_cannot_be_shared_is_copied_and_a_later_one_is_shared_again() {
    let (mut pair, _) = pair([true, false]);
    pair.begin(2, CAPACITY).unwrap();
    assert!(pair.obstacle().is_some());
    pair.begin(1, CAPACITY).unwrap();
    assert_eq!(pair.obstacle(), None);
    pair.append(&[5, 6], 2, Want::Last).unwrap();
    assert_eq!(pair.append(&[7], 1, Want::Last).unwrap(), [5.0, 6.0, 7.0]);
}

#[test]
fn hidden_states_are_those_of_whoever_computed_last() {
    let (mut pair, noted) = pair([true, true]);
    pair.append(&[5, 6], 2, Want::Last).unwrap();
    pair.hidden_states().unwrap();
    pair.append(&[7], 1, Want::Last).unwrap();
    pair.hidden_states().unwrap();
    let told: Vec<_> = calls(&noted).into_iter().filter(|call| call.contains("hidden")).collect();
    assert_eq!(told, ["a tells hidden states", "b tells hidden states"]);
}

#[test]
fn one_that_cannot_run_the_model_leaves_the_other_alone_and_says_so() {
    let noted = Rc::default();
    let refused = || Err("it has no such attention".to_owned());
    let fallback = |prefill, decode| match assembled(["a", "b"], prefill, decode) {
        Ok(Engines::Alone(part, words)) => (part.name(), words),
        Ok(Engines::Pair(_)) => panic!("a pair"),
        Err(error) => ("nobody", error.to_string()),
    };
    assert_eq!(
        fallback(refused(), Ok(Toy::part("b", true, &noted))),
        ("b", "falls back to b alone: a cannot run this: it has no such attention".to_owned())
    );
    assert_eq!(fallback(Ok(Toy::part("a", true, &noted)), refused()).0, "a");
    let (nobody, words) = fallback(refused(), refused());
    assert!(nobody == "nobody" && words.starts_with("unsupported: neither engine can run this: a: it has"));
}

#[test]
fn what_is_in_effect_names_both_engines() {
    let noted = Rc::default();
    let toy = |name, optimised| {
        let part = Toy::part(name, true, &noted);
        (name, InEffect { optimised, ..part.in_effect() })
    };
    let both = together(&[toy("a", None), toy("b", Some(true))]);
    assert_eq!(both.jit, "prefill a: eager; decode b: eager");
    assert_eq!(both.kernels, ["prefill a: none", "decode b: none"]);
    assert!(both.weight_storage.starts_with("two sets of weights: prefill a: mapped"));
    assert_eq!(both.optimised, Some(true));
    assert_eq!(together(&[toy("a", Some(false)), toy("b", Some(true))]).optimised, Some(false));
    assert_eq!(together(&[toy("a", None), toy("b", None)]).optimised, None);
}
