//! The facts that a report is made from.

use bundle::{Manifest, ModelConfig};
use plan::Plan;
use serde::{Deserialize, Serialize};

use facts::environment::Environment;
use facts::evidence::Evidence;

/// One measured comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub environment: Environment,
    pub plan: Plan,
    pub model: Prepared,
    pub evidence: Evidence,
    /// Directory that holds every sample.
    pub results: String,
}

/// The prepared model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    pub name: String,
    pub architecture: String,
    /// Directory of the bundle.
    pub bundle: String,
    pub manifest: Manifest,
    /// The model's shapes.
    pub config: ModelConfig,
    /// Number of its parameters; `null` for an ONNX file.
    #[serde(default)]
    pub parameters: Option<u64>,
}

impl Prepared {
    /// The part of a bundle that a report keeps.
    pub fn new(bundle: &bundle::Bundle) -> Prepared {
        Prepared {
            name: bundle.manifest().name.clone(),
            architecture: format!("{:?}", bundle.config().architecture).to_lowercase(),
            bundle: bundle.directory().display().to_string(),
            manifest: bundle.manifest().clone(),
            config: bundle.config().clone(),
            parameters: parameters(bundle.config()),
        }
    }
}

fn parameters(config: &ModelConfig) -> Option<u64> {
    if config.graph.is_some() {
        return None;
    }
    let count = |shape: &[usize]| shape.iter().map(|&size| size as u64).product::<u64>();
    Some(config.tensors().iter().map(|tensor| count(&tensor.shape)).sum())
}
