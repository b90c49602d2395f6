//! [`InferenceEngine`] on two frameworks in one process: one reads prompts, the other computes steps of one
//! token from the KV cache that the first has filled. The README has the decisions and their reasons.

mod pair;
mod part;

use bundle::ModelConfig;
use engine::{
    Bundle, Decode, Device, EngineError, HandedOver, HiddenStates, InEffect, InferenceEngine, KvCachePolicy,
    Precision, Runtime, Settings, Want, check_append, check_begin, check_causal,
};
use engine_candle::Candle;
use engine_ort::Ort;
use engine_tch::Tch;

use pair::{DECODE, PREFILL, Pair};
use part::{Name, Part};

/// The options of a variant.
const OPTIONS: [&str; 2] = ["prefill", "decode"];
/// Names ONNX Runtime's library. A hybrid without ONNX Runtime does not get the variable.
const ORT_LIBRARY: &str = "ORT_DYLIB_PATH";

pub struct Hybrid {
    config: ModelConfig,
    engines: Engines,
}

enum Engines {
    Pair(Pair),
    /// One computes everything, for the other cannot run this model: in words.
    Alone(Box<dyn Part>, String),
}

impl InferenceEngine for Hybrid {
    const FRAMEWORK: &'static str = "hybrid";

    /// Every framework in this process; which two of them will be used is not known yet.
    fn runtime() -> Result<Runtime, EngineError> {
        let tch = Tch::runtime()?;
        let cpu_capability = tch.cpu_capability.clone();
        let mut all = vec![Candle::runtime()?, tch];
        if std::env::var_os(ORT_LIBRARY).is_some_and(|path| !path.is_empty()) {
            all.push(Ort::runtime()?);
        }
        let joined = |of: fn(&Runtime) -> &str| all.iter().map(of).collect::<Vec<_>>().join(", ");
        Ok(Runtime {
            binding: joined(|runtime| &runtime.binding),
            library: joined(|runtime| &runtime.library),
            library_path: None,
            cpu_capability,
        })
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Hybrid, EngineError> {
        settings.check_options(&OPTIONS)?;
        let names = [Name::from_option(settings, OPTIONS[0])?, Name::from_option(settings, OPTIONS[1])?];
        if names[0] == names[1] {
            let name = names[0].as_str();
            return Err(EngineError::Input(format!(
                "options prefill and decode are both {name:?}: a hybrid is of two engines, so compare {name} itself"
            )));
        }
        check_causal(bundle.config(), "a hybrid")?;
        check_supported(settings)?;
        let mut order = [PREFILL, DECODE];
        order.sort_by_key(|&place| names[place]);
        let mut loaded: [Option<Result<Box<dyn Part>, String>>; 2] = [None, None];
        for place in order {
            loaded[place] = Some(match names[place].load(bundle, settings) {
                Ok(part) => Ok(part),
                Err(EngineError::Unsupported(reason)) => Err(reason),
                Err(error) => return Err(error),
            });
        }
        let [Some(prefill), Some(decode)] = loaded else { unreachable!("both places were visited") };
        let engines = assembled(names.map(Name::as_str), prefill, decode)?;
        Ok(Hybrid { config: bundle.config().clone(), engines })
    }

    fn in_effect(&self) -> InEffect {
        match &self.engines {
            Engines::Pair(pair) => {
                together(&pair.parts().each_ref().map(|part| (part.name(), part.in_effect())))
            }
            Engines::Alone(part, _) => part.in_effect(),
        }
    }

    fn decode(&mut self) -> Result<&mut dyn Decode, EngineError> {
        Ok(self)
    }
}

impl Decode for Hybrid {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        check_begin(&self.config, batch, capacity)?;
        match &mut self.engines {
            Engines::Pair(pair) => pair.begin(batch, capacity),
            Engines::Alone(part, _) => part.begin(batch, capacity),
        }
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        match &mut self.engines {
            Engines::Pair(pair) => {
                let (batch, capacity, filled) = pair.sizes();
                let count = check_append(&self.config, tokens, batch, filled, capacity)?;
                pair.append(tokens, count, want)
            }
            Engines::Alone(part, _) => part.append(tokens, want),
        }
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        match &self.engines {
            Engines::Pair(pair) => pair.kv_cache_bytes(),
            Engines::Alone(part, _) => part.kv_cache_bytes(),
        }
    }

    fn hybrid(&self) -> Option<engine::Hybrid> {
        Some(match &self.engines {
            Engines::Pair(pair) => {
                let [prefill, decode] = pair.parts().each_ref().map(|part| part.name().to_owned());
                engine::Hybrid { prefill, decode, alone: None, obstacle: pair.obstacle() }
            }
            Engines::Alone(part, reason) => engine::Hybrid {
                prefill: part.name().into(),
                decode: part.name().into(),
                alone: Some(reason.clone()),
                obstacle: None,
            },
        })
    }

    fn hand_over(&mut self) -> Result<Option<HandedOver>, EngineError> {
        match &mut self.engines {
            Engines::Pair(pair) => pair.hand_over().map(Some),
            Engines::Alone(..) => Ok(None),
        }
    }

    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        match &mut self.engines {
            Engines::Pair(pair) => pair.hidden_states(),
            Engines::Alone(part, _) => part.hidden_states(),
        }
    }
}

fn check_supported(settings: &Settings) -> Result<(), EngineError> {
    let reason = match (settings.device, settings.precision) {
        (Device::Cpu, Precision::F32) if settings.cache == Precision::F32 => return Ok(()),
        (Device::Cpu, Precision::F32) => {
            format!("a hybrid hands keys and values over in f32 alone, not in {}", settings.cache)
        }
        (Device::Cuda(_), _) => {
            "a hybrid hands keys and values over in main memory, and not on a GPU".to_owned()
        }
        (Device::Cpu, Precision::Bf16 | Precision::F16) => format!(
            "a hybrid computes in f32 alone: at {} its engines keep keys and values in different element types",
            settings.precision
        ),
        (Device::Cpu, _) => format!(
            "a hybrid computes in f32 alone: at {} each engine rounds in its own way, so that its tokens would be \
             neither's",
            settings.precision
        ),
    };
    Err(EngineError::Unsupported(reason))
}

/// A pair where both could be loaded, and one alone where the other cannot run this model.
fn assembled(
    names: [&str; 2],
    prefill: Result<Box<dyn Part>, String>,
    decode: Result<Box<dyn Part>, String>,
) -> Result<Engines, EngineError> {
    let alone = |part: Box<dyn Part>, (other, reason): (&str, String)| {
        let words = format!("falls back to {} alone: {other} cannot run this: {reason}", part.name());
        Ok(Engines::Alone(part, words))
    };
    match (prefill, decode) {
        (Ok(prefill), Ok(decode)) => Ok(Engines::Pair(Pair::new(prefill, decode))),
        (Err(reason), Ok(decode)) => alone(decode, (names[0], reason)),
        (Ok(prefill), Err(reason)) => alone(prefill, (names[1], reason)),
        (Err(first), Err(second)) => {
            let [a, b] = names;
            Err(EngineError::Unsupported(format!("neither engine can run this: {a}: {first}; {b}: {second}")))
        }
    }
}

/// The settings in effect in both, by the names of their frameworks.
fn together(parts: &[(&str, InEffect); 2]) -> InEffect {
    let [(prefill, of_prefill), (decode, of_decode)] = parts;
    let both = |of: fn(&InEffect) -> &str| {
        let (first, second) = (of(of_prefill), of(of_decode));
        format!("prefill {prefill}: {first}; decode {decode}: {second}")
    };
    let named = |(name, part): &(&str, InEffect), what: &str| {
        part.kernels.iter().map(|kernel| format!("{what} {name}: {kernel}")).collect::<Vec<_>>()
    };
    let grows = [of_prefill, of_decode].iter().any(|part| part.kv_cache_policy == KvCachePolicy::Growing);
    InEffect {
        weights: of_decode.weights,
        activations: of_decode.activations.clone(),
        kv_cache: of_decode.kv_cache,
        kv_cache_policy: if grows { KvCachePolicy::Growing } else { KvCachePolicy::Preallocated },
        device: of_decode.device,
        threads: of_prefill.threads.max(of_decode.threads),
        jit: both(|part| &part.jit),
        optimised: match (of_prefill.optimised, of_decode.optimised) {
            (Some(one), Some(other)) => Some(one && other),
            (one, other) => one.or(other),
        },
        weight_storage: format!("two sets of weights: {}", both(|part| &part.weight_storage)),
        kernels: [named(&parts[PREFILL], "prefill"), named(&parts[DECODE], "decode")].concat(),
    }
}

#[cfg(test)]
mod tests;
