//! Memory of a comparison's workers, and which of them may be in memory together.

use std::collections::{BTreeMap, BTreeSet};

use bundle::scale_name;
use bundle::{ModelConfig, Precision};
use configs::{Engine, EngineMemory};

use crate::plan::{CacheAsked, Contender, KvPrecision};

/// Upper bound of an engine without measured memory, as a multiple of weights and KV cache: engines that pack
/// weights hold a second copy of a part.
const ENGINE_COPIES: f64 = 1.4;

/// A framework's own libraries and buffers, in bytes.
const FRAMEWORK: f64 = 250e6;

/// The same for a reference: it may convert its weights once more, and load Python. Measured peaks, one
/// process each on a model of 0.54 GB, are in `docs/explanation/architecture.md`.
const REFERENCE_COPIES: f64 = 2.0;

const WITH_PYTHON: f64 = 500e6;

/// Allowance of a peak above the arithmetic of measured memory.
const SLACK: f64 = 1.1;

/// The kind of a contender's worker as regards memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum WorkerKind<'a> {
    /// An engine whose memory was measured.
    Measured(&'a EngineMemory),
    Engine,
    Reference,
    /// Two engines in one process.
    Hybrid,
}

impl<'a> WorkerKind<'a> {
    /// The kind of a contender's worker at a precision.
    pub(crate) fn new(engine: &'a Engine, precision: Precision) -> WorkerKind<'a> {
        match (engine.parts(), &engine.memory) {
            (Some(_), _) => WorkerKind::Hybrid,
            (None, Some(memory)) if memory.linear.contains_key(&precision) => WorkerKind::Measured(memory),
            (None, _) if engine.reference => WorkerKind::Reference,
            (None, _) => WorkerKind::Engine,
        }
    }

    /// Upper bound of the memory of a worker of this kind, in bytes.
    fn bytes(self, config: &ModelConfig, demand: &Demand) -> f64 {
        let from_above = |copies: f64, more: f64| copies * demand.total() as f64 + more;
        match self {
            WorkerKind::Measured(memory) => SLACK * peak(memory, config, demand),
            WorkerKind::Engine => from_above(ENGINE_COPIES, FRAMEWORK),
            WorkerKind::Reference => from_above(REFERENCE_COPIES, WITH_PYTHON),
            WorkerKind::Hybrid => from_above(2.0 * ENGINE_COPIES, 2.0 * FRAMEWORK),
        }
    }
}

/// Peaks of the workers on a CPU in bytes, by label: of contenders with an engine whose memory was measured
/// at their precision.
pub(crate) fn expected(
    config: &ModelConfig,
    contenders: &[Contender],
    sequences: (usize, usize),
) -> BTreeMap<String, u64> {
    let expected = |contender: &Contender| {
        let Contender { label, engine, precision, .. } = contender;
        let WorkerKind::Measured(memory) = WorkerKind::new(engine, *precision) else { return None };
        let cache = contender.cache.precision;
        let demand = Demand::new(config, (*precision, cache), sequences)?;
        Some((label.clone(), peak(memory, config, &demand) as u64))
    };
    contenders.iter().filter_map(expected).collect()
}

fn peak(memory: &EngineMemory, config: &ModelConfig, demand: &Demand) -> f64 {
    let precision = demand.precision;
    let linear = config.quantised();
    let scales: BTreeSet<String> = linear.iter().map(|name| scale_name(name)).collect();
    let (mut held, mut largest) = (0.0, 0.0f64);
    for tensor in config.stored(precision).unwrap_or_default() {
        let share = match &tensor.name {
            name if linear.contains(name) || scales.contains(name) => memory.linear[&precision],
            name if *name == config.embedding() => memory.embedding,
            _ => 1.0,
        };
        held += share * tensor.bytes() as f64;
    }
    for names in (0..config.layers.len().min(1)).map(|index| config.layer(index)) {
        for fused in [names.qkv, names.output, names.gate_up, names.down] {
            let tensors = config.tensors().into_iter().filter(|spec| fused.weights.contains(&spec.name));
            let elements: usize = tensors.map(|spec| spec.shape.iter().product::<usize>()).sum();
            largest = largest.max(4.0 * elements as f64);
        }
    }
    let widened = if memory.widens && precision.bits() < 32 { largest } else { 0.0 };
    1e6 * memory.framework_mb + held + widened + demand.cache as f64
}

/// Upper bounds of the memory of a comparison's workers.
#[derive(Debug, Clone)]
pub(crate) struct MemoryFit {
    /// Bytes that each contender's worker may need.
    each: Vec<f64>,
    available: f64,
}

impl MemoryFit {
    /// Contenders are given by the precisions of weights and cache, and by kind. A precision that cannot
    /// store this model needs no memory: its worker ends at once.
    pub(crate) fn new(
        config: &ModelConfig,
        contenders: &[(Precision, KvPrecision, WorkerKind<'_>)],
        sequences: (usize, usize),
        available: u64,
    ) -> MemoryFit {
        let bytes = |&(precision, cache, kind): &(Precision, KvPrecision, WorkerKind<'_>)| {
            let demand = Demand::new(config, (precision, cache), sequences);
            demand.map_or(0.0, |demand| kind.bytes(config, &demand))
        };
        MemoryFit { each: contenders.iter().map(bytes).collect(), available: available as f64 }
    }

    /// The reason why not all may be in memory at once; `None` if they may.
    pub(crate) fn obstacle(&self) -> Option<String> {
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

    /// Groups of contenders, by their places, each with the first contender and as few groups as the memory
    /// allows; `None` without room for three, since groups of two save nothing.
    pub(crate) fn groups(&self) -> Option<Vec<Vec<usize>>> {
        const MIN_GROUP_SIZE: usize = 3;
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
        let has_turns = groups.iter().any(|(_, group)| group.len() >= MIN_GROUP_SIZE);
        (groups.len() > 1 && has_turns).then(|| groups.into_iter().map(|(_, group)| group).collect())
    }
}

// Checks whether a model fits into memory, before it is prepared.

/// The least memory of one worker, in bytes: its weights once, and the keys and values of its sequences. An
/// engine that stores weights in its own layout needs more, which only the engine knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    pub(crate) precision: Precision,
    weights: u128,
    pub(crate) cache: u128,
    batch: usize,
    capacity: usize,
}

impl Demand {
    /// Computes the need; `None` if the precision cannot store this model. `prepare` gives the reason.
    pub(crate) fn new(
        config: &ModelConfig,
        (precision, cache): (Precision, KvPrecision),
        (batch, capacity): (usize, usize),
    ) -> Option<Demand> {
        // Encoding keeps no keys and values.
        let layers = if config.encodes() { 0 } else { config.layers.len() as u128 };
        let cached = 2 * layers * config.qkv_rows().1 as u128;
        let sequences = batch as u128 * capacity as u128;
        Some(Demand {
            precision,
            weights: config.stored_bytes(precision).ok()?.into(),
            cache: cached * sequences * cache.beside(precision).element().bytes() as u128,
            batch,
            capacity,
        })
    }

    pub(crate) fn total(&self) -> u128 {
        self.weights + self.cache
    }

    /// The sum, in words.
    fn arithmetic(&self) -> String {
        let Demand { precision, weights, cache, batch, capacity } = *self;
        let weights = format!("weights {} at {precision}", gigabytes(weights));
        if cache == 0 {
            return weights;
        }
        let sequences = if batch == 1 { String::new() } else { format!("{batch} sequences of ") };
        let (cache, total) = (gigabytes(cache), gigabytes(self.total()));
        format!("{weights} + KV cache {cache} for {sequences}{capacity} tokens = {total}")
    }
}

/// The reason, with the arithmetic, why `available` bytes are too few for `batch` sequences of `capacity` tokens at one
/// of `precisions`, with keys and values in `cache`; `None` if they may suffice.
pub fn refusal(
    config: &ModelConfig,
    (precisions, cache): (&[Precision], CacheAsked),
    (batch, capacity): (usize, usize),
    available: u64,
) -> Option<String> {
    let demand =
        |&precision: &Precision| Demand::new(config, (precision, cache.precision), (batch, capacity));
    let largest = precisions.iter().filter_map(demand).max_by_key(Demand::total)?;
    let fits = |demand: &Demand| demand.total() <= u128::from(available);
    if fits(&largest) {
        return None;
    }
    let smaller = Precision::ALL.iter().filter_map(demand).filter(fits).map(|demand| demand.precision.name());
    let smaller = smaller.collect::<Vec<_>>().join(", ");
    let remedy = match (smaller.as_str(), largest.cache > largest.weights) {
        (_, true) => "take a smaller batch or fewer tokens".to_owned(),
        ("", false) => "take a smaller model".to_owned(),
        (smaller, false) => format!("take another precision ({smaller}) or a smaller model"),
    };
    let (needed, there) = (largest.arithmetic(), gigabytes(available.into()));
    Some(format!("it does not fit into memory: {needed}, but {there} are available; {remedy}"))
}

/// Bytes as "1.23 GB"; 1 GB is 10⁹ bytes.
pub fn gigabytes(bytes: u128) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use crate::plan::Request;
    use serde_json::json;

    use super::*;

    fn together(contenders: &[(Precision, KvPrecision, WorkerKind<'_>)], available: u64) -> MemoryFit {
        MemoryFit::new(&config(), contenders, (1, 0), available)
    }

    /// Bytes of an engine's worker, and of a reference's.
    const ENGINE: u64 = (ENGINE_COPIES * F32_BYTES as f64 + FRAMEWORK) as u64;

    const REFERENCE: u64 = (REFERENCE_COPIES * F32_BYTES as f64 + WITH_PYTHON) as u64;

    #[test]
    fn all_workers_must_fit_at_once() {
        let three = [(Precision::F32, KvPrecision::Auto, WorkerKind::Engine); 3];
        assert_eq!(together(&three, 3 * ENGINE + 3).obstacle(), None);
        let reason = together(&three, 3 * ENGINE - 3).obstacle().unwrap();
        assert!(reason.starts_with("all 3 workers together may need 0.75 GB, and 0.75 GB"), "{reason}");
        let reference = [(Precision::F32, KvPrecision::Auto, WorkerKind::Reference)];
        assert!(together(&reference, REFERENCE - 1).obstacle().is_some(), "references take more");
        let hybrid = |available| {
            together(&[(Precision::F32, KvPrecision::Auto, WorkerKind::Hybrid)], available).obstacle()
        };
        assert!(hybrid(2 * ENGINE - 2).is_some(), "a hybrid takes what two engines take");
        assert_eq!(hybrid(2 * ENGINE + 2), None);
    }

    #[test]
    fn measured_memory_is_the_framework_s_and_shares_of_the_file() {
        let linear = BTreeMap::from([(Precision::Bf16, 1.5)]);
        let memory = EngineMemory { framework_mb: 100.0, linear, embedding: 0.0, widens: true };
        let engine = Engine { memory: Some(memory), ..Engine::default() };
        let expected = |config: &ModelConfig, precision| {
            let request = Request { precisions: vec![precision], ..Request::default() };
            let contender = Contender::new("a".into(), engine.clone(), &request, 1);
            super::expected(config, &[contender], (2, 10)).remove("a")
        };
        // Embedding (tied: a linear layer) and layer of 2 bytes, one and a half times; norms of 2 bytes; gate
        // and up of 4 bytes; keys and values of 2 bytes.
        let linear = 3 * (320 * 64 + 4 * 64 * 64 + 3 * 64 * 160);
        let rest = 2 * 3 * 64 + 4 * 2 * 64 * 160 + 2 * 64 * 2 * 2 * 10;
        assert_eq!(expected(&config(), Precision::Bf16), Some(100_000_000 + linear + rest));
        assert_eq!(expected(&config(), Precision::F32), None, "not measured");
        let mut apart = config();
        apart.tied_embeddings = false;
        assert_eq!(
            expected(&apart, Precision::Bf16),
            Some(100_000_000 + linear + rest),
            "the head is the linear layer now, and of the embedding nothing is held"
        );
        let room = |available| {
            together(
                &[(Precision::Bf16, KvPrecision::Auto, WorkerKind::new(&engine, Precision::Bf16))],
                available,
            )
        };
        assert!(room(109_000_000).obstacle().is_some(), "a tenth more is kept free");
        assert_eq!(room(111_000_000).obstacle(), None);
    }

    #[test]
    fn what_does_not_fit_is_cut_into_groups_that_share_the_first() {
        let five = [(Precision::F32, KvPrecision::Auto, WorkerKind::Engine); 5];
        let groups = |available| together(&five, available).groups();
        assert_eq!(groups(3 * ENGINE + 3), Some(vec![vec![0, 1, 2], vec![0, 3, 4]]));
        assert_eq!(groups(4 * ENGINE + 4), Some(vec![vec![0, 1, 2, 3], vec![0, 4]]));
        assert_eq!(groups(2 * ENGINE + 2), None, "pairs with the anchor are as long as one after another");
        assert_eq!(groups(ENGINE), None);
    }

    /// Embedding 320 · 64, its layer 4 · 64² + 3 · 64 · 160 + 2 · 64, norm 64: 67 776 weights.
    pub(crate) fn config() -> ModelConfig {
        ModelConfig::from_json(&json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 1,
            "num_attention_heads": 4, "vocab_size": 320, "max_position_embeddings": 256,
            "tie_word_embeddings": true
        }))
        .unwrap()
    }

    pub(crate) const F32_BYTES: u64 = 4 * (320 * 64 + 4 * 64 * 64 + 3 * 64 * 160 + 3 * 64);

    #[test]
    fn what_fits_to_the_byte_is_not_refused() {
        let refused =
            |available| refusal(&config(), (&[Precision::F32], CacheAsked::default()), (1, 0), available);
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
            let refused = |available| {
                refusal(&config(), (&[precision], CacheAsked::default()), (3, 100), available).is_some()
            };
            assert!(
                !refused(needed(precision, element)) && refused(needed(precision, element) - 1),
                "{precision}"
            );
        }
    }

    #[test]
    fn the_largest_of_several_precisions_decides() {
        let refused = |precisions: &[Precision]| {
            refusal(&config(), (precisions, CacheAsked::default()), (1, 0), F32_BYTES - 1)
        };
        assert_eq!(refused(&[Precision::Bf16, Precision::Int8]), None);
        assert!(refused(&[Precision::Bf16, Precision::F32]).is_some());
    }

    #[test]
    fn the_remedy_is_one_that_helps() {
        let refused = |batch, available| {
            refusal(&config(), (&[Precision::F32], CacheAsked::default()), (batch, 200), available).unwrap()
        };
        assert!(refused(1, 1).ends_with("; take a smaller model"));
        let batch = refused(1 << 20, F32_BYTES);
        assert!(batch.contains("1048576 sequences of 200 tokens = 107.37"), "{batch}");
        assert!(batch.ends_with("a smaller batch or fewer tokens"), "{batch}");
    }
}
