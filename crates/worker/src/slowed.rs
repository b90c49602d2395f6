//! A positive control: an engine made slower by a known share, which a comparison must find.

use std::path::Path;

use engine::{
    Bundle, EngineError, HandedOver, HiddenStates, Hybrid, InEffect, InferenceEngine, Profile, Runtime,
    Settings, Want,
};

use crate::clock;

/// The largest slowdown that is taken: eleven times the time. What asks for more is a mistake of units.
const LARGEST: f64 = 10.0;

/// Any engine, whose every `append` lasts longer by a share of its own time. The answers are its own.
pub(crate) struct Slowed<E> {
    engine: E,
    share: f64,
}

impl<E> Slowed<E> {
    pub(crate) fn new(engine: E, share: f64) -> Slowed<E> {
        Slowed { engine, share }
    }
}

/// The slowdown that a job asks for: a share from 0 to 10.
pub(crate) fn check(share: f64) -> Result<f64, EngineError> {
    if (0.0..=LARGEST).contains(&share) {
        return Ok(share);
    }
    Err(EngineError::Input(format!(
        "settings.slowdown is {share}: give a share of the time from 0 to {LARGEST}"
    )))
}

impl<E: InferenceEngine> InferenceEngine for Slowed<E> {
    const FRAMEWORK: &'static str = E::FRAMEWORK;

    fn runtime() -> Result<Runtime, EngineError> {
        E::runtime()
    }

    /// Slowed by nothing: loading is not slowed, and its settings do not say by how much to slow the rest.
    fn load(bundle: &Bundle, settings: &Settings) -> Result<Self, EngineError> {
        E::load(bundle, settings).map(|engine| Slowed::new(engine, 0.0))
    }

    fn in_effect(&self) -> InEffect {
        let mut observed = self.engine.in_effect();
        let percent = (self.share * 1e4).round() / 1e2;
        observed.kernels.push(format!("slowed by {percent} % (positive control)"));
        observed
    }

    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        self.engine.begin(batch, capacity)
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        let before = clock::now_ns();
        let logits = self.engine.append(tokens, want)?;
        let own = clock::now_ns() - before;
        clock::wait_until(before + own + (own as f64 * self.share) as u64);
        Ok(logits)
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        self.engine.kv_cache_bytes()
    }

    fn gpu_allocated_bytes(&self) -> Option<u64> {
        self.engine.gpu_allocated_bytes()
    }

    fn hybrid(&self) -> Option<Hybrid> {
        self.engine.hybrid()
    }

    fn hand_over(&mut self) -> Result<Option<HandedOver>, EngineError> {
        self.engine.hand_over()
    }

    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        self.engine.hidden_states()
    }

    fn profiled(settings: Settings, directory: &Path) -> Settings {
        E::profiled(settings, directory)
    }

    fn begin_profile(&mut self) -> Result<(), EngineError> {
        self.engine.begin_profile()
    }

    fn end_profile(&mut self) -> Result<Profile, EngineError> {
        self.engine.end_profile()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowdown_is_a_share_of_the_time() {
        for share in [0.0, 0.05, 10.0] {
            assert_eq!(check(share).unwrap(), share);
        }
        for share in [-0.1, f64::NAN, f64::INFINITY, 10.5] {
            assert!(check(share).unwrap_err().to_string().contains("slowdown"), "{share} is refused");
        }
    }
}
