//! libtorch's errors.

use engine::EngineError;
use tch::TchError;

/// Drops the C++ stack trace that follows libtorch's message.
pub(crate) fn framework(error: TchError) -> EngineError {
    let text = match error {
        TchError::Torch(text) => text,
        other => other.to_string(),
    };
    EngineError::Framework(text.lines().next().unwrap_or("libtorch gave no reason").to_owned())
}
