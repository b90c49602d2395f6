//! The files that a model consists of, from the hub or from anybody's disk.

use std::path::Path;

use bundle::{Manifest, ModelConfig, Precision};
use plan::prompts::Text;
use prepare::held::{self, Held};

use crate::{Outcome, sentence};

/// Texts that a tokenizer is tried with.
const TEXTS: [&str; 4] = ["", "The quick brown fox, 1234 times", " \u{0}\u{7f}\n\t\r", "Größe 東京 👩‍👧 ﷽"];

/// What the weights of the target `safetensors` are held against.
const CONFIG: &str = include_str!("../scene/config.json");

pub(crate) fn gguf(input: &[u8]) -> Outcome {
    accepted(&held::gguf(input.to_vec()).map_err(sentence)?);
    Ok(())
}

pub(crate) fn safetensors(input: &[u8]) -> Outcome {
    let held = held::huggingface(CONFIG.as_bytes().to_vec(), input.to_vec(), None).map_err(sentence)?;
    accepted(&held);
    Ok(())
}

/// What a bundle is made of: the configuration is read back as it was, and there are weights at every precision that
/// has no condition on shapes.
fn accepted(held: &Held) {
    let value = serde_json::from_slice(&held.config_json).expect("config.json is JSON");
    let config = ModelConfig::from_json(&value).expect("config.json is read back");
    assert_eq!(config, held.config);
    assert!(Precision::ALL[..3].iter().all(|precision| held.weights.contains_key(precision)));
    if let Ok(tokenizer) = &held.tokenizer {
        // It may still be refused, in a sentence.
        let _ = self::tokenizer(tokenizer);
    }
}

pub(crate) fn index(input: &[u8]) -> Outcome {
    let names = held::index(input.to_vec()).map_err(sentence)?;
    for name in names {
        assert_eq!(Path::new(&name).file_name(), Some(name.as_ref()), "it leads out of its directory");
    }
    Ok(())
}

pub(crate) fn config(input: &[u8]) -> Outcome {
    let value = serde_json::from_slice(input).map_err(|error| format!("it does not parse: {error}"))?;
    let config = ModelConfig::from_json(&value).map_err(sentence)?;
    let written = serde_json::to_string(&config).expect("a configuration is plain data");
    assert_eq!(serde_json::from_str::<ModelConfig>(&written).expect("it is read back"), config);
    // What is computed from it before any weights are seen must neither overflow nor take memory.
    let parts: Vec<Vec<_>> =
        Precision::ALL.into_iter().filter_map(|precision| config.stored(precision).ok()).collect();
    for part in parts {
        part.iter().map(|tensor| tensor.bytes()).sum::<u64>();
    }
    assert!(config.described().is_object());
    Ok(())
}

pub(crate) fn tokenizer(input: &[u8]) -> Outcome {
    let text = Text::parse(Path::new("tokenizer.json"), input).map_err(sentence)?;
    for sample in TEXTS {
        let tokens = text.encode(sample).map_err(sentence)?;
        // Whether ids are in the vocabulary is asked of the model, which need not have this tokenizer's.
        text.decode(&tokens).map_err(sentence)?;
    }
    Ok(())
}

pub(crate) fn manifest(input: &[u8]) -> Outcome {
    let manifest = Manifest::parse(Path::new("bundle"), crate::text(input)?).map_err(sentence)?;
    let written = serde_json::to_string(&manifest).expect("a manifest is plain data");
    assert_eq!(Manifest::parse(Path::new("bundle"), &written).expect("it is read back"), manifest);
    Ok(())
}
