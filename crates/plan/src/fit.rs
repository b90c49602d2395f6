//! Checks whether a model fits into memory, before it is prepared.

use bundle::{ModelConfig, Precision};
use configs::Engine;

/// The least memory of one worker, in bytes: its weights once, and the keys and values of its sequences. An engine that
/// stores weights in its own layout needs more, which only the engine knows.
#[derive(Debug, Clone, Copy)]
struct Demand {
    precision: Precision,
    weights: u128,
    kv_cache: u128,
    batch: usize,
    capacity: usize,
}

impl Demand {
    /// Computes the need; `None` if the precision cannot store this model. `prepare` gives the reason.
    fn new(config: &ModelConfig, precision: Precision, batch: usize, capacity: usize) -> Option<Demand> {
        let stored = config.stored(precision).ok()?;
        let cached = 2 * config.layers as u128 * config.qkv_rows().1 as u128;
        let sequences = batch as u128 * capacity as u128;
        Some(Demand {
            precision,
            weights: stored.iter().map(|tensor| u128::from(tensor.bytes())).sum(),
            kv_cache: cached * sequences * precision.element().bytes() as u128,
            batch,
            capacity,
        })
    }

    fn total(&self) -> u128 {
        self.weights + self.kv_cache
    }

    /// The sum, in words.
    fn arithmetic(&self) -> String {
        let Demand { precision, weights, kv_cache, batch, capacity } = *self;
        let weights = format!("weights {} at {precision}", gigabytes(weights));
        if kv_cache == 0 {
            return weights;
        }
        let sequences = if batch == 1 { String::new() } else { format!("{batch} sequences of ") };
        let (cache, total) = (gigabytes(kv_cache), gigabytes(self.total()));
        format!("{weights} + KV cache {cache} for {sequences}{capacity} tokens = {total}")
    }
}

/// The reason, with the arithmetic, why `available` bytes are too few for `batch` sequences of `capacity` tokens at one
/// of `precisions`; `None` if they may suffice.
pub fn refusal(
    config: &ModelConfig,
    precisions: &[Precision],
    batch: usize,
    capacity: usize,
    available: u64,
) -> Option<String> {
    let demand = |&precision: &Precision| Demand::new(config, precision, batch, capacity);
    let largest = precisions.iter().filter_map(demand).max_by_key(Demand::total)?;
    let fits = |demand: &Demand| demand.total() <= u128::from(available);
    if fits(&largest) {
        return None;
    }
    let smaller = Precision::ALL.iter().filter_map(demand).filter(fits).map(|demand| demand.precision.name());
    let smaller = smaller.collect::<Vec<_>>().join(", ");
    let remedy = match (smaller.as_str(), largest.kv_cache > largest.weights) {
        (_, true) => "take a smaller batch or fewer tokens".to_owned(),
        ("", false) => "take a smaller model".to_owned(),
        (smaller, false) => format!("take another precision ({smaller}) or a smaller model"),
    };
    let (needed, there) = (largest.arithmetic(), gigabytes(available.into()));
    Some(format!("it does not fit into memory: {needed}, but {there} are available; {remedy}"))
}

/// What a worker takes at most of weights and KV cache: engines that pack weights hold a second copy of a part. Measured
/// peaks are 1.01 to 1.25 times as much (`docs/performance.md`).
const PACKED: f64 = 1.4;
/// A framework's own libraries and buffers, in bytes.
const FRAMEWORK: f64 = 250e6;
/// The same of a reference: it may convert its weights once more, and bring Python with it. Measured peaks, one process
/// each on a model of 0.54 GB, are in `docs/references.md`.
const COPIED: f64 = 2.0;
const WITH_PYTHON: f64 = 500e6;

/// What kind of worker a contender has, as far as its memory goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Engine,
    Reference,
    /// Two engines in one process.
    Hybrid,
}

impl Kind {
    /// The kind of a contender's worker.
    pub fn new(engine: &Engine) -> Kind {
        match engine.parts() {
            Some(_) => Kind::Hybrid,
            None if engine.reference => Kind::Reference,
            None => Kind::Engine,
        }
    }

    /// How many times the weights and the KV cache, and how many bytes more.
    fn takes(self) -> (f64, f64) {
        match self {
            Kind::Engine => (PACKED, FRAMEWORK),
            Kind::Reference => (COPIED, WITH_PYTHON),
            Kind::Hybrid => (2.0 * PACKED, 2.0 * FRAMEWORK),
        }
    }
}

/// Memory of the workers of a comparison, from above.
#[derive(Debug, Clone)]
pub struct Together {
    /// Bytes of each contender's worker.
    each: Vec<f64>,
    available: f64,
}

impl Together {
    /// Contenders are given by precision and kind. A precision that cannot store this model takes no memory: its worker
    /// ends at once.
    pub fn new(
        config: &ModelConfig,
        contenders: &[(Precision, Kind)],
        (batch, capacity): (usize, usize),
        available: u64,
    ) -> Together {
        let bytes = |&(precision, kind): &(Precision, Kind)| {
            let Some(demand) = Demand::new(config, precision, batch, capacity) else { return 0.0 };
            let (copies, more) = kind.takes();
            copies * demand.total() as f64 + more
        };
        Together { each: contenders.iter().map(bytes).collect(), available: available as f64 }
    }

    /// The reason why not all may be in memory at once; `None` if they may.
    pub fn obstacle(&self) -> Option<String> {
        let sum: f64 = self.each.iter().sum();
        (sum > self.available).then(|| {
            format!(
                "all {} workers together may need {}, and {} are available",
                self.each.len(),
                gigabytes(sum as u128),
                gigabytes(self.available as u128)
            )
        })
    }

    /// Groups of contenders, by their places, each with the first of all and as few as the memory allows; `None` where
    /// there is no room for three, since groups of two save nothing.
    pub fn groups(&self) -> Option<Vec<Vec<usize>>> {
        const FEWEST: usize = 3;
        let (anchor, others) = self.each.split_first()?;
        let room = self.available - anchor;
        let mut groups: Vec<(f64, Vec<usize>)> = Vec::new();
        for (place, &bytes) in others.iter().enumerate() {
            if bytes > room {
                return None;
            }
            let open = groups.last_mut().filter(|(taken, _)| taken + bytes <= room);
            match open {
                Some((taken, group)) => {
                    *taken += bytes;
                    group.push(place + 1);
                }
                None => groups.push((bytes, vec![0, place + 1])),
            }
        }
        let has_turns = groups.iter().any(|(_, group)| group.len() >= FEWEST);
        (groups.len() > 1 && has_turns).then(|| groups.into_iter().map(|(_, group)| group).collect())
    }
}

/// Bytes as "1.23 GB"; 1 GB is 10⁹ bytes.
pub fn gigabytes(bytes: u128) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Embedding 320 · 64, its layer 4 · 64² + 3 · 64 · 160 + 2 · 64, norm 64: 67 776 weights.
    fn config() -> ModelConfig {
        ModelConfig::from_json(&json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 1,
            "num_attention_heads": 4, "vocab_size": 320, "max_position_embeddings": 256,
            "tie_word_embeddings": true
        }))
        .unwrap()
    }

    const F32_BYTES: u64 = 4 * (320 * 64 + 4 * 64 * 64 + 3 * 64 * 160 + 3 * 64);

    #[test]
    fn what_fits_to_the_byte_is_not_refused() {
        let refused = |available| refusal(&config(), &[Precision::F32], 1, 0, available);
        assert_eq!(refused(F32_BYTES), None);
        let reason = refused(F32_BYTES - 1).unwrap();
        assert!(reason.contains("weights 0.00 GB at f32, but") && reason.contains("(bf16, f16"), "{reason}");
    }

    #[test]
    fn keys_and_values_are_counted_in_the_elements_of_the_precision() {
        // Keys and values of 64 each.
        let needed = |precision, element: u64| {
            let weights: u64 = config().stored(precision).unwrap().iter().map(|tensor| tensor.bytes()).sum();
            weights + 2 * 64 * element * 3 * 100
        };
        for (precision, element) in [(Precision::F32, 4), (Precision::Bf16, 2), (Precision::Int8, 4)] {
            let refused = |available| refusal(&config(), &[precision], 3, 100, available).is_some();
            assert!(
                !refused(needed(precision, element)) && refused(needed(precision, element) - 1),
                "{precision}"
            );
        }
    }

    #[test]
    fn the_largest_of_several_precisions_decides() {
        let refused = |precisions: &[Precision]| refusal(&config(), precisions, 1, 0, F32_BYTES - 1);
        assert_eq!(refused(&[Precision::Bf16, Precision::Int8]), None);
        assert!(refused(&[Precision::Bf16, Precision::F32]).is_some());
    }

    fn together(contenders: &[(Precision, Kind)], available: u64) -> Together {
        Together::new(&config(), contenders, (1, 0), available)
    }

    /// Bytes of an engine's worker, and of a reference's.
    const ENGINE: u64 = (PACKED * F32_BYTES as f64 + FRAMEWORK) as u64;
    const REFERENCE: u64 = (COPIED * F32_BYTES as f64 + WITH_PYTHON) as u64;

    #[test]
    fn all_workers_must_fit_at_once() {
        let three = [(Precision::F32, Kind::Engine); 3];
        assert_eq!(together(&three, 3 * ENGINE + 3).obstacle(), None);
        let reason = together(&three, 3 * ENGINE - 3).obstacle().unwrap();
        assert!(reason.starts_with("all 3 workers together may need 0.75 GB, and 0.75 GB"), "{reason}");
        let reference = [(Precision::F32, Kind::Reference)];
        assert!(together(&reference, REFERENCE - 1).obstacle().is_some(), "references take more");
        let hybrid = |available| together(&[(Precision::F32, Kind::Hybrid)], available).obstacle();
        assert!(hybrid(2 * ENGINE - 2).is_some(), "a hybrid takes what two engines take");
        assert_eq!(hybrid(2 * ENGINE + 2), None);
    }

    #[test]
    fn what_does_not_fit_is_cut_into_groups_that_share_the_first() {
        let five = [(Precision::F32, Kind::Engine); 5];
        let groups = |available| together(&five, available).groups();
        assert_eq!(groups(3 * ENGINE + 3), Some(vec![vec![0, 1, 2], vec![0, 3, 4]]));
        assert_eq!(groups(4 * ENGINE + 4), Some(vec![vec![0, 1, 2, 3], vec![0, 4]]));
        assert_eq!(groups(2 * ENGINE + 2), None, "pairs with the anchor are as long as one after another");
        assert_eq!(groups(ENGINE), None);
    }

    #[test]
    fn the_remedy_is_one_that_helps() {
        let refused =
            |batch, available| refusal(&config(), &[Precision::F32], batch, 200, available).unwrap();
        assert!(refused(1, 1).ends_with("; take a smaller model"));
        let batch = refused(1 << 20, F32_BYTES);
        assert!(batch.contains("1048576 sequences of 200 tokens = 107.37"), "{batch}");
        assert!(batch.ends_with("a smaller batch or fewer tokens"), "{batch}");
    }
}
