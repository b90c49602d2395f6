//! [`InferenceEngine`] on two frameworks in one process: one reads prompts, the other computes steps of one
//! token from the KV cache that the first has filled. The README has the decisions and their reasons.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bundle::ModelConfig;
use engine_candle::Candle;
use engine_ort::Ort;
use engine_tch::Tch;
use worker::engine::{
    self, Bundle, CacheMemory, Decode, Device, EngineError, Foreigns, HandOver, HandsOver, HiddenStates,
    InEffect, InferenceEngine, KvCachePolicy, Options, Precision, Result, Runtime, Settings, Want,
    check_append, check_begin, check_causal,
};

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
    fn runtime() -> Result<Runtime> {
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

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Hybrid> {
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
            Engines::Alone(part, reason) => {
                let name = || part.name().into();
                let alone = Some(reason.as_str().into());
                let hybrid = Some(engine::Hybrid { prefill: name(), decode: name(), alone });
                InEffect { hybrid, ..part.in_effect() }
            }
        }
    }

    fn decode(&mut self) -> Result<&mut dyn Decode> {
        Ok(self)
    }
}

impl Decode for Hybrid {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<()> {
        check_begin(&self.config, batch, capacity)?;
        match &mut self.engines {
            Engines::Pair(pair) => pair.begin(batch, capacity),
            Engines::Alone(part, _) => part.begin(batch, capacity),
        }
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32]> {
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

    fn obstacle(&self) -> Option<String> {
        match &self.engines {
            Engines::Pair(pair) => pair.obstacle(),
            Engines::Alone(..) => None,
        }
    }

    fn hand_over(&mut self) -> Result<Option<HandOver>> {
        match &mut self.engines {
            Engines::Pair(pair) => pair.hand_over().map(Some),
            Engines::Alone(..) => Ok(None),
        }
    }

    fn hidden_states(&mut self) -> Result<HiddenStates> {
        match &mut self.engines {
            Engines::Pair(pair) => pair.hidden_states(),
            Engines::Alone(part, _) => part.hidden_states(),
        }
    }
}

fn check_supported(settings: &Settings) -> Result<()> {
    let reason = match (settings.device(), settings.precision) {
        (Device::Cpu, Precision::F32) if settings.cache() == Precision::F32 => return Ok(()),
        (Device::Cpu, Precision::F32) => {
            format!("a hybrid hands keys and values over in f32 alone, not in {}", settings.cache())
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
) -> Result<Engines> {
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
    let grows = [of_prefill, of_decode].iter().any(|part| part.kv_cache == KvCachePolicy::Growing);
    InEffect {
        precision: of_decode.precision.clone(),
        activations: of_decode.activations.clone(),
        kv_cache_precision: of_decode.kv_cache_precision.clone(),
        kv_cache: if grows { KvCachePolicy::Growing } else { KvCachePolicy::Preallocated },
        device: of_decode.device.clone(),
        threads: of_prefill.threads.max(of_decode.threads),
        jit: both(|part| &part.jit).into(),
        optimised: match (of_prefill.optimised, of_decode.optimised) {
            (Some(one), Some(other)) => Some(one && other),
            (one, other) => one.or(other),
        },
        weight_storage: format!("two sets of weights: {}", both(|part| &part.weight_storage)).into(),
        kernels: [named(&parts[PREFILL], "prefill"), named(&parts[DECODE], "decode")].concat().into(),
        shard_bytes: None,
        hybrid: Some(engine::Hybrid { prefill: (*prefill).into(), decode: (*decode).into(), alone: None }),
        semi_public: of_prefill.semi_public.iter().chain(of_decode.semi_public.iter()).cloned().collect(),
        changed_defaults: Foreigns::default(),
        artefact: None,
    }
}

// Two engines with the same sequences: which of them computes an append, and how the other gets the
// positions.

/// Places of the two in a [`Pair`].
const PREFILL: usize = 0;

const DECODE: usize = 1;

struct Pair {
    /// The one that reads prompts, and the one that computes steps of one token.
    parts: [Box<dyn Part>; 2],
    present: Option<Present>,
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
    is_shared: bool,
    obstacle: Option<String>,
}

impl Pair {
    pub(crate) fn new(prefill: Box<dyn Part>, decode: Box<dyn Part>) -> Pair {
        Pair { parts: [prefill, decode], present: None, latest: PREFILL }
    }

    pub(crate) fn parts(&self) -> &[Box<dyn Part>; 2] {
        &self.parts
    }

    pub(crate) fn begin(&mut self, batch: usize, capacity: usize) -> Result<()> {
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
    fn share(&mut self, batch: usize, capacity: usize) -> Result<Option<String>> {
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
    pub(crate) fn append(&mut self, tokens: &[u32], count: usize, want: Want) -> Result<&[f32]> {
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
    pub(crate) fn hand_over(&mut self) -> Result<HandOver> {
        let bytes = self.bring(DECODE)?;
        let address =
            |at: usize| self.present.as_ref().map_or(0, |present| present.memories[at].address() as u64);
        let (prefill_address, decode_address) = (address(PREFILL), address(DECODE));
        Ok(HandOver { times: 1, bytes, prefill_address, decode_address, ..HandOver::default() })
    }

    /// Why keys and values of the present sequences are copied, if they are.
    pub(crate) fn obstacle(&self) -> Option<String> {
        self.present.as_ref()?.obstacle.clone()
    }

    /// Gives the engine `to` the positions that it lacks. Returns the bytes copied.
    fn bring(&mut self, to: usize) -> Result<u64> {
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

    pub(crate) fn hidden_states(&mut self) -> Result<HiddenStates> {
        self.parts[self.latest].hidden_states()
    }
}

// One of the two engines of a hybrid.

/// The engines there are, in the order in which they are loaded: candle sets variables of the environment, which must
/// happen before other libraries have threads that may read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Candle,
    Tch,
    Ort,
}

impl Name {
    const EACH: [Name; 3] = [Name::Candle, Name::Tch, Name::Ort];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Name::Candle => Candle::FRAMEWORK,
            Name::Tch => Tch::FRAMEWORK,
            Name::Ort => Ort::FRAMEWORK,
        }
    }

    pub(crate) fn from_option(settings: &Settings, option: &str) -> Result<Name> {
        let names = Name::EACH.map(Name::as_str).join(", ");
        let Some(asked) = settings.options.get(option) else {
            return Err(EngineError::Input(format!("option {option} is missing: it names one of {names}")));
        };
        let found = Name::EACH.into_iter().find(|name| name.as_str() == asked);
        found.ok_or_else(|| EngineError::Input(format!("option {option} is {asked:?}, not one of {names}")))
    }

    /// Loads it as it is when it is alone, but for idle threads.
    pub(crate) fn load(self, bundle: &Bundle, settings: &Settings) -> Result<Box<dyn Part>> {
        let options = match self {
            // Its threads would otherwise go on spinning while the other engine computes.
            Name::Ort => BTreeMap::from([("spinning".to_owned(), "within-runs".to_owned())]),
            Name::Candle | Name::Tch => BTreeMap::new(),
        };
        let settings = Settings { options, ..settings.clone() };
        Ok(match self {
            Name::Candle => Box::new(Candle::load(bundle, &settings)?),
            Name::Tch => Box::new(Tch::load(bundle, &settings)?),
            Name::Ort => Box::new(Ort::load(bundle, &settings)?),
        })
    }
}

/// What a hybrid asks of an engine that is chosen at run time: [`InferenceEngine`] has no objects.
trait Part: HandsOver {
    fn name(&self) -> &'static str;
    fn in_effect(&self) -> InEffect;
}

impl<E: InferenceEngine + HandsOver> Part for E {
    fn name(&self) -> &'static str {
        E::FRAMEWORK
    }

    fn in_effect(&self) -> InEffect {
        InferenceEngine::in_effect(self)
    }
}
