//! Switches: optimisations of a contender that can be left out, one by one or together.

use bundle::Precision;
use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// A switch that `ab optimised` crosses with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, VariantArray)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// The KV cache.
    Cache,
    /// The JIT, or graph optimisation.
    Jit,
    /// A reduced precision instead of f32.
    Precision,
    /// Fused kernels.
    Fused,
}

impl Switch {
    /// The switch with this name.
    pub fn named(name: &str) -> Option<Switch> {
        Switch::VARIANTS.iter().copied().find(|switch| switch.name() == name)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Switch::Cache => "cache",
            Switch::Jit => "jit",
            Switch::Precision => "precision",
            Switch::Fused => "fused",
        }
    }

    /// Id of the fairness rule that it varies.
    pub(crate) fn rule(self) -> &'static str {
        match self {
            Switch::Cache => "R13",
            Switch::Precision => "R2",
            Switch::Jit | Switch::Fused => "R14",
        }
    }

    /// Its name in outputs; `reduced` is the precision that it switches on.
    pub(crate) fn title(self, reduced: Option<Precision>) -> &'static str {
        match self {
            Switch::Jit => "JIT",
            Switch::Precision => reduced.map_or("precision", Precision::name),
            Switch::Cache | Switch::Fused => self.name(),
        }
    }
}
