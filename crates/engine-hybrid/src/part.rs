//! One of the two engines of a hybrid.

use std::collections::BTreeMap;
use std::ops::Range;

use engine::{
    Bundle, CacheMemory, Decode, EngineError, HandOver, HiddenStates, InEffect, InferenceEngine, Settings,
    Want,
};
use engine_candle::Candle;
use engine_ort::Ort;
use engine_tch::Tch;

/// The engines there are, in the order in which they are loaded: candle sets variables of the environment, which must
/// happen before other libraries have threads that may read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
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

    /// The engine that this option names.
    pub(crate) fn from_option(settings: &Settings, option: &str) -> Result<Name, EngineError> {
        let names = Name::EACH.map(Name::as_str).join(", ");
        let Some(asked) = settings.options.get(option) else {
            return Err(EngineError::Input(format!("option {option} is missing: it names one of {names}")));
        };
        let found = Name::EACH.into_iter().find(|name| name.as_str() == asked);
        found.ok_or_else(|| EngineError::Input(format!("option {option} is {asked:?}, not one of {names}")))
    }

    /// Loads it as it is when it is alone, but for idle threads.
    pub(crate) fn load(self, bundle: &Bundle, settings: &Settings) -> Result<Box<dyn Part>, EngineError> {
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

/// [`HandOver`] for an engine that is chosen at run time.
pub(crate) trait Part {
    fn name(&self) -> &'static str;
    fn in_effect(&self) -> InEffect;
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError>;
    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError>;
    fn kv_cache_bytes(&self) -> Option<u64>;
    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError>;
    fn export(&mut self) -> Result<CacheMemory, EngineError>;
    fn set_filled(&mut self, positions: usize) -> Result<(), EngineError>;

    /// # Safety
    /// As [`HandOver::begin_in`].
    #[allow(unsafe_code)]
    unsafe fn begin_in(
        &mut self,
        batch: usize,
        capacity: usize,
        memory: &CacheMemory,
    ) -> Result<(), EngineError>;

    /// # Safety
    /// As [`HandOver::import`].
    #[allow(unsafe_code)]
    unsafe fn import(&mut self, from: &CacheMemory, positions: Range<usize>) -> Result<u64, EngineError>;
}

impl<E: HandOver> Part for E {
    fn name(&self) -> &'static str {
        E::FRAMEWORK
    }

    fn in_effect(&self) -> InEffect {
        InferenceEngine::in_effect(self)
    }

    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        Decode::begin(self, batch, capacity)
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        Decode::append(self, tokens, want)
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        Decode::kv_cache_bytes(self)
    }

    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        Decode::hidden_states(self)
    }

    fn export(&mut self) -> Result<CacheMemory, EngineError> {
        HandOver::export(self)
    }

    fn set_filled(&mut self, positions: usize) -> Result<(), EngineError> {
        HandOver::set_filled(self, positions)
    }

    #[allow(unsafe_code)]
    unsafe fn begin_in(
        &mut self,
        batch: usize,
        capacity: usize,
        memory: &CacheMemory,
    ) -> Result<(), EngineError> {
        // SAFETY: the caller's.
        unsafe { HandOver::begin_in(self, batch, capacity, memory) }
    }

    #[allow(unsafe_code)]
    unsafe fn import(&mut self, from: &CacheMemory, positions: Range<usize>) -> Result<u64, EngineError> {
        // SAFETY: the caller's.
        unsafe { HandOver::import(self, from, positions) }
    }
}
