//! Checks whether a model fits into memory, before it is prepared.

use bundle::{ModelConfig, Precision};

use crate::{CacheAsked, KvPrecision};

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
        let layers = if config.encoder.is_some() { 0 } else { config.layers as u128 };
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
    let cache = cache.precision.unwrap_or_default();
    let demand = |&precision: &Precision| Demand::new(config, (precision, cache), (batch, capacity));
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
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

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
