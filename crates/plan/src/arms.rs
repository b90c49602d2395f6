//! Parts of a comparison that cannot be typed: its sides, and its purpose.

use std::path::PathBuf;

use bundle::Precision;
use configs::{Engine, Published};
use protocol::KvCache;
use serde::{Deserialize, Serialize};

use crate::Switch;

/// Settings of a comparison that only a study can make.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StudySettings {
    /// Name of the study, as in "sweep forward"; empty outside a study.
    pub name: String,
    /// The contenders, if they are not simply the frameworks: the sides of an A/B comparison.
    pub arms: Vec<Arm>,
    /// The switches that the arms cross; in a request as typed, the named ones. Empty outside `ab optimised`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crossed: Vec<Switch>,
    /// Ids of the fairness rules that the comparison itself varies. Departures from these are noted and
    /// exclude no row.
    pub varied: Vec<String>,
    /// Whether warm-up has exactly as many iterations as the measurement.
    pub equal_warmup: bool,
    /// Whether quality is judged too: perplexity of the bundled text and agreement with f32; for encoders,
    /// the search results of the bundled queries.
    pub text: bool,
    /// The analysis of the suite that named the study: its conclusions and their limits.
    pub analysis: String,
    /// Published figures shown next to those of the study.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<Published>,
    /// The reason why this comparison makes no sense, if there is one.
    pub refused: Option<String>,
}

impl StudySettings {
    /// Whether the study asks for nothing special.
    pub fn is_default(&self) -> bool {
        *self == StudySettings::default()
    }

    /// The name of a crossed switch in outputs: "cache", "JIT", "bf16", "fused".
    pub fn title(&self, switch: Switch) -> &'static str {
        let on = self.arms.iter().find(|arm| arm.on.contains(&switch));
        switch.title(on.and_then(|arm| arm.precision))
    }
}

/// One side of an A/B comparison: an engine, and the settings fixed for it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Arm {
    pub label: String,
    /// A name from configs/engines.
    pub engine: String,
    pub precision: Option<Precision>,
    pub jit: Option<bool>,
    pub kv_cache: Option<KvCache>,
    /// The crossed switches that are on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<Switch>,
    /// Directory of the workers of another build.
    pub workers: Option<PathBuf>,
    /// A number of threads other than the budget's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<ThreadsAsked>,
    /// Whether every request loads the model again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub anew: bool,
}

/// A number of threads other than the budget's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadsAsked {
    /// The framework's own default, on all CPUs.
    Default,
    /// Two for each thread of the budget, on the budget's CPUs.
    Twice,
}

impl ThreadsAsked {
    /// The number that replaces the budget; 0 is the framework's own.
    pub(crate) fn of_budget(self, budget: usize) -> usize {
        match self {
            ThreadsAsked::Default => 0,
            ThreadsAsked::Twice => 2 * budget,
        }
    }
}

impl Arm {
    /// This side with keys and values kept, or computed again.
    pub(crate) fn keeping(self, cache: KvCache) -> Arm {
        Arm { kv_cache: Some(cache), ..self }
    }

    /// Whether this side keeps keys and values; without a setting of its own, `usual`.
    pub(crate) fn keeps(&self, usual: KvCache) -> KvCache {
        self.kv_cache.unwrap_or(usual)
    }

    /// The engine of this side. If its worker is from another build, it is named by the side's label, because
    /// it is not this program's own engine.
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
