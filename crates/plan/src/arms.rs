//! What a comparison may be asked beyond what can be typed: its sides, and what they are compared for.

use std::path::PathBuf;

use bundle::Precision;
use configs::Engine;
use protocol::KvCache;
use serde::{Deserialize, Serialize};

/// What a study asks of a comparison beyond what can be typed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StudySettings {
    /// "sweep forward"; empty outside a study.
    pub name: String,
    /// The contenders, where they are not simply the frameworks: the sides of an A/B comparison.
    pub arms: Vec<Arm>,
    /// Ids of the fairness rules whose subject is what is compared: departures are noted and strike nobody.
    pub varied: Vec<String>,
    /// Warm-up is exactly as many iterations as are measured.
    pub equal_warmup: bool,
    /// Also score the bundled text: perplexity and agreement with f32.
    pub text: bool,
    /// What the suite that named the study shows and what it does not.
    pub analysis: String,
    /// Why this comparison makes no sense.
    pub refused: Option<String>,
}

impl StudySettings {
    /// Whether nothing is asked for.
    pub fn is_default(&self) -> bool {
        *self == StudySettings::default()
    }
}

/// One side of an A/B comparison: an engine, and what is fixed of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Arm {
    pub label: String,
    /// A name from configs/engines.
    pub engine: String,
    pub precision: Option<Precision>,
    pub jit: Option<bool>,
    pub kv_cache: Option<KvCache>,
    /// Directory of another build's workers.
    pub workers: Option<PathBuf>,
}

impl Arm {
    /// The engine of this side, whose worker may be another build's. It then goes by the side's label: it is not the
    /// same as this program's own.
    pub fn built(&self, engine: Engine) -> Engine {
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
