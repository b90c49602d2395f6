//! The engines and models for studies.

use configs::Engine;
use plan::{Engines, Result};

use crate::places::Places;
use crate::provision;

impl Engines for Places {
    fn engine(&self, name: &str) -> Result<Engine> {
        Ok(configs::engine(&self.configs, name)?)
    }

    fn selected(&self, names: &[String]) -> Result<Vec<Engine>> {
        Ok(configs::selected(&self.configs, names)?)
    }

    fn encodes(&self, model: &str) -> Result<bool> {
        provision::encodes(self, model)
    }
}
