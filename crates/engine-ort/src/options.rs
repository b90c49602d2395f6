//! The options of this engine's variants (`configs/engines/ort-*.toml`).

use std::path::{Path, PathBuf};

use bundle::ModelConfig;
use engine::{Device, EngineError, Padding, Settings};
use ort::session::builder::GraphOptimizationLevel;

/// Names of options.
const OPTIMIZATION: &str = "optimization";
const PROFILE: &str = "profile";
const SPINNING: &str = "spinning";

/// How much ONNX Runtime may rewrite the graph
/// (<https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Optimization {
    /// The graph runs unchanged.
    Off,
    /// Constant folding, removal of nodes without effect, and other changes for all devices.
    Basic,
    /// Also fuses operators for the device.
    Extended,
    /// Also changes the layout for this machine.
    All,
}

impl Optimization {
    pub(crate) const EACH: [Optimization; 4] =
        [Optimization::Off, Optimization::Basic, Optimization::Extended, Optimization::All];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Optimization::Off => "off",
            Optimization::Basic => "basic",
            Optimization::Extended => "extended",
            Optimization::All => "all",
        }
    }

    pub(crate) fn level(self) -> GraphOptimizationLevel {
        match self {
            Optimization::Off => GraphOptimizationLevel::Disable,
            Optimization::Basic => GraphOptimizationLevel::Level1,
            Optimization::Extended => GraphOptimizationLevel::Level2,
            Optimization::All => GraphOptimizationLevel::All,
        }
    }

    /// Whether nodes that have only constant inputs are computed while loading.
    pub(crate) fn folds_constants(self) -> bool {
        self != Optimization::Off
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) optimization: Optimization,
    /// The length to which an encoder pads texts in all layers, as most users do.
    pub(crate) padding: Option<Padding>,
    /// Whether every append copies keys and values into new memory.
    pub(crate) grows: bool,
    /// Whether every run casts 16-bit weights to f32.
    pub(crate) converts: bool,
    /// File for ONNX Runtime's profile: JSON in Chrome's trace format, with one event per node and run.
    pub(crate) profile: Option<PathBuf>,
    /// Whether threads sleep as soon as a run ends, for code that computes between runs.
    pub(crate) spins_within_runs_alone: bool,
}

/// Requests a profile in `directory`, unless the variant names a file.
pub(crate) fn with_profile(mut settings: Settings, directory: &Path) -> Settings {
    let file = || directory.join("onnxruntime.json").display().to_string();
    settings.options.entry(PROFILE.into()).or_insert_with(file);
    settings
}

impl Options {
    /// If the settings switch optimisation off, the level is off even if the option names another.
    pub(crate) fn from_settings(settings: &Settings, config: &ModelConfig) -> Result<Options, EngineError> {
        settings.check_options(&["cache", OPTIMIZATION, "padded", PROFILE, SPINNING, "weights"])?;
        let named = settings.options.get(OPTIMIZATION).map_or(Optimization::All.name(), String::as_str);
        let Some(optimization) = Optimization::EACH.into_iter().find(|level| level.name() == named) else {
            let names = Optimization::EACH.map(Optimization::name).join(", ");
            let text = format!("option {OPTIMIZATION} is {named:?}, not one of {names}");
            return Err(EngineError::Input(text));
        };
        let spins_within_runs_alone = match settings.options.get(SPINNING).map(String::as_str) {
            None => false,
            Some("within-runs") => true,
            Some(other) => {
                let text = format!("option {SPINNING} is {other:?}, not within-runs");
                return Err(EngineError::Input(text));
            }
        };
        let optimization = if settings.jit { optimization } else { Optimization::Off };
        let profile = settings.options.get(PROFILE).map(PathBuf::from);
        let (padding, grows) = (settings.padding(config)?, settings.grows_cache(config)?);
        let converts = settings.converts_weights()?;
        if settings.device != Device::Cpu && (grows || converts) {
            let text = "the options cache and weights are for ONNX Runtime on a CPU here";
            return Err(EngineError::Unsupported(text.into()));
        }
        Ok(Options { optimization, padding, grows, converts, profile, spins_within_runs_alone })
    }
}
