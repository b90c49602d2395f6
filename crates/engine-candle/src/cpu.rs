//! The decoder for CPUs: candle's row-by-row kernels and `matmul`, with candle's operations or own loops between them.

use bundle::{Bundle, ModelConfig, Precision};
use candle_core::{DType, Result, bail};
use worker::engine::{self, CacheMemory, Device, Foreigns, InEffect, KvCachePolicy, Want};

use crate::audio;
use crate::decoder::{self, Answer, Decoder};
use crate::experts;
use crate::kernels::Kernels;
use crate::model::Model;
use crate::parallel;
use crate::reader::Form;
use crate::sequences::{Cache, Sequences, padding};
use crate::weight::Held;

#[derive(Debug)]
pub(crate) struct Cpu {
    model: Model,
    /// Precision of keys and values.
    cache: Precision,
    /// Whether every append copies keys and values into new memory.
    grows: bool,
    sequences: Option<Sequences>,
}

impl Cpu {
    /// Reads the weights at `precision`, for products in `form`. Keys and values are kept in `cache`, which
    /// grows with every append if `grows` is set.
    pub(crate) fn read(
        bundle: &Bundle,
        (precision, form, kernels): (Precision, Form, Kernels),
        (cache, grows): (Precision, bool),
    ) -> engine::Result<Cpu> {
        Ok(Cpu { model: Model::read(bundle, precision, (form, kernels))?, cache, grows, sequences: None })
    }
}

pub(crate) fn element(precision: Precision) -> DType {
    match precision {
        Precision::Bf16 => DType::BF16,
        Precision::F16 => DType::F16,
        _ => DType::F32,
    }
}

/// The settings in effect on a CPU. `precision` is that of the weights file, `held` describes the weights in
/// memory.
pub(crate) fn in_effect(
    config: &ModelConfig,
    precision: Precision,
    held: Held,
    (kv_cache, between): (Precision, [String; 2]),
) -> InEffect {
    let emulated = held.precision != precision;
    let activations = match held.precision {
        _ if held.converted => "f32",
        Precision::Bf16 => "f32, rounded to bf16 as inputs of row-by-row products",
        Precision::F16 => "f32, rounded to f16 as inputs of row-by-row products",
        Precision::Int8 | Precision::Int4 | Precision::File => {
            "f32, rounded to int8 as inputs of quantised products"
        }
        _ => "f32",
    };
    let weight_storage = match (emulated, held.repacked) {
        (true, _) => "emulated: dequantised to f32 at load".to_owned(),
        (false, repacked) if held.precision == Precision::File => {
            let twice = match repacked {
                0 => String::new(),
                n => format!("; {n} of {} weights twice, repacked by candle", held.weights),
            };
            format!("the file's own blocks, {}, byte for byte in memory{twice}", config.block_words())
        }
        (false, 0) if held.converted => {
            "one copy in memory, read from the file; converted to f32 for every product".to_owned()
        }
        (false, 0) => "one copy in memory, read from the file".to_owned(),
        (false, n) => format!("blocks in memory; {n} of {} weights twice, repacked by candle", held.weights),
    };
    let mut kernels = held.kernels;
    kernels.extend(config.audio.map(|_| audio::KERNELS.to_owned()));
    kernels.extend(config.has_experts().then(|| experts::KERNELS.to_owned()));
    kernels.extend(between);
    InEffect {
        precision: if emulated { precision } else { held.precision }.into(),
        activations: activations.into(),
        kv_cache_precision: kv_cache.into(),
        kv_cache: decoder::policy(config),
        device: Device::Cpu.into(),
        threads: parallel::threads(),
        jit: "none (candle has no JIT)".into(),
        optimised: None,
        weight_storage: weight_storage.into(),
        kernels: kernels.into(),
        shard_bytes: None,
        hybrid: None,
        // On plain elements it is public, but no documented way of a product.
        semi_public: ["k_quants::matmul, on the pool's threads"].into_iter().collect(),
        changed_defaults: Foreigns::default(),
        artefact: None,
    }
}

impl Decoder for Cpu {
    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn in_effect(&self) -> InEffect {
        let between = self.model.kernels().described("");
        let (model, cache) = (&self.model, self.cache);
        let mut found = in_effect(model.config(), model.precision(), model.held(), (cache, between));
        if self.grows {
            found.kv_cache = KvCachePolicy::Growing;
            found.kernels.extend(["Tensor::cat of old and new keys and values in every append"]);
        }
        found
    }

    fn reserve(&mut self, batch: usize, capacity: usize) -> Result<()> {
        // The old caches are freed before the new ones are made.
        self.sequences = None;
        let (cache, grows) = (element(self.cache), self.grows);
        self.sequences = Some(Sequences::new(self.model.config(), (batch, capacity), (cache, grows))?);
        Ok(())
    }

    fn restart(&mut self) -> Result<()> {
        if let Some(sequences) = &mut self.sequences {
            sequences.padding.clear();
            sequences.heard.clear();
        }
        let grown = self.sequences.iter_mut().filter(|sequences| sequences.grows);
        grown.flat_map(|sequences| &mut sequences.caches).try_for_each(Cache::empty)
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        decoder::cache_bytes(self.model.config(), &self.sequences.as_ref()?.caches)
    }

    fn cache_memory(&mut self) -> Result<Option<CacheMemory>> {
        let Some(sequences) = self.sequences.as_ref().filter(|sequences| !sequences.grows) else {
            return Ok(None);
        };
        let config = self.model.config();
        let shape = [sequences.batch, config.kv_heads, sequences.capacity, config.head_dim];
        decoder::memory(&sequences.caches, shape).map(Some)
    }

    fn listen(&mut self, frames: &[f32]) -> Result<()> {
        let Some(sequences) = &mut self.sequences else { bail!("listen before begin") };
        sequences.heard = self.model.listen(frames)?;
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], filled: usize, want: Want, answer: &mut Answer) -> Result<()> {
        let Some(sequences) = &mut self.sequences else { bail!("append before begin") };
        sequences.filled = filled;
        self.model.forward(sequences, (tokens, None), want, answer)
    }

    fn append_each(&mut self, (tokens, lengths): (&[u32], &[usize]), answer: &mut Answer) -> Result<()> {
        let Some(sequences) = &mut self.sequences else { bail!("append before begin") };
        sequences.filled = 0;
        sequences.padding = padding(lengths);
        self.model.forward(sequences, (tokens, Some(lengths)), Want::Last, answer)
    }

    fn grows(&self) -> bool {
        self.grows
    }
}
