//! Checks of every engine before it computes: the model's features and the caller's input.

use bundle::{Feature, ModelConfig};

use crate::EngineError;

/// The checks that every engine's `begin` starts with.
pub fn check_begin(config: &ModelConfig, batch: usize, capacity: usize) -> Result<(), EngineError> {
    if batch == 0 || capacity == 0 {
        return Err(EngineError::Input(format!(
            "a batch of {batch} with room for {capacity} tokens is empty"
        )));
    }
    if capacity > config.max_positions {
        let context = config.max_positions;
        let text = format!("{capacity} tokens do not fit the model's context of {context} tokens");
        return Err(EngineError::Input(text));
    }
    Ok(())
}

/// The error of an engine without bidirectional attention for such a model.
pub fn check_causal(config: &ModelConfig, framework: &str) -> Result<(), EngineError> {
    if config.causal {
        return Ok(());
    }
    let text = format!(
        "masked diffusion attends both ways, and {framework} is driven here with causal attention alone"
    );
    Err(EngineError::Unsupported(text))
}

/// For a framework that computes only the `known` features of models: it must not ignore the others.
pub fn check_features(config: &ModelConfig, framework: &str, known: &[Feature]) -> Result<(), EngineError> {
    match config.beyond(known) {
        None => Ok(()),
        Some(words) => {
            let text = format!("the model has {words}, which {framework} does not compute here");
            Err(EngineError::Unsupported(text))
        }
    }
}

/// For a framework without sliding windows: contexts that fit in one need none.
pub fn check_window(config: &ModelConfig, framework: &str, capacity: usize) -> Result<(), EngineError> {
    match config.form.window {
        Some(window) if capacity > window => Err(EngineError::Unsupported(format!(
            "{capacity} tokens are more than the model's sliding window of {window}, which {framework} does not \
             compute here"
        ))),
        _ => Ok(()),
    }
}

/// The checks that every engine's `append` starts with. `filled` of `capacity` positions are taken.
/// Returns the number of positions that are appended.
pub fn check_append(
    config: &ModelConfig,
    tokens: &[u32],
    batch: usize,
    filled: usize,
    capacity: usize,
) -> Result<usize, EngineError> {
    if batch == 0 {
        return Err(EngineError::Input("append before begin".into()));
    }
    if tokens.is_empty() || !tokens.len().is_multiple_of(batch) {
        let count = tokens.len();
        return Err(EngineError::Input(format!("{count} tokens do not divide over a batch of {batch}")));
    }
    let count = tokens.len() / batch;
    if filled > 0 && !config.causal {
        let text = "this model attends both ways: a whole sequence is appended in one piece, after begin";
        return Err(EngineError::Input(text.into()));
    }
    if filled + count > capacity {
        let text = format!("{filled} + {count} tokens exceed the KV cache's capacity of {capacity}");
        return Err(EngineError::Input(text));
    }
    check_vocabulary(config, tokens)?;
    Ok(count)
}

/// The checks that every engine's `append_each` starts with; `filled` positions of the sequences are taken.
/// Returns the longest length.
pub fn check_append_each(
    config: &ModelConfig,
    (tokens, lengths): (&[u32], &[usize]),
    (batch, filled, capacity): (usize, usize, usize),
) -> Result<usize, EngineError> {
    let input = |text: String| Err(EngineError::Input(text));
    if batch == 0 || filled > 0 {
        return input("prompts of different lengths come right after begin, in one piece".into());
    }
    if !config.causal {
        return input("this model attends both ways: its sequences have one length".into());
    }
    if lengths.len() != batch || lengths.contains(&0) || lengths.iter().sum::<usize>() != tokens.len() {
        let count = tokens.len();
        return input(format!(
            "{count} tokens are not sequences of {lengths:?} tokens in a batch of {batch}"
        ));
    }
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if longest > capacity {
        return input(format!("{longest} tokens exceed the KV cache's capacity of {capacity}"));
    }
    check_vocabulary(config, tokens)?;
    Ok(longest)
}

fn check_vocabulary(config: &ModelConfig, tokens: &[u32]) -> Result<(), EngineError> {
    match tokens.iter().find(|&&token| token as usize >= config.vocab_size) {
        None => Ok(()),
        Some(token) => {
            let vocabulary = config.vocab_size;
            let text = format!("token id {token} is outside the vocabulary of {vocabulary} tokens");
            Err(EngineError::Input(text))
        }
    }
}
