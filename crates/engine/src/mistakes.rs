//! Options of the variants that make a common mistake, so that its cost can be measured. Every engine parses
//! and rejects them in the same way.

use bundle::{ModelConfig, Precision};

use crate::{EngineError, Padding, Settings};

impl Settings {
    /// Whether the KV cache grows (`cache = "growing"`): nothing is preallocated, and every append copies all keys and
    /// values into new memory.
    pub fn grows_cache(&self, config: &ModelConfig) -> Result<bool, EngineError> {
        let grows = self.is_chosen("cache", "growing")?;
        let keeps_none = !config.causal || config.encoder.is_some() || config.graph.is_some();
        if grows && keeps_none {
            let text =
                "option cache is for models that continue texts, and this one keeps no keys and values";
            return Err(EngineError::Input(text.into()));
        }
        Ok(grows)
    }

    /// Whether weights of 16 bits are converted to f32 again for every product (`weights = "converted"`).
    pub fn converts_weights(&self) -> Result<bool, EngineError> {
        let converts = self.is_chosen("weights", "converted")?;
        if converts && !matches!(self.precision, Precision::Bf16 | Precision::F16) {
            let text = format!(
                "option weights is for bf16 and f16: there is nothing to convert at {}",
                self.precision
            );
            return Err(EngineError::Unsupported(text));
        }
        Ok(converts)
    }

    /// The length that an encoder's texts are padded to (`padded`: true, false or a number of tokens), if
    /// they are.
    pub fn padding(&self, config: &ModelConfig) -> Result<Option<Padding>, EngineError> {
        let padding = match self.options.get("padded").map(String::as_str) {
            None | Some("false") => return Ok(None),
            Some("true") => Padding::Longest,
            Some(number) => match number.parse() {
                Ok(tokens) if tokens > 0 => Padding::To(config.max_positions.min(tokens)),
                _ => {
                    let text = format!("option padded is {number:?}, not true, false or a number of tokens");
                    return Err(EngineError::Input(text));
                }
            },
        };
        if config.encoder.is_none() {
            let text = "option padded is for encoders, and the model is none";
            return Err(EngineError::Input(text.into()));
        }
        Ok(Some(padding))
    }

    /// Whether an option with one permitted value is set to it.
    fn is_chosen(&self, name: &str, value: &str) -> Result<bool, EngineError> {
        match self.options.get(name) {
            None => Ok(false),
            Some(chosen) if chosen == value => Ok(true),
            Some(other) => Err(EngineError::Input(format!("option {name} is {other:?}, not {value}"))),
        }
    }
}

/// Why a growing cache does not support prompts of different lengths.
pub fn no_place_for_padding() -> EngineError {
    let reason = "a cache that grows has no place for padding: prompts of different lengths need another";
    EngineError::Unsupported(reason.into())
}
