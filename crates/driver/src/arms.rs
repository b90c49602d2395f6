//! What a comparison may be asked beyond what can be typed: its sides, and what they are compared for.

use std::path::PathBuf;

use bundle::Precision;
use protocol::KvCache;

use crate::configs::Engine;

/// What a study asks of a comparison beyond what can be typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Study {
    /// "sweep forward"; empty outside a study.
    pub(crate) name: String,
    /// The contenders, where they are not simply the frameworks: the sides of an A/B comparison.
    pub(crate) arms: Vec<Arm>,
    /// Ids of the fairness rules whose subject is what is compared: departures are noted and strike nobody.
    pub(crate) varied: &'static [&'static str],
    /// Warm-up is exactly as many iterations as are measured.
    pub(crate) equal_warmup: bool,
    /// Also score the bundled text: perplexity and agreement with f32.
    pub(crate) text: bool,
    /// What the suite that named the study shows and what it does not.
    pub(crate) analysis: String,
    /// Why this comparison makes no sense.
    pub(crate) refused: Option<String>,
    /// The command that repeats this comparison, where that is not the one that was typed.
    pub(crate) command: Vec<String>,
}

/// One side of an A/B comparison: an engine, and what is fixed of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arm {
    pub(crate) label: String,
    /// A name from configs/engines.
    pub(crate) engine: String,
    pub(crate) precision: Option<Precision>,
    pub(crate) jit: Option<bool>,
    pub(crate) kv_cache: Option<KvCache>,
    /// Directory of another build's workers.
    pub(crate) workers: Option<PathBuf>,
}

impl Arm {
    /// The engine of this side, whose worker may be another build's. It then goes by the side's label: it is not the
    /// same as the driver's own.
    pub(crate) fn built(&self, engine: Engine) -> Engine {
        match &self.workers {
            None => engine,
            Some(directory) => Engine {
                name: self.label.clone(),
                worker: directory.join(&engine.worker).display().to_string(),
                ..engine
            },
        }
    }
}
