//! Memory of a comparison's workers, and which of them may be in memory together.

use std::collections::{BTreeMap, BTreeSet};

use bundle::quantised::scale_name;
use bundle::{ModelConfig, Precision};
use configs::{Engine, EngineMemory};

use crate::work::memory::{Demand, gigabytes};
use crate::{Contender, KvPrecision};

/// Upper bound of an engine without measured memory, as a multiple of weights and KV cache: engines that pack
/// weights hold a second copy of a part.
const PACKED: f64 = 1.4;
/// A framework's own libraries and buffers, in bytes.
const FRAMEWORK: f64 = 250e6;
/// The same for a reference: it may convert its weights once more, and load Python. Measured peaks, one
/// process each on a model of 0.54 GB, are in `docs/evidence/notes.md`.
const COPIED: f64 = 2.0;
const WITH_PYTHON: f64 = 500e6;
/// Allowance of a peak above the arithmetic of measured memory.
const SLACK: f64 = 1.1;

/// The kind of a contender's worker as regards memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind<'a> {
    /// An engine whose memory was measured.
    Measured(&'a EngineMemory),
    Engine,
    Reference,
    /// Two engines in one process.
    Hybrid,
}

impl<'a> Kind<'a> {
    /// The kind of a contender's worker at a precision.
    pub(crate) fn new(engine: &'a Engine, precision: Precision) -> Kind<'a> {
        match (engine.parts(), &engine.memory) {
            (Some(_), _) => Kind::Hybrid,
            (None, Some(memory)) if memory.linear.contains_key(&precision) => Kind::Measured(memory),
            (None, _) if engine.reference => Kind::Reference,
            (None, _) => Kind::Engine,
        }
    }

    /// Upper bound of the memory of a worker of this kind, in bytes.
    fn bytes(self, config: &ModelConfig, demand: &Demand) -> f64 {
        let from_above = |copies: f64, more: f64| copies * demand.total() as f64 + more;
        match self {
            Kind::Measured(memory) => SLACK * peak(memory, config, demand),
            Kind::Engine => from_above(PACKED, FRAMEWORK),
            Kind::Reference => from_above(COPIED, WITH_PYTHON),
            Kind::Hybrid => from_above(2.0 * PACKED, 2.0 * FRAMEWORK),
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
        let Kind::Measured(memory) = Kind::new(engine, *precision) else { return None };
        let cache = contender.cache.precision.unwrap_or_default();
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
    for names in (0..config.layers.min(1)).map(|index| config.layer(index)) {
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
pub(crate) struct Together {
    /// Bytes that each contender's worker may need.
    each: Vec<f64>,
    available: f64,
}

impl Together {
    /// Contenders are given by the precisions of weights and cache, and by kind. A precision that cannot
    /// store this model needs no memory: its worker ends at once.
    pub(crate) fn new(
        config: &ModelConfig,
        contenders: &[(Precision, KvPrecision, Kind<'_>)],
        sequences: (usize, usize),
        available: u64,
    ) -> Together {
        let bytes = |&(precision, cache, kind): &(Precision, KvPrecision, Kind<'_>)| {
            let demand = Demand::new(config, (precision, cache), sequences);
            demand.map_or(0.0, |demand| kind.bytes(config, &demand))
        };
        Together { each: contenders.iter().map(bytes).collect(), available: available as f64 }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use crate::work::memory::tests::{F32_BYTES, config};

    fn together(contenders: &[(Precision, KvPrecision, Kind<'_>)], available: u64) -> Together {
        Together::new(&config(), contenders, (1, 0), available)
    }

    /// Bytes of an engine's worker, and of a reference's.
    const ENGINE: u64 = (PACKED * F32_BYTES as f64 + FRAMEWORK) as u64;
    const REFERENCE: u64 = (COPIED * F32_BYTES as f64 + WITH_PYTHON) as u64;

    #[test]
    fn all_workers_must_fit_at_once() {
        let three = [(Precision::F32, KvPrecision::Auto, Kind::Engine); 3];
        assert_eq!(together(&three, 3 * ENGINE + 3).obstacle(), None);
        let reason = together(&three, 3 * ENGINE - 3).obstacle().unwrap();
        assert!(reason.starts_with("all 3 workers together may need 0.75 GB, and 0.75 GB"), "{reason}");
        let reference = [(Precision::F32, KvPrecision::Auto, Kind::Reference)];
        assert!(together(&reference, REFERENCE - 1).obstacle().is_some(), "references take more");
        let hybrid =
            |available| together(&[(Precision::F32, KvPrecision::Auto, Kind::Hybrid)], available).obstacle();
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
            together(&[(Precision::Bf16, KvPrecision::Auto, Kind::new(&engine, Precision::Bf16))], available)
        };
        assert!(room(109_000_000).obstacle().is_some(), "a tenth more is kept free");
        assert_eq!(room(111_000_000).obstacle(), None);
    }

    #[test]
    fn what_does_not_fit_is_cut_into_groups_that_share_the_first() {
        let five = [(Precision::F32, KvPrecision::Auto, Kind::Engine); 5];
        let groups = |available| together(&five, available).groups();
        assert_eq!(groups(3 * ENGINE + 3), Some(vec![vec![0, 1, 2], vec![0, 3, 4]]));
        assert_eq!(groups(4 * ENGINE + 4), Some(vec![vec![0, 1, 2, 3], vec![0, 4]]));
        assert_eq!(groups(2 * ENGINE + 2), None, "pairs with the anchor are as long as one after another");
        assert_eq!(groups(ENGINE), None);
    }
}
