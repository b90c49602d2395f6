//! The facts that a report is made from.

use bundle::{Manifest, ModelConfig};
use plan::Plan;
use serde::{Deserialize, Serialize};

use facts::environment::Environment;
use facts::evidence::Evidence;

/// One comparison as it was measured.
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
        }
    }
}
